"""Logs that do not grow without end, do not say the same thing over and over, and have one line for each thing said.

Processes that log for others (children, a daemon behind a dashboard) have their output in a file that is open for
appending. `bound` keeps such a file small without their doing: what it holds becomes `<name>.old`, and it is emptied.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

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


LINE_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
LINE_TIMES = "%Y-%m-%d %H:%M:%S"
FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """Writes a line of JSON for each message: `at` in Unix seconds, `level`, `name`, `text`, and `traceback` if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname,
            "name": record.name,
            "text": plain(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def line_formatter(line_format: str) -> logging.Formatter:
    """For lines of one of `FORMATS`."""
    return JsonFormatter() if line_format == "json" else PlainFormatter(LINE_FORMAT, LINE_TIMES)


def as_text(line: str) -> str:
    """A line of a log of either format, as one of text, safe to print."""
    if line.startswith('{"at":'):
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, OSError):
            read = json.loads(line)
            said_at = time.strftime(LINE_TIMES, time.localtime(read["at"]))
            said = plain(f"{said_at} {read['level']:7s} {read['text']}")
            return "\n".join([said, *map(plain, read.get("traceback", "").splitlines())])
    return plain(line)


def last_words(program: str, error: str, line_format: str) -> str:
    """The line with which a command ends that cannot go on."""
    if line_format == "json":
        return json.dumps({"at": round(time.time(), 3), "level": "ERROR", "name": program, "text": plain(error)})
    return f"{program}: {plain(error)}"


def said_last(lines: list[str]) -> str:
    """What `last_words` said, without a time; "" where there are no lines."""
    if not lines:
        return ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        read = json.loads(lines[-1])
        return plain(f"{read['name']}: {read['text']}")
    return plain(lines[-1])


class _ToStderr(logging.StreamHandler[TextIO]):
    """What is stderr now: while a progress bar is there, it takes the lines and keeps itself below them."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _stream: TextIO) -> None:
        pass


def log_to_person(level: int, line_format: str = "text") -> None:
    """What a command logs: to stderr."""
    handler = _ToStderr()
    handler.addFilter(RepeatFilter())
    handler.setFormatter(line_formatter(line_format))
    logging.basicConfig(level=level, handlers=[handler])


class LogFile(logging.FileHandler):
    """The same lines in a file, for who looks later; a disk that takes them not is no trouble of the program's."""

    def __init__(self, path: Path, line_format: str = "text") -> None:
        super().__init__(path, encoding="utf-8", errors="replace")
        self.addFilter(RepeatFilter())
        self.setFormatter(line_formatter(line_format))

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def keep_in(path: Path, line_format: str = "text") -> LogFile | None:
    """Keep everything that is logged from now on in this file too, unless stderr leads there already."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError, ValueError):
            if os.path.samestat(path.stat(), os.fstat(sys.stderr.fileno())):
                return None
        handler = LogFile(path, line_format)
        logging.getLogger().addHandler(handler)
        return handler
    return None


def last_lines(path: Path, most: int) -> tuple[list[str], int]:
    """Of a log, and of what was moved aside from it if that is needed; and the bytes of the log that were read."""
    content = path.read_bytes()
    lines = content.decode(errors="replace").splitlines()
    if len(lines) < most:
        with contextlib.suppress(FileNotFoundError):
            lines = path.with_name(f"{path.name}.old").read_text(errors="replace").splitlines() + lines
    return lines[max(0, len(lines) - most) :], len(content)


def following(path: Path, at: int, look_seconds: float = 0.25) -> Iterator[str]:
    """What is written into a log behind its first `at` bytes, piece by piece, for ever; it may be emptied meanwhile."""
    while True:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < at:
                at = 0
            file.seek(at)
            piece = file.read()
        at += len(piece)
        if piece:
            yield piece.decode(errors="replace")
        time.sleep(look_seconds)


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
        # another handler's filter may have written its count into the message
        text, template = record.__dict__.setdefault("_said", (record.getMessage(), str(record.msg)))
        now, peer = self._clock(), _PEER.search(text)
        key = (template, peer[1]) if peer else (record.name, text)
        shown_at, held_back = self._seen.get(key, (-REPEAT_SECONDS, 0))
        if now - shown_at < REPEAT_SECONDS:
            self._seen[key] = shown_at, held_back + 1
            return False
        self._seen.pop(key, None)
        while len(self._seen) >= _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = now, 0
        record.msg, record.args = text, ()
        if held_back:
            record.msg, record.args = f"{text} ({held_back} more like this in {now - shown_at:.0f} s)", ()
        return True
