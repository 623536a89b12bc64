"""The files of an event log, as a reader finds them."""

import contextlib
import os
from pathlib import Path

from spes_peer.events.lines import event_of
from spes_peer.wire.event_pb2 import Event

NAME_DIGITS = 12
_TAILS = (1 << 16, 1 << 20, 1 << 62)  # bytes in which the last line is looked for


def files_in(folder: Path) -> list[Path]:
    """Of an event log, oldest first."""
    return sorted(folder.glob(f"{'[0-9]' * NAME_DIGITS}.jsonl"))


def last_event(folder: Path) -> Event | None:
    """The newest whole line of an event log; None where there is none, or none to read."""
    for path in reversed(files_in(folder)):
        with contextlib.suppress(OSError):
            if (event := _last_of(path)) is not None:
                return event
    return None


def _last_of(path: Path) -> Event | None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for tail in _TAILS:
            file.seek(max(0, size - tail))
            lines = file.read().split(b"\n")[0 if tail >= size else 1 :]
            for line in reversed(lines):
                if (event := event_of(line)) is not None:
                    return event
            if tail >= size:
                break
    return None
