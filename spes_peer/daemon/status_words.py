"""The status of a daemon as a person reads it in a terminal: `spes-peer status`."""

import time
from collections.abc import Sequence

from spes_peer.logs import plain
from spes_peer.wire.control_pb2 import Phase, Status


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
