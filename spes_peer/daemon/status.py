"""What dashboards and `spes-peer status` see, built from the daemon's facts; and the log they show.

Every state carries since when, waiting for whom, until when, and why.
"""

import collections
import logging
import time
from collections.abc import Iterable

from spes_peer import troubles
from spes_peer.daemon.history import by_transport
from spes_peer.daemon.member import Member
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.exchange.connections import Way
from spes_peer.identity import PeerId
from spes_peer.logs import RepeatFilter, plain
from spes_peer.node import Node
from spes_peer.process import Service
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, SignedManifest
from spes_peer.run.peers import Role
from spes_peer.run.records import Record
from spes_peer.wire.control_pb2 import (
    LogLine,
    PeerStatus,
    Phase,
    RunInfo,
    Status,
    SubsetStatus,
    TrainingStatus,
)
from spes_peer.wire.control_pb2 import Service as ServiceStatus
from spes_peer.wire.control_pb2 import Traffic as TrafficStatus

_LOG_LINES = 200


class LogRing(logging.Handler):
    """Keeps the newest lines of our own loggers for watchers."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(RepeatFilter())
        self.lines: collections.deque[LogLine] = collections.deque(maxlen=_LOG_LINES)
        self._sequence = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._sequence += 1
        text = plain(record.getMessage())
        self.lines.append(LogLine(sequence=self._sequence, at=record.created, level=record.levelname, text=text))


def run_info(signed: SignedManifest, manifest: Manifest, layout: Layout) -> RunInfo:
    model = manifest.model
    total = layout.num_shared + model.num_experts * layout.num_per_expert
    return RunInfo(
        run_id=signed.run_id.hex(),
        name=manifest.run.name,
        organizer=signed.organizer,
        model=(
            f"{total / 1e6:,.1f} M parameters, {model.num_layers} layers, {model.num_experts} experts,"
            f" top-{model.top_k}, sequences of {model.sequence_length}"
        ),
        num_experts=model.num_experts,
        num_subsets=manifest.training.num_subsets,
        steps_per_round=manifest.training.steps_per_round,
        total_steps=manifest.training.total_steps,
    )


def subset_rows(
    manifest: Manifest, record: Record, claimants: dict[int, list[PeerId]], rounds_trained: dict[int, int]
) -> Iterable[SubsetStatus]:
    """Who owns each subset in the round that `record` opened."""
    for subset in range(manifest.training.num_subsets):
        yield SubsetStatus(
            subset=subset,
            experts=manifest.experts_of(subset),
            owners=record.owners_of(subset),
            claimants=claimants.get(subset, []),
            rounds_trained=rounds_trained.get(subset, 0),
        )


def add_machine(status: Status, node: Node | None = None, trainer: TrainerHost | None = None) -> None:
    """What is wrong with this machine, and how the daemon's own processes are, as far as they are started."""
    status.troubles[:] = troubles.board.texts
    del status.services[:]
    if trainer is not None:
        status.services.append(_service_row(trainer.service))
    if node is not None and node.directory is not None:
        status.services.append(_service_row(node.directory.service, node.directory.health))
    if node is not None and node.libp2p is not None:
        status.services.append(_service_row(node.libp2p.service))


def _service_row(service: Service, health: str = "") -> ServiceStatus:
    why = health if service.state == "running" and health else service.why
    return ServiceStatus(name=service.name, state=service.state, since_at=service.since_at, why=why)


def add_member(status: Status, member: Member) -> None:
    """Add what a daemon that takes part knows."""
    node = member.node
    add_machine(status, node, member.trainer)
    status.peer_id = node.peer_id
    status.run.CopyFrom(run_info(node.signed_manifest, node.manifest, node.layout))
    status.reachability, status.reachability_why = _reachability(node), node.reach.why
    status.traffic.extend(by_transport(node.traffic))
    status.exchange.this_round.extend(member.history.this_round())
    status.rounds.extend(member.history.rounds)
    status.held_out_loss_start = member.history.held_out_loss_start
    status.state_root = member.replica.state_root
    status.training.CopyFrom(_training(member))
    if (beat := member.round_phase) is not None:
        status.round_phase.CopyFrom(
            Phase(
                name=beat.phase,
                since_at=beat.since_at,
                waiting_for=beat.waiting_for,
                until_at=beat.until_at,
                why=beat.why,
            )
        )
    if node.chain.head is not None:
        record = node.chain.head.record
        status.round, status.step = record.round, record.step
        rounds_trained = node.chain.rounds_trained(node.layout)
        status.subsets.extend(subset_rows(node.manifest, record, member.claiming.claimants(), rounds_trained))
        status.peers.extend(_peer_rows(node, record, member.follower.coordinator))


def _reachability(node: Node) -> str:
    if node.reach.endpoints("grpc") and not node.reach.needs_relay:
        return "direct"
    return "relay" if node.libp2p is not None and node.libp2p.standing_relays else "nobody yet"


def _training(member: Member) -> TrainingStatus:
    progress, head = member.progress, member.node.chain.head
    return TrainingStatus(
        steps_done=progress.steps_done if progress else 0,
        num_steps=member.node.manifest.training.steps_per_round_at(head.record.step if head else 0),
        loss=progress.loss if progress else 0.0,
        tokens_per_second=progress.tokens_per_second if progress else member.speed,
        device=member.trainer.opened.device,
        memory_bytes=progress.memory_bytes if progress else 0,
    )


def _peer_rows(node: Node, record: Record, coordinator: PeerId | None) -> Iterable[PeerStatus]:
    """Self first, then the others by name."""
    flows: dict[PeerId, list[TrafficStatus]] = {}
    for flow in node.traffic.flows():
        row = TrafficStatus(transport=flow.transport, bytes_sent=flow.sent_bytes, bytes_received=flow.received_bytes)
        flows.setdefault(flow.peer, []).append(row)
    places = {entry.peer_id: entry for entry in record.roster}
    others = sorted({*node.entries, *places} - {node.peer_id}, key=lambda peer: (node.name_of(peer), peer))
    for peer in (node.peer_id, *others):
        place, entry, is_self = places.get(peer), node.entries.get(peer), peer == node.peer_id
        way = node.connections.way_to(peer)
        yield PeerStatus(
            peer_id=peer,
            name=node.name_of(peer),
            role=entry.role if entry else Role.VOLUNTEER,
            state=node.state if is_self else _state_of(node, peer),
            subsets=place.subsets if place else (),
            transport=way.transport or "",
            route=_route(node, peer, way),
            transport_why="" if is_self else _way_in_words(node, peer, way),
            sequences_per_step=place.sequences_per_step if place else 0,
            is_self=is_self,
            is_coordinator=peer == coordinator,
            traffic=flows.get(peer, []),
            seen_at=time.time() if is_self else entry.written_at if entry else 0.0,
        )


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


def _state_of(node: Node, peer: PeerId) -> str:
    """What another says of itself, for as long as the DHT has it or could have it."""
    entry = node.entries.get(peer)
    is_there = entry is not None and node.unlisted_seconds(peer) <= node.manifest.timing.dht_ttl_seconds
    return entry.state if entry is not None and is_there else "OFFLINE"
