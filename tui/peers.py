"""Everybody in the run as this daemon sees them."""

from textual.app import ComposeResult
from textual.content import Content

from spes_peer.wire.control_pb2 import PeerStatus
from tui import figures
from tui.look import DIM, SELF, SPEED, STATES, WARNING, safe
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel
from tui.table import Column, table

_MOST_ROWS = 256
_NAME_CELLS = 16
_LONG_SILENCE_SECONDS = 30.0


class PeersPage(Page):
    NAME = "Peers"
    MEANING = "who is here, and how they are reached"

    def compose(self) -> ComposeResult:
        yield PeersPanel()


class PeersPanel(Panel):
    TITLE = "peers"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        peers = view.status.peers
        if not peers:
            return Drawing(Content.styled("nobody seen yet", DIM))
        heading, body = table(_columns(view, peers[:_MOST_ROWS]), width)
        if len(peers) > _MOST_ROWS:
            body = Content("\n").join([body, Content.styled(f"and {len(peers) - _MOST_ROWS} more", DIM)])
        online = sum(peer.state == "ONLINE" for peer in peers)
        return Drawing(body, heading, subtitle=f"● you  ★ coordinator  {online} of {len(peers)} online")


def _columns(view: View, peers: list[PeerStatus]) -> list[Column]:
    return [
        Column("   peer", [_peer(view, peer) for peer in peers]),
        Column("state", [_state(peer) for peer in peers], rank=1),
        Column("subsets", [Content(_numbers(list(peer.subsets))) for peer in peers], rank=6, is_right=True),
        Column("seq", [_sequences(peer) for peer in peers], rank=7, is_right=True),
        Column("via", [_transport(peer) for peer in peers], rank=2),
        Column("sent", [_traffic(peer, "bytes_sent") for peer in peers], rank=4, is_right=True),
        Column("recv", [_traffic(peer, "bytes_received") for peer in peers], rank=3, is_right=True),
        Column("seen", [_seen(peer, view.now) for peer in peers], rank=5, is_right=True),
    ]


def _peer(view: View, peer: PeerStatus) -> Content:
    mark = ("●" if peer.is_self else " ", SELF), ("★" if peer.is_coordinator else " ", WARNING)
    name = Content.styled(view.name(peer.peer_id), view.colour(peer.peer_id))
    return Content.assemble(*mark, " ", name.truncate(_NAME_CELLS, ellipsis=True))


def _state(peer: PeerStatus) -> Content:
    word = "bootstrap" if peer.role == "bootstrap" and peer.state == "ONLINE" else safe(peer.state, 9).lower()
    return Content.styled(word, STATES.get(peer.state, DIM))


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers[:4])) + ("…" if len(numbers) > 4 else "")


def _sequences(peer: PeerStatus) -> Content:
    return Content(str(peer.sequences_per_step) if peer.sequences_per_step else "")


def _transport(peer: PeerStatus) -> Content:
    if peer.route in ("relay", "punched"):
        return Content.styled(peer.route, SPEED)
    return Content(safe(peer.transport, 8))


def _traffic(peer: PeerStatus, field: str) -> Content:
    total = sum(getattr(traffic, field) for traffic in peer.traffic)
    return Content(figures.size(total)) if total else Content.styled("", DIM)


def _seen(peer: PeerStatus, now: float) -> Content:
    if peer.is_self:
        return Content()
    is_quiet = now - peer.seen_at > _LONG_SILENCE_SECONDS
    return Content.styled(figures.since(peer.seen_at, now) or "never", WARNING if is_quiet else DIM)
