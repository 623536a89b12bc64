"""Blobs on their way, and what travelled so far."""

from textual.app import ComposeResult
from textual.content import Content

from spes_peer.wire.control_pb2 import Transfer
from tui import figures
from tui.chart import bar
from tui.look import DIM, HELD_OUT, SPEED, safe
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel
from tui.table import Column, table

_BAR_CELLS = 16


class ExchangePage(Page):
    NAME = "Exchange"
    MEANING = "what is on its way, and how fast"

    def compose(self) -> ComposeResult:
        yield ExchangePanel()


class ExchangePanel(Panel):
    TITLE = "on its way"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        exchange = view.status.exchange
        if not exchange.transfers:
            return Drawing(Content.styled("nothing is on its way; blobs travel when a round is exchanged", DIM))
        heading, body = table(_columns(view, list(exchange.transfers)), width)
        return Drawing(body, heading, subtitle=f"{exchange.num_queued} waiting")


def _columns(view: View, transfers: list[Transfer]) -> list[Column]:
    return [
        Column("", [Content.styled("↑" if one.direction == "up" else "↓", SPEED) for one in transfers]),
        Column("what", [Content(safe(one.what, 32)) for one in transfers]),
        Column("", [bar(figures.share(one.bytes_done, one.num_bytes), _BAR_CELLS, HELD_OUT) for one in transfers]),
        Column("size", [Content(figures.size(one.num_bytes)) for one in transfers], rank=2, is_right=True),
        Column("B/s", [Content(figures.size(one.bytes_per_second)) for one in transfers], rank=1, is_right=True),
        Column("with", [Content(view.someone(list(one.peers), 2)) for one in transfers], rank=3),
    ]
