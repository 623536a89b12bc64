"""Logs that do not grow without end, do not say the same thing over and over, and have one line for each thing said.

Processes that log for others (children, a daemon behind a dashboard) have their output in a file that is open for
appending. `bound` keeps such a file small without their doing: what it holds becomes `<name>.old`, and it is emptied.
"""

import asyncio
import contextlib
import logging
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

MOST_BYTES = 8 << 20
LOOK_SECONDS = 30.0
REPEAT_SECONDS = 60.0
MOST_CHARACTERS = 4_000  # of one thing said
_MOST_REMEMBERED = 512
_PEER = re.compile(r"\bpeer=(\S+)")


def plain(text: str, most: int = MOST_CHARACTERS) -> str:
    """One line of at most so many characters that moves no cursor: some of the words are other peers'."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return cut if cut.isprintable() else "".join(sign if sign.isprintable() else " " for sign in cut)


class PlainFormatter(logging.Formatter):
    """Writes each message as `plain` has it, so that nobody's words look like lines of our own. Tracebacks are ours."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = plain(record.message)
        return super().formatMessage(record)


def log_of_child(level: int = logging.INFO) -> None:
    """What a process of our own logs: to stderr, which is its log file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def bound(path: Path, most_bytes: int = MOST_BYTES) -> None:
    """Move the content of a log that has grown beyond `most_bytes` to `<name>.old`. Whoever writes must have opened it
    for appending; lines that come just now may be lost. On a full disk the content is dropped."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > most_bytes:
            with contextlib.suppress(OSError):
                shutil.copyfile(path, path.with_name(f"{path.name}.old"))
            with path.open("r+b") as file:
                file.truncate(0)


async def keep_bounded(folder: Path, most_bytes: int = MOST_BYTES, look_seconds: float = LOOK_SECONDS) -> None:
    """Keep every `*.log` in `folder` bounded, for ever."""
    while True:
        await asyncio.to_thread(_bound_all, folder, most_bytes)
        await asyncio.sleep(look_seconds)


def _bound_all(folder: Path, most_bytes: int) -> None:
    for path in folder.glob("*.log"):
        bound(path, most_bytes)


class RepeatFilter(logging.Filter):
    """Lets a warning through once a minute, with the number of those held back. Two are the same if they have the same
    words, or the same template about the same peer. Belongs on a handler: on a logger it would not see its children's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        """When each was last let through, and how often it was held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text, now = record.getMessage(), self._clock()
        peer = _PEER.search(text)
        key = (str(record.msg), peer[1]) if peer else (record.name, text)
        shown_at, held_back = self._seen.get(key, (-REPEAT_SECONDS, 0))
        if now - shown_at < REPEAT_SECONDS:
            self._seen[key] = shown_at, held_back + 1
            return False
        self._seen.pop(key, None)
        while len(self._seen) >= _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = now, 0
        if held_back:
            record.msg, record.args = f"{text} ({held_back} more like this in {now - shown_at:.0f} s)", ()
        return True
