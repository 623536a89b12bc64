"""A program under control, for the tests of the control API and the dashboard: it has a status, and notes commands."""

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from spes_peer.control import ControlServer, StatusBoard
from spes_peer.errors import UserError
from spes_peer.wire.control_pb2 import Status


class Program:
    """What a daemon is to its control API."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.board = StatusBoard(lambda: self.status)
        self.commands: list[str] = []

    def show(self, status: Status) -> None:
        self.status = status
        self.board.touch()

    async def pause(self) -> str:
        self.commands.append("pause")
        self.status.is_paused = True
        self.board.touch()
        return "pauses after round 24"

    async def resume(self) -> str:
        if not self.status.is_paused:
            raise UserError("this peer is not\npaused")
        self.commands.append("resume")
        self.status.is_paused = False
        self.board.touch()
        return "takes part again"

    async def leave(self, at_once: bool) -> str:
        self.commands.append(f"leave at_once={at_once}")
        return "leaves now" if at_once else "leaves after round 24"


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A new folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="spes-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def served(program: Program, folder: Path) -> AsyncIterator[Path]:
    """The socket of a control server that serves `program`."""
    server = await ControlServer.start(folder / "control.sock", program)
    try:
        yield folder / "control.sock"
    finally:
        await server.stop()
