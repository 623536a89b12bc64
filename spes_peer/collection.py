"""Which blobs of a node go when, as a pure decision; `collector` looks at the disk and does it.

Nobody counts references: what needs a blob says so by name (`Needs`), and all else is judged by how long ago it was
needed, counted in records, because clocks are set and machines sleep. In this order, and no further than it must:

    1. what nothing has needed for `GRACE_RECORDS` records goes at once
    2. but if it is being served, only when there is no room: others ask for what they like
    3. what was needed until then goes when there is no room: others may still replay from it
    4. data that training comes to later goes when there is no room, what it comes to last first

All else stays, whatever the room: what the newest records, the kept snapshots and the round's data need, what is being
fetched, and what was made, fetched or renewed since the newest record came, for it may be of the open round.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from spes_peer.blobs import BlobName, Found, Version

GRACE_RECORDS = 2

Key = tuple[BlobName, bool]
"""A blob, and whether it is the part of it that has come so far."""


class Use(enum.IntEnum):
    """What a blob is good for, the least first."""

    NONE = 0
    SERVED = 1
    PASSED = 2
    LATER = 3
    STAYS = 4


@dataclass(frozen=True)
class WantedData:
    """What a node wants of a run's data."""

    now: frozenset[str]
    """For the open round, and what it keeps for others."""
    later: Mapping[str, int] = field(default_factory=dict)
    """All other shards: the higher, the later training comes to it."""


@dataclass(frozen=True)
class Needs:
    """What a node's blobs are for while its newest record is that of `round`."""

    round: int
    stays: AbstractSet[str]
    later: Mapping[str, int] = field(default_factory=dict)
    """See `WantedData`; what stays may be among them."""
    served: AbstractSet[str] = frozenset()
    """Grows old all the same."""
    writing_since: int | None = None
    """The newest record when something was begun that takes longer than a round and that nothing can name before it is
    done: a snapshot."""


@dataclass(frozen=True)
class Mark:
    """What is remembered of a blob from look to look."""

    version: Version
    seen_round: int
    """The newest record when it was first seen like this."""
    unneeded_round: int | None
    """The newest record when nothing needed it for the first time; None while something does."""


@dataclass(frozen=True)
class Stored:
    """A blob on disk and what it is good for."""

    found: Found
    use: Use
    later: int = 0
    """Among data: the higher, the later training comes to it."""


def marked(found: Iterable[Found], needs: Needs, marks: Mapping[Key, Mark], newest_round: int) -> dict[Key, Mark]:
    """What to remember of this look; what has gone is forgotten, and what has changed is new. `newest_round` is the
    newest record's when all had been found: it may have come since it was asked what is needed, and blobs with it."""
    return {(one.name, one.is_partial): _mark(one, needs, marks, newest_round) for one in found}


def _mark(found: Found, needs: Needs, marks: Mapping[Key, Mark], newest_round: int) -> Mark:
    before = marks.get((found.name, found.is_partial))
    is_needed = found.name in needs.stays or found.name in needs.later
    unneeded_round = None if is_needed else newest_round
    if before is None or before.version != found.version or _may_be_written(before, needs):
        return Mark(found.version, newest_round, unneeded_round)
    if unneeded_round is not None and before.unneeded_round is not None:
        unneeded_round = before.unneeded_round
    return Mark(found.version, before.seen_round, unneeded_round)


def _may_be_written(mark: Mark, needs: Needs) -> bool:
    return needs.writing_since is not None and mark.seen_round >= needs.writing_since


def judged(found: Iterable[Found], needs: Needs, marks: Mapping[Key, Mark]) -> Iterator[Stored]:
    """What each blob is good for, by the marks of this look."""
    for one in found:
        yield Stored(one, _use(one.name, needs, marks[one.name, one.is_partial]), needs.later.get(one.name, 0))


def _use(name: str, needs: Needs, mark: Mark) -> Use:
    if name in needs.stays:
        return Use.STAYS
    if name in needs.later:
        return Use.LATER
    if needs.round <= mark.seen_round or mark.unneeded_round is None:
        return Use.STAYS
    if needs.round < mark.unneeded_round + GRACE_RECORDS:
        return Use.PASSED
    return Use.SERVED if name in needs.served else Use.NONE


def to_remove(stored: Iterable[Stored], room_bytes: float) -> list[Found]:
    """What goes so that the rest takes no more than `room_bytes`, or as little as may be; in this order."""
    stored = sorted(stored, key=lambda one: (one.use, -one.later, one.found.name, one.found.is_partial))
    excess_bytes = sum(one.found.size_bytes for one in stored) - room_bytes
    gone = []
    for one in stored:
        if one.use == Use.STAYS or (one.use != Use.NONE and excess_bytes <= 0):
            break
        gone.append(one.found)
        excess_bytes -= one.found.size_bytes
    return gone
