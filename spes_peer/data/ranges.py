"""The global shuffle: which sequence of which shard a position is. Pure numbers: daemons use it without torch.

Positions run on for ever; epoch k holds positions [k·n, (k + 1)·n) of a corpus of n sequences. In each epoch the
shards come in a seeded order and the sequences within a shard in a seeded permutation, so neighbouring positions lie
in few shards and a peer fetches only those of its ranges. Every position of an epoch is another sequence, so disjoint
ranges within an epoch never share one.

The permutation is a four-round Feistel network over the smallest even number of bits that holds the shard, keyed by
sha256 and walked along its cycle until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
2002). It needs no table and is the same with every library, for ever.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from spes_peer.run.manifest import Manifest
from spes_peer.run.records import DataRange

_NUM_ROUNDS = 4
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Sequence:
    """Sequence `index` of shard `shard`."""

    shard: int
    index: int


@dataclass(frozen=True)
class Shuffle:
    """The order of all sequences of a run."""

    seed: int
    shard_sequences: tuple[int, ...]
    """Sequences in each shard."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Shuffle":
        length = manifest.model.sequence_length
        return cls(manifest.run.seed, tuple(shard.num_sequences(length) for shard in manifest.data.shards))

    @cached_property
    def num_sequences(self) -> int:
        """Positions in one epoch."""
        return sum(self.shard_sequences)

    def sequence_at(self, position: int) -> Sequence:
        epoch, offset = divmod(position, self.num_sequences)
        for shard in _shard_order(self, epoch):
            size = self.shard_sequences[shard]
            if offset < size:
                return Sequence(shard, permuted(offset, size, _keys(self.seed, epoch, shard)))
            offset -= size
        raise AssertionError("an epoch is as long as its shards")

    def sequences_in(self, ranges: Iterable[DataRange]) -> Iterator[Sequence]:
        """In the order in which they are trained."""
        for part in ranges:
            for position in range(part.start, part.end):
                yield self.sequence_at(position)

    def shards_of(self, ranges: Iterable[DataRange]) -> set[int]:
        """Indices of the shards that hold the sequences of `ranges`: what a peer must have to train on them."""
        needed: set[int] = set()
        for part in ranges:
            for epoch in range(part.start // self.num_sequences, (part.end - 1) // self.num_sequences + 1):
                start = epoch * self.num_sequences
                for shard in _shard_order(self, epoch):
                    end = start + self.shard_sequences[shard]
                    if start < part.end and part.start < end:
                        needed.add(shard)
                    start = end
        return needed

    def shards_from(self, position: int) -> Iterator[int]:
        """Every shard once, in the order in which training comes to it from `position` on."""
        seen: set[int] = set()
        start = position // self.num_sequences * self.num_sequences
        while len(seen) < len(self.shard_sequences):
            for shard in _shard_order(self, start // self.num_sequences):
                end = start + self.shard_sequences[shard]
                if position < end and shard not in seen:
                    seen.add(shard)
                    yield shard
                start = end


def permuted(value: int, size: int, keys: tuple[int, ...]) -> int:
    """Where a keyed permutation of [0, size) sends `value`."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = value >> half_bits, value & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        value = left << half_bits | right
        if value < size:
            return value


def _mixed(value: int) -> int:
    """The finalizer of splitmix64: every input bit changes half of the output bits."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK_64
    return value ^ value >> 31


@lru_cache(maxsize=256)
def _keys(seed: int, epoch: int, shard: int) -> tuple[int, ...]:
    digest = hashlib.sha256(f"spes-peer sequences {seed} {epoch} {shard}".encode()).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_NUM_ROUNDS))


@lru_cache(maxsize=8)
def _shard_order(shuffle: Shuffle, epoch: int) -> tuple[int, ...]:
    def key(shard: int) -> bytes:
        return hashlib.sha256(f"spes-peer shards {shuffle.seed} {epoch} {shard}".encode()).digest()

    return tuple(sorted(range(len(shuffle.shard_sequences)), key=key))
