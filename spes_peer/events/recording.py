"""An event log, read again: what happened, and the status at any moment.

    with Recording(folder) as recording:
        status = recording.status_at(recording.ended_at)

One look through the files finds the pictures; a status is made from the picture before its moment and the events
after it. Only one status is kept, so a long log takes little more memory than a short one. A log to which a daemon
still writes is read up to where it was when it was opened.

A clock may have been wrong for a while, and then set. Moments never fall: those that agree with the most others stay,
and what does not fit in between happened with what stands before it.
"""

import contextlib
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
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
    """Where a line begins."""

    file: int
    offset: int
    number: int
    """Lines before it that say when they are of."""


_BEGINNING = _Place(0, 0, 0)


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
            self._moments: Sequence[float] = ()
            self.rounds_at: list[float] = []
            """When rounds began, in order."""
            self.num_events = 0
            self.ended_at = 0.0
            self._look_through()
            if not self._pictures:
                raise UserError(f"no events are in {path}; give a state folder, or a file of its {FOLDER}/")
            self.started_at = self.moment_of(self._pictures[0])
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
        if at < self._cursor.at or self._cursor.at < self.moment_of(self._pictures[self._picture_before(at)]):
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
        offset, before = place.offset, place.number
        for number in range(place.file, len(self._files)):
            file, end = self._files[number], self._ends[number]
            while offset < end:
                file.seek(offset)  # which costs nothing where it is already
                line = file.readline(min(_LONGEST_LINE, end - offset))
                if not line:
                    break  # it has become shorter
                if head_of(line) is not None:
                    yield _Place(number, offset, before), line
                    before += 1
                offset += len(line)
            offset = 0

    def moment_of(self, place: _Place) -> float:
        """Unix seconds, never before those of a line before it, whatever the clock did."""
        return self._moments[min(place.number, len(self._moments) - 1)]

    def _look_through(self) -> None:
        moments, rounds = array("d"), []
        for place, line in self.lines_from(_BEGINNING):
            head = head_of(line)
            assert head is not None
            moments.append(head.at)
            if not self._pictures or head.kind in _WHOLE:
                self._pictures.append(place)
            if head.kind == "round_opened":
                rounds.append(place)
            self.num_events += head.kind != "picture"
        self._moments = _in_order(moments)
        self.rounds_at = [self.moment_of(place) for place in rounds]
        self.ended_at = self._moments[-1] if self._moments else 0.0

    def _picture_before(self, at: float) -> int:
        return max(0, bisect_right(self._pictures, at, key=self.moment_of) - 1)

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
        self._moment_of = recording.moment_of
        self._lines = recording.lines_from(place)
        self._next = next(self._lines, None)
        self._status = Status()
        self._shown: Status | None = None
        self.at = self._moment_of(place)

    @property
    def next_at(self) -> float | None:
        """Of what comes next, if anything does."""
        return self._moment_of(self._next[0]) if self._next is not None else None

    def status_at(self, at: float) -> Status:
        """At a moment that is not before that of the last call; nobody changes it later."""
        while self._next is not None and self._moment_of(self._next[0]) <= at:
            place, line = self._next
            if (event := event_of(line)) is not None:
                apply(self._status, event)
                self._shown = None
            self.at, self._next = self._moment_of(place), next(self._lines, None)
        if self._shown is None:
            self._shown = Status()
            self._shown.CopyFrom(self._status)
        return self._shown


def _in_order(moments: Sequence[float]) -> Sequence[float]:
    """The same where they are of the longest row of moments that rises; else that of the one before in that row."""
    lows, ends, before = array("d"), array("q"), array("q")  # lows[n], at ends[n]: the lowest last of a row of n + 1
    for number, at in enumerate(moments):
        place = bisect_left(lows, at)
        before.append(ends[place - 1] if place else -1)
        if place == len(lows):
            lows.append(at)
            ends.append(number)
        elif lows[place] != at:
            lows[place], ends[place] = at, number
    made, end = array("d", moments), len(moments)
    last = ends[-1] if ends else -1
    while last >= 0:
        first = last if before[last] >= 0 else 0
        made[first:end] = array("d", [moments[last]]) * (end - first)
        end, last = last, before[last]
    return made


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = files_in(path / FOLDER) or files_in(path)
    if not files:
        raise UserError(f"no events are in {path}; has a daemon run on this folder? give a state folder, or a file")
    return files
