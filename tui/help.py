"""The help screen: keys, and the words that the panels use."""

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.look import DIM, SELF

_KEYS = (
    ("q", "detach: the dashboard ends, the daemon goes on"),
    ("p", "pause this peer after the open round, or resume"),
    ("l", "leave the run; asks before it does"),
    ("1 … 6", "open a screen; so do a click and tab"),
    ("ctrl p", "find a screen or a command by its name"),
    ("d", "dark or light"),
    ("↑ ↓", "scroll"),
    ("?", "open and close this help"),
)
_WORDS = (
    ("round", "local steps on every peer, then their exchange; a record closes it"),
    ("record", "what more than half of the peers have signed; the next state follows from it"),
    ("subset", "experts that are trained together, the same in every layer"),
    ("owner", "the peer that trains a subset; experts without one stand still"),
    ("held-out", "loss on text that nobody trains on, in nats per token: the one that counts"),
    ("root", "hash of the whole public state; it is the same on every peer"),
    ("★", "the coordinator: it proposes the next record"),
    ("relay", "for peers that cannot be dialled: libp2p through the bootstrap node; all else is grpc"),
)


class HelpScreen(ModalScreen[None]):
    """Closes by the key that opened it, and by every other that one would try."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,escape,q,enter", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "help"
            yield Static(_help_text())


def _help_text() -> Table:
    grid = Table.grid(padding=(0, 2))
    for title, pairs in (("keys", _KEYS), ("words", _WORDS)):
        grid.add_row(Text(title, style=DIM), "")
        for word, meaning in pairs:
            grid.add_row(Text(word, style=f"bold {SELF}"), Text(meaning))
        grid.add_row()
    return grid
