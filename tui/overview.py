"""The run at a glance: what happens now and why, how learning goes."""

from textual.app import ComposeResult
from textual.content import Content

from tui.header import header_lines, machine_lines
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel
from tui.training import TrainingPanel


class OverviewPage(Page):
    NAME = "Overview"
    MEANING = "what happens now, and how learning goes"

    def compose(self) -> ComposeResult:
        yield NowPanel()
        yield TrainingPanel()


class NowPanel(Panel):
    TITLE = "now"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        return Drawing(Content("\n").join(header_lines(view, width, 5) + machine_lines(view, width, 5)))
