"""The help screen: keys, and the words that the screens use."""

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.look import DIM, SELF
from tui.over import Over

_EVERYWHERE = (
    ("1 … 6", "open a screen; so do tab, shift+tab and the mouse"),
    ("p", "pause this peer after the open round, or resume"),
    ("l", "leave the run; asks whether after the round or now"),
    ("q", "detach: the dashboard ends, the daemon goes on; so does ctrl+c"),
    ("ctrl+p", "find a screen or a command by its name"),
    ("d", "dark or light"),
    ("?", "open and close this help"),
)
_ON_SCREENS = (
    ("2 Experts", "↑ ↓ ← → explain a subset; m shows owners, rounds trained or use in the colours of many"),
    ("3 Rounds", "↑ ↓ go to a round, enter opens it; o and n then go to an older and a newer one, esc back"),
    ("4 Peers", "↑ ↓ go to a peer; s sorts, S turns the order round, / shows those with a word, esc all"),
    ("5 Exchange", "↑ ↓ go through what is on its way"),
    ("6 Log", "/ searches, n and N go on; f shows lines with a word, v levels; t follows; c copies; esc clears"),
)
_RECORDING = (
    ("space", "play or stop"),
    ("← →", "10 seconds back or on, with shift a round; home and end"),
    ("+ -", "faster or slower"),
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


class HelpScreen(Over[None]):
    """Closes by the key that opened it, and by every other that one would try."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,escape,q,enter", "dismiss", "close")]

    def __init__(self, is_recording: bool) -> None:
        super().__init__()
        self._is_recording = is_recording

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help", classes="box") as box:
            box.border_title = "help"
            yield Static(self._text())

    def _text(self) -> Table:
        """In the colours of the theme, which rich does not know by name."""
        colours = self.app.theme_variables
        grid = Table.grid(padding=(0, 2))
        sections = [("keys", _EVERYWHERE), ("keys of screens", _ON_SCREENS), ("words", _WORDS)]
        if self._is_recording:
            sections.insert(1, ("keys of a recording", _RECORDING))
        for title, pairs in sections:
            grid.add_row(Text(title, style=colours[DIM[1:]]), "")
            for word, meaning in pairs:
                grid.add_row(Text(word, style=f"bold {colours[SELF[1:]]}"), Text(meaning))
            grid.add_row()
        return grid
