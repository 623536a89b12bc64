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
from typing import Any, NamedTuple, TypedDict

from spes_peer.data.preparing.lanes import LanesState, shards_named_in
from spes_peer.errors import BadConfiguration
from spes_peer.files import our_disk, write_whole

WORK_FOLDER = "data.work"
DOWNLOADS = "downloads"
_FILE = "journal.json"
_VERSION = 2
_OTHER_VERSION = "of another version of spes-peer: go on with that one, or add --anew to start over"
_OTHER_OPTIONS = (
    "of other texts or with other options: repeat that command to go on with it, or add --anew to start over"
)


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


class Identity(NamedTuple):
    """What is being prepared, in digests."""

    options: str
    """Of all that was chosen."""
    texts: dict[str, str]
    """Of each source's files: their names, sizes, and when they were written."""


class Journal:
    """The journal of one preparation."""

    def __init__(self, folder: Path, what: Identity) -> None:
        """`BadConfiguration` where something else was begun, or the texts are not what they were then."""
        self.folder = folder
        self._what = what
        self._sources: dict[str, SourceState] = {}
        if (folder / _FILE).exists():
            self._read()

    def _read(self) -> None:
        try:
            raw: dict[str, Any] = json.loads((self.folder / _FILE).read_bytes())
            why = self._difference(Identity(*raw["what"])) if raw["version"] == _VERSION else _OTHER_VERSION
            self._sources = dict(raw["sources"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self.damaged() from None
        if why:
            raise BadConfiguration(f"{self.folder.parent} holds an unfinished preparation {why}")

    def _difference(self, begun: Identity) -> str:
        """Why what was begun cannot be gone on with; "" where it can."""
        if begun.options != self._what.options or begun.texts.keys() != self._what.texts.keys():
            return _OTHER_OPTIONS
        if changed := [name for name, texts in self._what.texts.items() if texts != begun.texts[name]]:
            return (
                f"of texts that have changed since: files of {', '.join(changed[:3])} were written again, came or"
                " went; add --anew to start over"
            )
        return ""

    def damaged(self) -> BadConfiguration:
        """What to say of files here that are not as they were left."""
        return BadConfiguration(
            f"{self.folder.parent} holds an unfinished preparation that is damaged; add --anew to start over"
        )

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
def work_folder(folder: Path) -> Iterator[Path]:
    """The folder for unfinished work below `folder`, for this process alone."""
    work = folder / WORK_FOLDER
    with our_disk(folder):
        work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadConfiguration(f"another process prepares data in {folder} at this moment") from None
        yield work


def forget(work: Path) -> set[str]:
    """All that is in the folder but the lock; the journal first, which names the rest. Gives the names of the shards
    that were made."""
    (work / _FILE).unlink(missing_ok=True)
    names: set[str] = set()
    for path in work.iterdir():
        if path.is_dir():
            names |= shards_named_in(path)
            shutil.rmtree(path)
    return names
