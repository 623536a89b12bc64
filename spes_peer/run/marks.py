"""Marks against owners whose experts were left out for the harm that they do: who collects them loses its seat.

A fold over the records, so that all who have the same records bar the same peers. A record marks those of whose experts
nearly all that tested them said that they make the model worse (`rounds.verdicts`). Three marks within twenty rounds
keep a peer from the rosters until the first of its last three is twenty rounds old.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spes_peer.identity import PeerId
from spes_peer.run.records import Record

MOST_MARKS = 3
ROUNDS = 20


@dataclass(frozen=True)
class Marks:
    """What the records so far hold against peers."""

    rounds: Mapping[PeerId, tuple[int, ...]] = field(default_factory=dict)
    """The records that marked each of them, the newest few."""

    def after(self, record: Record) -> "Marks":
        """… once `record`, the next one, is there too."""
        if not record.harmful:
            return self
        marked = {peer: (*self.rounds.get(peer, ()), record.round)[-MOST_MARKS:] for peer in record.harmful}
        return Marks({**self.rounds, **marked})

    def barred_until(self, peer: PeerId, round: int) -> int:
        """The record from which on it may have a seat again, as seen when `round` is open; 0 if it is not barred."""
        rounds = self.rounds.get(peer, ())
        until = rounds[0] + ROUNDS if len(rounds) == MOST_MARKS else 0
        return until if until > round + 1 else 0
