"""The question before the daemon leaves its run."""

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from tui.look import BOLD, DIM, SELF
from tui.over import Over

_ANSWERS = (
    ("r", "after the round", "what was trained still counts"),
    ("n", "now", "the open round's work of this machine is dropped"),
    ("esc", "stay", "nothing changes"),
)


class LeaveScreen(Over[str]):
    """Its result is "round", "now" or "stay"."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "dismiss('round')", "after the round"),
        Binding("n", "dismiss('now')", "now"),
        Binding("escape,q,l,s", "dismiss('stay')", "stay"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(id="leave", classes="box") as box:
            box.border_title = "leave the run?"
            yield Static(
                Content("The daemon ends. The key and the state stay, so that this machine can join again."),
                markup=False,
            )
            for key, answer, meaning in _ANSWERS:
                yield Answer(key, answer, meaning)


class Answer(Static):
    """A line that can be clicked."""

    def __init__(self, key: str, answer: str, meaning: str) -> None:
        line = Content.assemble((key.rjust(3), f"bold {SELF}"), "  ", (answer.ljust(17), BOLD), (meaning, DIM))
        super().__init__(line, markup=False, classes="answer")
        self._result = {"r": "round", "n": "now"}.get(key, "stay")

    def on_click(self, _event: events.Click) -> None:
        self.screen.dismiss(self._result)
