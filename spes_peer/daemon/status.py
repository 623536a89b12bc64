"""What dashboards and `spes-peer status` see, built from the daemon's facts; and the log they show.

Every state carries since when, waiting for whom, until when, and why.
"""

import collections
import logging
from collections.abc import Iterable

from spes_peer import __version__, troubles
from spes_peer.daemon.exchange_status import exchange_status
from spes_peer.daemon.history import by_transport
from spes_peer.daemon.member import Member
from spes_peer.daemon.peer_rows import OFFLINE, peer_rows, state_of
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.logs import RepeatFilter, plain
from spes_peer.node import Node
from spes_peer.process import Service
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, SignedManifest
from spes_peer.run.records import Record
from spes_peer.training.work import DeviceFigures
from spes_peer.wire.control_pb2 import (
    DeviceStatus,
    LogLine,
    Phase,
    RunInfo,
    Status,
    SubsetStatus,
    TrainingStatus,
)
from spes_peer.wire.control_pb2 import Service as ServiceStatus

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


def subset_rows(member: Member, record: Record) -> Iterable[SubsetStatus]:
    """Who owns each subset in the round that `record` opened, and how much it was trained and used."""
    node, claimants, choices = member.node, member.claiming.claimants(), member.router_choices
    rounds_trained, num_choices = node.chain.rounds_trained(node.layout), sum(choices)
    for subset in range(node.manifest.training.num_subsets):
        experts, owners = node.manifest.experts_of(subset), record.owners_of(subset)
        yield SubsetStatus(
            subset=subset,
            experts=experts,
            owners=owners,
            claimants=claimants.get(subset, []),
            rounds_trained=rounds_trained.get(subset, 0),
            router_share=sum(choices[expert] for expert in experts) / num_choices if num_choices else -1.0,
            lapsing=[owner for owner in owners if owner != node.peer_id and state_of(node, owner) == OFFLINE],
        )


def device_status(figures: DeviceFigures) -> DeviceStatus:
    return DeviceStatus(
        name=figures.name,
        used_bytes=figures.used_bytes,
        own_bytes=figures.own_bytes,
        total_bytes=figures.total_bytes,
        use=figures.use,
        temperature=figures.temperature,
    )


def add_machine(status: Status, node: Node | None = None, trainer: TrainerHost | None = None) -> None:
    """Of which version the daemon is, what is wrong with this machine, and how the daemon's own processes are, as far
    as they are started."""
    status.version = __version__
    status.troubles[:] = troubles.board.texts
    del status.services[:]
    if trainer is not None:
        status.services.append(_service_row(trainer.service))
        if trainer.device is not None:
            status.device.CopyFrom(device_status(trainer.device))
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
    status.exchange.CopyFrom(exchange_status(node))
    status.exchange.this_round.extend(member.accounts.history.this_round())
    status.rounds.extend(member.accounts.history.rounds)
    status.held_out_loss_start = member.accounts.history.held_out_loss_start
    status.state_root = member.replica.state_root
    status.given.CopyFrom(member.accounts.given.message(node.chain.tallies.of(node.peer_id)))
    status.parts.extend(member.accounts.parts.so_far)
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
        status.subsets.extend(subset_rows(member, record))
        status.peers.extend(peer_rows(node, record, member.follower.coordinator))


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
