"""What time it is in a run, whose clock is wrong, and whether time has passed without us.

Deadlines of rounds, entries in the DHT and call tokens are in Unix seconds, so all nodes of a run must agree on what
time it is, however their wall clocks are set or step (`SwarmClock`). That our wall clock steps or is wrong, or that we
did not run for a while, is noticed within a second (`ClockWatch`).
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spes_peer import troubles

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_STEP_SECONDS = 2.0  # that the wall clock may drift, or be slewed, between two looks
GAP_SECONDS = 10.0  # that our loop may be late when the machine is merely busy
_TROUBLE_SECONDS = 30.0
_AGREEMENT_SECONDS = 5.0  # messages are under way for so long
_SAMPLE_SECONDS = 600.0
_MOST_SAMPLES = 256
_TROUBLE = "clock"


def boot_seconds() -> float:
    """Since the machine started, the time while it was suspended too where the system knows it. Nobody sets it."""
    return time.clock_gettime(
        getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    )  # macOS has the second, which goes on


async def sleep_awake(seconds: float) -> float:
    """Wait; for how many seconds more than that this machine slept meanwhile, mostly 0."""
    began_at = boot_seconds()
    await asyncio.sleep(seconds)
    late = boot_seconds() - began_at - seconds
    return late if late > GAP_SECONDS else 0.0


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
        suspended_seconds=late if late > GAP_SECONDS or asleep > _STEP_SECONDS else 0.0,
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
    late_seconds: float = 0.0
    """It showed so much more at most."""


class SwarmClock:
    """What time it is in the run, for all its nodes alike: it goes on by the boot clock, whatever the wall clock does.

    It begins with the wall clock, or with the time of who introduces us, and is set again when most of those who count,
    we among them, have another time. Between two halves we stay with ours: of two nodes that differ neither takes the
    other's, so that they cannot swap. Only who starts and has heard nobody yet has no say, and takes theirs.

    Beside the run's time others say what their wall clocks show. That moves nothing, and tells whose is wrong.
    """

    def __init__(self, wall: Callable[[], float] = time.time, boot: Callable[[], float] = boot_seconds) -> None:
        self.wall = wall
        self._boot = boot
        self._at_boot = wall() - boot()
        self._has_a_say = False
        self._times: dict[str, _Sample] = {}
        self._walls: dict[str, _Sample] = {}
        self._hears_from = 0.0
        """By the boot clock: what is heard before is not what is said then."""

    def time(self) -> float:
        """Unix seconds."""
        return self._at_boot + self._boot()

    def wall_at(self, moment: float) -> float:
        """What our wall clock shows at this moment of the run: for people, and for processes that know no other."""
        return self.wall() + moment - self.time()

    def tell(self, now: float) -> float:
        """It is `now` for who introduces us; the seconds by which that sets this clock, 0 where they nearly agree."""
        if not math.isfinite(now):
            return 0.0
        self._has_a_say = True
        return self._set_by(now - self.time())

    def wake(self, since: float) -> None:
        """This machine slept, from after `since` by the boot clock: what others said meanwhile has waited, and is heard
        only now."""
        for samples in (self._times, self._walls):
            for peer in [peer for peer, sample in samples.items() if sample.taken_at > since]:
                del samples[peer]
        self._hears_from = self._boot() + _AGREEMENT_SECONDS

    def note(self, peer: str, their_time: float) -> None:
        """It is `their_time` for a peer that counts. Nothing changes before `follow`."""
        if self._boot() >= self._hears_from:
            _keep(self._times, peer, their_time, self._boot())

    def follow(self) -> float:
        """Go by most of those who count; the seconds by which that sets this clock, mostly 0."""
        said = [ahead for ahead, _ in self._ahead_of(self._at_boot, self._times)]
        if not said:
            return 0.0
        middle = _middle([*said, 0.0] if self._has_a_say else said)
        self._has_a_say = True
        return self._set_by(middle)

    def _set_by(self, seconds: float) -> float:
        if abs(seconds) <= _AGREEMENT_SECONDS:
            return 0.0
        self._at_boot += seconds
        return seconds

    def note_wall(self, peer: str, their_wall: float, late_seconds: float = 0.0) -> None:
        """A peer's wall clock shows `their_wall` now, or did at most `late_seconds` ago."""
        if self._boot() >= self._hears_from:
            _keep(self._walls, peer, their_wall, self._boot(), late_seconds)

    def offset(self) -> tuple[float, int]:
        """Seconds by which our wall clock is ahead of the others', as the median of so many of them; 0 of none. Each
        counts with the least that what it said allows; between two halves that one does which is nearer to us."""
        ahead = self._ahead_of(self.wall() - self._boot(), self._walls)
        offsets = [-_nearest_to_zero(least, most) for least, most in ahead]
        return (_middle(offsets), len(offsets)) if offsets else (0.0, 0)

    def _ahead_of(self, at_boot: float, samples: dict[str, _Sample]) -> list[tuple[float, float]]:
        """The seconds, at least and at most, by which each is ahead of a clock that showed `at_boot` when our boot
        clock showed 0."""
        now = self._boot()
        fresh = [sample for sample in samples.values() if now - sample.taken_at < _SAMPLE_SECONDS]
        return [(one.at_boot - at_boot, one.at_boot - at_boot + one.late_seconds) for one in fresh]

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


def _keep(samples: dict[str, _Sample], peer: str, said: float, now: float, late_seconds: float = 0.0) -> None:
    if not math.isfinite(said):
        return
    held = samples.pop(peer, None)
    says_more = held is not None and held.late_seconds < late_seconds and now - held.taken_at < _SAMPLE_SECONDS / 2
    samples[peer] = held if held is not None and says_more else _Sample(now, said - now, late_seconds)
    while len(samples) > _MOST_SAMPLES:
        del samples[next(iter(samples))]


def _middle(values: Sequence[float]) -> float:
    """The median; of a whole range of them the one nearest to zero."""
    ordered = sorted(values)
    return _nearest_to_zero(ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2])


def _nearest_to_zero(low: float, high: float) -> float:
    return low if low > 0 else high if high < 0 else 0.0


class ClockWatch:
    """Looks at the clocks every second, says what changed, and keeps a wrong clock on the board of troubles."""

    def __init__(
        self,
        swarm: SwarmClock,
        on_step: Callable[[float], None] = lambda _seconds: None,
        on_suspended: Callable[[float], None] = lambda _seconds: None,
        on_time: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """`on_step` hears by how many seconds the wall clock was set ahead, or back (negative); `on_suspended` for how
        many this process did not run; `on_time` by how many `swarm` was set, because most have another time."""
        self._swarm = swarm
        self._on_step = on_step
        self._on_suspended = on_suspended
        self._on_time = on_time
        self._last = Moment()

    async def run(self) -> None:
        """For ever."""
        self._last = Moment()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(Moment())

    def look(self, now: Moment) -> None:
        """Compare with the last look."""
        change, since = change_between(self._last, now), self._last.boot
        self._last = now
        if change.suspended_seconds:
            logger.info("this machine slept for %.0f s and goes on", change.suspended_seconds)
            self._swarm.wake(since)
            self._on_suspended(change.suspended_seconds)
        if change.stepped_seconds:
            logger.warning("the clock was set seconds=%+.0f", change.stepped_seconds)
            self._on_step(change.stepped_seconds)
        if seconds := self._swarm.follow():
            self._on_time(seconds)
        if trouble := self._swarm.trouble:
            troubles.board.set(_TROUBLE, trouble)
        else:
            troubles.board.clear(_TROUBLE)
