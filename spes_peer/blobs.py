"""Immutable bytes by name, shared by all processes of one peer.

A blob is cut into pieces of 1 MiB; its name is the sha256 of the concatenated sha256 digests of its pieces. So a
piece can be verified, and served on, before the rest has arrived. On disk a blob is two files,

    <folder>/ab/abcdef….data      the bytes
    <folder>/ab/abcdef….pieces    the digests of its pieces, 32 bytes each

written whole, pieces first: a data file that exists is complete. What comes from a peer is verified in `exchange`
before it gets here. Reads trust the disk; who must be sure of it asks `is_sound` first.
"""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NewType

from spes_peer.errors import BadMessage, BlobMissing
from spes_peer.files import our_disk, replacing, write_whole

PIECE_BYTES = 1 << 20
DIGEST_BYTES = 32

BlobName = NewType("BlobName", str)  # 64 hexadecimal digits


@dataclass(frozen=True)
class Blob:
    name: BlobName
    size_bytes: int


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
        if not self.has(name):
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
        with our_disk(self.folder):
            path.parent.mkdir(exist_ok=True)
            write_whole(self.pieces_path(name), digests, lasts=False)
            with data.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(data, path)

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
