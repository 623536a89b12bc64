"""The control API: what watchers and commands see over a real Unix socket."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from tui_statuses import status

from spes_peer.control import MIN_GAP_SECONDS, ControlClient, ControlServer, StatusBoard, is_live
from spes_peer.errors import BadConfiguration, UserError
from spes_peer.wire.control_pb2 import Status

SERVE_AND_STALL = """
import asyncio, sys, pathlib
from control_program import Program, ControlServer
from tui_statuses import status
async def main():
    server = await ControlServer.start(pathlib.Path(sys.argv[1]), Program(status()))
    print("serving", flush=True)
    await asyncio.sleep(60)
    await server.stop()
asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


async def test_a_watcher_gets_the_present_status_at_once(folder: Path) -> None:
    async with served(Program(status()), folder) as socket_path, ControlClient(socket_path) as client:
        assert await client.status_once(timeout_seconds=30) == status()


async def test_a_burst_of_changes_collapses_and_the_newest_comes_last(folder: Path) -> None:
    program = Program(Status(round=0))

    async def change_often() -> None:
        for number in range(1, 201):
            program.show(Status(round=number))
            await asyncio.sleep(0.001)

    now = asyncio.get_running_loop().time
    began_at = now()
    async with asyncio.timeout(60), served(program, folder) as socket_path, ControlClient(socket_path) as client:
        statuses = client.watch()
        seen = [(await anext(statuses)).round]
        changing = asyncio.create_task(change_often())
        while seen[-1] < 200:
            seen.append((await anext(statuses)).round)
        await changing
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert len(seen) <= 3 + (now() - began_at) / MIN_GAP_SECONDS


async def test_two_statuses_keep_their_distance() -> None:
    board = StatusBoard(Status)
    times = []
    async for _ in board.watch():
        times.append(asyncio.get_running_loop().time())
        board.touch()
        if len(times) == 3:
            break
    assert all(later - earlier >= 0.9 * MIN_GAP_SECONDS for earlier, later in itertools.pairwise(times))


async def test_a_closing_board_sends_the_last_status_and_ends() -> None:
    shown = Status(round=1)
    board = StatusBoard(lambda: Status(round=shown.round))
    rounds = []
    async for seen in board.watch():
        rounds.append(seen.round)
        shown.round = 2
        board.close()
    assert rounds == [1, 2]


async def test_commands_reach_the_program_and_its_sentence_comes_back(folder: Path) -> None:
    program = Program(status())
    async with served(program, folder) as socket_path, ControlClient(socket_path) as client:
        assert await client.pause() == "pauses after round 24"
        assert (await client.status_once()).is_paused
        assert await client.resume() == "takes part again"
        assert await client.leave() == "leaves after round 24"
        assert await client.leave(at_once=True) == "leaves now"
    assert program.commands == ["pause", "resume", "leave at_once=False", "leave at_once=True"]


async def test_a_refused_command_is_one_line(folder: Path) -> None:
    async with served(Program(status()), folder) as socket_path, ControlClient(socket_path) as client:
        with pytest.raises(UserError, match=r"^this peer is not paused$"):
            await client.resume()


async def test_without_a_daemon_the_error_says_how_to_start_one(folder: Path) -> None:
    async with ControlClient(folder / "control.sock") as client:
        with pytest.raises(UserError, match=r"no daemon runs on this state folder .*start one with: spes-peer join"):
            await client.status_once()
        with pytest.raises(UserError, match="no daemon runs"):
            await client.pause()


async def test_a_stopping_server_ends_the_streams_in_order(folder: Path) -> None:
    async with asyncio.timeout(60), ControlClient(folder / "control.sock") as client:
        async with served(Program(status()), folder):
            statuses = client.watch()
            await anext(statuses)
            rest = asyncio.create_task(_count(statuses))
        assert await rest == 1  # the last one, sent because the board closes


async def _count(statuses: AsyncIterator[Status]) -> int:
    return len([status async for status in statuses])


async def test_only_this_user_can_connect(folder: Path) -> None:
    async with served(Program(status()), folder / "state") as socket_path:
        assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700


async def test_a_folder_may_have_any_name(folder: Path) -> None:
    async with served(Program(status()), folder / "a b%41?x#é") as socket_path:
        assert socket_path.exists()
        async with ControlClient(socket_path) as client:
            assert (await client.status_once()).pid == 4711
    assert not socket_path.exists()


async def test_a_socket_left_by_a_dead_daemon_is_taken_over(folder: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(folder / "control.sock"))
    stale.close()
    assert not is_live(folder / "control.sock")
    async with served(Program(status()), folder) as socket_path, ControlClient(socket_path) as client:
        assert (await client.status_once()).pid == 4711


async def test_a_second_daemon_is_refused_and_the_first_goes_on(folder: Path) -> None:
    async with served(Program(status()), folder) as socket_path:
        with pytest.raises(BadConfiguration, match=r"already running \(pid 4711\)"):
            await ControlServer.start(socket_path, Program(status()))
        async with ControlClient(socket_path) as client:
            assert (await client.status_once()).pid == 4711


async def test_too_long_a_path_is_refused_before_anything_is_made(folder: Path) -> None:
    socket_path = folder / ("x" * 100) / "control.sock"
    with pytest.raises(BadConfiguration, match="at most 107"):
        await ControlServer.start(socket_path, Program(status()))
    assert not socket_path.parent.exists()


async def test_a_folder_that_cannot_be_made_is_one_line(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(BadConfiguration, match="cannot listen on"):
        await ControlServer.start(folder / "file" / "control.sock", Program(status()))


async def test_a_daemon_that_hangs_or_dies_is_noticed(folder: Path) -> None:
    socket_path = folder / "control.sock"
    command = [sys.executable, "-c", SERVE_AND_STALL, str(socket_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    daemon = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        assert daemon.stdout is not None
        assert await daemon.stdout.readline() == b"serving\n"
        async with ControlClient(socket_path) as client:
            statuses = client.watch(silence_seconds=2.0)
            assert (await anext(statuses)).pid == 4711
            os.kill(daemon.pid, signal.SIGSTOP)
            with pytest.raises(UserError, match=r"silent for 2 s"):
                await anext(statuses)
            os.kill(daemon.pid, signal.SIGCONT)
            statuses = client.watch()
            assert (await anext(statuses)).pid == 4711
            daemon.kill()
            with pytest.raises(UserError, match="no daemon runs"):
                await anext(statuses)
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.kill()
        await daemon.wait()
