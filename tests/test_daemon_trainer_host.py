"""The trainer process is replaced whenever it ends, and whoever asks for it meanwhile is told why there is none."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange_nodes import eventually

from spes_peer import troubles
from spes_peer.daemon.memory_budget import MemoryBudget, MemoryWitness
from spes_peer.daemon.stalling import StallWatch
from spes_peer.daemon.trainer_host import BUDGET_FILE, TrainerHost, TrainerSettings, how_ended
from spes_peer.errors import ChildDied, ChildFailed, ChildOutOfMemory
from spes_peer.identity import PeerId
from spes_peer.training.work import TrainerBeat, TrainerOpened


def beat(
    steps_begun: int = 0,
    in_step: bool = False,
    planned: int = 0,
    smallest: bool = False,
    said: tuple[str, ...] = (),
) -> TrainerBeat:
    return TrainerBeat(steps_begun, in_step, planned, smallest, said)


class FakeProcess:
    """Ends when `ended` is set, with `returncode`."""

    def __init__(self, failure: str | ChildFailed = "", planned: int = 0, smallest: bool = False) -> None:
        self.child = SimpleNamespace(process=SimpleNamespace(returncode=-9))
        self.on_progress: Any = None
        self.on_beat: Any = None
        self.why_killed = ""
        self.is_stopped = False
        self.ended = asyncio.Event()
        self.memory_bytes = -1
        self._beat = beat(planned=planned, smallest=smallest)
        self._failure = ChildFailed(failure) if isinstance(failure, str) and failure else failure

    async def open(self, *_: Any, memory_bytes: int, **__: Any) -> TrainerOpened:
        self.memory_bytes = memory_bytes
        self.on_beat(self._beat)
        if self._failure:
            raise self._failure
        return TrainerOpened("cpu", 1, 0.0)

    def end(self, returncode: int) -> None:
        self.child.process.returncode = returncode
        self.ended.set()

    def kill(self, why: str) -> None:
        self.why_killed = why
        self.end(-signal.SIGKILL)

    async def wait_ended(self) -> None:
        await self.ended.wait()

    async def stop(self) -> None:
        self.is_stopped = True
        self.ended.set()


class Witness(MemoryWitness):
    is_short = False

    def look(self) -> None:
        pass

    def was_short(self) -> bool:
        return self.is_short


class Scene:
    def __init__(self, *processes: FakeProcess, folder: Path = Path("unused"), **settings: Any) -> None:
        self.started: list[FakeProcess] = []
        self.restarts = 0
        coming = list(processes)

        def start(*_: Any) -> Any:
            self.started.append(coming.pop(0))
            return self.started[-1]

        self.witness = Witness()
        opened_with = TrainerSettings(b"", folder, folder, folder, PeerId("peer"), "cpu", 1, **settings)
        self.host = TrainerHost(opened_with, start, self.witness)
        self.host.on_restart = self._count

    def _count(self) -> None:
        self.restarts += 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spes_peer.process.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(troubles, "board", troubles.Troubles())


async def test_what_a_killed_trainer_has_left_of_a_checkpoint_goes_before_the_next_starts(tmp_path: Path) -> None:
    half, whole = tmp_path / ".trainer.safetensors.1a2b.writing", tmp_path / "trainer.safetensors"
    for path in (half, whole):
        path.write_bytes(b"weights")
    await Scene(FakeProcess(), folder=tmp_path).host.start()
    assert not half.exists()
    assert whole.exists()


async def test_a_process_that_cannot_be_opened_is_stopped() -> None:
    scene = Scene(FakeProcess("no such device"))
    with pytest.raises(ChildFailed, match="no such device"):
        await scene.host.start()
    assert scene.started[0].is_stopped


async def test_a_process_that_ends_is_replaced_also_after_one_that_cannot_be_opened() -> None:
    scene = Scene(FakeProcess(), FakeProcess("the device is gone"), FakeProcess())
    await scene.host.start()
    supervising = asyncio.create_task(scene.host.supervise())
    scene.started[0].ended.set()
    await eventually(lambda: scene.restarts == 1)
    assert [process.is_stopped for process in scene.started] == [True, True, False]
    assert scene.host.get() is scene.started[2]  # type: ignore[comparison-overlap]
    supervising.cancel()


async def test_whoever_asks_while_there_is_none_is_told_why() -> None:
    scene = Scene(FakeProcess(), *(FakeProcess("the device is gone") for _ in range(50)))
    await scene.host.start()
    supervising = asyncio.create_task(scene.host.supervise())
    scene.started[0].ended.set()
    await eventually(lambda: len(scene.started) > 1)
    with pytest.raises(ChildFailed, match="does not start: the device is gone"):
        scene.host.get()
    supervising.cancel()


@contextlib.asynccontextmanager
async def supervised(scene: Scene) -> AsyncIterator[None]:
    await scene.host.start()
    supervising = asyncio.create_task(scene.host.supervise())
    try:
        yield
    finally:
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)
        await scene.host.stop()


async def test_a_process_that_is_killed_while_it_starts_is_started_again() -> None:
    scene = Scene(FakeProcess(ChildDied("gone")), FakeProcess(ChildDied("gone")), FakeProcess())
    await scene.host.start()
    assert scene.host.get() is scene.started[2]  # type: ignore[comparison-overlap]


async def test_one_that_is_killed_at_every_start_is_given_up() -> None:
    scene = Scene(*(FakeProcess(ChildDied("gone")) for _ in range(9)))
    with pytest.raises(ChildDied):
        await scene.host.start()
    assert len(scene.started) == 4
    assert all(process.is_stopped for process in scene.started)


@pytest.mark.parametrize(("code", "is_short"), [(70, False), (-signal.SIGKILL, True)])
async def test_after_the_end_of_memory_the_next_plans_with_less_also_after_a_restart_of_the_daemon(
    tmp_path: Path, code: int, is_short: bool
) -> None:
    scene = Scene(FakeProcess(planned=1000), FakeProcess(planned=800), FakeProcess(), folder=tmp_path)
    scene.witness.is_short = is_short
    async with supervised(scene):
        for number in (1, 2):
            scene.started[-1].end(code)
            await eventually(lambda number=number: scene.restarts == number)
        assert [process.memory_bytes for process in scene.started] == [0, 850, 680]
        why = "killed by the system (memory)" if is_short else "out of memory"
        assert (scene.host.service.state, scene.host.service.why) == ("running", f"{why}; planning with 0.0 GB now")
    again = Scene(FakeProcess(), folder=tmp_path, memory_bytes=2000)
    await again.host.start()
    assert again.started[0].memory_bytes == 680


async def test_memory_that_ends_while_a_process_opens_makes_the_next_smaller_too(tmp_path: Path) -> None:
    scene = Scene(FakeProcess(ChildOutOfMemory("out of memory"), planned=1000), FakeProcess(), folder=tmp_path)
    await scene.host.start()
    assert [process.memory_bytes for process in scene.started] == [0, 850]


async def test_a_process_that_somebody_kills_plans_as_before(tmp_path: Path) -> None:
    scene = Scene(FakeProcess(planned=1000), FakeProcess(), folder=tmp_path)
    async with supervised(scene):
        scene.started[0].end(-signal.SIGKILL)
        await eventually(lambda: scene.restarts == 1)
        assert scene.started[1].memory_bytes == 0
        assert scene.host.service.why == "killed by somebody (SIGKILL)"


async def test_the_owner_is_told_when_the_smallest_plan_does_not_fit_and_pauses_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.process.LAST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("spes_peer.process.LONG_LIFE_SECONDS", 0.0)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def quick(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    doomed = [FakeProcess(planned=3_100_000_000, smallest=True) for _ in range(6)]
    scene = Scene(*doomed, FakeProcess(planned=10), folder=tmp_path)
    async with supervised(scene):
        monkeypatch.setattr("spes_peer.process.asyncio.sleep", quick)
        for number in range(1, 7):
            scene.started[-1].end(70)
            await eventually(lambda: scene.host._is_hopeless and len(troubles.board.texts) > 0)
            await eventually(lambda number=number: scene.restarts == number)
        monkeypatch.setattr("spes_peer.process.asyncio.sleep", sleep)
    long = [seconds for seconds in pauses if seconds > 0.011]
    assert long == [0.02, 0.04, 0.08, 0.16, 0.32]
    assert not (tmp_path / BUDGET_FILE).exists()
    assert not troubles.board.texts


async def test_a_process_that_falls_silent_is_killed_and_replaced() -> None:
    scene = Scene(FakeProcess(), FakeProcess(), stall_seconds=0.1)
    async with supervised(scene):
        await eventually(lambda: scene.restarts == 1)
        assert re.fullmatch(r"stalled \d+ s: it does not run", scene.started[0].why_killed)
        assert scene.host.service.why.startswith("stalled")


def test_a_daemon_that_was_suspended_itself_calls_nobody_stalled() -> None:
    watch = StallWatch(90.0)
    watch.awake(1000.0)
    assert not watch.why  # it is still importing
    watch.heard(beat(1, in_step=True))
    watch.awake(2.0)  # all that an hour of suspension counts for
    assert not watch.why
    watch.awake(89.0)
    assert watch.why == "stalled 91 s: it does not run"
    watch.heard(beat(1, in_step=True))
    assert not watch.why


def run(watch: StallWatch, seconds: int, number: int, in_step: bool = True) -> str:
    """It beats every second, in step `number`."""
    for _ in range(seconds):
        watch.awake(1.0)
        watch.heard(beat(number, in_step))
    return watch.why


def test_a_step_may_take_ten_times_the_longest_before_and_the_first_one_longer() -> None:
    watch = StallWatch(90.0)
    assert not run(watch, 890, number=1)
    assert run(watch, 20, number=1) == "stalled 909 s in one step"
    quick = StallWatch(90.0)
    for number in range(1, 20):
        assert not run(quick, 2, number)
    assert not run(quick, 89, number=20)
    assert run(quick, 3, number=20).endswith("in one step")
    slow = StallWatch(90.0)
    for number in range(1, 4):
        assert not run(slow, 60, number)
    assert not run(slow, 590, number=4)
    assert run(slow, 20, number=4)


def test_what_is_no_step_may_take_any_time() -> None:
    watch = StallWatch(90.0)
    assert not run(watch, 10_000, number=3, in_step=False)


def test_a_budget_is_forgotten_after_a_day_and_a_damaged_one_at_once(tmp_path: Path) -> None:
    now = [1e9]
    path = tmp_path / BUDGET_FILE
    budget = MemoryBudget(path, 0, lambda: now[0])
    budget.shrink(1000)
    now[0] += 23 * 3600
    assert MemoryBudget(path, 500, lambda: now[0]).size_bytes == 500
    assert MemoryBudget(path, 0, lambda: now[0]).size_bytes == 850
    now[0] += 2 * 3600
    assert budget.size_bytes == 0
    for damaged in (b"", b"{}", b"[1]", b'{"bytes": "x", "at": 1}'):
        path.write_bytes(damaged)
        assert MemoryBudget(path, 7, lambda: now[0]).size_bytes == 7


def test_a_witness_hears_of_the_kernels_kills_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts = tmp_path / "vmstat"
    counts.write_text("pgfault 9\noom_kill 4\n")
    monkeypatch.setattr("spes_peer.daemon.memory_budget._KERNEL_COUNTS", counts)
    witness = MemoryWitness()
    assert not witness.was_short()
    counts.write_text("pgfault 9\noom_kill 5\n")
    assert witness.was_short()
    assert not witness.was_short()
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=4, total=100))
    witness.look()
    assert witness.was_short()


async def test_a_trainers_troubles_are_the_daemons() -> None:
    scene = Scene(FakeProcess())
    await scene.host.start()
    scene.started[0].on_beat(beat(said=("disk full",)))
    assert troubles.board.texts == ("disk full",)
    scene.started[0].on_beat(beat())
    assert not troubles.board.texts


def test_the_way_a_process_ended_is_said_in_words() -> None:
    assert how_ended(-signal.SIGKILL) == "killed by somebody (SIGKILL)"
    assert how_ended(-signal.SIGSEGV) == "by signal SIGSEGV"
    assert how_ended(70) == "with code 70"


async def test_a_trainer_that_is_put_to_rest_is_ended_without_a_word_of_death_and_starts_when_it_is_woken() -> None:
    scene = Scene(FakeProcess(), FakeProcess())
    async with supervised(scene):
        await scene.host.rest("on battery")
        assert scene.started[0].is_stopped
        assert scene.host.has_left_device
        assert (scene.host.service.state, scene.host.service.why) == ("resting", "on battery")
        with pytest.raises(ChildFailed, match="the trainer rests: on battery"):
            scene.host.get()
        assert (scene.host.is_resting, scene.host.is_waking) == (True, False)
        scene.host.wake()
        assert not scene.host.has_left_device
        assert (scene.host.is_resting, scene.host.is_waking) == (False, True)
        await eventually(lambda: scene.restarts == 1)
        assert scene.host.get() is scene.started[1]  # type: ignore[comparison-overlap]
        assert (scene.host.service.state, scene.host.service.why, scene.host.is_waking) == ("running", "", False)


async def test_one_that_is_ending_still_holds_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, ending, may_end = Scene(FakeProcess()), asyncio.Event(), asyncio.Event()

    async def stop_slowly(_process: FakeProcess) -> None:
        ending.set()
        await may_end.wait()

    monkeypatch.setattr(FakeProcess, "stop", stop_slowly)
    await scene.host.start()
    resting = asyncio.create_task(scene.host.rest("on battery"))
    await ending.wait()
    assert (scene.host.is_resting, scene.host.has_left_device) == (True, False)
    may_end.set()
    await resting
    assert scene.host.has_left_device


async def test_one_that_is_to_rest_before_it_is_started_is_started_when_it_is_woken() -> None:
    scene = Scene(FakeProcess())
    await scene.host.rest("outside its hours")
    async with supervised(scene):
        assert not scene.started
        scene.host.wake()
        await eventually(lambda: scene.restarts == 1)


async def test_one_that_is_put_to_rest_while_it_starts_rests_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, opening = Scene(FakeProcess(), FakeProcess(), FakeProcess()), asyncio.Event()
    may_open = asyncio.Event()
    open_at_once = FakeProcess.open

    async def open_later(self: FakeProcess, *arguments: Any, **others: Any) -> TrainerOpened:
        if len(scene.started) > 1:
            opening.set()
            await may_open.wait()
        return await open_at_once(self, *arguments, **others)

    monkeypatch.setattr(FakeProcess, "open", open_later)
    async with supervised(scene):
        scene.started[0].end(1)
        await opening.wait()
        await scene.host.rest("on battery")
        assert not scene.host.has_left_device
        may_open.set()
        await eventually(lambda: scene.started[1].is_stopped)
        assert scene.host.has_left_device
        assert (scene.host.service.state, scene.host.service.why, scene.restarts) == ("resting", "on battery", 0)
