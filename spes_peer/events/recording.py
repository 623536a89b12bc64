"""An event log, read again: what happened, and the status at any moment.

    with Recording(folder) as recording:
        status = recording.status_at(recording.ended_at)

One look through the files finds the pictures; a status is made from the picture before its moment and the events
after it. Only one status is kept, so a long log takes no more memory than a short one. A log to which a daemon still
writes is read up to where it was when it was opened.
"""

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spes_peer.errors import UserError
from spes_peer.events import FOLDER
from spes_peer.events.changes import apply
from spes_peer.events.folder import files_in
from spes_peer.events.lines import event_of, head_of
from spes_peer.wire.control_pb2 import Status
from spes_peer.wire.event_pb2 import Event

_WHOLE = ("picture", "started")
_LONGEST_LINE = 64 << 20


class _Place(NamedTuple):
    """Where a line begins, and when."""

    file: int
    offset: int
    at: float
    """Unix seconds, never before those of a line before it, whatever the clock did."""


_BEGINNING = _Place(0, 0, 0.0)


class Recording:
    """The events of one file, or of a state folder. Moments are Unix seconds. `UserError` where there are none."""

    def __init__(self, path: Path) -> None:
        with contextlib.ExitStack() as files:
            try:
                self._files = [files.enter_context(file.open("rb")) for file in _files_of(path)]
                self._ends = [file.seek(0, os.SEEK_END) for file in self._files]
            except OSError as error:
                raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
            self._pictures: list[_Place] = []
            self.rounds_at: list[float] = []
            """When rounds began, in order."""
            self.num_events = 0
            self.ended_at = 0.0
            self._look_through()
            if not self._pictures:
                raise UserError(f"no events are in {path}; give a state folder, or a file of its {FOLDER}/")
            self.started_at = self._pictures[0].at
            self._cursor = _Cursor(self, self._pictures[0])
            self._open = files.pop_all()

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def status_at(self, at: float) -> Status:
        """The newest status that is not after a moment within the recording; the first one before it. Fast where the
        moment is a little after the one asked for last."""
        at = max(at, self.started_at)
        if at < self._cursor.at or self._cursor.at < self._pictures[self._picture_before(at)].at:
            self._cursor = self._cursor_before(at)
        return self._cursor.status_at(at)

    def __iter__(self) -> Iterator[tuple[float, Status]]:
        """Every moment at which something happened, and the status then."""
        cursor = _Cursor(self, self._pictures[0])
        while cursor.next_at is not None:
            yield (at := cursor.next_at), cursor.status_at(at)

    def events(self) -> Iterator[Event]:
        """All that happened, in order; what is damaged is left out. First a picture, where what was before is gone."""
        for place, line in self.lines_from(_BEGINNING):
            event = event_of(line)
            if event is not None and (event.WhichOneof("kind") != "picture" or place == self._pictures[0]):
                yield event

    def lines_from(self, place: _Place) -> Iterator[tuple[_Place, bytes]]:
        """That line, and all behind it that say when they are of."""
        at, offset = place.at, place.offset
        for number in range(place.file, len(self._files)):
            file, end = self._files[number], self._ends[number]
            while offset < end:
                file.seek(offset)  # which costs nothing where it is already
                line = file.readline(min(_LONGEST_LINE, end - offset))
                if not line:
                    break  # it has become shorter
                if (head := head_of(line)) is not None:
                    at = max(at, head.at)
                    yield _Place(number, offset, at), line
                offset += len(line)
            offset = 0

    def _look_through(self) -> None:
        for place, line in self.lines_from(_BEGINNING):
            head = head_of(line)
            kind = head.kind if head is not None else ""
            if not self._pictures or kind in _WHOLE:
                self._pictures.append(place)
            if kind == "round_opened":
                self.rounds_at.append(place.at)
            self.num_events += kind != "picture"
            self.ended_at = place.at

    def _picture_before(self, at: float) -> int:
        return max(0, bisect_right(self._pictures, at, key=lambda place: place.at) - 1)

    def _cursor_before(self, at: float) -> "_Cursor":
        """At the last picture that is whole."""
        while (number := self._picture_before(at)) and event_of(
            next(self.lines_from(self._pictures[number]))[1]
        ) is None:
            del self._pictures[number]
        return _Cursor(self, self._pictures[number])


class _Cursor:
    """Goes forward through a recording, from a picture on."""

    def __init__(self, recording: Recording, place: _Place) -> None:
        self._lines = recording.lines_from(place)
        self._next = next(self._lines, None)
        self._status = Status()
        self._shown: Status | None = None
        self.at = place.at

    @property
    def next_at(self) -> float | None:
        """Of what comes next, if anything does."""
        return self._next[0].at if self._next is not None else None

    def status_at(self, at: float) -> Status:
        """At a moment that is not before that of the last call; nobody changes it later."""
        while self._next is not None and self._next[0].at <= at:
            place, line = self._next
            if (event := event_of(line)) is not None:
                apply(self._status, event)
                self._shown = None
            self.at, self._next = place.at, next(self._lines, None)
        if self._shown is None:
            self._shown = Status()
            self._shown.CopyFrom(self._status)
        return self._shown


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = files_in(path / FOLDER) or files_in(path)
    if not files:
        raise UserError(f"no events are in {path}; has a daemon run on this folder? give a state folder, or a file")
    return files
