"""All that is known of one peer, in a few lines: who it is, by which way it is called and why, how it stands."""

from textual.content import Content

from spes_peer.wire.control_pb2 import PeerStatus
from tui import figures
from tui.look import BOLD, DIM, FAINT, SPEED, STATES, WARNING, safe
from tui.memory import View

_LINES = 6
_MOST_WAY_LINES = 2
_NOT_CALLED_YET = {
    "JOINING": "it is joining: it gets a place in one of the next rounds, and is called then",
    "OFFLINE": "it is not heard of: nobody calls it until it is announced again",
}


def peer_lines(view: View, peer: PeerStatus, width: int) -> list[Content]:
    """Lines of at most `width` cells; the reason for the way is folded where it is long."""
    way = _way(view, peer).wrap(width)[:_MOST_WAY_LINES]
    lines = [_who(view, peer), _doing(peer), *way, _contact(view, peer), _standing(peer)]
    lines += [Content()] * (_LINES - len(lines))  # always as many, so that the list above keeps its height
    return [line.truncate(width, ellipsis=True) for line in lines]


def _who(view: View, peer: PeerStatus) -> Content:
    name = (view.name(peer.peer_id), f"{BOLD} {view.colour(peer.peer_id)}")
    return Content.assemble(name, (" (you)" if peer.is_self else "", DIM), (f"  {safe(peer.peer_id, 64)}", FAINT))


def _joined(facts: list[Content]) -> Content:
    return Content.styled(" · ", FAINT).join(facts)


def _doing(peer: PeerStatus) -> Content:
    facts = [
        Content.assemble(
            (safe(peer.role, 16) or "unknown", DIM), " ", (safe(peer.state, 16).lower(), STATES.get(peer.state, DIM))
        )
    ]
    if peer.subsets:
        facts.append(Content.assemble(("trains subsets ", DIM), figures.ranges(peer.subsets)))
    elif peer.role != "bootstrap":
        facts.append(Content.styled("trains nothing in the open round", DIM))
    if peer.sequences_per_step:
        facts.append(Content.assemble(str(peer.sequences_per_step), (" sequences a step", DIM)))
    if peer.tokens_per_second > 0:
        facts.append(Content.assemble(figures.count(peer.tokens_per_second), (" tok/s", DIM)))
    if peer.is_coordinator:
        facts.append(Content.styled("★ coordinates the run", WARNING))
    return _joined(facts)


def _way(view: View, peer: PeerStatus) -> Content:
    if peer.is_self:
        why = safe(view.status.reachability_why)
        return Content.assemble(
            ("others reach this machine: ", DIM),
            (safe(view.status.reachability, 16) or "not known yet", SPEED),
            (f"  {why}" if why else "", ""),
        )
    if not peer.transport:
        why = safe(peer.transport_why)
        so_far = _NOT_CALLED_YET.get(peer.state, "" if why else "not called yet")
        return Content.styled("; ".join(filter(None, (so_far, why))), DIM)
    by = safe(" ".join(dict.fromkeys(filter(None, (peer.transport, peer.route)))), 24)
    return Content.assemble(
        ("called by ", DIM), (by, SPEED), (": " if peer.transport_why else "", DIM), safe(peer.transport_why)
    )


def _contact(view: View, peer: PeerStatus) -> Content:
    facts = []
    if not peer.is_self:
        seen = figures.since(peer.seen_at, view.now)
        heard = Content.assemble(("heard of ", DIM), seen, (" ago", DIM))
        facts.append(heard if seen else Content.styled("never heard of", DIM))
    if peer.round_trip_seconds > 0:
        facts.append(Content.assemble(("round trip ", DIM), figures.brief(peer.round_trip_seconds)))
    if peer.version:
        facts.append(Content.assemble(("version ", DIM), safe(peer.version, 16)))
    sent = sum(one.bytes_sent for one in peer.traffic)
    received = sum(one.bytes_received for one in peer.traffic)
    if sent or received:
        facts.append(Content.assemble("↑ ", figures.size(sent), "B  ↓ ", figures.size(received), "B"))
    return _joined(facts)


def _standing(peer: PeerStatus) -> Content:
    if peer.standing:
        return Content.styled(safe(peer.standing), WARNING)
    return Content.styled("nothing stands against it" if not peer.is_self else "", DIM)
