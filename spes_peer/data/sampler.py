"""Ranges of the global shuffle to batches of tensors. Shapes: B = sequences per step, T = sequence length."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat

import numpy as np
import torch

from spes_peer.blobs import BlobStore
from spes_peer.data.filter import IGNORED_TARGET, mask_repeats
from spes_peer.data.ranges import Shuffle
from spes_peer.data.shards import ShardReader, Tokens
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import DataRange


@dataclass(frozen=True)
class Batch:
    """Inputs and, one token later, their targets."""

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.tokens_BT.numel()

    @cached_property
    def num_labels(self) -> int:
        """Targets that count."""
        return int((self.targets_BT != IGNORED_TARGET).sum())

    def split(self, num_sequences: int) -> Iterator["Batch"]:
        """In parts of so many sequences; the last one is smaller where they do not divide it."""
        parts = (torch.split(values, num_sequences) for values in (self.tokens_BT, self.targets_BT))
        for tokens, targets in zip(*parts, strict=True):
            yield Batch(tokens, targets)

    def pinned(self) -> "Batch":
        """In memory that a GPU copies from while it works on something else."""
        return Batch(self.tokens_BT.pin_memory(), self.targets_BT.pin_memory())


class Sampler:
    """Batches of a run's data from the blob store; `BlobMissing` where a shard is not there."""

    def __init__(self, manifest: Manifest, blobs: BlobStore) -> None:
        self._data = manifest.data
        self._length = manifest.model.sequence_length
        self._shuffle = Shuffle.of(manifest)
        self._reader = ShardReader(blobs, manifest.data, self._length)

    def training(self, ranges: Iterable[DataRange], step_sizes: Iterable[int], num_done: int = 0) -> Iterator[Batch]:
        """Batches of `step_sizes` sequences in the order of `ranges`, without the first `num_done`; the last one is
        smaller where the ranges end.

        Labels of sequences that repeat themselves are masked; they count as trained all the same."""
        shards, sizes = self._data.shards, iter(step_sizes)
        places = islice(self._shuffle.sequences_in(ranges), sum(islice(sizes, num_done)), None)
        batches = _batches((self._reader.sequence(shards[at.shard], at.index) for at in places), sizes)
        return (_masked(batch) for batch in batches)

    def held_out(self, part: int, num_parts: int, sequences_per_batch: int) -> Iterator[Batch]:
        """Slice `part` of `num_parts` of the held-out split: every num_parts-th sequence."""
        held_out = self._data.held_out
        indices = range(part, held_out.num_sequences(self._length), num_parts)
        return _batches((self._reader.sequence(held_out, index) for index in indices), repeat(sequences_per_batch))


def _batches(sequences: Iterator[Tokens], sizes: Iterable[int]) -> Iterator[Batch]:
    for size in sizes:
        if not (rows := list(islice(sequences, size))):
            return
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        yield Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def _masked(batch: Batch) -> Batch:
    targets = mask_repeats(batch.tokens_BT.numpy(), batch.targets_BT.numpy())
    return Batch(batch.tokens_BT, torch.from_numpy(targets))
