"""The daemon's newest log lines. It follows the end unless somebody scrolled up."""

import functools
import re

from textual.content import Content

from tui import figures
from tui.look import DIM, ERROR, FAINT, WARNING, safe
from tui.memory import View
from tui.panel import Drawing, Panel

_LEVELS = {"WARNING": WARNING, "ERROR": ERROR, "CRITICAL": ERROR}
_KEY = re.compile(r"\b[a-z_]+=")
_MOST_CHARACTERS = 400


class LogPanel(Panel):
    TITLE = "log"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if not view.log:
            return Drawing(Content.styled("nothing has happened yet", DIM))
        return Drawing(Content("\n").join([_line(line.at, line.level, line.text) for line in view.log]))

    def on_mount(self) -> None:
        self.body.anchor()

    def _put(self, drawing: Drawing, is_same_size: bool) -> None:
        super()._put(drawing, is_same_size=False)  # lines wrap


@functools.lru_cache(maxsize=1024)
def _line(at: float, level: str, text: str) -> Content:
    colour = _LEVELS.get(level, "")
    text = safe(text, _MOST_CHARACTERS)
    content = Content.assemble((figures.clock(at), FAINT), "  ", (text, colour))
    return content if colour else content.highlight_regex(_KEY, style=DIM)
