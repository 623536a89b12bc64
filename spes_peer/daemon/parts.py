"""How long this daemon was in each part of a round: applying, training, encoding, exchanging, waiting.

A round begins when its record comes, so it is applied first. The parts are accounted from the phases that the daemon
enters, and from what the trainer says of its own time; together they are the time that the round took here.
"""

import time
from collections.abc import Callable

from spes_peer.wire.control_pb2 import RoundPart

PARTS = ("apply", "train", "encode", "exchange", "wait")
_OF_PHASES = {
    "applying": "apply",
    "syncing": "apply",
    "training": "train",
    "contributing": "exchange",
}
_OTHERS_EXCHANGE = ("reducing", "closing")
_MOST_ROUNDS = 64  # that are kept until they are asked for


def part_of(phase: str, round_phase: str) -> str:
    """The part in which a daemon is that is in `phase`, while the coordinator says that the round is in `round_phase`.
    Whoever is done waits while others still train."""
    if phase == "closing":
        return "exchange" if round_phase in _OTHERS_EXCHANGE else "wait"
    return _OF_PHASES.get(phase, "wait")


class RoundParts:
    """The accounts of the open round, and of those that closed last."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._round = -1
        self._part = "wait"
        self._since = now()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._closed: dict[int, list[RoundPart]] = {}

    def enter(self, part: str) -> None:
        """From now on the time counts for `part`."""
        now = self._now()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now

    def encoded(self, seconds: float) -> None:
        """So much of the training that has just ended was encoding."""
        self.enter(self._part)
        seconds = min(seconds, self._seconds["train"])
        self._seconds["train"] -= seconds
        self._seconds["encode"] += seconds

    def begin(self, round: int) -> None:
        """The record is here that opens `round`; nothing happens if that is open already."""
        if round == self._round:
            return
        self._closed[self._round] = self.so_far
        while len(self._closed) > _MOST_ROUNDS:
            del self._closed[next(iter(self._closed))]
        self._closed.pop(round, None)  # of another chain
        self._round, self._seconds = round, dict.fromkeys(PARTS, 0.0)

    @property
    def so_far(self) -> list[RoundPart]:
        """Of the open round, in their order."""
        self.enter(self._part)
        return [RoundPart(name=part, seconds=seconds) for part, seconds in self._seconds.items()]

    def take(self, round: int) -> list[RoundPart]:
        """Of a round that has closed; nothing where this daemon was not there."""
        return self._closed.pop(round, [])
