"""Whose clock is wrong, and whether time has passed without us.

Nothing in a run needs clocks that agree, but entries in the DHT expire by the wall clock, so a peer whose clock is off
by more than a minute is seen by nobody. What others say of their time tells what time it is for them (`SwarmClock`),
however ours is set or steps; and a step, or a gap in which we did not run, is noticed within a second (`ClockWatch`).
"""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spes_peer import troubles

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_STEP_SECONDS = 2.0  # that the wall clock may drift, or be slewed, between two looks
_GAP_SECONDS = 10.0  # that our loop may be late when the machine is merely busy
_TROUBLE_SECONDS = 30.0
_AGREEMENT_SECONDS = 5.0  # messages are under way for so long
_SAMPLE_SECONDS = 600.0
_MOST_SAMPLES = 256
_TROUBLE = "clock"


def boot_seconds() -> float:
    """Since the machine started, the time while it was suspended too where the system knows it. Nobody sets it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(frozen=True)
class Moment:
    """The same moment by three clocks, in seconds."""

    wall: float = field(default_factory=time.time)
    monotonic: float = field(default_factory=time.monotonic)
    """Stands still while the machine is suspended, but not while this process is stopped."""
    boot: float = field(default_factory=boot_seconds)


@dataclass(frozen=True)
class Change:
    """Between two looks."""

    stepped_seconds: float = 0.0
    """The wall clock was set ahead by so much; negative when it was set back."""
    suspended_seconds: float = 0.0
    """The machine, or this process, did not run for so long."""


def change_between(before: Moment, after: Moment, look_seconds: float = LOOK_SECONDS) -> Change:
    """What happened between two looks that should be `look_seconds` apart."""
    passed = after.boot - before.boot
    asleep = passed - (after.monotonic - before.monotonic)
    late = passed - look_seconds
    stepped = (after.wall - before.wall) - passed
    return Change(
        stepped_seconds=stepped if abs(stepped) > _STEP_SECONDS else 0.0,
        suspended_seconds=late if late > _GAP_SECONDS or asleep > _STEP_SECONDS else 0.0,
    )


class HeldClock:
    """Goes on from what it was last told by the boot clock: however the wall clock is set, it does not follow."""

    def __init__(self) -> None:
        self.tell(time.time())

    def tell(self, now: float) -> None:
        """It is `now`, in Unix seconds."""
        self._at_boot = now - boot_seconds()

    def time(self) -> float:
        return self._at_boot + boot_seconds()


@dataclass(frozen=True)
class _Sample:
    taken_at: float
    """By the boot clock."""
    at_boot: float
    """What the peer's clock showed when our boot clock showed 0, at least."""
    late_seconds: float
    """It showed so much more at most."""


class SwarmClock:
    """What time it is for the others: ours, or where they agree that ours is wrong, theirs."""

    def __init__(self, wall: Callable[[], float] = time.time, boot: Callable[[], float] = boot_seconds) -> None:
        self._wall = wall
        self._boot = boot
        self._samples: dict[str, _Sample] = {}

    def note(self, peer: str, their_time: float, late_seconds: float = 0.0) -> None:
        """A peer says that it is `their_time` now, or said so at most `late_seconds` ago."""
        if not math.isfinite(their_time):
            return
        now = self._boot()
        held = self._samples.pop(peer, None)
        if held is not None and held.late_seconds < late_seconds and now - held.taken_at < _SAMPLE_SECONDS / 2:
            self._samples[peer] = held  # which says more
            return
        self._samples[peer] = _Sample(now, their_time - now, late_seconds)
        while len(self._samples) > _MOST_SAMPLES:
            del self._samples[next(iter(self._samples))]

    def offset(self) -> tuple[float, int]:
        """Seconds by which our wall clock is ahead of the others', as the median of so many of them; 0 of none. Each
        counts with the least that what it said allows."""
        ours = self._wall() - self._boot()
        offsets = [
            _nearest_to_zero(ours - sample.at_boot - sample.late_seconds, ours - sample.at_boot)
            for sample in self._samples.values()
            if self._boot() - sample.taken_at < _SAMPLE_SECONDS
        ]
        return (statistics.median(offsets), len(offsets)) if offsets else (0.0, 0)

    def time(self) -> float:
        """Unix seconds."""
        offset, _ = self.offset()
        return self._wall() - (offset if abs(offset) > _AGREEMENT_SECONDS else 0.0)

    @property
    def trouble(self) -> str:
        """What our clock's owner must do; empty when nothing."""
        offset, num_peers = self.offset()
        if abs(offset) <= _TROUBLE_SECONDS:
            return ""
        where = "ahead of" if offset > 0 else "behind"
        whose = f"median of {num_peers} peers" if num_peers > 1 else "one peer's"
        said = f"your clock is {abs(offset):.0f} s {where} the others' ({whose})"
        return f"{said}: set it, e.g. with timedatectl set-ntp true"


def _nearest_to_zero(low: float, high: float) -> float:
    return low if low > 0 else high if high < 0 else 0.0


class ClockWatch:
    """Looks at the clocks every second, says what changed, and keeps a wrong clock on the board of troubles."""

    def __init__(
        self,
        swarm: SwarmClock,
        on_step: Callable[[float], None] = lambda _seconds: None,
        on_suspended: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """`on_step` hears by how many seconds the wall clock was set ahead, or back (negative); `on_suspended` for how
        many this process did not run."""
        self._swarm = swarm
        self._on_step = on_step
        self._on_suspended = on_suspended
        self._last = Moment()

    async def run(self) -> None:
        """For ever."""
        self._last = Moment()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(Moment())

    def look(self, now: Moment) -> None:
        """Compare with the last look."""
        change = change_between(self._last, now)
        self._last = now
        if change.suspended_seconds:
            logger.warning("this peer did not run for a while seconds=%.0f", change.suspended_seconds)
            self._on_suspended(change.suspended_seconds)
        if change.stepped_seconds:
            logger.warning("the clock was set seconds=%+.0f", change.stepped_seconds)
            self._on_step(change.stepped_seconds)
        if trouble := self._swarm.trouble:
            troubles.board.set(_TROUBLE, trouble)
        else:
            troubles.board.clear(_TROUBLE)
