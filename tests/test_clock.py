"""Clocks that step, machines that sleep, and peers whose clock is not the others'."""

import asyncio

import pytest

from spes_peer import clock, troubles
from spes_peer.clock import Change, ClockWatch, HeldClock, Moment, SwarmClock, change_between, sleep_awake

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
    assert clocks.swarm.follow() == 0.0
    assert clocks.swarm.time() == clocks.wall
    assert not clocks.swarm.trouble


def test_what_was_said_while_it_slept_does_not_move_it(clocks: Clocks) -> None:
    watch = ClockWatch(clocks.swarm)
    clocks.swarm.tell(clocks.wall)
    start = clocks.wall
    watch._last = Moment(clocks.wall, 0.0, clocks.boot)
    clocks.passes(90)
    for peer in ("a", "b"):  # before it has noticed, and after
        clocks.swarm.note(peer, start + 20)
        clocks.swarm.note_wall(peer, start + 20)
    watch.look(Moment(clocks.wall, 90.0, clocks.boot))
    for peer in ("a", "b"):
        clocks.swarm.note(peer, start + 70)
    watch.look(Moment(clocks.wall, 90.0, clocks.boot))
    assert clocks.swarm.time() == pytest.approx(start + 90)
    assert clocks.swarm.trouble == ""
    clocks.passes(6)
    for peer in ("a", "b"):
        clocks.swarm.note(peer, start + 1000)
    assert clocks.swarm.follow() == pytest.approx(904)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_the_time_of_the_run_does_not_step_with_the_wall_clock(clocks: Clocks, step: float) -> None:
    start = clocks.swarm.time()
    clocks.swarm.tell(start)
    clocks.swarm.note("a", start)
    clocks.passes(10)
    clocks.wall += step
    clocks.swarm.follow()
    assert clocks.swarm.time() == pytest.approx(start + 10)
    assert clocks.swarm.wall_at(start + 15) == pytest.approx(clocks.wall + 5)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_who_introduces_us_tells_the_time(clocks: Clocks, ahead: float) -> None:
    assert clocks.swarm.tell(clocks.wall + ahead) == pytest.approx(ahead)
    clocks.passes(100)
    assert clocks.swarm.time() == pytest.approx(clocks.wall + ahead)
    assert clocks.swarm.tell(clocks.swarm.time() - 4.0) == 0.0  # it may have been under way for so long
    assert clocks.swarm.tell(float("nan")) == 0.0
    assert clocks.swarm.time() == pytest.approx(clocks.wall + ahead)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_who_starts_without_an_introduction_takes_the_time_of_the_first_that_it_hears(
    clocks: Clocks, ahead: float
) -> None:
    clocks.swarm.note("a", clocks.wall + ahead)
    assert clocks.swarm.time() == clocks.wall  # between two looks nothing changes
    assert clocks.swarm.follow() == pytest.approx(ahead)
    assert clocks.swarm.time() == pytest.approx(clocks.wall + ahead)
    assert clocks.swarm.follow() == 0.0


@pytest.mark.parametrize(
    ("others", "set_by"),
    [
        ([HOUR], 0.0),
        ([0.1, HOUR], 0.0),
        ([0.1, HOUR, HOUR], 0.0),
        ([HOUR, HOUR + 1], HOUR),
        ([0.1, HOUR, HOUR, HOUR], HOUR),
        ([-HOUR, HOUR], 0.0),
        ([4.0, 4.0, 4.0], 0.0),
    ],
    ids=["one of two", "one of three", "a half", "two of three", "three of five", "all differ", "under way"],
)
def test_only_more_than_half_move_us_once_we_have_a_say(clocks: Clocks, others: list[float], set_by: float) -> None:
    clocks.swarm.tell(clocks.wall)
    for number, ahead in enumerate(others):
        clocks.swarm.note(str(number), clocks.wall + ahead)
    assert clocks.swarm.follow() == pytest.approx(set_by)
    assert clocks.swarm.time() == pytest.approx(clocks.wall + set_by)


def test_two_nodes_that_differ_do_not_swap_their_times() -> None:
    ours, theirs = Clocks(), Clocks()
    theirs.wall += HOUR
    theirs.swarm.tell(theirs.wall)
    for _ in range(3):
        ours.swarm.note("them", theirs.swarm.time())
        theirs.swarm.note("us", ours.swarm.time())
        for one in (ours, theirs):
            one.swarm.follow()
    assert ours.swarm.time() == pytest.approx(theirs.swarm.time())


def test_a_wrong_clock_is_named_by_the_median_of_the_others(clocks: Clocks) -> None:
    for peer, difference in (("a", -311.0), ("b", -312.0), ("c", -313.0), ("liar", 1e6)):
        clocks.swarm.note_wall(peer, clocks.wall + difference)
    assert clocks.swarm.trouble == (
        "your clock is 311 s ahead of the others' (median of 4 peers): set it, e.g. with timedatectl set-ntp true"
    )
    assert clocks.swarm.follow() == 0.0  # what a wall clock shows is not what time it is in the run
    clocks.wall -= 312  # its owner sets it
    assert not clocks.swarm.trouble


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_has_stepped_is_named(clocks: Clocks, step: float) -> None:
    clocks.swarm.note_wall("a", clocks.wall + 0.3)
    clocks.wall += step
    where = "ahead of" if step > 0 else "behind"
    assert clocks.swarm.trouble.startswith(f"your clock is 3600 s {where} the others' (one peer's)")


def test_what_was_said_a_while_ago_accuses_nobody(clocks: Clocks) -> None:
    clocks.swarm.note_wall("a", clocks.wall - 50, late_seconds=60)
    assert clocks.swarm.offset() == (0.0, 1)
    clocks.swarm.note_wall("b", clocks.wall - 100, late_seconds=60)
    clocks.swarm.note_wall("c", clocks.wall + 100, late_seconds=60)
    assert clocks.swarm.offset() == (0.0, 3)
    clocks.swarm.note_wall("b", clocks.wall - 100)
    clocks.swarm.note_wall("b", clocks.wall - 50, late_seconds=60)  # says less than what is known
    clocks.swarm.note_wall("a", float("nan"))
    assert clocks.swarm.offset() == (0.0, 3)
    clocks.swarm.note_wall("a", clocks.wall - 100)
    assert clocks.swarm.offset() == (100.0, 3)


def test_samples_expire_and_are_bounded(clocks: Clocks) -> None:
    for number in range(1000):
        clocks.swarm.note(str(number), clocks.wall - 100)
        clocks.swarm.note_wall(str(number), clocks.wall - 100)
    assert clocks.swarm.offset() == (100.0, 256)
    assert len(clocks.swarm._times) == 256
    clocks.passes(601)
    assert clocks.swarm.offset() == (0.0, 0)
    assert clocks.swarm.follow() == 0.0


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
    times: list[float] = []
    watch = ClockWatch(clocks.swarm, steps.append, gaps.append, times.append)
    watch._last = START
    clocks.swarm.note_wall("a", clocks.wall - HOUR)
    watch.look(later(1 + HOUR, 1, 1))
    watch.look(later(2 + HOUR, 2, 2))
    watch.look(later(602 + HOUR, 602, 602))
    assert (steps, gaps) == ([HOUR], [599.0])
    assert len(troubles.board.texts) == 1
    clocks.wall -= HOUR
    watch.look(later(603, 603, 603))
    assert steps == [HOUR, -HOUR]
    assert not troubles.board.texts
    assert not times
    clocks.passes(6.0)
    clocks.swarm.note("a", clocks.swarm.time() + HOUR)
    watch.look(later(604, 604, 604))
    watch.look(later(605, 605, 605))
    assert times == pytest.approx([HOUR])


async def test_who_waits_is_told_how_long_the_machine_slept_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "boot_seconds", iter([100.0, 100.5, 200.0, 290.5]).__next__)
    assert await sleep_awake(0.5) == 0.0
    assert await sleep_awake(0.5) == pytest.approx(90.0)


async def test_a_watch_in_peace_says_nothing(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LOOK_SECONDS", 0.01)
    said: list[float] = []
    watching = asyncio.create_task(ClockWatch(clocks.swarm, said.append, said.append).run())
    await asyncio.sleep(0.1)
    watching.cancel()
    assert not said
