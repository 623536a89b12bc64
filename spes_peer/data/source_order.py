"""The order of one source's sequences, epoch after epoch. Pure numbers.

A source of n sequences has positions of its own that run on for ever; epoch k holds [k·n, (k + 1)·n). In each epoch the
shards come in a seeded order and the sequences within a shard in a seeded permutation, so neighbouring positions lie
in few shards and a peer fetches only those of its ranges. Every position of an epoch is another sequence.
"""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from spes_peer.data.index import ShardNumber
from spes_peer.data.permutation import keys_of, permuted
from spes_peer.run.data import Shards


@dataclass(frozen=True, slots=True)
class Sequence:
    """Sequence `index` of a shard."""

    shard: ShardNumber
    index: int


@dataclass(frozen=True)
class SourceOrder:
    """Of the source that comes at place `source` in the manifest."""

    seed: int
    source: int
    num_shards: int
    """That hold a sequence: one at the end may be too short."""
    shard_sequences: int
    """In each but the last."""
    last_sequences: int

    @classmethod
    def of(cls, shards: Shards, sequence_length: int, seed: int, source: int) -> "SourceOrder":
        each, last = (shards.sequences_of(number, sequence_length) for number in (0, shards.num_shards - 1))
        if last:
            return cls(seed, source, shards.num_shards, each, last)
        return cls(seed, source, shards.num_shards - 1, each, each)

    @cached_property
    def num_sequences(self) -> int:
        """Positions in one epoch."""
        return (self.num_shards - 1) * self.shard_sequences + self.last_sequences

    def sequence_at(self, position: int) -> Sequence:
        number, offset, epoch = self._place(position)
        size = self.last_sequences if number == self.num_shards - 1 else self.shard_sequences
        keys = keys_of("sequences", self.seed, self.source, epoch, number)
        return Sequence(ShardNumber(self.source, number), permuted(offset, size, keys))

    def shard_at(self, position: int) -> int:
        """Number of the shard of the sequence there."""
        return self._place(position)[0]

    def shards_between(self, start: int, end: int) -> Iterator[int]:
        """Numbers of the shards that positions [start, end) need, in the order in which they are needed; one that
        several epochs need comes several times."""
        end = min(end, start + 2 * self.num_sequences)  # that holds a whole epoch, wherever it begins
        while start < end:
            epoch, first = divmod(start, self.num_sequences)
            stop = min(end, (epoch + 1) * self.num_sequences)
            last = stop - 1 - epoch * self.num_sequences
            order = _arrangement(self, epoch)
            yield from order.numbers[order.place_at(first) : order.place_at(last) + 1]
            start = stop

    def shards_from(self, position: int) -> Iterator[tuple[int, int]]:
        """Every shard once, in the order in which it is needed from `position` on: where, and its number."""
        seen: set[int] = set()
        for number in self.shards_between(position, position + 2 * self.num_sequences):
            if number not in seen:
                seen.add(number)
                yield self.next_need(number, position), number
            if len(seen) == self.num_shards:
                return

    def next_need(self, number: int, position: int) -> int:
        """The first position from `position` on that needs a shard."""
        epoch = position // self.num_sequences
        for start in (epoch * self.num_sequences, (epoch + 1) * self.num_sequences):
            order = _arrangement(self, start // self.num_sequences)
            place = order.places[number]
            if position < start + order.start_of(place + 1):
                return max(position, start + order.start_of(place))
        raise AssertionError("every epoch needs every shard")

    def _place(self, position: int) -> tuple[int, int, int]:
        """Number of the shard, how many of its positions come before in the epoch, and the epoch."""
        epoch, rest = divmod(position, self.num_sequences)
        order = _arrangement(self, epoch)
        place = order.place_at(rest)
        return order.numbers[place], rest - order.start_of(place), epoch


class _Arrangement:
    """The order of a source's shards in one epoch: eight bytes for each shard."""

    def __init__(self, source: SourceOrder, epoch: int) -> None:
        words = f"spes-peer shards {source.seed} {source.source} {epoch}".encode()

        def key(number: int) -> bytes:
            return hashlib.sha256(b"%b %d" % (words, number)).digest()

        self.numbers = array("I", sorted(range(source.num_shards), key=key))
        """Of the shards, in their order."""
        self.places = array("I", bytes(4 * source.num_shards))
        """In that order, by number."""
        for place, number in enumerate(self.numbers):
            self.places[number] = place
        self._each, self._last = source.shard_sequences, source.last_sequences
        self._last_place = self.places[-1]

    def start_of(self, place: int) -> int:
        """How many sequences come before that place."""
        return place * self._each - (self._each - self._last if place > self._last_place else 0)

    def place_at(self, offset: int) -> int:
        """Where the shard of the sequence with this offset in the epoch stands."""
        place = offset // self._each
        if place < self._last_place or offset < self.start_of(self._last_place + 1):
            return place
        return (offset + self._each - self._last) // self._each


@lru_cache(maxsize=1024)  # two of each of many sources
def _arrangement(source: SourceOrder, epoch: int) -> _Arrangement:
    return _Arrangement(source, epoch)
