"""Text to shards: the whole of `spes-peer data prepare`.

What is made hangs on the texts, the tokenizer, the seed and the options; not on the number of workers, on time, or on
how often the work was stopped.
"""

import logging
import shutil
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spes_peer.blobs import BlobStore
from spes_peer.data.prepared import DATA_FILE, read_data
from spes_peer.data.preparing import encoders
from spes_peer.data.preparing.batches import batches, memmap_batches, ordered
from spes_peer.data.preparing.documents import TROUBLES, Counts
from spes_peer.data.preparing.held_out import HeldOut, elsewhere_of
from spes_peer.data.preparing.journal import Journal, forget, work_folder
from spes_peer.data.preparing.order import (
    Order,
    check_model,
    check_shards,
    held_out_targets,
    identity_of,
    shard_tokens,
    tokenizer_of,
)
from spes_peer.data.preparing.outcome import data_of
from spes_peer.data.preparing.progress import Shows, Silent
from spes_peer.data.preparing.show import blobs_of
from spes_peer.data.preparing.source_work import Finished, SourceWork
from spes_peer.data.preparing.sources import SourceRecipe
from spes_peer.data.preparing.workers import Batch, Encoded, Setup, encoded
from spes_peer.data.reading.inputs import InputFile
from spes_peer.errors import BadConfiguration
from spes_peer.files import write_whole
from spes_peer.lock import held
from spes_peer.run.data import Data, Tokenizer
from spes_peer.run.manifest import Model

_CHECKPOINT_SECONDS = 15.0
_NOT_AS_LEFT = (ValueError, LookupError, TypeError, AttributeError, FileNotFoundError, zipfile.BadZipFile, EOFError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What was made."""

    data: Data
    counts: tuple[Counts, ...]
    """Of each source, what was met."""
    num_documents: tuple[int, ...]
    num_held_out: tuple[int, ...]
    """Tokens held out of each source."""
    seconds: float


def prepare(
    folder: Path,
    order: Order,
    model: Model | None = None,
    num_workers: int = 1,
    shows: Shows | None = None,
    starts_over: bool = False,
    checkpoint_seconds: float = _CHECKPOINT_SECONDS,
) -> Prepared:
    """Make `folder`/blobs and `folder`/data.json, or go on with it where that was stopped. `model` is checked, if there
    is one: the tokenizer's ids must fit its rows, and its sequences the shards."""
    started_at = time.monotonic()
    _refuse_signed(folder)
    tokenizer, tokenizer_json = tokenizer_of(order)
    check_model(tokenizer, model)
    check_shards(order, model)
    _earlier(folder, starts_over)  # before anything is made or removed
    # held to the end: what is being signed may not be replaced, nor what is being replaced signed
    with work_folder(folder) as work, held(folder):
        _refuse_signed(folder)  # just now, perhaps; or prepared
        before = _earlier(folder, starts_over)
        blobs = BlobStore(folder / "blobs")
        kept = blobs_of(before, blobs) if before is not None else set()
        if starts_over:
            _remove(forget(work) - kept, blobs)
        journal = Journal(work, identity_of(order, tokenizer))
        if tokenizer.blob:
            blobs.put(tokenizer_json)
        if journal.has_begun:
            logger.info("going on with what was begun")
        preparation = _Preparation(work, blobs, order, tokenizer, journal, num_workers, shows or Silent())
        finished = preparation.run(checkpoint_seconds)
        try:
            data = data_of(order, tokenizer, finished, blobs, model)
        except BadConfiguration:
            _remove((forget(work) | {tokenizer.blob}) - kept - {""}, blobs)
            shutil.rmtree(work)  # there is nothing to go on with
            raise
        write_whole(folder / DATA_FILE, data.model_dump_json(indent=2).encode())
        _remove(kept - blobs_of(data, blobs), blobs)
        shutil.rmtree(work)
    return Prepared(
        data,
        tuple(one.counts for one in finished),
        tuple(one.num_documents for one in finished),
        tuple(one.held_out.num_tokens for one in finished),
        time.monotonic() - started_at,
    )


class _Preparation:
    """All sources, one after the other."""

    def __init__(
        self,
        work: Path,
        blobs: BlobStore,
        order: Order,
        tokenizer: Tokenizer,
        journal: Journal,
        num_workers: int,
        shows: Shows,
    ) -> None:
        self._work, self._blobs, self._order, self._tokenizer = work, blobs, order, tokenizer
        self._journal, self._num_workers, self._shows = journal, num_workers, shows
        self._dtype = encoders.dtype_of(tokenizer)
        self._bytes_before = self._tokens_before = 0

    def run(self, checkpoint_seconds: float) -> list[Finished]:
        """In the recipe's order. Worked on they are by size, the smallest first: `held_out` says why."""
        sizes = self._order.source_bytes
        finished: dict[int, Finished] = {}
        for index in sorted(range(len(sizes)), key=lambda place: (sizes[place], place)):
            earlier = [one.held_out for one in finished.values()]
            finished[index] = self._source(index, earlier, checkpoint_seconds)
            self._bytes_before += sizes[index]
            self._tokens_before += finished[index].num_tokens + finished[index].held_out.num_tokens
        return [finished[index] for index in range(len(sizes))]

    def _source(self, index: int, earlier: list[HeldOut], checkpoint_seconds: float) -> Finished:
        recipe = self._order.recipe.source[index]
        files = ordered(self._order.found[index].files, recipe.name, self._order.seed)
        try:
            work = SourceWork(
                self._work / f"source-{index:02}",
                self._blobs,
                self._dtype,
                shard_tokens(self._order),
                held_out_targets(self._order)[index],
                elsewhere_of(earlier),
                self._journal.state(index),
            )
        except _NOT_AS_LEFT:
            raise self._journal.damaged() from None
        if not work.is_done:
            self._read(index, recipe, files, work, checkpoint_seconds)
        return work.finish()

    def _read(
        self, index: int, recipe: SourceRecipe, files: list[InputFile], work: SourceWork, checkpoint_seconds: float
    ) -> None:
        kept_at = time.monotonic()
        for batch, made in self._encoded(recipe, files, work):
            if self._order.is_strict and (met := [kind for kind in TROUBLES if made.counts[kind]]):
                raise BadConfiguration(f"{batch.where} and on: {TROUBLES[met[0]]}; mend it, or leave --strict away")
            work.take(batch, made)
            self._shows.went_on(
                recipe.name, self._bytes_before + batch.num_bytes_read, self._tokens_before + work.num_tokens
            )
            if time.monotonic() - kept_at >= checkpoint_seconds:
                self._keep(index, work)
                kept_at = time.monotonic()
        work.shrink()
        self._keep(index, work, is_done=True)

    def _keep(self, index: int, work: SourceWork, is_done: bool = False) -> None:
        self._journal.write(index, work.checkpoint(is_done))
        work.forget_old()

    def _encoded(
        self, recipe: SourceRecipe, files: list[InputFile], work: SourceWork
    ) -> Iterator[tuple[Batch, Encoded]]:
        if recipe.memmap:
            return memmap_batches(files, recipe.memmap, self._tokenizer, self._dtype, work.position)
        setup = Setup(self._tokenizer, self._dtype, self._blobs.folder, recipe.text_field)
        return encoded(batches(files, recipe, work.position, self._order.is_strict), setup, self._num_workers)


def _refuse_signed(folder: Path) -> None:
    if (folder / "manifest.spes").exists():
        raise BadConfiguration(f"the run in {folder} is signed, and its data is part of that; make a new run")


def _earlier(folder: Path, starts_over: bool) -> Data | None:
    """What was prepared here before, if it may be replaced."""
    if not (folder / DATA_FILE).exists():
        return None
    if not starts_over and not (folder / "data.work" / "journal.json").exists():
        raise BadConfiguration(f"{folder} has data already: spes-peer data show {folder}; --anew replaces it")
    try:
        return read_data(folder)
    except BadConfiguration as error:
        if not starts_over:
            raise
        logger.warning("its blobs stay, for nobody can say which they are: %s", error)
        return None


def _remove(names: Iterable[str], blobs: BlobStore) -> None:
    for name in names:
        blobs.remove(name)
