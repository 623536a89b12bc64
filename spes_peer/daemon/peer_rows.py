"""The peers of a run as this daemon sees them, for whoever watches: what they do, and how they are reached."""

import contextlib
import time
from collections.abc import Iterable

from spes_peer import __version__
from spes_peer.errors import BlobMissing
from spes_peer.exchange.connections import Way
from spes_peer.identity import PeerId
from spes_peer.logs import plain
from spes_peer.node import Node
from spes_peer.run.peers import Role
from spes_peer.run.records import Record
from spes_peer.wire.control_pb2 import PeerStatus
from spes_peer.wire.control_pb2 import Traffic as TrafficStatus

OFFLINE = "OFFLINE"
"""The state of whom the DHT has had no entry of for longer than one lives there."""
_LONGEST_VERSION = 32  # characters; it is another's word


def peer_rows(node: Node, record: Record, coordinator: PeerId | None) -> Iterable[PeerStatus]:
    """Self first, then the others by name; `record` opened the round that is open."""
    flows: dict[PeerId, list[TrafficStatus]] = {}
    for flow in node.traffic.flows():
        row = TrafficStatus(transport=flow.transport, bytes_sent=flow.sent_bytes, bytes_received=flow.received_bytes)
        flows.setdefault(flow.peer, []).append(row)
    trained, seconds = record.trained, _seconds_before(node, record)
    places = {entry.peer_id: entry for entry in record.roster}
    others = sorted({*node.entries, *places} - {node.peer_id}, key=lambda peer: (node.name_of(peer), peer))
    for peer in (node.peer_id, *others):
        place, entry, is_self = places.get(peer), node.entries.get(peer), peer == node.peer_id
        way = node.connections.way_to(peer)
        yield PeerStatus(
            peer_id=peer,
            name=node.name_of(peer),
            role=entry.role if entry else Role.VOLUNTEER,
            state=node.state if is_self else state_of(node, peer),
            subsets=place.subsets if place else (),
            transport=way.transport or "",
            route=_route(node, peer, way),
            transport_why="" if is_self else _way_in_words(node, peer, way),
            sequences_per_step=place.sequences_per_step if place else 0,
            is_self=is_self,
            is_coordinator=peer == coordinator,
            traffic=flows.get(peer, []),
            seen_at=time.time() if is_self else entry.written_at if entry else 0.0,
            tokens_per_second=trained.get(peer, 0) / seconds if seconds > 0 else 0.0,
            round_trip_seconds=0.0 if is_self else node.connections.round_trip_seconds(peer),
            version=__version__ if is_self else plain(entry.version, _LONGEST_VERSION) if entry else "",
            standing=_standing(node, peer, record.round),
        )


def _seconds_before(node: Node, record: Record) -> float:
    """Of the round that `record` closed; 0 where that is not known."""
    if not record.round:
        return 0.0
    with contextlib.suppress(BlobMissing):
        return record.opened_at - node.chain.record(record.round - 1).sealed.record.opened_at
    return 0.0


def _standing(node: Node, peer: PeerId, round: int) -> str:
    """What the records and our own transfers hold against it."""
    said, marks = [], node.chain.marks
    if marked := marks.rounds.get(peer, ()):
        word = "mark" if len(marked) == 1 else "marks"
        said.append(f"{len(marked)} {word} for experts that did harm, the last in record {marked[-1]}")
    if until := marks.barred_until(peer, round):
        said.append(f"no seat before record {until}")
    if num_bad := node.fetcher.bad_sources[peer]:
        said.append(f"sent us bad bytes {num_bad} times" if num_bad > 1 else "sent us bad bytes once")
    return "; ".join(said)


def _route(node: Node, peer: PeerId, way: Way) -> str:
    if way.transport is None:
        return ""
    if way.relay is not None:
        return "relay"
    is_punched = way.transport == "libp2p" and node.libp2p is not None and node.libp2p.is_punched(peer)
    return "punched" if is_punched else "direct"


def _way_in_words(node: Node, peer: PeerId, way: Way) -> str:
    if way.relay is not None:
        return f"through {node.name_of(way.relay)}: {way.why}"
    return f"through a hole in both routers: {way.why}" if _route(node, peer, way) == "punched" else way.why


def state_of(node: Node, peer: PeerId) -> str:
    """What another says of itself, for as long as the DHT has it or could have it."""
    entry = node.entries.get(peer)
    is_there = entry is not None and node.unlisted_seconds(peer) <= node.manifest.timing.dht_ttl_seconds
    return entry.state if entry is not None and is_there else OFFLINE
