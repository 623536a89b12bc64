"""What a daemon writes down of itself, whatever becomes of it."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from exchange_nodes import eventually

from spes_peer.control import none_runs
from spes_peer.daemon import recorder
from spes_peer.daemon.recorder import Recorder
from spes_peer.errors import BadConfiguration, SpesError
from spes_peer.events.folder import last_event
from spes_peer.events.journal import EventLog
from spes_peer.lock import locked
from spes_peer.wire.control_pb2 import Status


class Facts:
    """That cannot be had for so many looks."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.num_looks = 0

    def __call__(self) -> Status:
        self.num_looks += 1
        if self.num_looks <= self.num_failures:
            raise RuntimeError("a figure that is no figure")
        return Status(pid=1, round=self.num_looks)


async def test_a_look_that_fails_is_logged_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "_AGAIN_SECONDS", 0.01)
    facts = Facts(num_failures=2)
    caplog.set_level(logging.ERROR, "spes_peer")
    async with Recorder(facts).running(tmp_path, None):
        await eventually(lambda: facts.num_looks > 2)
    assert [record.message for record in caplog.records] == ["could not look at what the daemon does"] * 2
    assert last_event(tmp_path) is not None


async def test_the_reason_for_the_end_is_not_lost_to_facts_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="no such device"):
        async with Recorder(Facts(num_failures=10**9)).running(tmp_path, None):
            raise BadConfiguration("no such device")
    ended = last_event(tmp_path)
    assert ended is not None
    assert (ended.ended.why, ended.ended.exit_code) == ("no such device", 2)


async def test_the_loop_goes_on_while_a_slow_disk_takes_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, close = threading.Event(), EventLog.close

    def close_slowly(log: EventLog) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).add_done_callback(lambda _: goes_on.set())
        was_going_on.append(goes_on.wait(10))
        close(log)

    loop, was_going_on = asyncio.get_running_loop(), list[bool]()
    monkeypatch.setattr(EventLog, "close", close_slowly)
    async with Recorder(Facts(0)).running(tmp_path, None):
        pass
    assert was_going_on == [True]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by nothing"), "a fault of the program: ZeroDivisionError by nothing"),
        (SpesError("full"), "full"),
    ],
)
async def test_of_tasks_that_ran_together_the_first_error_is_the_reason(
    tmp_path: Path, error: Exception, words: str
) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(ExceptionGroup):
        async with Recorder(Facts(0)).running(tmp_path, None), asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
    ended = last_event(tmp_path)
    assert ended is not None
    assert ended.ended.why == words


def test_a_daemon_that_cannot_be_asked_yet_is_not_said_to_be_dead(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert "is starting or ending" in str(none_runs(tmp_path))
    assert "no daemon runs" in str(none_runs(tmp_path))
