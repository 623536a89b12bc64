"""What is done, on disk: a preparation that was killed goes on from here, and makes what it would have made.

data.work/
  journal.json        for each source how far it is, and what its files held then
  lock                held by the one process that works here
  source-00/          lanes, names of shards, held-out documents of the first source
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from spes_peer.data.preparing.lanes import LanesState
from spes_peer.errors import BadConfiguration
from spes_peer.files import our_disk, write_whole

WORK_FOLDER = "data.work"
DOWNLOADS = "downloads"
_FILE = "journal.json"
_VERSION = 1


class SourceState(TypedDict):
    """A source at some moment, between two batches."""

    position: list[int]
    num_records: int
    """Documents that were dealt."""
    num_bytes_read: int
    counts: dict[str, int]
    lanes: LanesState
    held_out: str
    """Name of the file."""
    is_done: bool


class Journal:
    """The journal of one preparation."""

    def __init__(self, folder: Path, what: str) -> None:
        """`what` says, for a program, what is being prepared. `BadConfiguration` where something else was begun."""
        self.folder = folder
        self._what = what
        self._sources: dict[str, SourceState] = {}
        if (folder / _FILE).exists():
            self._read()

    def _read(self) -> None:
        try:
            raw: dict[str, Any] = json.loads((self.folder / _FILE).read_bytes())
            is_same = (raw["version"], raw["what"]) == (_VERSION, self._what)
        except (OSError, ValueError, KeyError, TypeError):
            is_same = False
        if not is_same:
            raise BadConfiguration(
                f"{self.folder.parent} holds an unfinished preparation of other texts or with other options: repeat"
                " that command to go on with it, or add --anew to start over"
            )
        self._sources = raw["sources"]

    @property
    def has_begun(self) -> bool:
        return bool(self._sources)

    def state(self, source: int) -> SourceState | None:
        return self._sources.get(str(source))

    def write(self, source: int, state: SourceState) -> None:
        self._sources[str(source)] = state
        content = {"version": _VERSION, "what": self._what, "sources": self._sources}
        write_whole(self.folder / _FILE, json.dumps(content).encode())


@contextmanager
def work_folder(folder: Path, starts_over: bool) -> Iterator[Path]:
    """The folder for unfinished work below `folder`, for this process alone."""
    work = folder / WORK_FOLDER
    with our_disk(folder):
        work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadConfiguration(f"another process prepares data in {folder} at this moment") from None
        if starts_over:
            forget(work)
        yield work


def forget(work: Path) -> None:
    """All that is in the folder but the lock; the journal first, which names the rest."""
    (work / _FILE).unlink(missing_ok=True)
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
