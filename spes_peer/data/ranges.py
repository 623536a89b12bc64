"""The global shuffle: which sequence of which shard a position is. Pure numbers: daemons use it without torch.

Positions run on for ever. They are cut into strata of `STRATUM`; in each, every source has as many positions as its
ratio asks for (largest remainder), in a seeded order, and a source's positions run through its own epochs
(`source_order`). So any stretch of a run holds the mixture, whatever of it is trained first or again. Every position
is another position of its source: disjoint ranges never share a sequence within an epoch of a source. Where there is
one source, the positions are its own.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from math import floor

from spes_peer.data.index import ShardNumber
from spes_peer.data.permutation import keys_of, permuted
from spes_peer.data.source_order import Sequence, SourceOrder
from spes_peer.run.data import STRATUM
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import DataRange


@dataclass(frozen=True)
class Shuffle:
    """The order of all sequences of a run."""

    seed: int
    sources: tuple[SourceOrder, ...]
    quotas: tuple[int, ...]
    """Positions of each source in every stratum."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Shuffle":
        seed, length = manifest.run.seed, manifest.model.sequence_length
        sources = tuple(
            SourceOrder.of(source.shards, length, seed, place) for place, source in enumerate(manifest.data.sources)
        )
        return cls(seed, sources, quotas_of(manifest.data.shares()))

    @cached_property
    def stratum(self) -> int:
        """Positions in each."""
        return sum(self.quotas)

    def sequence_at(self, position: int) -> Sequence:
        source, own = self._own(position)
        return self.sources[source].sequence_at(own)

    def sequences_in(self, ranges: Iterable[DataRange]) -> Iterator[Sequence]:
        """In the order in which they are trained."""
        for part in ranges:
            yield from map(self.sequence_at, range(part.start, part.end))

    def shards_of(self, ranges: Iterable[DataRange]) -> set[ShardNumber]:
        """The shards that hold the sequences of `ranges`: what a peer must have to train on them."""
        return set(chain.from_iterable(map(self._shards_of, ranges)))

    def shards_from(self, position: int) -> Iterator[ShardNumber]:
        """Every shard once, in the order in which training comes to it from `position` on; of several sources, to
        within a stratum."""
        comings = (self._comings(place, position) for place in range(len(self.sources)))
        return (number for _, number in heapq.merge(*comings, key=lambda coming: coming[0]))

    def next_need(self, at: ShardNumber, position: int) -> int | None:
        """The first position from `position` on that needs a shard, to within a stratum; None of a shard that is too
        short for a sequence."""
        source, quota = self.sources[at.source], self.quotas[at.source]
        if at.number >= source.num_shards:
            return None
        return source.next_need(at.number, position // self.stratum * quota) // quota * self.stratum

    def _own(self, position: int) -> tuple[int, int]:
        """Which source has that position of the shuffle, and which of its own positions it is."""
        if len(self.sources) == 1:
            return 0, position
        stratum, slot = divmod(position, self.stratum)
        slot = permuted(slot, self.stratum, keys_of("mixture", self.seed, stratum))
        source = bisect_right(self._firsts, slot) - 1
        return source, stratum * self.quotas[source] + slot - self._firsts[source]

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """Of each source, its first slot of a stratum before they are permuted."""
        return tuple(accumulate(self.quotas[:-1], initial=0))

    def _shards_of(self, part: DataRange) -> Iterator[ShardNumber]:
        """Of whole strata a source has a stretch of positions; of those begun or ended within, each is looked at."""
        first, last = -(-part.start // self.stratum), part.end // self.stratum
        head_end = min(part.end, first * self.stratum)
        tail_start = max(head_end, last * self.stratum)
        for position in chain(range(part.start, head_end), range(tail_start, part.end)):
            place, own = self._own(position)
            yield ShardNumber(place, self.sources[place].shard_at(own))
        for place, (source, quota) in enumerate(zip(self.sources, self.quotas, strict=True)):
            for number in source.shards_between(first * quota, last * quota):
                yield ShardNumber(place, number)

    def _comings(self, place: int, position: int) -> Iterator[tuple[int, ShardNumber]]:
        """Where a source's shards are needed next, one after the other."""
        quota = self.quotas[place]
        for own, number in self.sources[place].shards_from(position // self.stratum * quota):
            yield own // quota * self.stratum, ShardNumber(place, number)


def quotas_of(shares: tuple[Fraction, ...]) -> tuple[int, ...]:
    """How many positions of a stratum each source has, by its share of all: largest remainder, of equal ones the first.
    A single source needs no strata: every position is one."""
    if len(shares) == 1:
        return (1,)
    quotas = [floor(STRATUM * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda place: (quotas[place] - STRATUM * shares[place], place))
    for place in by_remainder[: STRATUM - sum(quotas)]:
        quotas[place] += 1
    return tuple(quotas)
