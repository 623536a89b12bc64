"""The state folders in which runs were joined on this machine: so that they can be listed, wherever they lie.

A small list of paths in the user's folder for state. Hints: a folder that is gone is left out, and no more is kept in
the list than that a folder was used.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from spes_peer.config import usual_folder
from spes_peer.errors import PeerError, UserError
from spes_peer.events.words import last_end
from spes_peer.files import write_whole
from spes_peer.folder import MANIFEST_FILE, own_content
from spes_peer.lock import holder_of
from spes_peer.run.manifest import SignedManifest

_MOST_FOLDERS = 256


def list_path() -> Path:
    return Path(platformdirs.user_state_dir("spes-peer")) / "folders.json"


def folders() -> tuple[Path, ...]:
    """Those that are there still, in the order in which they were first used; the usual one too."""
    return tuple(path for path in dict.fromkeys((*_listed(), usual_folder())) if (path / MANIFEST_FILE).exists())


def remember(folder: Path) -> None:
    """It is used now. A list that cannot be written is no reason not to join."""
    listed = [path for path in _listed() if (path / MANIFEST_FILE).exists() or path == folder]
    if folder not in listed:
        with contextlib.suppress(OSError):
            _write([*listed, folder][-_MOST_FOLDERS:])


def forget(folder: Path) -> None:
    """It is gone; the list with it, when it was the last."""
    left = [path for path in _listed() if path != folder and (path / MANIFEST_FILE).exists()]
    with contextlib.suppress(OSError):
        if left:
            _write(left)
        else:
            list_path().unlink(missing_ok=True)
            list_path().parent.rmdir()


def _listed() -> list[Path]:
    try:
        content = json.loads(list_path().read_bytes())
        return [Path(path) for path in content if isinstance(path, str)]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def _write(paths: Sequence[Path]) -> None:
    path = list_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, json.dumps([str(one) for one in paths], indent=1).encode())


@dataclass(frozen=True)
class KnownRun:
    """One folder, as it is on disk now."""

    folder: Path
    name: str
    run_id: str
    pid: str
    """Of the daemon that runs there; "unknown" while it starts, empty for none."""
    ended: str
    """When and why the last daemon ended, if it is known and none runs."""
    round: int
    """Of the newest record; -1 before there is one."""
    size_bytes: int


def look_at(folder: Path) -> KnownRun:
    """A run whose manifest is damaged has no name."""
    name = run_id = ""
    with contextlib.suppress(PeerError, UserError, OSError):
        signed = SignedManifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
        name, run_id = signed.open().run.name, signed.run_id.hex()
    rounds: list[int] = []
    content: list[Path] = []
    with contextlib.suppress(OSError):  # it may not be read, or is none
        rounds = [int(path.stem) for path in (folder / "records").glob("*.record") if path.stem.isdecimal()]
        content = own_content(folder)
    pid = holder_of(folder)
    return KnownRun(
        folder=folder,
        name=name,
        run_id=run_id,
        pid=pid,
        ended="" if pid else last_end(folder),
        round=max(rounds, default=-1),
        size_bytes=sum(map(size_of, content)),
    )


def size_of(path: Path) -> int:
    """Bytes of a file, or of the files in a folder; of a link its own."""
    if path.is_dir() and not path.is_symlink():
        return sum(size_of(Path(entry.path)) for entry in _entries(path))
    with contextlib.suppress(OSError):  # it has just been replaced
        return os.lstat(path).st_size
    return 0


def _entries(folder: Path) -> "list[os.DirEntry[str]]":
    with contextlib.suppress(OSError):
        return list(os.scandir(folder))
    return []
