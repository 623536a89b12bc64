"""Files on disk change only whole: written beside, synced, renamed. A kill at any instant leaves old or new.

A disk that is full, read-only or failing raises `DiskTrouble`, and nothing is left of what could not be written. It
stands on the board of troubles, as does a slow disk, until writing has worked again for a while.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from spes_peer import troubles
from spes_peer.errors import BadConfiguration, BadMessage, DiskTrouble

TROUBLE = "disk"
"""Key on the board."""
UNFINISHED = ".writing"
"""How the names of files end that are being written; what a kill has left of them is litter."""
SLOW_SECONDS = 10.0
_QUIET_SECONDS = 30.0  # a small file may fit where a large one did not: the trouble has not passed
_WORDS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EROFS: "disk read-only",
    errno.EIO: "disk failing",
    errno.EACCES: "not ours to write",
    errno.EPERM: "not ours to write",
    errno.EMFILE: "too many files open",
    errno.ENFILE: "too many files open",
}
_LITTER_SECONDS = 60.0
_CHECKSUM_BYTES = 32
_troubled_at = -_QUIET_SECONDS


@contextlib.contextmanager
def our_disk(folder: Path) -> Iterator[None]:
    """Work on files in `folder`. An error of the disk itself becomes `DiskTrouble`; others pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskTrouble) or error.errno not in _WORDS:
            raise
        said = f"{_WORDS[error.errno]}: {_free(folder)} at {folder}"
        _note(f"{said}; training goes on, but nothing can be kept")
        raise DiskTrouble(error.errno, said) from error


def _note(text: str) -> None:
    global _troubled_at
    _troubled_at = time.monotonic()
    troubles.board.set(TROUBLE, text)


def saved_well(folder: Path, seconds: float = 0.0) -> None:
    """Something was written to `folder`, the last of it in so many seconds."""
    if seconds > SLOW_SECONDS:
        _note(f"disk slow: {seconds:.0f} s for one file at {folder}")
    elif time.monotonic() - _troubled_at > _QUIET_SECONDS:
        troubles.board.clear(TROUBLE)


def _free(folder: Path) -> str:
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(folder)
        if usage.total >= 10**10:
            return f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.0f} GB free"
        return f"{usage.free / 1e6:.0f} of {usage.total / 1e6:.0f} MB free"
    return "it says nothing of itself"


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends without an error, and vanishes otherwise.

    `DiskTrouble` where the disk does not take it: `path` is then as it was."""
    with our_disk(path.parent):
        descriptor, temporary = _begun(path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)
                yield file
                written_at = time.monotonic()
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    saved_well(path.parent, time.monotonic() - written_at)


def _begun(path: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent)
    except OSError as error:
        error.filename = str(path)  # which a person knows
        raise


def write_whole(path: Path, content: bytes, mode: int = 0o644, lasts: bool = True) -> None:
    """Replace `path` by `content` atomically; `DiskTrouble` as in `replacing`. What `lasts` is not taken back by a
    power cut once this has returned."""
    with replacing(path, mode) as file:
        file.write(content)
    if lasts:
        with our_disk(path.parent):
            _sync(path.parent)


def with_checksum(content: bytes) -> bytes:
    """For a file whose damage must be noticed."""
    return hashlib.sha256(content).digest() + content


def without_checksum(content: bytes) -> bytes:
    """What was given to `with_checksum`; `BadMessage` if it is not that any more."""
    checksum, content = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if hashlib.sha256(content).digest() != checksum:
        raise BadMessage("a file that the disk has changed")
    return content


def remove_litter(folder: Path, older_than_seconds: float = _LITTER_SECONDS) -> int:
    """Remove what kills have left of unfinished files anywhere in `folder`; how many there were. Nobody may write there
    who began longer ago."""
    num_removed = 0
    for path in folder.rglob(f".*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            if not older_than_seconds or time.time() - path.stat().st_mtime > older_than_seconds:
                path.unlink()
                num_removed += 1
    return num_removed


@contextlib.contextmanager
def making_folder(path: Path, mode: int = 0o700) -> Iterator[Path]:
    """A folder to fill that becomes `path`, which is new or empty, when the block ends without an error, and vanishes
    otherwise. `BadConfiguration` where none can be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except FileExistsError:
        raise BadConfiguration(f"cannot make {path}: {path.parent} is a file") from None
    except OSError as error:
        raise BadConfiguration(f"cannot write beside {path}: {error.strerror}") from None
    try:
        yield building
        for made in (*building.iterdir(), building):
            _sync(made)
        building.chmod(mode)
        if path.exists():
            path.rmdir()
        building.rename(path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    """On disk before it gets its name, or a power cut could leave the name with nothing behind it; a folder with the
    names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
