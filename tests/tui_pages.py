"""One page of the dashboard alone on a screen without a terminal, for the tests of pages."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from textual.app import App, ComposeResult
from textual.content import Content
from textual.pilot import Pilot
from textual.widgets import Footer
from tui_statuses import NOW

import tui
from spes_peer.wire.control_pb2 import Status
from tui.look import DARK_THEME
from tui.memory import Memory, View
from tui.page import Page
from tui.rows import Field, laid_out

DEADLINE_SECONDS = 60.0
SIZES = ((1, 1), (3, 2), (20, 5), (40, 12), (80, 24), (200, 60))
STYLES: list[str | PurePath] = [Path(tui.__file__).with_name(name) for name in ("app.tcss", "panel.tcss")]


class OnePage(App[None]):
    """Shows a status whenever a test says so."""

    CSS_PATH = STYLES

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page
        self.memory = Memory()

    def compose(self) -> ComposeResult:
        yield self.page
        yield Footer(compact=True)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return DARK_THEME.variables

    def on_mount(self) -> None:
        self.register_theme(DARK_THEME)
        self.theme = DARK_THEME.name
        self.page.first.focus()

    def show(self, status: Status) -> None:
        self.memory.absorb(status, NOW)
        self.page.show(self.memory.view(NOW))  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        return "\n".join(
            "".join(segment.text for segment in strip) for strip in self.screen._compositor.render_strips()
        )

    @property
    def rows(self) -> list[list[str]]:
        """The words of every line between the frames."""
        return [line.strip("│ ").split() for line in self.text.splitlines()]


@contextlib.asynccontextmanager
async def opened(
    page: Page, status: Status, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[OnePage, Pilot[Any]]]:
    app = OnePage(page)
    async with app.run_test(size=size) as pilot:
        app.show(status)
        await pilot.pause()
        yield app, pilot


def press(app: OnePage, *keys: str) -> None:
    """Keys to a page that need not wait for each other; `pilot.press` lets the app come to rest after each."""
    for key in keys:
        app.simulate_key(key)


async def until(app: OnePage, pilot: Pilot[Any], is_so: Callable[[], bool]) -> None:
    """Let the app run until something is so; fail with the screen when it never is."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, app.text
        await asyncio.sleep(0.01)


async def shows(app: OnePage, pilot: Pilot[Any], *texts: str) -> None:
    await until(app, pilot, lambda: all(text in app.text for text in texts))


async def hides(app: OnePage, pilot: Pilot[Any], *texts: str) -> None:
    await until(app, pilot, lambda: not any(text in app.text for text in texts))


async def any_size_is_fine(page: Page, statuses: Sequence[Status]) -> None:
    """Sizes and statuses change all the time; at the end it shows something at a usual size."""
    async with opened(page, statuses[0], (80, 24)) as (app, pilot):
        for number, (width, height) in enumerate((*SIZES, *reversed(SIZES))):
            await pilot.resize_terminal(width, height)
            app.show(statuses[number % len(statuses)])
            if number < len(SIZES):
                press(app, "down")
        await pilot.resize_terminal(80, 24)
        app.show(statuses[0])
        await pilot.pause()
        assert len(app.text.splitlines()) == 24


def view_of(status: Status, now: float = NOW) -> View:
    memory = Memory()
    memory.absorb(status, now)
    view = memory.view(now)
    assert view is not None
    return view


def line_of(fields: Sequence[Field[Any]], item: object, width: int) -> str:
    """A row as a list of that width draws it."""
    cells: list[Content] = [field.cell(item, room) for field, room in laid_out(fields, width, 1)]
    return " ".join(cell.plain for cell in cells)
