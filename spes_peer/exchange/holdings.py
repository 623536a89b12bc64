"""What this peer holds of blobs: whole ones in the store, and the pieces so far of those that are on their way.

A transfer on its way is `<store>/partial/<name>.data`, as long as the blob will be, and `<name>.pieces`, the digests
(verified against the name before they are written). Which pieces have arrived is never written down: after a restart
each is hashed again. Only verified pieces are served on.
"""

import contextlib
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spes_peer.blobs import DIGEST_BYTES, PIECE_BYTES, BlobName, BlobStore, Found, check_name, num_pieces_of
from spes_peer.errors import BadMessage, BlobMissing
from spes_peer.exchange.limits import MAX_BLOB_BYTES
from spes_peer.files import our_disk, write_whole

logger = logging.getLogger(__name__)

_MAX_SERVED = 128  # blobs that are remembered, of which pieces were sent lately


@dataclass(frozen=True)
class Have:
    """Which pieces of a blob somebody has; none of a blob that it does not know."""

    size_bytes: int
    pieces: frozenset[int]

    @property
    def is_whole(self) -> bool:
        return len(self.pieces) == num_pieces_of(self.size_bytes)

    def bitmap(self) -> bytes:
        """One bit a piece, least significant first."""
        if not self.pieces:
            return b""
        bits = bytearray(-(-num_pieces_of(self.size_bytes) // 8))
        for piece in self.pieces:
            bits[piece >> 3] |= 1 << (piece & 7)
        return bytes(bits)

    @classmethod
    def from_bitmap(cls, size_bytes: int, bitmap: bytes) -> "Have":
        """Raises `BadMessage` for a bitmap that does not fit the size."""
        if size_bytes > MAX_BLOB_BYTES or len(bitmap) not in (0, -(-num_pieces_of(size_bytes) // 8)):
            raise BadMessage(f"a bitmap of {len(bitmap)} bytes for a blob of {size_bytes}")
        pieces = frozenset(i for i in range(len(bitmap) * 8) if bitmap[i >> 3] >> (i & 7) & 1)
        if pieces and max(pieces) >= num_pieces_of(size_bytes):
            raise BadMessage("a bitmap with pieces behind the end of the blob")
        return cls(size_bytes, pieces)


class PartialBlob:
    """One blob on its way. Methods that touch the disk block: call them in a thread."""

    def __init__(self, store: BlobStore, name: BlobName, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.num_pieces = num_pieces_of(size_bytes)
        self.held: set[int] = set()
        self._store = store
        self.digests: bytes | None = None
        folder = store.folder / "partial"
        self._data, self._pieces = folder / f"{name}.data", folder / f"{name}.pieces"

    @property
    def is_complete(self) -> bool:
        return len(self.held) == self.num_pieces

    def piece_bytes(self, index: int) -> int:
        return min(PIECE_BYTES, self.size_bytes - index * PIECE_BYTES)

    def resume(self) -> None:
        """Take up what an earlier transfer left on disk, verifying each piece."""
        with our_disk(self._data.parent):
            self._data.parent.mkdir(exist_ok=True)
            with self._data.open("ab") as file:  # creates it; a hole where nothing has arrived
                file.truncate(self.size_bytes)
        with contextlib.suppress(FileNotFoundError, BadMessage):
            self._take_digests(self._pieces.read_bytes())
        if self.digests is not None:
            self.held = {index for index in range(self.num_pieces) if self._is_good(index, self._read(index))}

    def accept_digests(self, digests: bytes) -> None:
        """Keep the list of pieces, or `BadMessage` if it is not this blob's."""
        if self.digests is None:
            self._take_digests(digests)
            with our_disk(self._data.parent):
                write_whole(self._pieces, digests, lasts=False)

    def accept_piece(self, index: int, content: bytes | memoryview) -> None:
        """Keep a piece, or `BadMessage` if it is not this blob's."""
        if not self._is_good(index, content):
            raise BadMessage(f"bytes that are not piece {index} of blob {self.name}")
        if index in self.held:  # two sources were asked
            return
        with our_disk(self._data.parent), self._data.open("r+b") as file:
            file.seek(index * PIECE_BYTES)
            file.write(content)
        self.held.add(index)

    def read_piece(self, index: int) -> bytes:
        if index not in self.held:
            raise BlobMissing(f"piece {index} of blob {self.name} is not here yet")
        return self._read(index)

    def move_to_store(self) -> None:
        """Make a complete blob one of the store's."""
        assert self.digests is not None
        assert self.is_complete
        with our_disk(self._data.parent):
            self._store.adopt(self.name, self._data, self.digests)
        self.remove()

    def take_from_store(self) -> None:
        """What the store has of the blob becomes what has arrived so far; `resume` looks how good it is."""
        self._data.parent.mkdir(exist_ok=True)
        os.replace(self._store.path(self.name), self._data)  # first: what the store has of a blob is complete
        os.replace(self._store.pieces_path(self.name), self._pieces)

    def remove(self) -> None:
        self._data.unlink(missing_ok=True)
        self._pieces.unlink(missing_ok=True)

    def _take_digests(self, digests: bytes) -> None:
        if hashlib.sha256(digests).hexdigest() != self.name or len(digests) != self.num_pieces * DIGEST_BYTES:
            raise BadMessage(f"digests that are not those of blob {self.name} with {self.size_bytes} bytes")
        self.digests = digests

    def _is_good(self, index: int, content: bytes | memoryview) -> bool:
        digests = self.digests or b""
        expected = digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        return len(content) == self.piece_bytes(index) and hashlib.sha256(content).digest() == expected

    def _read(self, index: int) -> bytes:
        with self._data.open("rb") as file:
            file.seek(index * PIECE_BYTES)
            return file.read(PIECE_BYTES)


class Holdings:
    """The store and the transfers on their way, as one thing to serve from."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self._partial: dict[BlobName, PartialBlob] = {}
        self._serving: Counter[str] = Counter()
        """To how many at once."""
        self._served_at: dict[str, float] = {}
        """When each was last sent a piece of, the longest ago first."""

    def have(self, name: str) -> Have:
        """`BadMessage` for what is no blob name."""
        if (partial := self._partial.get(check_name(name))) is not None:
            return Have(partial.size_bytes, frozenset(partial.held))
        try:
            size_bytes = self.store.size_bytes(name)
        except BlobMissing:
            return Have(0, frozenset())
        return Have(size_bytes, frozenset(range(num_pieces_of(size_bytes))))

    def digests(self, name: str) -> bytes:
        """Of a blob that is here, whole or in part; `BlobMissing` otherwise."""
        if (partial := self._partial.get(check_name(name))) is not None and partial.digests is not None:
            return partial.digests
        return self.store.digests(name)

    def read_piece(self, name: str, index: int) -> bytes:
        """`BlobMissing` for a piece that is not here."""
        if (partial := self._partial.get(check_name(name))) is not None:
            # It may be on its way into the store at this very moment.
            with contextlib.suppress(FileNotFoundError):
                return partial.read_piece(index)
        return self.store.read_piece(name, index)

    def begin(self, name: str, size_bytes: int) -> PartialBlob:
        """The transfer of a blob; what an earlier one left on disk is taken up. Blocks: call it in a thread."""
        partial = PartialBlob(self.store, check_name(name), size_bytes)
        partial.resume()
        self._partial[partial.name] = partial
        return partial

    def set_aside_if_damaged(self, name: str) -> bool:
        """Take a blob that is no longer what its name says out of the store; whether that had to be done. It lies
        where a transfer of it begins, which then brings only the pieces that are bad. Blocks: call it in a thread."""
        if not self.store.has(name):
            return False
        try:
            if self.store.is_sound(name):
                return False
            logger.warning("a blob on our disk is damaged blob=%s", name)
            PartialBlob(self.store, check_name(name), 0).take_from_store()
        except (BlobMissing, OSError) as error:  # without its digests, or on a bad sector: no use to anybody
            logger.warning("a blob on our disk cannot be read blob=%s reason=%s", name, error)
            self.store.remove(name)
        return True

    def finish(self, partial: PartialBlob) -> None:
        """Move a complete transfer into the store. Blocks: call it in a thread."""
        partial.move_to_store()
        self._partial.pop(partial.name, None)

    def forget(self, name: str) -> None:
        """Drop the pieces of a blob that nobody wants any more; not while it is being fetched."""
        self._partial.pop(check_name(name), None)
        PartialBlob(self.store, check_name(name), 0).remove()

    def unfinished(self) -> list[Found]:
        """Transfers on disk that are not complete, of earlier starts too."""
        found = []
        for path in (self.store.folder / "partial").glob("*.data"):
            with contextlib.suppress(FileNotFoundError):  # it has just been completed
                found.append(Found.at(path, is_partial=True))
        return found

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """While pieces of a blob are sent to somebody."""
        self._serving[name] += 1
        try:
            yield
        finally:
            self._serving[name] -= 1
            if not self._serving[name]:
                del self._serving[name]

    def note_served(self, name: str) -> None:
        """A piece of it has been sent. Whoever asks without taking any is not awaited again."""
        self._served_at.pop(name, None)
        self._served_at[name] = time.monotonic()
        if len(self._served_at) > _MAX_SERVED:
            del self._served_at[next(iter(self._served_at))]

    def served_within(self, seconds: float) -> frozenset[str]:
        """Blobs that are being served, or were in the last so many seconds: who takes one asks for a few pieces at a
        time. What is older is forgotten."""
        since = time.monotonic() - seconds
        for name, at in list(self._served_at.items()):
            if at < since:
                self._served_at.pop(name, None)
        return frozenset(self._served_at) | frozenset(self._serving)
