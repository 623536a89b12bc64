"""Children: asked, answered, noticed when they die, and never outliving whoever started them. Real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from spes_peer import process
from spes_peer.errors import ChildFailed
from spes_peer.process import Child, ending_signals, let_others_go_first
from spes_peer.wire.children_pb2 import DhtHealth, Dictionary, ReadDictionary

HERE = str(Path(__file__).parent)
Start = Callable[..., Child]


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts children that are gone after the test, whatever it did."""
    children: list[Child] = []

    def start_child(**environment: str) -> Child:
        child = Child.start("echo", "echo_child", tmp_path / "echo.log", {"PYTHONPATH": HERE, **environment})
        children.append(child)
        return child

    yield start_child
    for child in children:
        child.kill()
        await child.stop()


async def ask(child: Child, what: str, timeout_seconds: float = 20.0) -> Dictionary:
    return await child.call(ReadDictionary(dictionary=what), Dictionary, timeout_seconds)


async def within(seconds: float, happens: Awaitable[object]) -> None:
    async with asyncio.timeout(seconds):
        await happens


def is_gone(pid: int) -> bool:
    """Ended; where nobody collects orphans, ended ones stay as zombies."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_gone(pid)


async def test_every_call_gets_its_own_answer(start: Start) -> None:
    child = start()
    answers = await asyncio.gather(*(ask(child, f"number {number}") for number in range(50)))
    assert [answer.entries[0].peer_id for answer in answers] == [f"number {number}" for number in range(50)]


async def test_an_error_of_the_child_reaches_the_caller_and_ends_nothing(start: Start) -> None:
    child = start()
    with pytest.raises(ChildFailed, match="it cannot be done"):
        await ask(child, "fail")
    assert (await ask(child, "on")).entries[0].peer_id == "on"


async def test_silence_ends_with_the_timeout_and_only_for_that_call(start: Start) -> None:
    child = start()
    await ask(child, "started")
    with pytest.raises(ChildFailed, match=r"did not answer ReadDictionary"):
        await ask(child, "say nothing", timeout_seconds=0.1)
    assert (await ask(child, "on")).entries[0].peer_id == "on"


async def test_an_answer_of_another_type_is_an_error(start: Start) -> None:
    with pytest.raises(ChildFailed, match="answered DhtStarted to ReadDictionary"):
        await ask(start(), "answer something else")


async def test_events_arrive_between_answers(start: Start) -> None:
    child = start()
    events: list[Message] = []
    child.on_event = events.append
    await ask(child, "tell")
    assert events == [DhtHealth(num_neighbours=7)]


async def test_what_a_child_prints_is_in_its_log(start: Start, tmp_path: Path) -> None:
    await ask(start(), "print")
    assert (tmp_path / "echo.log").read_text().split("\n") == ["said on stdout", "said on stderr", ""]


@pytest.mark.parametrize("end", ["die", "send nonsense"])
async def test_all_callers_fail_at_once_when_a_child_dies_or_raves(start: Start, end: str) -> None:
    child = start()
    await ask(child, "started")
    waiting = [asyncio.create_task(ask(child, "say nothing")) for _ in range(3)]
    started_at = time.monotonic()
    with pytest.raises(ChildFailed, match="the echo process has ended"):
        await ask(child, end)
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ChildFailed)
    assert time.monotonic() - started_at < 15  # and not 20, for which they would wait
    await within(20, child.ended.wait())
    with pytest.raises(ChildFailed, match="has ended"):
        await ask(child, "on")


async def test_a_killed_child_is_noticed_at_once(start: Start) -> None:
    child = start()
    await ask(child, "started")
    waiting = asyncio.create_task(ask(child, "say nothing"))
    await asyncio.sleep(0)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed):
        async with asyncio.timeout(15):
            await waiting


async def test_a_child_that_does_not_read_is_given_up_rather_than_fed_half_a_message(start: Start) -> None:
    child = start()
    await ask(child, "started")
    with pytest.raises(ChildFailed):
        await ask(child, "read no more", timeout_seconds=0.1)
    with pytest.raises(ChildFailed, match="did not answer"):
        await ask(child, "x" * (8 << 20), timeout_seconds=0.2)
    await within(20, child.ended.wait())


async def test_a_child_ends_when_it_is_told_to(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 30.0)
    child = start()
    await ask(child, "started")
    await child.stop()
    assert child.process.returncode == 0
    await child.stop()


async def test_a_child_that_ignores_the_end_of_its_input_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)
    child = start(IGNORES_THE_END="1")
    await ask(child, "started")
    await within(30, child.stop())
    assert child.process.returncode == -signal.SIGKILL


async def test_an_interrupt_from_the_terminal_is_not_the_childs_business(start: Start) -> None:
    child = start()
    await ask(child, "started")
    assert os.getsid(child.pid) == child.pid
    os.kill(child.pid, signal.SIGINT)
    assert (await ask(child, "on")).entries[0].peer_id == "on"


PARENT = """
import asyncio, signal, sys
from pathlib import Path
from spes_peer.process import Child
from spes_peer.wire.children_pb2 import Dictionary, ReadDictionary

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have it ignored

async def main():
    child = Child.start("echo", "echo_child", Path(sys.argv[1]))
    await child.call(ReadDictionary(dictionary="started"), Dictionary, 20)
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stubborn", ["", "1"])
def test_no_child_outlives_its_parent_for_long(tmp_path: Path, signal_number: signal.Signals, stubborn: str) -> None:
    if stubborn and sys.platform != "linux":
        pytest.skip("only Linux has PR_SET_PDEATHSIG")
    command = [sys.executable, "-c", PARENT, str(tmp_path / "echo.log")]
    environment = {**os.environ, "PYTHONPATH": HERE, "IGNORES_THE_END": stubborn}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(signal_number)
        parent.wait(30)
        assert wait_until_gone(pid, 20)


def test_who_is_started_with_nohup_stays_when_the_terminal_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.SIGHUP in ending_signals() or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_IGN)
    assert ending_signals() == (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize(("soft", "hard", "allowed", "is_said"), [(64, 512, 512, False), (64, 64, 64, True)])
def test_a_node_has_as_many_descriptors_as_the_system_allows_and_says_where_those_are_few(
    soft: int, hard: int, allowed: int, is_said: bool
) -> None:
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from spes_peer import process, troubles\n"
        "process.use_all_descriptors()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], *troubles.board.texts)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    number, _, trouble = done.stdout.strip().partition(" ")
    assert int(number) == allowed
    assert ("only 64 files and connections" in trouble) == is_said


@pytest.mark.skipif(sys.platform != "linux", reason="where priorities can be read back so")
async def test_a_child_that_lets_others_go_first_does_so_for_processors_and_disks(start: Start) -> None:
    child = start()
    let_others_go_first(child.pid)
    assert psutil.Process(child.pid).nice() >= 10
    assert psutil.Process(child.pid).ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
    child.kill()
    await within(20, child.ended.wait())
    await child.stop()
    let_others_go_first(child.pid)  # of one that is gone nothing comes
