"""The daemon's newest log lines. It follows the end unless somebody scrolled up."""

import re

from textual.content import Content

from spes_peer.wire.control_pb2 import LogLine
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
        return Drawing(Content("\n").join([_line(line) for line in view.log]))

    def _put(self, drawing: Drawing) -> None:
        follows = self.body.is_vertical_scroll_end
        super()._put(drawing)
        if follows:
            self.body.scroll_end(animate=False)


def _line(line: LogLine) -> Content:
    colour = _LEVELS.get(line.level, "")
    text = safe(line.text, _MOST_CHARACTERS)
    content = Content.assemble((figures.clock(line.at), FAINT), "  ", (text, colour))
    return content if colour else content.highlight_regex(_KEY, style=DIM)
