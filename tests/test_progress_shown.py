"""What takes long is shown: a bar in a terminal that leaves log lines whole, and a line now and then elsewhere."""

import asyncio
import io
import logging
import time

import pytest
from exchange_nodes import eventually
from rich.console import Console

from spes_peer.daemon import progress_shown
from spes_peer.logs import log_to_person
from spes_peer.wire.control_pb2 import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fetching(done: float, seconds: float = 60.0) -> Progress:
    return Progress(what="fetching the snapshot", done=done, whole=50e6, unit="bytes", since_at=time.time() - seconds)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_shown, "_LOOK_SECONDS", 0.01)


async def test_in_a_pipe_a_line_comes_at_most_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    def look() -> Progress:
        nonlocal looks
        looks += 1
        return fetching(10e6)

    caplog.set_level(logging.INFO)
    async with progress_shown.shown(look, has_bar=True):  # stderr is no terminal here
        await eventually(lambda: looks > 20)
    assert [record.getMessage() for record in caplog.records] == ["fetching the snapshot  10.0 of 50.0 MB"]


async def test_what_has_just_begun_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    def look() -> Progress | None:
        nonlocal looks
        looks += 1
        return fetching(10e6, seconds=-60.0) if looks % 2 else None

    caplog.set_level(logging.INFO)
    async with progress_shown.shown(look, has_bar=True):
        await eventually(lambda: looks > 20)
    assert not caplog.records


async def test_in_a_terminal_a_bar_stands_below_the_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(
        progress_shown, "Console", lambda **_: Console(file=terminal, force_terminal=True, width=100, _environ={})
    )
    root = logging.Logger("root", logging.INFO)
    monkeypatch.setattr(logging, "root", root)
    log_to_person(logging.INFO)
    now: Progress | None = fetching(10e6)
    async with progress_shown.shown(lambda: now, has_bar=True):
        await eventually(lambda: "10.0 of 50.0 MB" in terminal.getvalue())
        root.info("a line that is said meanwhile")
        await eventually(lambda: "a line that is said meanwhile\n" in terminal.getvalue())
        now = None
        await asyncio.sleep(0)
    assert "━" in terminal.getvalue()
