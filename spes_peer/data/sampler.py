"""Ranges of the global shuffle to batches of tensors. Shapes: B = sequences per step, T = sequence length."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat

import numpy as np
import torch

from spes_peer.blobs import BlobStore
from spes_peer.data.filter import IGNORED_TARGET, mask_repeats
from spes_peer.data.index import ShardIndex
from spes_peer.data.ranges import Shuffle
from spes_peer.data.shards import ShardReader, Tokens
from spes_peer.errors import BadMessage
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
    """Batches of a run's data from the blob store; `BlobMissing` where a shard or the index is not there, `BadMessage`
    where a shard holds what is no token id of the run."""

    def __init__(self, manifest: Manifest, blobs: BlobStore) -> None:
        self._data = manifest.data
        self._blobs = blobs
        self._length = manifest.model.sequence_length
        self._shuffle = Shuffle.of(manifest)
        self._reader = ShardReader(blobs, manifest.data.token_dtype, self._length)

    def training(self, ranges: Iterable[DataRange], step_sizes: Iterable[int], num_done: int = 0) -> Iterator[Batch]:
        """Batches of `step_sizes` sequences in the order of `ranges`, without the first `num_done`; the last one is
        smaller where the ranges end.

        Labels of sequences that repeat themselves are masked; they count as trained all the same."""
        index, sizes = self._index, iter(step_sizes)
        places = islice(self._shuffle.sequences_in(ranges), sum(islice(sizes, num_done)), None)
        batches = self._batches((self._reader.sequence(index.shard(at.shard), at.index) for at in places), sizes)
        return (_masked(batch) for batch in batches)

    def held_out(self, part: int, num_parts: int, sequences_per_batch: int) -> Iterator[Batch]:
        """Slice `part` of `num_parts` of the held-out split: every num_parts-th sequence."""
        held_out = self._data.held_out
        indices = range(part, held_out.num_sequences(self._length), num_parts)
        sequences = (self._reader.sequence(held_out, index) for index in indices)
        return self._batches(sequences, repeat(sequences_per_batch))

    @cached_property
    def _index(self) -> ShardIndex:
        return ShardIndex.read(self._data, self._blobs)

    def _batches(self, sequences: Iterator[Tokens], sizes: Iterable[int]) -> Iterator[Batch]:
        num_ids = self._data.tokenizer.num_ids
        for size in sizes:
            if not (rows := list(islice(sequences, size))):
                return
            tokens = np.stack(rows).astype(np.int64)
            if (largest := tokens.max()) >= num_ids:  # a look-up beyond the embedding would end the process on a GPU
                raise BadMessage(f"the data holds the token id {largest}, and its tokenizer has {num_ids} ids")
            tokens_BT = torch.from_numpy(tokens)
            yield Batch(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())


def _masked(batch: Batch) -> Batch:
    targets = mask_repeats(batch.tokens_BT.numpy(), batch.targets_BT.numpy())
    return Batch(batch.tokens_BT, torch.from_numpy(targets))
