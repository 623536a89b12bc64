"""The rounds that records have closed, newest first."""

from textual.app import ComposeResult
from textual.content import Content

from spes_peer.wire.control_pb2 import RoundStatus
from tui import figures
from tui.look import DIM, FAINT, HELD_OUT, TRAINING, safe
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel
from tui.table import Column, table

_MOST_ROWS = 100
_ROOT_CHARACTERS = 6
_TRANSPORTS = (("grpc", 3), ("libp2p", 4))
"""Each with the rank of its column."""


class RoundsPage(Page):
    NAME = "Rounds"
    MEANING = "what every round brought"

    def compose(self) -> ComposeResult:
        yield RoundsPanel()


class RoundsPanel(Panel):
    TITLE = "rounds"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        closed = list(reversed(view.status.rounds))[:_MOST_ROWS]
        if not closed:
            return Drawing(Content.styled(view.before_the_first_round, DIM))
        heading, body = table(_columns(closed), width)
        return Drawing(body, heading, subtitle=f"{len(view.status.rounds)} closed")


def _columns(closed: list[RoundStatus]) -> list[Column]:
    traffic = [
        Column(f"{name} ↑ ↓", [_traffic(round_, name) for round_ in closed], rank=rank, is_right=True)
        for name, rank in _TRANSPORTS
    ]
    return [
        Column("round", [Content(str(round_.round)) for round_ in closed], is_right=True),
        Column("held-out", [_loss(round_.held_out_loss, HELD_OUT) for round_ in closed], is_right=True),
        Column("train", [_loss(round_.train_loss, TRAINING) for round_ in closed], rank=2, is_right=True),
        Column("tokens", [Content(figures.count(round_.tokens)) for round_ in closed], rank=5, is_right=True),
        Column("time", [Content(figures.duration(round_.seconds)) for round_ in closed], rank=6, is_right=True),
        Column("by", [Content(str(round_.num_contributors)) for round_ in closed], rank=7, is_right=True),
        *traffic,
        Column(
            "root", [Content.styled(safe(round_.state_root[:_ROOT_CHARACTERS]), FAINT) for round_ in closed], rank=1
        ),
    ]


def _loss(value: float, colour: str) -> Content:
    return Content.styled(figures.loss(value), colour)


def _traffic(round_: RoundStatus, transport: str) -> Content:
    sent = sum(traffic.bytes_sent for traffic in round_.traffic if traffic.transport == transport)
    received = sum(traffic.bytes_received for traffic in round_.traffic if traffic.transport == transport)
    if not sent and not received:
        return Content.styled(figures.NONE, FAINT)
    return Content(f"{figures.size(sent, 2)} {figures.size(received, 2)}")
