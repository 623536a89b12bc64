"""Files of token ids that others have made: headerless little-endian uint16 or uint32, or numpy's own format.

Documents are joined by the end of text of the tokenizer that made them. They are taken as they are: nothing is
decoded, but every id is checked.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spes_peer.errors import BadConfiguration
from spes_peer.run.data import TOKEN_BYTES, TokenDtype, Tokenizer

CHUNK_TOKENS = 1 << 20
_NUMPY_MAGIC = b"\x93NUMPY"
_NO_HEADER = (TypeError, ArithmeticError, MemoryError, RecursionError)
"""What numpy lets through of its parser and of impossible shapes, besides `ValueError`."""
_LOOK_TOKENS = 1 << 26  # a file with no end of text in so many is taken for another tokenizer's

TokenRow = NDArray[np.unsignedinteger[Any]]


def open_memmap(path: Path, dtype: TokenDtype, tokenizer: Tokenizer) -> TokenRow:
    """The file's token ids, mapped. `BadConfiguration` where it cannot hold such ids."""
    try:
        with path.open("rb") as file:
            has_header = file.read(len(_NUMPY_MAGIC)) == _NUMPY_MAGIC
        size_bytes = path.stat().st_size
        if not size_bytes:
            return np.empty(0, dtype=dtype)
        row: TokenRow = np.load(path, mmap_mode="r", allow_pickle=False) if has_header else _mapped(path, dtype)
    except (OSError, ValueError, *_NO_HEADER) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise BadConfiguration(f"cannot read {path}: {why}") from None
    if row.ndim != 1 or row.dtype != np.dtype(dtype).newbyteorder("<"):
        raise BadConfiguration(f"{path} holds {row.ndim} dimensions of {row.dtype}, not a row of {dtype}")
    if not _has_end(row, tokenizer.end_of_text):
        raise BadConfiguration(
            f"{path} has no end of text (id {tokenizer.end_of_text}): another tokenizer made it, or its ids are not"
            f" {dtype}; name its tokenizer and --end-of-text"
        )
    return row


def _mapped(path: Path, dtype: TokenDtype) -> TokenRow:
    if path.stat().st_size % TOKEN_BYTES[dtype]:
        raise BadConfiguration(f"the size of {path} is not a multiple of {TOKEN_BYTES[dtype]}: its ids are not {dtype}")
    return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")


def _has_end(row: TokenRow, end_of_text: int) -> bool:
    starts = range(0, min(row.size, _LOOK_TOKENS), CHUNK_TOKENS)
    return any((row[start : start + CHUNK_TOKENS] == end_of_text).any() for start in starts)


def chunks(
    row: TokenRow, path: Path, tokenizer: Tokenizer, start: int, chunk_tokens: int = CHUNK_TOKENS
) -> Iterator[tuple[int, TokenRow, bool]]:
    """Where each chunk ends, its ids, and whether a document starts with it: whole documents, and larger ones in parts.

    An end of text is added where the last document of the file lacks one. `BadConfiguration` for an id that the
    tokenizer does not have."""
    end_of_text = np.array([tokenizer.end_of_text], dtype=row.dtype)
    while start < row.size:
        chunk = np.array(row[start : start + chunk_tokens])
        if (highest := int(chunk.max())) >= tokenizer.num_ids:
            raise BadConfiguration(
                f"{path} holds token id {highest}, and {tokenizer.name} has {tokenizer.num_ids} ids: another tokenizer"
                f" made it, or its ids are not {row.dtype}"
            )
        ends = np.flatnonzero(chunk == tokenizer.end_of_text)
        if ends.size:
            chunk = chunk[: ends[-1] + 1]
        begins = start == 0 or row[start - 1] == tokenizer.end_of_text
        start += chunk.size
        is_open = start == row.size and not ends.size
        yield start, np.concatenate([chunk, end_of_text]) if is_open else chunk, bool(begins)
