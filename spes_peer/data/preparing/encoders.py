"""Texts to token ids: bytes, or what the library `tokenizers` makes of a tokenizer.json.

Names of special tokens that stand in a text are text: no document can say that it ends. Nothing is added but one end
of text behind each document.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spes_peer.blobs import BlobStore
from spes_peer.data import library
from spes_peer.errors import BadConfiguration, SpesError
from spes_peer.run.data import MAX_TOKENIZER_BYTES, TokenDtype, Tokenizer

USUAL_ENDS = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<EOS>", "<|end▁of▁sentence|>",
)  # fmt: skip
"""What tokenizers call the end of a text, where no file beside them says."""
_ALL_AT_ONCE_BYTES = 1 << 19

TokenIds = NDArray[np.unsignedinteger]


class TextRefused(SpesError):
    """`TextRefused(place, why)`: of several texts the tokenizer cannot encode the one at `place`."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(place, why)
        self.place, self.why = place, why


class Encoder(Protocol):
    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text, without an end. `TextRefused` for the first that has none."""

    def decode(self, tokens: Sequence[int]) -> str:
        """`BadConfiguration` where the tokenizer cannot."""


class BytesEncoder:
    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token if token < 256 else 0x0A for token in tokens).decode(errors="replace")


class JsonEncoder:
    """One thread: there is a process for each core."""

    def __init__(self, path: Path, dtype: TokenDtype) -> None:
        self._tokenizer = load(path)
        self._dtype = np.dtype(dtype)

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """A few at a time: what the library makes of a text is a hundred times as large as its ids."""
        ids: list[TokenIds] = []
        start, num_bytes = 0, 0
        for end, text in enumerate(texts, 1):
            num_bytes += len(text)
            if num_bytes >= _ALL_AT_ONCE_BYTES or end == len(texts):
                ids += self._some(texts[start:end], start)
                start, num_bytes = end, 0
        return ids

    def _some(self, texts: Sequence[str], start: int) -> list[TokenIds]:
        try:
            return self._at_once(texts)
        except BadConfiguration as error:
            raise TextRefused(start + self._first_refused(texts), str(error)) from None

    def _at_once(self, texts: Sequence[str]) -> list[TokenIds]:
        with library.failing_plainly("the tokenizer cannot encode it"):
            made = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(one.ids, dtype=self._dtype) for one in made]

    def _first_refused(self, texts: Sequence[str]) -> int:
        for place, text in enumerate(texts):
            try:
                self._at_once([text])
            except BadConfiguration:
                return place
        return 0  # each alone is encoded: one of them is at fault

    def decode(self, tokens: Sequence[int]) -> str:
        with library.failing_plainly("the tokenizer cannot write these ids as text"):
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def encoder_of(tokenizer: Tokenizer, dtype: TokenDtype, blobs: BlobStore) -> Encoder:
    """`tokenizer`, whose file is among `blobs`."""
    return BytesEncoder() if tokenizer.kind == "bytes" else JsonEncoder(blobs.path(tokenizer.blob), dtype)


def dtype_of(tokenizer: Tokenizer) -> TokenDtype:
    """The narrower one that holds all its ids."""
    return "uint16" if tokenizer.num_ids <= 1 << 16 else "uint32"


def read(path: Path) -> bytes:
    """A tokenizer.json as it is; `BadConfiguration` where it is none that can be read."""
    try:
        if path.exists() and not path.is_file():
            raise BadConfiguration(f"{path} is no file; name a tokenizer.json")
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise BadConfiguration(f"{path} is larger than a tokenizer may be ({MAX_TOKENIZER_BYTES >> 20} MiB)")
        return path.read_bytes()
    except OSError as error:
        raise BadConfiguration(f"cannot read the tokenizer {path}: {error.strerror}") from None


def load(path: Path, content: bytes | None = None) -> Any:
    """A `tokenizers.Tokenizer` to which names of special tokens are text, of what the file holds or `content` is;
    `BadConfiguration` where there is none in it."""
    tokenizer = library.load(read(path) if content is None else content, path)
    tokenizer.encode_special_tokens = True
    return tokenizer


@dataclass(frozen=True)
class Special:
    """What a tokenizer's file says of its tokens."""

    num_ids: int
    ids: dict[str, int]
    """Of its special tokens."""
    said_end: str = ""
    """What a file beside it calls the end of a text."""


def described(path: Path, end_of_text: str = "", content: bytes | None = None) -> Tokenizer:
    """The manifest's section for a tokenizer.json, or for its `content`, without its blob. `end_of_text` is the token
    that a person named; else it must be found. `BadConfiguration` where that is not clear."""
    tokenizer = load(path, content)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    special = Special(
        num_ids=max(vocabulary.values(), default=0) + 1,
        ids={token.content: number for number, token in added.items() if token.special},
        said_end=_said_beside(path),
    )
    named = end_of_text or end_among(special, path.name)
    if named not in vocabulary:
        raise BadConfiguration(f"{path.name} has no token {named!r}; its special tokens: {_listed(special)}")
    name = path.stem if path.stem != "tokenizer" else path.resolve().parent.name or path.stem
    return Tokenizer.model_construct(
        kind="json", name=name[:100], num_ids=special.num_ids, end_of_text=vocabulary[named]
    )


def end_among(special: Special, name: str) -> str:
    """The token that ends a text: what the file beside the tokenizer says, or the only one with a usual name."""
    if special.said_end in special.ids:
        return special.said_end
    usual = [token for token in USUAL_ENDS if token in special.ids]
    if len(usual) == 1:
        return usual[0]
    found = f"it has {' and '.join(usual)}" if usual else f"its special tokens: {_listed(special)}"
    raise BadConfiguration(f"which token of {name} ends a text? {found}; say it with --end-of-text TOKEN")


def _listed(special: Special) -> str:
    return ", ".join(list(special.ids)[:20]) or "none"


def _said_beside(path: Path) -> str:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            said = json.loads((path.parent / name).read_bytes())["eos_token"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        said = said.get("content") if isinstance(said, dict) else said
        if isinstance(said, str) and path.name == "tokenizer.json":
            return said
    return ""
