"""Immutable bytes by name, shared by all processes of one peer.

A blob is cut into pieces of 1 MiB; its name is the sha256 of the concatenated sha256 digests of its pieces. So a
piece can be verified, and served on, before the rest has arrived. On disk a blob is two files,

    <folder>/ab/abcdef….data      the bytes
    <folder>/ab/abcdef….pieces    the digests of its pieces, 32 bytes each

written whole, pieces first: a data file that exists is complete. What comes from a peer is verified in `exchange`
before it gets here. Reads trust the disk; who must be sure of it asks `is_sound` first.

Who adds a blob, or finds that it has it already, holds `<folder>/.lock` shared meanwhile and makes the file as new
(`renew`). Who collects holds it exclusively and takes blobs only as they were when that was decided
(`remove_as_found`). So no process loses a blob that it has just put, and with the lock held exclusively every
unfinished file is a killed process's. The kernel gives the lock back when a process dies. Who collects waits a second
for it and tries another time; the others wait for as long as it takes to rename a few files.
"""

import contextlib
import fcntl
import hashlib
import itertools
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NewType

from spes_peer.errors import BadMessage, BlobMissing, DiskTrouble
from spes_peer.files import UNFINISHED, our_disk, replacing, write_whole

PIECE_BYTES = 1 << 20
DIGEST_BYTES = 32
_LOCK = ".lock"
_LOCK_SECONDS = 1.0
_LOCK_PAUSE_SECONDS = 0.002  # a process that puts blob after blob hashes each before it takes the lock
_REMOVED_AT_ONCE = 32

BlobName = NewType("BlobName", str)  # 64 hexadecimal digits


Version = tuple[int, int]
"""Of a file: inode, and nanoseconds when it was written or renewed. Only equality counts: clocks are set."""


@dataclass(frozen=True)
class Blob:
    name: BlobName
    size_bytes: int


@dataclass(frozen=True)
class Found:
    """A blob on disk at some moment, whole or in part."""

    name: BlobName
    size_bytes: int
    """That it takes."""
    version: Version
    is_partial: bool = False

    @classmethod
    def at(cls, path: Path, is_partial: bool = False) -> "Found":
        """The blob whose bytes lie at `path`; of a partial one only those that have come take room."""
        stat = path.stat()
        taken = min(stat.st_size, 512 * stat.st_blocks) if is_partial else stat.st_size
        return cls(BlobName(path.stem), taken, _version(stat), is_partial)


def check_name(name: str) -> BlobName:
    """`name` as a blob name, or `BadMessage`: names from peers become paths."""
    if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
        raise BadMessage(f"{name[:80]!r} is not a blob name")
    return BlobName(name)


def digests_of(content: bytes | memoryview) -> list[bytes]:
    """The sha256 of each piece of `content`; an empty blob has one empty piece."""
    view = memoryview(content)
    starts = range(0, max(len(view), 1), PIECE_BYTES)
    return [hashlib.sha256(view[start : start + PIECE_BYTES]).digest() for start in starts]


def name_of(digests: Iterable[bytes]) -> BlobName:
    return BlobName(hashlib.sha256(b"".join(digests)).hexdigest())


def num_pieces_of(size_bytes: int) -> int:
    return max(1, -(-size_bytes // PIECE_BYTES))


class BlobStore:
    """Blobs in one folder. Safe for several processes: a blob is only ever added whole or removed.

    Every method may raise `DiskTrouble`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with our_disk(folder.parent):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self.folder / check_name(name)[:2] / f"{name}.data"

    def pieces_path(self, name: str) -> Path:
        return self.folder / check_name(name)[:2] / f"{name}.pieces"

    def has(self, name: str) -> bool:
        return self.path(name).exists()

    def put(self, content: bytes | memoryview) -> Blob:
        """Store `content` under its name; cheap if it is there already."""
        digests = digests_of(content)
        name = name_of(digests)
        with self._sharing():
            if not self._renew(name):
                path = self.path(name)
                with our_disk(self.folder):
                    path.parent.mkdir(exist_ok=True)
                write_whole(self.pieces_path(name), b"".join(digests), lasts=False)  # what is lost is fetched again
                with replacing(path) as file:
                    file.write(content)
        return Blob(name, len(content))

    def adopt(self, name: str, data: Path, digests: bytes) -> None:
        """Take over a file, complete and verified and on the same disk, as the blob `name`."""
        path = self.path(name)
        with self._sharing(), our_disk(self.folder):
            path.parent.mkdir(exist_ok=True)
            write_whole(self.pieces_path(name), digests, lasts=False)
            with data.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(data, path)

    def renew(self, name: str) -> bool:
        """Whether the blob is here. Whoever was about to remove it leaves it then: it is in use again."""
        if not self.has(name):
            return False
        try:
            with self._sharing():
                return self._renew(name)
        except DiskTrouble:  # a disk that takes no mark loses no blob either
            return self.has(name)

    def _renew(self, name: str) -> bool:
        try:
            with our_disk(self.folder):
                now = time.time_ns()
                os.utime(self.path(name), ns=(now, now))
        except FileNotFoundError:
            return False
        return True

    def size_bytes(self, name: str) -> int:
        with self._reading(name):
            return self.path(name).stat().st_size

    def read(self, name: str) -> bytes:
        """The whole blob; `BlobMissing` if it is not here."""
        with self._reading(name):
            return self.path(name).read_bytes()

    def map(self, name: str) -> mmap.mmap:
        """The blob mapped read-only: for shards that are larger than what one wants in memory."""
        with self._reading(name), self.path(name).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def digests(self, name: str) -> bytes:
        """The concatenated digests of the blob's pieces, whose sha256 is the name."""
        with self._reading(name):
            return self.pieces_path(name).read_bytes()

    def read_piece(self, name: str, index: int) -> bytes:
        with self._reading(name), self.path(name).open("rb") as file:
            file.seek(index * PIECE_BYTES)
            return file.read(PIECE_BYTES)

    def is_sound(self, name: str) -> bool:
        """Whether the bytes on disk are still those of the name. Reads all of them; `BlobMissing` if it is not here."""
        digests, size_bytes = self.digests(name), self.size_bytes(name)
        if name_of([digests]) != name or len(digests) != num_pieces_of(size_bytes) * DIGEST_BYTES:
            return False
        starts = range(0, len(digests), DIGEST_BYTES)
        pieces = (self.read_piece(name, index) for index in range(len(starts)))
        return all(
            hashlib.sha256(piece).digest() == digests[start : start + DIGEST_BYTES]
            for start, piece in zip(starts, pieces, strict=True)
        )

    def remove(self, name: str) -> None:
        """Forget a blob; an open transfer of it goes on from its open file."""
        with our_disk(self.folder):
            self.path(name).unlink(missing_ok=True)
            self.pieces_path(name).unlink(missing_ok=True)

    # ---- collecting ----

    def found(self) -> tuple[list[Found], list[Path]]:
        """Every blob that is here whole; and files that no blob has, or not yet."""
        blobs, strays = [], []
        with our_disk(self.folder):
            for folder in self.folder.glob("??"):
                names = {entry.name for entry in os.scandir(folder)}
                for name in names:
                    path = folder / name
                    if name.endswith(".data") and not name.startswith("."):
                        with contextlib.suppress(FileNotFoundError):
                            blobs.append(Found.at(path))
                    elif not (name.endswith(".pieces") and f"{path.stem}.data" in names):
                        strays.append(path)
        return blobs, strays

    def remove_as_found(self, blobs: Iterable[Found]) -> list[Found]:
        """Remove those blobs that nobody has written or renewed since they were found, a few at a time; which those
        are. It gives up for now where somebody puts something all the while. Blocks: call it in a thread."""
        removed, blobs = [], iter(blobs)
        while some := list(itertools.islice(blobs, _REMOVED_AT_ONCE)):
            with self._locked_alone() as is_locked:
                gone = [one for one in some if is_locked and self._set_aside(one)]
            with our_disk(self.folder):
                for one in gone:  # of large files this takes a while
                    self._doomed_path(one).unlink(missing_ok=True)
            removed += gone
            if not is_locked:
                break
        return removed

    def _set_aside(self, found: Found) -> bool:
        path = self.path(found.name)
        try:
            with our_disk(self.folder):
                if _version(path.stat()) != found.version:
                    return False
                os.replace(path, self._doomed_path(found))
                self.pieces_path(found.name).unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        return True

    def _doomed_path(self, found: Found) -> Path:
        return self.path(found.name).with_name(f".{found.name}{UNFINISHED}")

    def remove_strays(self, strays: Iterable[Path]) -> int:
        """Remove what killed processes have left, of files that were found to be no blob's; how many those were."""
        num_removed = 0
        with self._locked_alone() as is_locked, our_disk(self.folder):
            for path in strays if is_locked else ():
                if not path.with_suffix(".data").exists():  # or the blob has come meanwhile
                    path.unlink(missing_ok=True)
                    num_removed += 1
        return num_removed

    @contextlib.contextmanager
    def _sharing(self) -> Iterator[None]:
        """Hold the lock of the store together with others who put."""
        with self._lock_file() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def _locked_alone(self) -> Iterator[bool]:
        """Hold the lock of the store alone, if it is to be had soon; whether it was."""
        until = time.monotonic() + _LOCK_SECONDS
        with self._lock_file() as file:
            while not (is_locked := _try_to_lock(file)) and time.monotonic() < until:
                time.sleep(_LOCK_PAUSE_SECONDS)
            yield is_locked

    def _lock_file(self) -> BinaryIO:
        with our_disk(self.folder):
            return (self.folder / _LOCK).open("ab")

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            with our_disk(self.folder):
                yield
        except FileNotFoundError:
            raise BlobMissing(f"blob {name} is not here") from None

    def names(self) -> Iterator[BlobName]:
        for path in self.folder.glob("??/*.data"):
            yield BlobName(path.stem)


def _try_to_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _version(stat: os.stat_result) -> Version:
    return stat.st_ino, stat.st_mtime_ns
