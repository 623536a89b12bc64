"""What a daemon shows: the fold of the events that it wrote, and nothing else.

The daemon's facts are looked at when somebody looks or something changed; what is other than in the picture is an
event. Figures that move all the time become events now and then, so that the log stays small.
"""

import logging
import time
from collections.abc import Callable
from typing import Literal

from spes_peer.events.changes import apply, events_between
from spes_peer.events.journal import EventLog
from spes_peer.wire.control_pb2 import Phase, Status
from spes_peer.wire.event_pb2 import Ended, Event

logger = logging.getLogger(__name__)

SECONDS_BETWEEN = {
    "phase_changed": 2.0,  # unless it is another phase
    "round_phase_changed": 2.0,
    "training_sample": 2.0,
    "progress_sample": 2.0,
    "exchange_sample": 2.0,
    "traffic_sample": 2.0,
    "parts_sample": 5.0,
    "device_sample": 5.0,
    "given_changed": 5.0,
    "peers_sample": 15.0,
    "disk_sample": 30.0,
}
"""Between two events of a kind that could come at every look; others come at once."""


_JITTER_SECONDS = 0.5
_PHASES: tuple[Literal["phase", "round_phase"], ...] = ("phase", "round_phase")


class Picture:
    """The status that the events make. What `look` returned once is never changed."""

    def __init__(
        self,
        facts: Callable[[], Status],
        log: EventLog,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = facts
        self._log = log
        self._clock = clock
        self._ticks = ticks
        self._sequence = log.next_sequence
        self._due_at: dict[str, float] = {}
        self.status = Status()

    def look(self) -> Status:
        """Take in what the facts say now."""
        facts = self._facts()
        for name in _PHASES:
            if facts.HasField(name):
                _settle(getattr(self.status, name), getattr(facts, name))
        self._take([event for event in events_between(self.status, facts) if self._is_due(event)])
        return self.status

    def end(self, why: str, exit_code: int) -> None:
        """The daemon ends, after what the facts say, if they can be had; nothing is taken in afterwards."""
        try:
            self.look()
        except Exception:  # what ends the daemon may be what spoils its facts, and it is that which is to be told
            logger.exception("could not look at what the daemon did last")
        self._take([Event(ended=Ended(why=why, exit_code=exit_code))])

    def close(self) -> None:
        """Write the last of it; blocks for a few seconds at most."""
        self._log.close()

    def _is_due(self, event: Event) -> bool:
        kind = event.WhichOneof("kind") or ""
        now = self._ticks()
        if now < self._due_at.get(kind, now) and not self._is_another_phase(event):
            return False
        self._due_at[kind] = now + SECONDS_BETWEEN.get(kind, 0.0)
        return True

    def _is_another_phase(self, event: Event) -> bool:
        match event.WhichOneof("kind"):
            case "phase_changed":
                return event.phase_changed.phase.name != self.status.phase.name
            case "round_phase_changed":
                return event.round_phase_changed.round_phase.name != self.status.round_phase.name
            case _:
                return False

    def _take(self, events: list[Event]) -> None:
        if not events:
            return
        before, after, at = self.status, Status(), self._clock()
        after.CopyFrom(before)
        for event in events:
            event.sequence, event.at = self._sequence, at
            self._sequence += 1
            apply(after, event)
        self.status = after
        self._log.append(events, before)


def _settle(shown: Phase, phase: Phase) -> None:
    """Leave moments as they are shown while they are about the same: the coordinator's come by way of clocks, whose
    difference is estimated anew all the time."""
    if shown.name == phase.name and all(
        abs(getattr(shown, name) - getattr(phase, name)) < _JITTER_SECONDS for name in ("since_at", "until_at")
    ):
        phase.since_at, phase.until_at = shown.since_at, shown.until_at
