"""The dashboard on a screen without a terminal, for its tests: what it shows, and waiting for it."""

import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot
from tui_statuses import NOW

from tui.app import Dashboard
from tui.feed import LiveFeed

DEADLINE_SECONDS = 60.0


def dashboard(socket_path: Path) -> Dashboard:
    """One for the daemon behind a socket, in which the time stands still."""
    return Dashboard(LiveFeed(socket_path, clock=lambda: NOW))


def screen_of(app: Dashboard) -> str:
    """The characters on the screen."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[str], is_so: Callable[[], bool]) -> None:
    """Let the app run until something is so; fail with the screen when it never is."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, screen_of(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.02)


async def shows(pilot: Pilot[str], *texts: str) -> None:
    """Wait until every text is on the screen."""
    app = pilot.app
    assert isinstance(app, Dashboard)
    await until(pilot, lambda: all(text in screen_of(app) for text in texts))
