"""The dashboard itself: follows a feed, draws at most four times a second, never takes the daemon down with it."""

import asyncio
import contextlib
import functools
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Footer, Input, Static
from textual.worker import Worker

from spes_peer.errors import UserError
from tui import plain
from tui.asking import LeaveScreen
from tui.exchange import ExchangePage
from tui.experts import ExpertsPage
from tui.feed import Ended, Feed, Jumped, Lost
from tui.header import Header
from tui.help import HelpScreen
from tui.log import LogPage
from tui.look import DARK_THEME, LIGHT_THEME, safe
from tui.memory import Memory
from tui.overview import OverviewPage
from tui.page import Page
from tui.peers import PeersPage
from tui.rounds import RoundsPage
from tui.scrubber import Scrubber
from tui.tabs import Tabs

PAGES: tuple[type[Page], ...] = (OverviewPage, ExpertsPage, RoundsPage, PeersPage, ExchangePage, LogPage)
_NAMES = tuple(page.NAME for page in PAGES)
_DRAW_SECONDS = 0.25


class Palette(CommandPalette):
    """Textual's (8.2.8), which would end the program by a key for its list while that has no lines on the screen, when
    it is closed while it still looks for what was typed, and when it is closed twice."""

    def _action_command_list(self, action: str) -> None:
        with contextlib.suppress(KeyError, IndexError, NoMatches):
            super()._action_command_list(action)

    def dismiss(self, result: None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_current else AwaitComplete()  # as in `tui.over`

    def _gather_commands(self, search_value: str) -> Worker[None]:
        search = super()._gather_commands(search_value)
        search.exit_on_error = False
        return search


class Dashboard(App[str]):
    """A client of one feed. Its result says why it ended."""

    CSS_PATH: ClassVar = [Path(__file__).with_name(name) for name in ("app.tcss", "panel.tcss", "help.tcss")]
    TITLE = "spes-peer"
    COMMAND_PALETTE_DISPLAY = "^p"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"open('{name}')", show=False)  # the tabs say so
            for number, name in enumerate(_NAMES, start=1)
        ),
        Binding("p", "pause(True)", "pause"),
        Binding("p", "pause(False)", "resume"),
        Binding("l", "leave", "leave"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "detach", "detach"),
        Binding("d", "change_theme", show=False),
        Binding("ctrl+c,ctrl+q", "detach", show=False, priority=True),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        for theme in (DARK_THEME, LIGHT_THEME):
            self.register_theme(theme)
        self.theme = DARK_THEME.name
        if plain.is_needed():
            self._filters.append(plain.Plain())
        self._feed = feed
        self._memory = Memory()
        self._drawn = (-1, 0, "")  # number of the status, second, page
        self._num_statuses = 0
        self._shows_paused = False
        self._page = _NAMES[0]
        if feed.player is not None:
            self._bind_scrubber()

    def compose(self) -> ComposeResult:
        yield Static(id="banner", markup=False)
        yield Header()
        yield Tabs(_NAMES)
        for page in PAGES:
            yield page()
        if self._feed.player is not None:
            yield Scrubber(self._feed.player, self._draw)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        if not self.is_headless:
            _never_stop()
        self._arrange(self.size.height)
        self.action_open(self._page)
        self.set_interval(_DRAW_SECONDS, self._draw)
        self._follow()

    # following the feed

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        """Take statuses in until there are no more."""
        async for news in self._feed.news():
            match news:
                case Lost(why):
                    self._say(why)
                case Ended(why):
                    self.exit(why)
                case Jumped():
                    self._memory = Memory()
                case status:
                    self._memory.absorb(status, self._feed.now())
                    self._num_statuses += 1
                    if self._num_statuses == 1:
                        self._draw()
                    self._say("")
                    await asyncio.sleep(0)  # a feed that never waits leaves room for keys

    def _say(self, text: str) -> None:
        for banner in self.query("#banner").results(Static):  # none is left when the app ends just now
            banner.display = bool(text)
            banner.update(safe(text))

    # drawing

    def _draw(self) -> None:
        """Draw the newest status, or the same one a second later; statuses in between are never drawn."""
        now = self._feed.now()
        moment = (self._num_statuses, int(now), self._page)
        if moment == self._drawn or (view := self._memory.view(now)) is None:
            return
        self._drawn = moment
        if self._is_paused is not self._shows_paused:
            self._shows_paused = self._is_paused
            self.refresh_bindings()
        for header in self.query(Header):
            header.show(view)
        for scrubber in self.query(Scrubber):
            scrubber.show()
        for page in self._open_pages():
            with contextlib.suppress(NoMatches):  # its parts may be gone already when the app ends just now
                page.show(view)

    async def on_event(self, event: events.Event) -> None:
        if self.screen_stack or not isinstance(event, events.InputEvent | events.Resize | events.Paste):
            await super().on_event(event)  # which fails where no screen is left for it: the app ends just now

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size.height)  # the app's own size is still the old one here

    def _arrange(self, height: int) -> None:
        """Where there are few lines, the page has them."""
        self.screen_stack[0].set_class(height < 16, "-low")
        self.screen_stack[0].set_class(height < 6, "-tiny")

    # keys

    @on(Tabs.Chosen)
    def _open_clicked(self, event: Tabs.Chosen) -> None:
        self.action_open(event.name)

    def action_open(self, name: str) -> None:
        """Show one of the six screens."""
        self._page = name
        for page in self.query(Page):
            page.display = page.id == name.lower()
        self.query_one(Tabs).open(name)
        self._draw()
        with contextlib.suppress(NoMatches):  # it is only being made
            self._focus_page()
        self.call_after_refresh(self._focus_page)

    def _focus_page(self) -> None:
        """At once, so that a key that comes right behind means what it says on this page."""
        for page in self._open_pages():
            if not page.has_focus_within:
                page.screen.set_focus(page.first, scroll_visible=False)

    def on_key(self, event: events.Key) -> None:
        """A letter that was on its way before a line to type in had the focus is for that line, and no command."""
        if isinstance(self.focused, Input) and event.is_printable and event.character:
            self.focused.insert_text_at_cursor(event.character)
            event.prevent_default()

    def _open_pages(self) -> Iterable[Page]:
        """The one on the screen; none while the app ends."""
        return self.query(f"#{self._page.lower()}").results(Page)

    def action_focus_next(self) -> None:
        self._step(1)  # tab, which Textual binds on every screen

    def action_focus_previous(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        self.action_open(_NAMES[(_NAMES.index(self._page) + by) % len(_NAMES)])

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self._feed.player is not None))

    def action_command_palette(self) -> None:
        if not Palette.is_open(self):  # type: ignore[arg-type]
            self.push_screen(Palette())  # without an id: the one before, which closes, may still have it

    def action_change_theme(self) -> None:
        self.theme = LIGHT_THEME.name if self.theme == DARK_THEME.name else DARK_THEME.name

    def action_detach(self) -> None:
        self.exit("detached; the daemon goes on" if self._feed.player is None else "the recording is closed")

    @work(exclusive=True, group="command")
    async def action_pause(self, pauses: bool) -> None:
        """Ask the daemon to pause, or to resume; show what it says."""
        await self._command(self._feed.pause if pauses else self._feed.resume)

    @property
    def _is_paused(self) -> bool:
        return self._memory.status is not None and self._memory.status.is_paused

    @work(exclusive=True, group="command")
    async def action_leave(self) -> None:
        """Ask whether to leave the run, and when; then ask the daemon to."""
        answer = await self.push_screen_wait(LeaveScreen())
        if answer in ("round", "now"):
            await self._command(functools.partial(self._feed.leave, answer == "now"))

    async def _command(self, command: Callable[[], Awaitable[str]]) -> None:
        try:
            self.notify(safe(await command()), markup=False)
        except UserError as error:
            self.notify(safe(str(error)), severity="error", markup=False)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers."""
        for number, page in enumerate(PAGES, start=1):
            yield SystemCommand(
                page.NAME, f"{page.MEANING}  ({number})", functools.partial(self.action_open, page.NAME)
            )
        yield SystemCommand(
            "Pause or resume",
            "take no part after the open round, or take part again  (p)",
            functools.partial(self.action_pause, not self._is_paused),
        )
        yield SystemCommand("Leave the run", "asks whether after the round or now  (l)", self.action_leave)
        yield SystemCommand("Light or dark", "change the colours  (d)", self.action_change_theme)
        yield SystemCommand("Help", "keys and words  (?)", self.action_help)
        yield SystemCommand("Detach", "close the dashboard; the daemon goes on  (q)", self.action_detach)

    # keys of a recording

    def _bind_scrubber(self) -> None:
        for keys, action, description, shown in (
            ("space", "scrub('turn')", "play", "space"),
            ("left", "scrub('step', -1)", "10 s", "←→"),
            ("right", "scrub('step', 1)", "", None),
            ("shift+left", "scrub('step_rounds', -1)", "round", "⇧←→"),
            ("shift+right", "scrub('step_rounds', 1)", "", None),
            ("home", "scrub('to_begin')", "", None),
            ("end", "scrub('to_end')", "", None),
            ("plus", "scrub('change_speed', 2.0)", "speed", "+-"),
            ("minus", "scrub('change_speed', 0.5)", "", None),
        ):
            binding = Binding(keys, action, description, show=shown is not None, key_display=shown, priority=True)
            self._bindings.key_to_bindings.setdefault(keys, []).append(binding)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key is for what can be done now: what is typed into a line, or meant for what lies over the screen, moves
        nothing in a recording."""
        if action == "pause":
            return bool(parameters[0]) is not self._is_paused  # one key for both
        if action != "scrub":
            return True
        return len(self.screen_stack) == 1 and not isinstance(self.focused, Input)

    def action_scrub(self, command: str, *arguments: float) -> None:
        for scrubber in self.query(Scrubber):
            getattr(scrubber, command)(*arguments)


def _never_stop() -> None:
    """Take SIGTSTP and SIGCONT away from Textual's driver (8.2.8).

    It starts a second input thread on every SIGCONT, and a kernel that hangs up sends one after SIGHUP: the process
    would wait for that thread for ever. Nobody misses stopping: Ctrl-Z is a mere key here, and `q` detaches.
    """
    for number in (signal.SIGTSTP, signal.SIGCONT):
        signal.signal(number, lambda *_: None)


@contextlib.contextmanager
def ended_by_signals(app: Dashboard) -> Iterator[None]:
    """SIGTERM and SIGHUP end the app in order; Textual alone would leave the terminal unusable.

    SIGINT, which a terminal sends only before or after the app holds it, detaches like the key.
    """
    loop = asyncio.get_running_loop()
    caught = (signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, app.exit, f"ended by {number.name}")
    loop.add_signal_handler(signal.SIGINT, app.action_detach)
    try:
        yield
    finally:
        for number in (*caught, signal.SIGINT):
            loop.remove_signal_handler(number)
