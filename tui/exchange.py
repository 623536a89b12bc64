"""Blobs on their way and those that arrived last: how fast, from whom, over what. What was moved in all, and how near
that is to the limits that the owner set."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from spes_peer.wire.control_pb2 import ExchangeStatus, Traffic, Transfer
from tui import figures
from tui.chart import bar
from tui.look import BOLD, DIM, FAINT, HELD_OUT, SPEED, WARNING, safe
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel
from tui.rows import Field, Rows
from tui.table import Column, table

_NEAR_LIMIT = 0.9
_MOST_TRANSFERS = 500
_FOOT_FROM_HEIGHT = 20
_TOTALS_FROM_HEIGHT = 14
_MOST_LANE_BAR = 60
_MOST_TRANSPORTS = 3
_NOTHING = (0, 0)
_DIRECTIONS = {"down": "↓", "up": "↑"}


class ExchangePage(Page):
    NAME = "Exchange"
    MEANING = "what is on its way, how fast, from whom and over what"
    DEFAULT_CSS = """
    ExchangePage .foot { height: auto; border-top: solid $line; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._view: View | None = None

    def compose(self) -> ComposeResult:
        yield TotalsPanel()
        with Vertical(classes="panel list") as frame:
            frame.border_title = "on its way"
            yield Rows(follows_top=True)
            yield Static(classes="foot", markup=False)

    @property
    def first(self) -> Widget:
        return self._list

    @property
    def _list(self) -> "Rows[Shown]":
        return self.query_one(".list Rows", Rows)

    def show(self, view: View) -> None:
        self._view = view
        self.query_one(TotalsPanel).show(view)
        exchange = view.status.exchange
        shown = transfers_of(exchange)
        keys = [(one.transfer.id, one.has_ended) for one in shown]
        self._list.put(transfer_fields(view), shown, keys, instead=_nothing(exchange))
        counts = (len(exchange.transfers), exchange.num_queued, len(exchange.ended))
        self.query_one(".list").border_subtitle = "{} on their way  ·  {} wait  ·  {} ended".format(*counts)
        self._explain()

    @on(Rows.Moved)
    def _explain(self) -> None:
        foot, chosen = self.query_one(".foot", Static), self._list.current
        foot.display = chosen is not None and self.size.height >= _FOOT_FROM_HEIGHT
        if chosen is not None and self._view is not None:
            foot.update(Content("\n").join(transfer_lines(self._view, chosen, max(1, self.size.width - 4))))

    def on_resize(self, _event: events.Resize) -> None:
        self.query_one(TotalsPanel).display = self.size.height >= _TOTALS_FROM_HEIGHT
        self._explain()


class TotalsPanel(Panel):
    """Both directions against their limits, then the transports."""

    TITLE = "moved"
    LINES: ClassVar[int] = 6

    def on_mount(self) -> None:
        self.styles.height = self.LINES + 2

    def draw(self, view: View, width: int, height: int) -> Drawing:
        exchange = view.status.exchange
        lanes = [lane(exchange, "down", width), lane(exchange, "up", width)]
        since = figures.since(view.status.started_at, view.now)
        return Drawing(
            Content("\n").join([*lanes, totals(view.status.traffic, exchange.this_round, width)]),
            subtitle=f"the daemon runs for {since}" if since else "",
        )


def lane(exchange: ExchangeStatus, direction: str, width: int) -> Content:
    """The rate of one direction, and how near it is to its limit."""
    rate = sum(_known(one.bytes_per_second) for one in exchange.transfers if one.direction == direction)
    limit = exchange.max_upload if direction == "up" else exchange.max_download
    words = Content.assemble(
        (f"{_DIRECTIONS[direction]} {direction.ljust(5)}", SPEED), (figures.rate(rate).rjust(10), BOLD), "  "
    )
    if not limit:
        return Content.assemble(words, ("no limit is set", DIM)).truncate(width, ellipsis=True)
    part = figures.share(rate, limit)
    colour = WARNING if part >= _NEAR_LIMIT else SPEED
    near = Content.assemble((f"{100 * part:3.0f} %", colour), (f" of the limit, {figures.rate(limit)}", DIM))
    room = min(_MOST_LANE_BAR, width - words.cell_length - near.cell_length - 2)
    meter = Content.assemble(bar(part, room, colour), "  ") if room > 3 else Content()
    return Content.assemble(words, meter, near).truncate(width, ellipsis=True)


def _known(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else 0.0


def totals(since_start: Iterable[Traffic], this_round: Iterable[Traffic], width: int) -> Content:
    """A row for each transport, and one for all."""
    start, open_round = _by_transport(since_start), _by_transport(this_round)
    names = list(dict.fromkeys((*start, *open_round)))[:_MOST_TRANSPORTS]
    if not names:
        return Content.styled("nothing was sent or received yet", DIM)
    rows = [(name, open_round.get(name, _NOTHING), start.get(name, _NOTHING)) for name in names]
    everything = ("all", _sum(rows, 1), _sum(rows, 2))
    whole = sum(everything[2])
    labels = [Content(name) for name in names] + [Content.styled("all", DIM)]
    rows.append(everything)
    columns = [
        Column("over", labels),
        Column("↓ this round", [Content(figures.size(one[0])) for _, one, _ in rows], 2, is_right=True),
        Column("↑ this round", [Content(figures.size(one[1])) for _, one, _ in rows], 2, is_right=True),
        Column("↓ since start", [Content(figures.size(one[0])) for _, _, one in rows], 1, is_right=True),
        Column("↑ since start", [Content(figures.size(one[1])) for _, _, one in rows], 1, is_right=True),
        Column(
            "of all", [Content(f"{100 * figures.share(sum(one), whole):.0f} %") for _, _, one in rows], 3, is_right=True
        ),
    ]
    heading, body = table(columns, width)
    return Content("\n").join([heading, body])


def _by_transport(rows: Iterable[Traffic]) -> dict[str, tuple[int, int]]:
    """Bytes received and sent."""
    return {safe(one.transport, 8): (one.bytes_received, one.bytes_sent) for one in rows}


def _sum(rows: Sequence[tuple[str, tuple[int, int], tuple[int, int]]], which: Literal[1, 2]) -> tuple[int, int]:
    return sum(row[which][0] for row in rows), sum(row[which][1] for row in rows)


# the transfers


@dataclass(frozen=True)
class Shown:
    """A transfer in the list."""

    transfer: Transfer
    has_ended: bool

    @property
    def is_whole(self) -> bool:
        return self.transfer.bytes_done >= self.transfer.num_bytes

    @property
    def is_cut_off(self) -> bool:
        """Of what others fetch from this peer a part is as good: they have the rest from others."""
        return self.has_ended and not self.is_whole and self.transfer.direction != "up"

    @property
    def colour(self) -> str:
        return DIM if self.has_ended else ""


def transfers_of(exchange: ExchangeStatus) -> list[Shown]:
    """Those on their way, then those that ended."""
    shown = [Shown(one, False) for one in exchange.transfers] + [Shown(one, True) for one in exchange.ended]
    return shown[:_MOST_TRANSFERS]


def _nothing(exchange: ExchangeStatus) -> Content:
    waiting = f"; {exchange.num_queued} wait for a place" if exchange.num_queued else ""
    return Content.styled(
        f"nothing is on its way{waiting}: blobs travel when a round is exchanged, and when a peer asks for one", DIM
    )


def transfer_fields(view: View) -> list[Field[Shown]]:
    return [
        Field("", 1, lambda one, _: _arrow(one)),
        Field("what", 19, lambda one, _: Content.styled(safe(one.transfer.what), one.colour), most=34),
        Field("progress", 10, _progress, rank=2, most=44),
        Field("done", 11, lambda one, _: _done(one), rank=4, is_right=True),
        Field("rate", 9, lambda one, _: Content.styled(_rate(one), one.colour), rank=3, is_right=True),
        Field("left", 7, lambda one, _: _left(one), rank=1, is_right=True),
        Field("with", 8, lambda one, _: _peers(view, one), rank=5, most=28),
        Field("over", 6, lambda one, _: Content.styled(_transports(one.transfer), DIM), rank=6, most=12),
    ]


def _arrow(one: Shown) -> Content:
    return Content.styled(_DIRECTIONS.get(one.transfer.direction, "·"), FAINT if one.has_ended else SPEED)


def _progress(one: Shown, width: int) -> Content:
    part = figures.share(one.transfer.bytes_done, one.transfer.num_bytes)
    if one.has_ended:
        return bar(part, width, WARNING) if one.is_cut_off else Content()
    return bar(part, width, SPEED if one.transfer.direction == "up" else HELD_OUT)


def _done(one: Shown) -> Content:
    whole = figures.size(one.transfer.num_bytes)
    if one.has_ended and one.is_whole:
        return Content.styled(whole, DIM)
    return Content.styled(f"{figures.size(one.transfer.bytes_done)}/{whole}", one.colour)


def _rate(one: Shown) -> str:
    rate = _known(one.transfer.bytes_per_second)
    return figures.rate(rate) if rate else figures.NONE


def _left(one: Shown) -> Content:
    """The time that is left at this rate, or how it ended."""
    if one.has_ended:
        return Content.styled("cut off", WARNING) if one.is_cut_off else Content.styled("done", DIM)
    rate = _known(one.transfer.bytes_per_second)
    rest = one.transfer.num_bytes - one.transfer.bytes_done
    return Content(figures.duration(math.ceil(rest / rate) if rest > 0 else 0) if rate else figures.NONE)


def _peers(view: View, one: Shown) -> Content:
    peers = list(one.transfer.peers)
    colour = one.colour or (view.colour(peers[0]) if len(peers) == 1 else "")
    return Content.styled(view.someone(peers, 2), colour)


def _transports(transfer: Transfer) -> str:
    return ", ".join(safe(transport, 8) for transport in transfer.transports[:4])


def transfer_lines(view: View, one: Shown, width: int) -> list[Content]:
    """The transfer under the cursor in words."""
    transfer = one.transfer
    part = 100 * figures.share(transfer.bytes_done, transfer.num_bytes)
    share = f"  {part:.0f} % of {figures.size(transfer.num_bytes)}B"
    first = Content.assemble((safe(transfer.what, 80), BOLD), (share, DIM), *_since(view, one))
    whom = _everyone(view, transfer.peers)
    way = "from " if transfer.direction == "down" else "to "
    who = Content.assemble((way, DIM), whom, (" over ", DIM), (_transports(transfer), SPEED))
    return [line.truncate(width, ellipsis=True) for line in (first, who if transfer.peers else Content())]


def _since(view: View, one: Shown) -> Sequence[tuple[str, str]]:
    since = figures.since(one.transfer.since_at, view.now)
    if not since:
        return []
    return [(f", begun {since} ago" + ("; it was cut off" if one.is_cut_off else ""), DIM)]


def _everyone(view: View, peers: Sequence[str]) -> Content:
    return Content(", ").join([Content.styled(view.name(peer), view.colour(peer)) for peer in peers[:12]])
