"""Clocks that step, machines that sleep, and peers whose clock is not the others'."""

import asyncio

import pytest

from spes_peer import clock, troubles
from spes_peer.clock import Change, ClockWatch, HeldClock, Moment, SwarmClock, change_between

HOUR = 3600.0
START = Moment(wall=1e9, monotonic=50.0, boot=70.0)


def later(wall: float, monotonic: float, boot: float) -> Moment:
    return Moment(START.wall + wall, START.monotonic + monotonic, START.boot + boot)


@pytest.mark.parametrize(
    ("moment", "change"),
    [
        (later(1.0, 1.0, 1.0), Change()),
        (later(1.4, 1.3, 1.3), Change()),
        (later(8.0, 8.0, 8.0), Change()),
        (later(1 + HOUR, 1.0, 1.0), Change(stepped_seconds=HOUR)),
        (later(1 - HOUR, 1.0, 1.0), Change(stepped_seconds=-HOUR)),
        (later(601.0, 601.0, 601.0), Change(suspended_seconds=600.0)),
        (later(601.0, 1.0, 601.0), Change(suspended_seconds=600.0)),
        (later(601 + HOUR, 1.0, 601.0), Change(HOUR, 600.0)),
    ],
    ids=["well", "a little late", "busy", "set ahead", "set back", "stopped", "asleep", "asleep and set"],
)
def test_steps_and_suspensions_are_told_from_a_busy_machine(moment: Moment, change: Change) -> None:
    assert change_between(START, moment) == change


class Clocks:
    """Made up, for a `SwarmClock`."""

    def __init__(self) -> None:
        self.wall, self.boot = 1e9, 70.0
        self.swarm = SwarmClock(lambda: self.wall, lambda: self.boot)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_without_others_our_clock_is_right(clocks: Clocks) -> None:
    assert clocks.swarm.offset() == (0.0, 0)
    assert clocks.swarm.time() == clocks.wall
    assert not clocks.swarm.trouble


def test_a_wrong_clock_is_named_by_the_median_and_the_others_time_is_used(clocks: Clocks) -> None:
    for peer, difference in (("a", -311.0), ("b", -312.0), ("c", -313.0), ("liar", 1e6)):
        clocks.swarm.note(peer, clocks.wall + difference)
    assert clocks.swarm.trouble == (
        "your clock is 312 s ahead of the others' (median of 4 peers): set it, e.g. with timedatectl set-ntp true"
    )
    clocks.passes(100)
    assert clocks.swarm.time() == pytest.approx(clocks.wall - 311.5)
    clocks.wall -= 312  # its owner sets it
    assert not clocks.swarm.trouble
    assert clocks.swarm.time() == clocks.wall


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_our_clock_does_not_change_what_time_it_is_for_the_others(clocks: Clocks, step: float) -> None:
    clocks.swarm.note("a", clocks.wall + 0.3)
    before = clocks.swarm.time()
    clocks.wall += step
    assert clocks.swarm.time() == pytest.approx(before, abs=1)
    where = "ahead of" if step > 0 else "behind"
    assert clocks.swarm.trouble.startswith(f"your clock is 3600 s {where} the others' (one peer's)")


def test_what_was_said_a_while_ago_accuses_nobody(clocks: Clocks) -> None:
    clocks.swarm.note("a", clocks.wall - 50, late_seconds=60)
    assert clocks.swarm.offset() == (0.0, 1)
    clocks.swarm.note("b", clocks.wall - 100, late_seconds=60)
    clocks.swarm.note("c", clocks.wall + 100, late_seconds=60)
    assert clocks.swarm.offset() == (0.0, 3)
    clocks.swarm.note("b", clocks.wall - 100)
    clocks.swarm.note("b", clocks.wall - 50, late_seconds=60)  # says less than what is known
    clocks.swarm.note("a", float("nan"))
    assert clocks.swarm.offset() == (0.0, 3)
    clocks.swarm.note("a", clocks.wall - 100)
    assert clocks.swarm.offset() == (100.0, 3)


def test_samples_expire_and_are_bounded(clocks: Clocks) -> None:
    for number in range(1000):
        clocks.swarm.note(str(number), clocks.wall - 100)
    assert clocks.swarm.offset() == (100.0, 256)
    clocks.passes(601)
    assert clocks.swarm.offset() == (0.0, 0)


def test_a_held_clock_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = [70.0]
    monkeypatch.setattr(clock, "boot_seconds", lambda: boot[0])
    held = HeldClock()
    held.tell(1e9)
    boot[0] += 5
    assert held.time() == 1e9 + 5


def test_events_and_the_board(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "board", troubles.Troubles())
    steps: list[float] = []
    gaps: list[float] = []
    watch = ClockWatch(clocks.swarm, steps.append, gaps.append)
    watch._last = START
    clocks.swarm.note("a", clocks.wall - HOUR)
    watch.look(later(1 + HOUR, 1, 1))
    watch.look(later(2 + HOUR, 2, 2))
    watch.look(later(602 + HOUR, 602, 602))
    assert (steps, gaps) == ([HOUR], [599.0])
    assert len(troubles.board.texts) == 1
    clocks.wall -= HOUR
    watch.look(later(603, 603, 603))
    assert steps == [HOUR, -HOUR]
    assert not troubles.board.texts


async def test_a_watch_in_peace_says_nothing(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LOOK_SECONDS", 0.01)
    said: list[float] = []
    watching = asyncio.create_task(ClockWatch(clocks.swarm, said.append, said.append).run())
    await asyncio.sleep(0.1)
    watching.cancel()
    assert not said
