"""An event as a person reads it: one line, or none for figures that move all the time."""

import time
from collections.abc import Iterable
from pathlib import Path

from spes_peer.events import FOLDER
from spes_peer.events.folder import last_event
from spes_peer.logs import LINE_TIMES, plain
from spes_peer.wire.control_pb2 import Phase, RoundStatus
from spes_peer.wire.event_pb2 import Event, PauseChanged


def in_words(event: Event) -> str:
    """What happened, behind its time; "" for what only matters as a figure. Log lines have a line each."""
    if event.WhichOneof("kind") == "logged":
        return "\n".join(_line(line.at, f"log {line.level}: {line.text}") for line in event.logged.lines)
    words = said(event)
    return _line(event.at, words) if words else ""


def last_end(state_folder: Path) -> str:
    """When and why the last daemon of a folder that has none now ended; "" where none has run."""
    event = last_event(state_folder / FOLDER)
    if event is None:
        return ""
    if event.WhichOneof("kind") == "ended":
        code = f" (exit code {event.ended.exit_code})" if event.ended.exit_code else ""
        return plain(f"the last one ended {_moment(event.at)}{code}: {event.ended.why}")
    return f"the last one was killed, or its machine went off, some time after {_moment(event.at)}"


def _moment(at: float) -> str:
    try:
        return time.strftime(LINE_TIMES, time.localtime(at))
    except (ValueError, OverflowError, OSError):  # of a damaged file
        return "at no known time"


def _line(at: float, text: str) -> str:
    return f"{_moment(at)}  {plain(text)}"


def said(event: Event) -> str:
    """`in_words` without the time; "" for log lines too."""
    match event.WhichOneof("kind"):
        case "started":
            return f"started, pid {event.started.pid} {event.started.version}".rstrip()
        case "ended":
            return f"ended with exit code {event.ended.exit_code}: {event.ended.why}"
        case "run_known":
            return f"run {event.run_known.run.name}, this peer is {event.run_known.peer_id}"
        case "phase_changed":
            return f"this peer is {_phase(event.phase_changed.phase)}"
        case "round_phase_changed":
            return f"the round is {_phase(event.round_phase_changed.round_phase)}"
        case "round_opened":
            return f"round {event.round_opened.round} opened at step {event.round_opened.step:,}"
        case "round_closed":
            return _round(event.round_closed.round)
        case "held_out_known":
            return f"held-out loss {event.held_out_known.loss:.3f} after round {event.held_out_known.round}"
        case "rounds_rewound":
            return f"the chain has other records from round {event.rounds_rewound.first_gone} on"
        case "peers_changed":
            return _listed("peers: ", (f"{one.name} {one.state}" for one in event.peers_changed.peers))
        case "pause_changed":
            return _pause(event.pause_changed)
        case "troubles_changed":
            return _listed("trouble: ", event.troubles_changed.troubles) or "no trouble any more"
        case "services_changed":
            return _listed("", (f"{one.name} {one.state}" for one in event.services_changed.services))
        case "reachability_changed":
            return f"others reach this peer: {event.reachability_changed.reachability}"
        case _:
            return ""


def _listed(what: str, names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"{what}{listed}" if listed else ""


def _pause(change: PauseChanged) -> str:
    if not change.is_paused and not change.pause_why:
        return "taking part again"
    return f"paused: {change.pause_why}" if change.pause_why else "paused"


def _phase(phase: Phase) -> str:
    waiting = f", waiting for {len(phase.waiting_for)} peers" if phase.waiting_for else ""
    why = f": {phase.why}" if phase.why else ""
    return f"{phase.name or 'over'}{waiting}{why}"


def _round(closed: RoundStatus) -> str:
    loss = f", training loss {closed.train_loss:.3f}" if closed.train_loss >= 0 else ""
    return (
        f"round {closed.round} closed: {closed.tokens:,} tokens of {closed.num_contributors} peers in"
        f" {closed.seconds:.1f} s{loss}"
    )
