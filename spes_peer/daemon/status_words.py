"""The status of a daemon as a person reads it in a terminal: `spes-peer status`."""

import time
from collections.abc import Sequence

from spes_peer.logs import plain
from spes_peer.wire.control_pb2 import DeviceStatus, ExchangeStatus, Given, Phase, Progress, Status


def in_words(status: Status) -> str:
    """The status as a person reads it in a terminal."""
    names = {peer.peer_id: peer.name or peer.peer_id[-8:] for peer in status.peers}
    lines = [
        f"{status.name}  {status.peer_id}  pid {status.pid}",
        f"run {status.run.name or 'not known yet'}  {status.run.run_id[:12]}  {status.run.model}",
        f"round {status.round}  step {status.step:,} of {status.run.total_steps:,}"
        f"  state root {status.state_root[:12] or '-'}",
        _phase_line(status.phase, names, "doing"),
        *([f"will rest: {status.pause_why}"] if status.pause_why and status.phase.name != "paused" else []),
        *(f"trouble: {trouble}" for trouble in status.troubles),
    ]
    if status.HasField("progress"):
        lines.append(progress_words(status.progress, _down_rate(status.exchange)))
    if status.reachability_why:
        lines.append(f"others reach this peer: {status.reachability}  ({status.reachability_why})")
    if status.round_phase.name:
        lines.append(_phase_line(status.round_phase, names, "round"))
    for service in status.services:
        line = f"{service.name} {service.state}  for {max(0.0, time.time() - service.since_at):.0f} s"
        lines.append(f"{line}  ({service.why})" if service.why else line)
    if status.HasField("device"):
        lines.append(_device_line(status.device))
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
    if status.exchange.transfers or status.exchange.num_queued:
        lines.append(_transfers_line(status.exchange))
    if lived := [part for part in status.parts if part.seconds >= 1]:
        lines.append("this round so far  " + "  ".join(f"{part.name} {part.seconds:.0f} s" for part in lived))
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
    if status.HasField("given"):
        lines.append(_given_line(status.given))
    return "\n".join(map(plain, lines))


def progress_words(progress: Progress, bytes_per_second: float = 0.0) -> str:
    """What takes long, how far it is, at what rate, and how long it may still take. Bytes come at the rate that is
    given, for some may have been here before; everything else at the rate so far."""
    unit, scale = _unit_of(progress)
    done, whole, words = progress.done / scale, progress.whole / scale, how_far(progress)
    if not whole:
        return words
    seconds = max(time.time() - progress.since_at, 0.001)
    rate = bytes_per_second / scale if progress.unit == "bytes" else done / seconds
    return f"{words}  {rate:,.1f} {unit}/s  {max(0.0, whole - done) / rate:.0f} s left" if rate > 0 else words


def how_far(progress: Progress) -> str:
    """What takes long, and how far it is."""
    unit, scale = _unit_of(progress)
    done, whole, digits = progress.done / scale, progress.whole / scale, 1 if scale > 1 else 0
    of = f" of {whole:,.{digits}f}" if whole else ""
    return f"{progress.what}  {done:,.{digits}f}{of} {unit}"


def _unit_of(progress: Progress) -> tuple[str, float]:
    return ("MB", 1e6) if progress.unit == "bytes" else (progress.unit, 1.0)


def _down_rate(exchange: ExchangeStatus) -> float:
    return sum(move.bytes_per_second for move in exchange.transfers if move.direction == "down")


def _device_line(device: DeviceStatus) -> str:
    line = f"device {device.name}"
    if device.total_bytes:
        used, own, total = (size / 1e9 for size in (device.used_bytes, device.own_bytes, device.total_bytes))
        line += f"  {used:.1f} of {total:.1f} GB used, {own:.1f} GB by the trainer"
    if device.use >= 0:
        line += f"  {device.use:.0%} busy"
    return f"{line}  {device.temperature:.0f} °C" if device.temperature else line


def _transfers_line(exchange: ExchangeStatus) -> str:
    words = []
    for direction in ("down", "up"):
        if moves := [move for move in exchange.transfers if move.direction == direction]:
            rate = sum(move.bytes_per_second for move in moves)
            words.append(f"{len(moves)} {direction} at {rate / 1e6:.2f} MB/s")
    if exchange.num_queued:
        words.append(f"{exchange.num_queued} wait for a place")
    return "transfers  " + "  ".join(words)


def _given_line(given: Given) -> str:
    rounds = "round" if given.rounds == 1 else "rounds"
    return (
        f"given so far  {given.tokens:,} tokens in {given.rounds:,} {rounds}  {given.seconds / 3600:.1f} h of training"
        f"  {given.bytes_sent / 1e6:.1f} MB sent"
    )


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
