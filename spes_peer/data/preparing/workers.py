"""Batches of records through many processes, and their token ids back in the order of the batches.

So that nothing of the result depends on how many processes there are, or on which was faster.
"""

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing.documents import Counts, texts
from spes_peer.data.preparing.encoders import Encoder, TextRefused, TokenIds, encoder_of
from spes_peer.data.reading.records import Record
from spes_peer.errors import BadConfiguration, ChildDied
from spes_peer.run.data import TokenDtype, Tokenizer
from spes_peer.tied import end_with_parent

BATCH_BYTES = 1 << 19
_PATIENCE_SECONDS = 5.0  # some twenty times as long as a batch takes
_BYTES_UNDER_WAY = 64 << 20  # what waits for its turn: large documents are few at a time


class Position(NamedTuple):
    """The next record to read."""

    file: int = 0
    """In the order in which the files of the source are read."""
    record: int = 0
    """Of that file. Token ids, for a memory map."""


@dataclass(frozen=True)
class Batch:
    records: list[Record]
    next: Position
    """Behind the last of them."""
    counts: Counts
    """Of what the reader met."""
    num_bytes_read: int
    """Of the source's files, as they lie on disk, up to there."""
    where: str
    """It begins, for a person."""
    places: list[tuple[Path, int]] = field(default_factory=list)
    """Of each of the records: in which file, and the how manieth there."""


class Encoded(NamedTuple):
    """A batch as token ids."""

    tokens: TokenIds
    ends_at: NDArray[np.int64]
    """Where in them each record ends."""
    keys: NDArray[np.uint64]
    """Of each record: hash of a document that may be held out, or 0."""
    closes: NDArray[np.bool_]
    """Whether a document ends with the record."""
    counts: Counts


@dataclass(frozen=True)
class Setup:
    """What every worker knows."""

    tokenizer: Tokenizer
    dtype: TokenDtype
    blobs: Path
    text_field: str

    def encoder(self) -> Encoder:
        return encoder_of(self.tokenizer, self.dtype, BlobStore(self.blobs))


def encode(setup: Setup, encoder: Encoder, records: list[Record]) -> Encoded:
    """One batch, in this process. `TextRefused` names the place of a record."""
    counts = Counts()
    of_records = list(texts(records, setup.text_field, counts))
    try:
        parts = iter(encoder.encode([part for one in of_records for part in one.parts]))
    except TextRefused as error:
        places = [place for place, one in enumerate(of_records) for _ in one.parts]
        raise TextRefused(places[error.place], error.why) from None
    end = np.array([setup.tokenizer.end_of_text], dtype=setup.dtype)
    pieces: list[TokenIds] = [end[:0]]
    ends_at = np.empty(len(of_records), dtype=np.int64)
    size = 0
    for index, one in enumerate(of_records):
        mine = [next(parts) for _ in one.parts]
        if one.is_document and one.ends:
            mine.append(end)
        size += sum(piece.size for piece in mine)
        ends_at[index] = size
        pieces += mine
    keys = np.array([one.key for one in of_records], dtype=np.uint64)
    closes = np.array([one.ends for one in of_records], dtype=np.bool_)
    return Encoded(np.concatenate(pieces).astype(setup.dtype, copy=False), ends_at, keys, closes, counts)


def encoded(batches: Iterable[Batch], setup: Setup, num_workers: int) -> Iterator[tuple[Batch, Encoded]]:
    """Each batch with its token ids, in order; with one worker in this process. `ChildDied` when one was killed,
    `BadConfiguration` for a text that the tokenizer cannot encode."""
    if num_workers == 1:
        encoder = setup.encoder()
        for batch in batches:
            with _naming_the_text(batch, setup.tokenizer):
                made = encode(setup, encoder, batch.records)
            yield batch, made
        return
    with _pool(setup, num_workers) as pool:
        waiting: deque[tuple[Batch, Future[Encoded]]] = deque()
        num_bytes = 0
        for batch in batches:
            size = sum(len(record.raw) for record in batch.records)
            while waiting and (len(waiting) > 2 * num_workers or num_bytes + size > _BYTES_UNDER_WAY):
                done = _result(waiting, setup.tokenizer)
                num_bytes -= sum(len(record.raw) for record in done[0].records)
                yield done
            num_bytes += size
            waiting.append((batch, pool.submit(_encode, batch.records)))
        while waiting:
            yield _result(waiting, setup.tokenizer)


@contextmanager
def _naming_the_text(batch: Batch, tokenizer: Tokenizer) -> Iterator[None]:
    try:
        yield
    except TextRefused as error:
        path, number = batch.places[error.place]
        raise BadConfiguration(
            f"{path}, record {number}, with the tokenizer {tokenizer.name}: {error.why}; take another tokenizer, or"
            " change the text"
        ) from None


def _result(waiting: deque[tuple[Batch, Future[Encoded]]], tokenizer: Tokenizer) -> tuple[Batch, Encoded]:
    batch, future = waiting.popleft()
    try:
        with _naming_the_text(batch, tokenizer):
            return batch, future.result()
    except BrokenProcessPool:
        raise ChildDied(
            f"a worker was killed at {batch.where}, for lack of memory perhaps; what is done is kept: run the same"
            " command again, with fewer --workers"
        ) from None


@contextmanager
def _pool(setup: Setup, num_workers: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(num_workers, get_context("spawn"), _begin, (setup,))
    others = set(active_children())
    try:
        with _born_alone():
            for _ in range(num_workers):  # each starts one, unless one is idle by then
                pool.submit(_nothing)
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _end(set(active_children()) - others)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end(workers: Iterable[BaseProcess]) -> None:
    """What they are at is not wanted any more, and may take long. But one that is killed while it hands over a result
    leaves us reading the rest of it for ever: those that are quick end by themselves."""
    until = time.monotonic() + _PATIENCE_SECONDS
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
        worker.kill()
        worker.join(_PATIENCE_SECONDS)


@contextmanager
def _born_alone() -> Iterator[None]:
    """Processes that start meanwhile leave Ctrl-C to us from their first moment, and do not import the whole program,
    which `multiprocessing` has them do with whatever `__main__` is."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: main.__dict__.pop(name) for name in ("__spec__", "__file__") if name in main.__dict__}
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)
        if is_main:
            signal.signal(signal.SIGINT, handler)


_mine: tuple[Setup, Encoder] | None = None


def _begin(setup: Setup) -> None:
    global _mine
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also of one that was born later
    end_with_parent(signal.SIGKILL)
    _mine = setup, setup.encoder()


def _nothing() -> None:
    pass


def _encode(records: list[Record]) -> Encoded:
    assert _mine is not None
    return encode(*_mine, records)
