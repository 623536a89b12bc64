"""The dashboard as a person has it: `spes-peer watch` in a terminal of 80 columns and 24 lines, in tmux."""

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from tui_statuses import status

DEADLINE_SECONDS = 60.0
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """A window of tmux, on a server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True).stdout

    def start(self, *command: str, **environment: str) -> None:
        """A shell with a prompt of its own, then the command in it."""
        size = ("-x", "80", "-y", "24")
        settings = [
            f"-e{name}={value}" for name, value in {"PS1": "ready>", "LC_ALL": "C.UTF-8", **environment}.items()
        ]
        self.tmux("-u", "-f", os.devnull, "new-session", "-d", *size, *settings, "sh")
        self.keys(f"PS1='ready''> '; {shlex.join(command)}", "Enter")  # quoted, so that the prompt alone looks like it

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    async def shows(self, *texts: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not all(text in (screen := self.screen) for text in texts):
            assert time.monotonic() < deadline, screen
            await asyncio.sleep(0.05)


@pytest.fixture
def program() -> Program:
    return Program(status())


@pytest.fixture
async def folder(program: Program) -> AsyncIterator[Path]:
    """A state folder on which a daemon answers."""
    with short_folder() as path:
        async with served(program, path):
            yield path


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    window = Terminal(folder)
    try:
        yield window
    finally:
        window.tmux("kill-server")


def watch(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "spes_peer", "watch", "--data-dir", str(folder))


async def test_a_volunteer_looks_around_pauses_and_detaches(terminal: Terminal, folder: Path, program: Program) -> None:
    terminal.start(*watch(folder))
    await terminal.shows("1 Overview", "step 13 of 20", "waits for birch, dogwood", "q detach")
    for key, text in (("2", "alder (you)"), ("3", "2.548"), ("4", "birch"), ("6", "round closed round=23")):
        terminal.keys(key)
        await terminal.shows(text)
    terminal.keys("p")
    await terminal.shows("pausing")
    assert program.commands == ["pause"]
    terminal.keys("1")
    await terminal.shows("pauses after this round")
    terminal.keys("q")
    await terminal.shows("detached; the daemon goes on", "ready>")
    assert program.commands == ["pause"]


async def test_ctrl_c_again_and_again_only_detaches(terminal: Terminal, folder: Path, program: Program) -> None:
    terminal.start(*watch(folder))
    await terminal.shows("step 13 of 20")
    terminal.keys("C-c", "C-c", "C-c")
    await terminal.shows("ready>")
    terminal.keys("echo still here", "Enter")
    await terminal.shows("\nstill here")
    assert "Traceback" not in terminal.screen
    assert program.commands == []


async def test_sixteen_colours_ascii_and_no_colour_are_enough(terminal: Terminal, folder: Path) -> None:
    terminal.start(*watch(folder), TERM="screen", LC_ALL="C", NO_COLOR="1")
    await terminal.shows("+- now -", "1 Overview", "step 13 of 20")
    assert terminal.screen.isascii()
    terminal.keys("q")
    await terminal.shows("ready>")
