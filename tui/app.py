"""The dashboard itself: follows a daemon, draws at most four times a second, never takes the daemon down with it."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.geometry import Size
from textual.widgets import Footer, Static

from spes_peer.control import ControlClient
from spes_peer.errors import UserError
from tui.experts import ExpertsPanel
from tui.header import Header
from tui.help import HelpScreen
from tui.log import LogPanel
from tui.look import THEME, safe
from tui.memory import Memory
from tui.panel import Panel
from tui.peers import PeersPanel
from tui.rounds import RoundsPanel
from tui.training import TrainingPanel

PANELS = ("experts", "training", "peers", "rounds", "log")
_LOWER = ("peers", "rounds", "log")
_DRAW_SECONDS = 0.25
_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 5.0
_ENDS_A_DAEMON = ("leaving", "finished")


def mode_of(width: int, height: int) -> str:
    """How much fits: "all" panels, "half" (experts, training and one more), or "one"."""
    if (width >= 100 and height >= 32) or (width >= 70 and height >= 39):
        return "all"
    return "half" if width >= 70 and height >= 20 else "one"


def shown_panels(mode: str, chosen: str, lower: str) -> set[str]:
    """Which panels are on the screen; `lower` is the one of the lower three chosen last."""
    return {"all": set(PANELS), "half": {"experts", "training", lower}, "one": {chosen}}[mode]


class Dashboard(App[str]):
    """A client of one daemon. Its result says why it ended."""

    CSS_PATH: ClassVar = ["app.tcss", "panel.tcss", "help.tcss"]
    TITLE = "spes-peer"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "detach", "detach (the daemon goes on)"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("p", "pause", "pause/resume"),
        Binding("1", "choose('experts')", "panels", key_display="1-5"),
        Binding("2", "choose('training')", show=False),
        Binding("3", "choose('peers')", show=False),
        Binding("4", "choose('rounds')", show=False),
        Binding("5", "choose('log')", show=False),
        Binding("z", "zoom", "zoom"),
        Binding("ctrl+c,ctrl+q", "detach", show=False, priority=True),
    ]

    def __init__(self, socket_path: Path, clock: Callable[[], float] = time.time, leave_ends_app: bool = True) -> None:
        super().__init__()
        self._socket_path = socket_path
        self._clock = clock
        self._leave_ends_app = leave_ends_app
        self._memory = Memory()
        self._drawn = (-1, 0)  # number of the status, second
        self._num_statuses = 0
        self._chosen = PANELS[0]
        self._lower = _LOWER[0]
        self._is_zoomed = False

    def compose(self) -> ComposeResult:
        yield Static(id="banner", markup=False)
        yield Header()
        with Horizontal(id="upper"):
            yield ExpertsPanel("experts", 1)
            yield TrainingPanel("training", 2)
        with Container(id="middle"):
            yield PeersPanel("peers", 3)
            yield RoundsPanel("rounds", 4)
        yield LogPanel("log", 5)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        if not self.is_headless:
            _never_stop()
        self.register_theme(THEME)
        self.theme = THEME.name
        self._arrange(self.size)
        self.set_interval(_DRAW_SECONDS, self._draw)
        self._follow()

    # following the daemon

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        """Take statuses in for ever; a daemon that is gone is looked for again, less and less often."""
        retry_seconds = _FIRST_RETRY_SECONDS
        while True:
            before = self._num_statuses
            reason = await self._follow_once()
            if self._num_statuses > before:
                retry_seconds = _FIRST_RETRY_SECONDS
            self._say(
                f"the daemon is gone, reconnecting…  {reason}" if self._num_statuses else f"{reason}; waiting for it…"
            )
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)

    async def _follow_once(self) -> str:
        """Take statuses in until the stream ends; why it did."""
        try:
            async with ControlClient(self._socket_path) as client:
                async for status in client.watch():
                    self._memory.absorb(status)
                    self._num_statuses += 1
                    if self._num_statuses == 1:
                        self._draw()
                    self._say("")
        except UserError as error:
            return str(error)
        last = self._memory.status
        if self._leave_ends_app and last is not None and last.phase.name in _ENDS_A_DAEMON:
            self.exit(
                "the daemon has finished the run" if last.phase.name == "finished" else "the daemon has left the run"
            )
        return "it ended"

    def _say(self, text: str) -> None:
        for banner in self.query("#banner").results(Static):  # none is left when the app ends just now
            banner.display = bool(text)
            banner.update(safe(text))

    # drawing

    def _draw(self) -> None:
        """Draw the newest status, or the same one a second later; statuses in between are never drawn."""
        now = self._clock()
        moment = (self._num_statuses, int(now))
        if moment == self._drawn or (view := self._memory.view(now)) is None:
            return
        self._drawn = moment
        for header in self.query(Header):
            header.show(view)
        for panel in self.query(Panel):
            panel.show(view)

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size)  # the app's own size is still the old one here

    def _arrange(self, size: Size) -> None:
        """Show the panels that fit."""
        mode = mode_of(*size)
        shown = shown_panels("one" if self._is_zoomed else mode, self._chosen, self._lower)
        for panel in self.query(Panel):
            panel.display = panel.id in shown
        self.query_one(Header).max_lines = 3 if mode == "one" else 5
        self.query_one("#upper").display = bool(shown & {"experts", "training"})
        self.query_one("#middle").display = bool(shown & {"peers", "rounds"})
        for name in ("all", "half", "one"):
            self.screen_stack[0].set_class(name == mode, f"-{name}")
        self.screen_stack[0].set_class(size.width < 100, "-narrow")
        self.screen_stack[0].set_class(len(shown) == 1, "-single")

    # keys

    def action_choose(self, name: str) -> None:
        """Go to a panel, and show it where not all fit."""
        self._chosen = name
        self._lower = name if name in _LOWER else self._lower
        self._arrange(self.size)
        self.call_after_refresh(self.query_one(f"#{name}", Panel).body.focus)

    def _step(self, by: int) -> None:
        self.action_choose(PANELS[(PANELS.index(self._chosen) + by) % len(PANELS)])

    def action_focus_next(self) -> None:
        self._step(1)

    def action_focus_previous(self) -> None:
        self._step(-1)

    def action_zoom(self) -> None:
        self._is_zoomed = not self._is_zoomed
        self.action_choose(self._chosen)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_detach(self) -> None:
        self.exit("detached; the daemon goes on")

    @work(exclusive=True, group="command")
    async def action_pause(self) -> None:
        """Ask the daemon to pause, or to resume when it is paused; show what it says."""
        status = self._memory.status
        try:
            async with ControlClient(self._socket_path) as client:
                said = await (client.resume() if status is not None and status.is_paused else client.pause())
            self.notify(safe(said), markup=False)
        except UserError as error:
            self.notify(safe(str(error)), severity="error", markup=False)


def _never_stop() -> None:
    """Take SIGTSTP and SIGCONT away from Textual's driver (8.2.8).

    It starts a second input thread on every SIGCONT, and a kernel that hangs up sends one after SIGHUP: the process
    would wait for that thread for ever. Nobody misses stopping: Ctrl-Z is a mere key here, and `q` detaches.
    """
    for number in (signal.SIGTSTP, signal.SIGCONT):
        signal.signal(number, lambda *_: None)


@contextlib.contextmanager
def ended_by_signals(app: Dashboard) -> Iterator[None]:
    """SIGTERM and SIGHUP end the app in order; Textual alone would leave the terminal unusable."""
    loop = asyncio.get_running_loop()
    caught = (signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, app.exit, f"ended by {number.name}")
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
