"""What dashboards and `spes-peer status` see, built from the daemon's facts; and the log they show.

Every state carries since when, waiting for whom, until when, and why.
"""

import collections
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from spes_peer import troubles
from spes_peer.exchange.connections import Way
from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import PeerId
from spes_peer.logs import RepeatFilter, plain
from spes_peer.node import Node
from spes_peer.process import Service
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, SignedManifest
from spes_peer.run.peers import Role
from spes_peer.run.records import Record
from spes_peer.training.work import HeldOut
from spes_peer.wire.control_pb2 import (
    LogLine,
    PeerStatus,
    Phase,
    RoundStatus,
    RunInfo,
    Status,
    SubsetStatus,
    TrainingStatus,
)
from spes_peer.wire.control_pb2 import Service as ServiceStatus
from spes_peer.wire.control_pb2 import Traffic as TrafficStatus

if TYPE_CHECKING:  # the member itself uses this module's keepers
    from spes_peer.daemon.member import Member
    from spes_peer.daemon.trainer_host import TrainerHost

logger = logging.getLogger(__name__)

_LOG_LINES = 200
MAX_ROUNDS_SHOWN = 500


class PhaseKeeper:
    """The phase that the daemon is in: since when, waiting for whom, until when, why."""

    def __init__(self, touch: Callable[[], None]) -> None:
        self.touch = touch
        """Says that something changed, to whoever watches."""
        self.message = Phase(name="starting", since_at=time.time())

    @property
    def name(self) -> str:
        return self.message.name

    def say(self, name: str, why: str = "", waiting_for: Iterable[PeerId] = (), until_at: float = 0.0) -> None:
        """Enter a phase, or give a new reason in it; logged when it changes. `until_at` is 0 without a fixed end."""
        if (name, why) != (self.message.name, self.message.why):
            level = logging.INFO if name != self.message.name else logging.DEBUG
            logger.log(level, "%s%s", name, f": {why}" if why else "")
        since_at = self.message.since_at if name == self.message.name else time.time()
        self.message = Phase(name=name, since_at=since_at, why=why, waiting_for=waiting_for, until_at=until_at)
        self.touch()


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


def add_machine(status: Status, node: Node | None = None, trainer: "TrainerHost | None" = None) -> None:
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


def add_member(status: Status, member: "Member") -> None:
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


def _training(member: "Member") -> TrainingStatus:
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


def in_words(status: Status) -> str:
    """The status as a person reads it in a terminal."""
    names = {peer.peer_id: peer.name or peer.peer_id[-8:] for peer in status.peers}
    lines = [
        f"{status.name}  {status.peer_id}  pid {status.pid}",
        f"run {status.run.name or 'not known yet'}  {status.run.run_id[:12]}  {status.run.model}",
        f"round {status.round}  step {status.step:,} of {status.run.total_steps:,}"
        f"  state root {status.state_root[:12] or '-'}",
        _phase_line(status.phase, names, "doing"),
        *(f"trouble: {trouble}" for trouble in status.troubles),
    ]
    if status.reachability_why:
        lines.append(f"others reach this peer: {status.reachability}  ({status.reachability_why})")
    if status.round_phase.name:
        lines.append(_phase_line(status.round_phase, names, "round"))
    for service in status.services:
        line = f"{service.name} {service.state}  for {max(0.0, time.time() - service.since_at):.0f} s"
        lines.append(f"{line}  ({service.why})" if service.why else line)
    for subset in status.subsets:
        owners = ", ".join(names.get(owner, owner[-8:]) for owner in subset.owners) or "nobody"
        lines.append(f"subset {subset.subset}  experts {_ranges(subset.experts)}  trained by {owners}")
    for peer in status.peers:
        marks = [mark for mark, has in (("self", peer.is_self), ("coordinator", peer.is_coordinator)) if has]
        way = f"{peer.transport} {peer.route}" if peer.transport else "-"
        line = f"peer {names[peer.peer_id]}  {peer.state}  {way}  {' '.join(marks)}".rstrip()
        is_plain = peer.is_self or (peer.transport == "grpc" and peer.route == "direct")
        lines.append(line if is_plain or not peer.transport_why else f"{line}  ({peer.transport_why})")
    for traffic in status.traffic:
        sent, received = traffic.bytes_sent / 1e6, traffic.bytes_received / 1e6
        lines.append(f"{traffic.transport}  {sent:.1f} MB sent  {received:.1f} MB received")
    if status.rounds:
        last = status.rounds[-1]
        lines.append(
            f"last round {last.round}  {last.tokens:,} tokens in {last.seconds:.1f} s"
            f"  training loss {last.train_loss:.3f}"
        )
    if status.disk_used_bytes:
        lines.append(_disk_line(status))
    if known := [entry for entry in status.rounds if entry.held_out_loss >= 0]:
        lines.append(f"held-out loss {known[-1].held_out_loss:.3f} after round {known[-1].round}")
    return "\n".join(map(plain, lines))


def _disk_line(status: Status) -> str:
    limit = f" of {status.disk_limit_bytes / 1e9:.2f} GB" if status.disk_limit_bytes else ""
    return f"disk {status.disk_used_bytes / 1e9:.2f} GB{limit}"


def _phase_line(phase: Phase, names: dict[str, str], label: str) -> str:
    line = f"{label} {phase.name}  for {max(0.0, time.time() - phase.since_at):.0f} s"
    if phase.waiting_for:
        line += "  waiting for " + ", ".join(sorted(names.get(peer, peer[-8:]) for peer in phase.waiting_for))
    if phase.until_at:
        line += f"  at most {max(0.0, phase.until_at - time.time()):.0f} s more"
    return f"{line}  ({phase.why})" if phase.why else line


def _ranges(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else ", ".join(map(str, numbers))


class RoundHistory:
    """Closed rounds as this daemon applied them, each once, also where a new trainer applies them again. The held-out
    loss of the run comes with the record after."""

    def __init__(self, traffic: Traffic) -> None:
        self.rounds: collections.deque[RoundStatus] = collections.deque(maxlen=MAX_ROUNDS_SHOWN)
        self.held_out_loss_start = -1.0
        self._traffic = traffic
        self._mark = traffic.snapshot()

    def close(self, closing: Record, opened_at: float, state_root: str, held_out: HeldOut) -> None:
        """Note the round that `closing` closed, once it is applied: when that round began, and what this peer measured
        of the state after it."""
        if self.rounds and closing.round - 1 <= self.rounds[-1].round:
            return
        contributors = {one.peer_id for update in closing.updates for one in update.contributors}
        mark, self._mark = self._mark, self._traffic.snapshot()
        self.rounds.append(
            RoundStatus(
                round=closing.round - 1,
                state_root=state_root,
                held_out_loss=-1.0,
                own_held_out_loss_sum=held_out.loss_sum,
                own_held_out_tokens=held_out.tokens,
                train_loss=closing.train_loss,
                tokens=closing.tokens,
                seconds=closing.opened_at - opened_at,
                traffic=by_transport(self._mark.since(mark)),
                num_contributors=len(contributors),
            )
        )
        logger.info(
            "round closed round=%d tokens=%d train_loss=%.3f contributors=%d root=%s",
            closing.round - 1,
            closing.tokens,
            closing.train_loss,
            len(contributors),
            state_root[:12],
        )

    def this_round(self) -> list[TrafficStatus]:
        """Bytes of this daemon since the last round closed."""
        return by_transport(self._traffic.snapshot().since(self._mark))

    def rewind(self, first_changed_round: int) -> None:
        """The chain has other records from this round on: what the old ones closed never was."""
        while self.rounds and self.rounds[-1].round >= first_changed_round - 1:
            self.rounds.pop()

    def held_out(self, record_round: int, loss: float) -> None:
        """Record `record_round` says what the state after the record before it was worth."""
        if loss < 0:
            return
        if record_round == 2:
            self.held_out_loss_start = loss
        for entry in self.rounds:
            if entry.round == record_round - 2:
                entry.held_out_loss = loss


def by_transport(traffic: Traffic) -> list[TrafficStatus]:
    """Totals of both transports, also where nothing moved."""
    totals = {transport: [0, 0] for transport in ("grpc", "libp2p")}
    for flow in traffic.flows():
        totals[flow.transport][0] += flow.sent_bytes
        totals[flow.transport][1] += flow.received_bytes
    return [
        TrafficStatus(transport=transport, bytes_sent=sent, bytes_received=received)
        for transport, (sent, received) in totals.items()
    ]
