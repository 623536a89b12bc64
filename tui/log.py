"""The daemon's newest log lines. It follows the end unless somebody scrolled up."""

import functools
import re

from textual import events
from textual.app import ComposeResult
from textual.content import Content

from tui import figures
from tui.look import DIM, ERROR, FAINT, WARNING, safe
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel

_LEVELS = {"WARNING": WARNING, "ERROR": ERROR, "CRITICAL": ERROR}
_KEY = re.compile(r"\b[a-z_]+=")
_MOST_CHARACTERS = 400


class LogPage(Page):
    NAME = "Log"
    MEANING = "what happened, line by line"

    def compose(self) -> ComposeResult:
        yield LogPanel()


class LogPanel(Panel):
    TITLE = "log"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if not view.log:
            return Drawing(Content.styled("nothing has happened yet", DIM))
        return Drawing(Content("\n").join([_line(line.at, line.level, line.text) for line in view.log]))

    _follows = True

    def on_mount(self) -> None:
        self.watch(self.body, "scroll_y", self._note_scrolling)

    def _note_scrolling(self, before: float, now: float) -> None:
        """Up is a person's doing, down to the end takes it back; text and panel change their sizes without a scroll."""
        is_at_end = self.body.is_vertical_scroll_end
        self._follows = is_at_end if now < before else self._follows or is_at_end

    def _put(self, drawing: Drawing, is_same_size: bool) -> None:
        super()._put(drawing, is_same_size=False)  # lines wrap
        self._follow()

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self._follow()

    def _follow(self) -> None:
        if self._follows:
            self.body.scroll_end(animate=False)


@functools.lru_cache(maxsize=1024)
def _line(at: float, level: str, text: str) -> Content:
    colour = _LEVELS.get(level, "")
    text = safe(text, _MOST_CHARACTERS)
    content = Content.assemble((figures.clock(at), FAINT), "  ", (text, colour))
    return content if colour else content.highlight_regex(_KEY, style=DIM)
