"""The index of a run's shards on one node: read once it is here, and fetched by whoever needs it first."""

import asyncio
from collections.abc import Callable, Sequence

from spes_peer.blobs import BlobStore
from spes_peer.data.index import ShardIndex
from spes_peer.errors import BlobMissing
from spes_peer.exchange.fetch import Fetcher
from spes_peer.identity import PeerId
from spes_peer.run.data import Data


class HeldIndex:
    """Of one run."""

    def __init__(self, data: Data, blobs: BlobStore, fetcher: Fetcher, sources: Callable[[], Sequence[PeerId]]) -> None:
        """`sources` are those whom to ask for it."""
        self._data = data
        self._blobs = blobs
        self._fetcher = fetcher
        self._sources = sources
        self._index: ShardIndex | None = None
        self._turn = asyncio.Lock()

    @property
    def in_memory(self) -> ShardIndex | None:
        """If somebody has asked for it before."""
        return self._index

    def here(self) -> ShardIndex | None:
        """If all of it is on this node's disk, as its names say. Reads the disk until it is: call it in a thread."""
        if self._index is None:
            names = [source.shards.index for source in self._data.sources]
            try:
                if all(map(self._blobs.is_sound, names)):
                    self._index = ShardIndex.read(self._data, self._blobs)
            except BlobMissing:
                return None
        return self._index

    async def get(self) -> ShardIndex:
        """Have it, from others if need be; `PeerError` where it cannot be had, or is not as long as it must be."""
        async with self._turn:
            if self._index is None:
                sizes = self._data.indexes
                await self._fetcher.set_aside_damaged(sizes)
                await self._fetcher.fetch_all([(name, size, self._sources()) for name, size in sizes.items()])
                self._index = await asyncio.to_thread(ShardIndex.read, self._data, self._blobs)
            return self._index
