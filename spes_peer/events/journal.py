"""The event log of a daemon: files of JSON lines in its state folder, of which the oldest goes when there are enough.

    <folder>/000000000001.jsonl      named by the first event in it

Each file begins with a picture, or with a start, and so can be read alone; pictures come again and again, so that a
reader need not begin at the beginning. A thread of its own writes: the daemon never waits for the disk. What a disk
does not take is lost to the log, and the next that it takes begins with a picture; a line that a crash cut off is
ended, so that it costs itself alone.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from spes_peer.events.folder import NAME_DIGITS, files_in, last_event
from spes_peer.events.lines import line_of
from spes_peer.files import our_disk, saved_well
from spes_peer.wire.control_pb2 import Status
from spes_peer.wire.event_pb2 import Event

MOST_BYTES = 16 << 20
NUM_FILES = 4
BYTES_BETWEEN_PICTURES = 2 << 20
_BACKLOG = 256  # batches, while the disk is slow
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 2.0  # for all that waits
_NEWEST_SECONDS = 1.0  # more, for the newest alone


class _Batch(NamedTuple):
    events: Sequence[Event]
    before: Status
    is_after_a_gap: bool


class EventLog:
    """Appends to the files of `folder`, from one daemon at a time."""

    def __init__(
        self,
        folder: Path,
        most_bytes: int = MOST_BYTES,
        num_files: int = NUM_FILES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._num_files = num_files
        self._clock = clock
        last, files = last_event(folder), files_in(folder)
        newest = max(last.sequence if last is not None else 0, int(files[-1].stem) if files else 0)
        self.next_sequence = newest + 1
        """Of the first event that comes."""
        self._has_lost = False  # because there was no place in the queue
        self._newest: _Batch | None = None  # that came
        self._needs_picture = False
        self._bytes_since_picture = 0
        self._retry_at = 0.0
        self._batches: queue.Queue[_Batch | None] = queue.Queue(_BACKLOG)
        self._thread = threading.Thread(target=self._write_all, name="event log", daemon=True)
        self._thread.start()

    def append(self, events: Sequence[Event], before: Status) -> None:
        """Write these soon; `before` is the status without them. Neither may be changed any more."""
        self._newest = _Batch(events, before, self._has_lost)
        try:
            self._batches.put_nowait(self._newest)
            self._has_lost = False
        except queue.Full:
            self._has_lost = True

    def close(self) -> None:
        """Write what has come, for a few seconds at most; where the disk is too slow for it, the newest alone: that
        says why the daemon ended. Blocks meanwhile. Nothing may be appended afterwards."""
        if self._has_lost or self._batches.full():
            self._leave_the_newest()
        self._batches.put_nowait(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._leave_the_newest()
            self._batches.put_nowait(None)
            self._thread.join(_NEWEST_SECONDS)

    def _leave_the_newest(self) -> None:
        """Of what waits; a picture makes good the others."""
        with self._batches.mutex:  # at once, so that the thread takes none behind a gap
            is_waiting = self._has_lost or any(batch is self._newest for batch in self._batches.queue)
            self._batches.queue.clear()
        if is_waiting and self._newest is not None:
            self._newest = self._newest._replace(is_after_a_gap=True)
            self._batches.put_nowait(self._newest)
            self._has_lost = False

    # ---- in the thread ----

    def _write_all(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._write(batch)
            except OSError:  # a full disk stands on the board of troubles by now; the log is not worth more words
                self._needs_picture = True
                self._retry_at = self._clock() + _RETRY_SECONDS

    def _write(self, batch: _Batch) -> None:
        if self._clock() < self._retry_at:
            return
        with our_disk(self._folder.parent):
            self._folder.mkdir(exist_ok=True, mode=0o700)
            files = files_in(self._folder)
            is_new = not files or files[-1].stat().st_size >= self._most_bytes
            if is_new:
                files.append(self._folder / f"{batch.events[0].sequence:0{NAME_DIGITS}}.jsonl")
                for old in files[: -self._num_files]:
                    old.unlink(missing_ok=True)
            lines = b"".join(map(line_of, batch.events))
            if (
                is_new
                or self._needs_picture
                or batch.is_after_a_gap
                or self._bytes_since_picture >= BYTES_BETWEEN_PICTURES
            ):
                lines = _picture_before(batch) + lines
                self._bytes_since_picture = 0
            _append(files[-1], lines)
        self._bytes_since_picture += len(lines)
        self._needs_picture = False
        saved_well(self._folder.parent)


def _picture_before(batch: _Batch) -> bytes:
    first = batch.events[0]
    if first.WhichOneof("kind") == "started":  # what was before does not count
        return b""
    return line_of(Event(sequence=first.sequence - 1, at=first.at, picture=batch.before))


def _append(path: Path, lines: bytes) -> None:
    """All of it, or nothing."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        try:
            while lines:
                lines = lines[os.write(descriptor, lines) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
