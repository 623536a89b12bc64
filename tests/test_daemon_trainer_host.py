"""The trainer process is replaced whenever it ends, and whoever asks for it meanwhile is told why there is none."""

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange_nodes import eventually

from spes_peer.daemon.trainer_host import TrainerHost, TrainerSettings, how_ended
from spes_peer.errors import ChildFailed
from spes_peer.identity import PeerId
from spes_peer.training.work import TrainerOpened


class FakeProcess:
    def __init__(self, failure: str = "") -> None:
        self.child = SimpleNamespace(process=SimpleNamespace(returncode=-9))
        self.on_progress: Any = None
        self.is_stopped = False
        self.ended = asyncio.Event()
        self._failure = failure

    async def open(self, *_: Any, **__: Any) -> TrainerOpened:
        if self._failure:
            raise ChildFailed(self._failure)
        return TrainerOpened("cpu", 1, 0.0)

    async def wait_ended(self) -> None:
        await self.ended.wait()

    async def stop(self) -> None:
        self.is_stopped = True
        self.ended.set()


class Scene:
    def __init__(self, *processes: FakeProcess) -> None:
        self.started: list[FakeProcess] = []
        self.restarts = 0
        coming = list(processes)

        def start(_log: Path) -> Any:
            self.started.append(coming.pop(0))
            return self.started[-1]

        folder = Path("unused")
        settings = TrainerSettings(b"", folder, folder, folder, PeerId("peer"), "cpu", 1)
        self.host = TrainerHost(settings, start)
        self.host.on_restart = self._count

    def _count(self) -> None:
        self.restarts += 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spes_peer.process.FIRST_PAUSE_SECONDS", 0.01)


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


def test_the_way_a_process_ended_is_said_in_words() -> None:
    assert "memory is short" in how_ended(-signal.SIGKILL)
    assert how_ended(-signal.SIGSEGV) == "by signal SIGSEGV"
    assert how_ended(70) == "with code 70"
