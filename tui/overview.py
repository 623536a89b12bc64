"""The run at a glance: what happens now, whom it waits for and why, how learning goes, what this machine gives."""

from textual import events
from textual.app import ComposeResult
from textual.containers import Grid, VerticalScroll
from textual.widget import Widget

from tui.machine import MachinePanel
from tui.now import NowPanel
from tui.page import Page
from tui.training import LossPanel, SpeedPanel, TrafficPanel

_TWO_COLUMNS = 76
_LOWEST_PANEL = 6


class OverviewPage(Page):
    NAME = "Overview"
    MEANING = "what happens now, and how learning goes"

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="glance"):
            yield NowPanel()
            with Grid(id="figures"):
                yield LossPanel()
                yield SpeedPanel()
                yield TrafficPanel()
                yield MachinePanel()

    @property
    def first(self) -> Widget:
        return self.query_one("#glance")

    def on_resize(self, event: events.Resize) -> None:
        """Panels stand two by two, or in a column that scrolls where there is no room for that."""
        self.set_class(event.size.width < _TWO_COLUMNS, "-narrow")
        self.set_class(event.size.height < 3 * _LOWEST_PANEL, "-scrolls")
