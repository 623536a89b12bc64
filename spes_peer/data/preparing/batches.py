"""A source's files as batches: of records, which are to be tokenized, or of token ids that others have made."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from spes_peer.data.preparing.documents import DOCUMENTS, TROUBLES, Counts
from spes_peer.data.preparing.sources import SourceRecipe
from spes_peer.data.preparing.workers import BATCH_BYTES, Batch, Encoded, Position
from spes_peer.data.reading.hub import Ahead
from spes_peer.data.reading.inputs import InputFile, records
from spes_peer.data.reading.memmaps import TokenRow, chunks, open_memmap
from spes_peer.data.reading.records import PART_BYTES, Meter, Record
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import TokenDtype, Tokenizer

_BATCH_RECORDS = 4096
_LARGEST_HELD_OUT_TOKENS = PART_BYTES // 4

logger = logging.getLogger(__name__)


def ordered(files: Sequence[InputFile], source: str, seed: int) -> list[InputFile]:
    """In an order that the seed and the names decide, and nothing else."""

    def key(file: InputFile) -> bytes:
        return hashlib.sha256(f"{seed} {source} {file.name}".encode(errors="surrogateescape")).digest()

    return sorted(files, key=key)


def batches(files: Sequence[InputFile], recipe: SourceRecipe, start: Position, is_strict: bool) -> Iterator[Batch]:
    """What is left of `files` from `start` on. Strict: `BadConfiguration` for the first file that is damaged."""
    taken: list[Record] = []
    places: list[tuple[Path, int]] = []
    counts, size, where = Counts(), 0, ""
    bytes_before = sum(file.size_bytes for file in files[: start.file])
    ahead = Ahead(files)
    for index in range(start.file, len(files)):
        file, meter = files[index], Meter()
        ahead.get(index)
        to_skip = start.record if index == start.file else 0
        for number, record in enumerate(records(file, recipe.text_field, recipe.documents, meter), 1):
            if number <= to_skip:
                continue
            where = where or f"{file.path}, record {number}"
            if record.kind in TROUBLES:
                _note_trouble(file, number, record, is_strict)
                counts[record.kind] += 1
            else:
                taken.append(record)
                places.append((file.path, number))
                size += len(record.raw)
            if size >= BATCH_BYTES or len(taken) >= _BATCH_RECORDS:
                yield Batch(taken, Position(index, number), counts, bytes_before + meter.num_bytes, where, places)
                taken, places, counts, size, where = [], [], Counts(), 0, ""
        bytes_before += file.size_bytes
        ahead.done_with(index)
    ahead.close()
    yield Batch(taken, Position(len(files), 0), counts, bytes_before, where, places)


def _note_trouble(file: InputFile, number: int, record: Record, is_strict: bool) -> None:
    said = record.raw.decode(errors="replace")
    what = f"{file.path}: {TROUBLES[record.kind]}, at record {number}{said and f' ({said})'}"
    if is_strict:
        raise BadConfiguration(f"{what}; mend it, or leave --strict away")
    logger.warning("%s", what)


def memmap_batches(
    files: Sequence[InputFile], width: TokenDtype, tokenizer: Tokenizer, dtype: TokenDtype, start: Position
) -> Iterator[tuple[Batch, Encoded]]:
    """The same of memory maps, whose ids need no work."""
    bytes_before = sum(file.size_bytes for file in files[: start.file])
    for index in range(start.file, len(files)):
        file = files[index]
        row = open_memmap(file.path, width, tokenizer)
        first = start.record if index == start.file else 0
        for end, chunk, begins in chunks(row, file.path, tokenizer, first):
            batch = Batch([], Position(index, end), Counts(), bytes_before + end * row.itemsize, str(file.path))
            yield batch, _as_encoded(chunk.astype(dtype, copy=False), begins, tokenizer.end_of_text)
        bytes_before += file.size_bytes


def _as_encoded(tokens: TokenRow, begins: bool, end_of_text: int) -> Encoded:
    ends_at = np.flatnonzero(tokens == end_of_text) + 1
    closes = np.ones(ends_at.size, dtype=np.bool_)
    counts = Counts({DOCUMENTS: int(ends_at.size)})
    if not ends_at.size:  # a part of a large document
        ends_at, closes = np.array([tokens.size]), np.zeros(1, dtype=np.bool_)
    keys = np.zeros(ends_at.size, dtype=np.uint64)
    starts = np.concatenate([[0], ends_at[:-1]])
    for place, (first, end) in enumerate(zip(starts.tolist(), ends_at.tolist(), strict=True)):
        is_whole = (begins or place) and closes[place]
        if is_whole and end - first <= _LARGEST_HELD_OUT_TOKENS:
            keys[place] = _key(tokens[first : end - 1])
    return Encoded(tokens, ends_at.astype(np.int64), keys, closes, counts)


def _key(tokens: TokenRow) -> int:
    content = tokens.astype("<u4").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") or 1
