"""A blob store without a disk: what simulated peers hand to each other, gone when the next round is open."""

import mmap

from spes_peer.blobs import Blob, BlobStore, check_name, digests_of, name_of
from spes_peer.errors import BlobMissing


class MemoryBlobs(BlobStore):
    """As much of a `BlobStore` as trainers use."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._mapped: dict[str, mmap.mmap] = {}

    def has(self, name: str) -> bool:
        return name in self._contents

    def put(self, content: bytes | memoryview) -> Blob:
        name = name_of(digests_of(content))
        self._contents.setdefault(name, bytes(content))
        return Blob(name, len(content))

    def size_bytes(self, name: str) -> int:
        return len(self.read(name))

    def read(self, name: str) -> bytes:
        try:
            return self._contents[check_name(name)]
        except KeyError:
            raise BlobMissing(f"blob {name} is not here") from None

    def map(self, name: str) -> mmap.mmap:
        if name not in self._mapped:
            content = self.read(name)
            self._mapped[name] = mmap.mmap(-1, len(content))
            self._mapped[name].write(content)
        return self._mapped[name]

    def keep_only(self, names: set[str]) -> None:
        """Forget all other blobs."""
        self._contents = {name: content for name, content in self._contents.items() if name in names}
