"""Everybody in the run as this daemon sees them: a list that is sorted and filtered, and the peer under the cursor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from spes_peer.wire.control_pb2 import PeerStatus
from tui import figures
from tui.look import DIM, SELF, SPEED, STATES, WARNING, safe
from tui.memory import View
from tui.page import Page
from tui.peer_detail import peer_lines
from tui.rows import Field, Rows

_LONG_SILENCE_SECONDS = 30.0
_DETAIL_FROM_HEIGHT = 16
_FILTER_CHARACTERS = 80
_ASKED = "words of a name, an id, a state, a way, subset:3…"


@dataclass(frozen=True)
class Order:
    """A way to sort. What a peer does not have, None, stands last both ways."""

    title: str
    key: Callable[[View, PeerStatus], str | float | None]
    is_falling: bool = False


ORDERS = (
    Order("peer", lambda view, peer: view.name(peer.peer_id).lower()),
    Order("state", lambda _, peer: peer.state),
    Order("subsets", lambda _, peer: min(peer.subsets, default=None)),
    Order("tok/s", lambda _, peer: _positive(peer.tokens_per_second), is_falling=True),
    Order("via", lambda _, peer: _way(peer) or None),
    Order("ping", lambda _, peer: _positive(peer.round_trip_seconds)),
    Order("seen", lambda _, peer: _positive(peer.seen_at), is_falling=True),
    Order("version", lambda _, peer: peer.version or None),
    Order("standing", lambda _, peer: peer.standing or None),
)


def _positive(value: float) -> float | None:
    return value if 0 < value < float("inf") else None


class PeersPage(Page):
    """Without an order, peers stand as the daemon lists them: this one first, the others by name."""

    NAME = "Peers"
    MEANING = "who is here, how each is reached and why"
    DEFAULT_CSS = """
    PeersPage #filter { height: 1; border: none; padding: 0; background: $panel; display: none; }
    PeersPage .foot { height: auto; border-top: solid $line; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "reverse"),
        Binding("escape", "clear", "show all", key_display="esc"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._view: View | None = None
        self._order: Order | None = None
        self._is_reversed = False
        self._words = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel list") as frame:
            frame.border_title = "peers"
            yield Input(id="filter", placeholder=_ASKED, max_length=_FILTER_CHARACTERS)
            yield Rows()
            yield Static(classes="foot", markup=False)

    @property
    def first(self) -> Widget:
        return self._list

    @property
    def _list(self) -> Rows[PeerStatus]:
        return self.query_one(Rows)

    def show(self, view: View) -> None:
        self._view = view
        everybody = view.status.peers
        peers = sorted_peers(view, matching(view, everybody, self._words), self._order, self._is_reversed)
        mark = {} if self._order is None else {self._order.title: "▼" if self._falls else "▲"}
        self._list.put(
            peer_fields(view),
            peers,
            [peer.peer_id for peer in peers],
            marks=mark,
            instead=Content.styled(self._instead(bool(everybody)), DIM),
        )
        self.query_one(".list").border_subtitle = _subtitle(everybody, len(peers))
        self._explain()

    @property
    def _falls(self) -> bool:
        return self._order is not None and self._order.is_falling != self._is_reversed

    def _instead(self, is_somebody_there: bool) -> str:
        if is_somebody_there:
            return f"no peer has “{safe(self._words)}” in what is known of it; Escape shows all again"
        return "nobody is known yet: the bootstrap node introduces peers as soon as it answers"

    @on(Rows.Moved)
    def _explain(self) -> None:
        """Say all about the peer under the cursor."""
        pane, peer = self.query_one(".foot", Static), self._list.current
        pane.display = peer is not None and self.size.height >= _DETAIL_FROM_HEIGHT
        if peer is not None and self._view is not None:
            lines = peer_lines(self._view, peer, max(1, self.size.width - 5))
            pane.update(Content("\n").join(lines))

    def on_resize(self, _event: events.Resize) -> None:
        self._explain()

    def _again(self) -> None:
        if self._view is not None:
            self.show(self._view)

    # sorting

    @on(Rows.HeadingClicked)
    def _sort_by_click(self, event: Rows.HeadingClicked) -> None:
        chosen = next((order for order in ORDERS if order.title == event.title), None)
        if chosen is not None and chosen is self._order:
            self.action_reverse()
        elif chosen is not None:
            self._order, self._is_reversed = chosen, False
            self._again()

    def action_sort(self) -> None:
        """The next order; after the last one none, as the daemon lists them."""
        place = -1 if self._order is None else ORDERS.index(self._order)
        self._order = ORDERS[place + 1] if place + 1 < len(ORDERS) else None
        self._is_reversed = False
        self._again()

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed
        self._again()

    # filtering

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return bool(self._words) or self._is_asking if action == "clear" else True

    @property
    def _is_asking(self) -> bool:
        return bool(self.query_one("#filter", Input).display)

    def action_filter(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.display = True
        self.screen.set_focus(asked)
        self.refresh_bindings()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._words = event.value
        self._again()
        self.refresh_bindings()

    @on(Input.Submitted)
    def _keep_filter(self) -> None:
        self.query_one("#filter", Input).display = bool(self._words)
        self.screen.set_focus(self._list)

    def action_clear(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.value, self._words = "", ""
        self.screen.set_focus(self._list)
        asked.display = False
        self._again()
        self.refresh_bindings()


def matching(view: View, peers: Sequence[PeerStatus], words: str) -> list[PeerStatus]:
    """Those of whom something that is known contains each of the words."""
    wanted = words.lower().split()
    return [peer for peer in peers if all(word in _text(view, peer) for word in wanted)] if wanted else list(peers)


def _text(view: View, peer: PeerStatus) -> str:
    facts = (
        view.name(peer.peer_id),
        peer.peer_id,
        peer.role,
        peer.state,
        peer.transport,
        peer.route,
        peer.version,
        peer.standing,
        peer.transport_why,
        "you" if peer.is_self else "",
        "coordinator" if peer.is_coordinator else "",
        *(f"subset:{subset}" for subset in peer.subsets),
    )
    return "\n".join(facts).lower()


def sorted_peers(view: View, peers: Sequence[PeerStatus], order: Order | None, is_reversed: bool) -> list[PeerStatus]:
    """In an order, equals as the daemon has them."""
    if order is None:
        return list(reversed(peers)) if is_reversed else list(peers)
    keyed = [(order.key(view, peer), peer) for peer in peers]
    known = [one for one in keyed if one[0] is not None]
    known.sort(key=lambda one: one[0], reverse=order.is_falling != is_reversed)  # type: ignore[arg-type, return-value]
    return [peer for _, peer in known] + [peer for key, peer in keyed if key is None]


def _subtitle(everybody: Sequence[PeerStatus], num_shown: int) -> str:
    """Figures only: it is markup."""
    online = sum(peer.state == "ONLINE" for peer in everybody)
    shown = f"{num_shown:,} of {len(everybody):,} shown  ·  " if num_shown != len(everybody) else ""
    return f"{shown}● you  ★ coordinator  ·  {online:,} of {len(everybody):,} online" if everybody else ""


def peer_fields(view: View) -> list[Field[PeerStatus]]:
    now = view.now
    return [
        Field("peer", 15, lambda peer, _: _peer(view, peer), most=28),
        Field("id", 9, lambda peer, _: Content.styled(f"…{safe(peer.peer_id[-8:])}", DIM), rank=9),
        Field("role", 9, lambda peer, _: Content.styled(safe(peer.role, 9), DIM), rank=11),
        Field("state", 8, lambda peer, _: _state(peer), rank=1),
        Field("subsets", 8, lambda peer, _: Content(figures.ranges(peer.subsets)), rank=5, most=14),
        Field("tok/s", 6, lambda peer, _: _speed(peer), rank=3, is_right=True),
        Field("via", 7, lambda peer, _: _transport(peer), rank=2),
        Field("ping", 7, lambda peer, _: _trip(peer), rank=4, is_right=True),
        Field("seen", 6, lambda peer, _: _seen(peer, now), rank=6, is_right=True),
        Field("version", 7, lambda peer, _: Content.styled(safe(peer.version, 12), DIM), rank=8, most=12),
        Field("standing", 10, lambda peer, _: Content.styled(safe(peer.standing), WARNING), rank=7, most=40),
        Field("why", 16, lambda peer, _: Content.styled(safe(peer.transport_why), DIM), rank=10, most=60),
    ]


def _peer(view: View, peer: PeerStatus) -> Content:
    mark = ("●", SELF) if peer.is_self else ("★" if peer.is_coordinator else " ", WARNING)
    return Content.assemble(mark, " ", (view.name(peer.peer_id), view.colour(peer.peer_id)))


def _state(peer: PeerStatus) -> Content:
    """As the peer itself says it: one that joins is no peer that cannot be reached."""
    return Content.styled(safe(peer.state, 9).lower(), STATES.get(peer.state, DIM))


def _speed(peer: PeerStatus) -> Content:
    return Content(figures.count(peer.tokens_per_second) if _positive(peer.tokens_per_second) else "")


def _way(peer: PeerStatus) -> str:
    return peer.route if peer.route in ("relay", "punched") else peer.transport


def _transport(peer: PeerStatus) -> Content:
    return Content.styled(safe(_way(peer), 8), SPEED if peer.route in ("relay", "punched") else "")


def _trip(peer: PeerStatus) -> Content:
    return Content(figures.brief(peer.round_trip_seconds) if _positive(peer.round_trip_seconds) else "")


def _seen(peer: PeerStatus, now: float) -> Content:
    if peer.is_self:
        return Content()
    is_quiet = now - peer.seen_at > _LONG_SILENCE_SECONDS
    return Content.styled(figures.since(peer.seen_at, now) or "never", WARNING if is_quiet else DIM)
