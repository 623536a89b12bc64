"""The run's data on a bootstrap node: all of it on the organizer's first node, on a further one as much as has room.

The first node is the one that record 0 names first: its folder is where the data was made, and nobody else must have
it, so there no shard ever goes. A further node copies shards in the order in which training comes to them, and drops
what comes last where its disk is too small; it is one source more, not the only one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice

from spes_peer.collection import WantedData
from spes_peer.data.coming import ComingShards
from spes_peer.data.index import ShardIndex
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import SpesError
from spes_peer.exchange.transfers import Gathering
from spes_peer.node import Node
from spes_peer.run.data import Shard
from spes_peer.run.records import Record
from spes_peer.wire.control_pb2 import Progress

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
_AT_ONCE = 16  # shards, between two looks at how much room is left


def is_first(node: Node) -> bool:
    """Whether the node is the one whose copy of the data must not go."""
    return node.chain.head is not None and node.chain.record(0).sealed.record.candidates[:1] == (node.peer_id,)


class Mirror:
    """Compose it with a task of `run`, and the collector with `wanted`."""

    def __init__(self, node: Node, room_bytes: Callable[[], int | None]) -> None:
        """`room_bytes` is how much may be copied of what nobody needs here; None while that is not known."""
        self._node = node
        self._room_bytes = room_bytes
        self._since_at = 0.0
        self._gathering: Gathering | None = None

    @property
    def progress(self) -> Progress | None:
        """While data is copied."""
        if (gathering := self._gathering) is None:
            return None
        done, whole = float(gathering.done_bytes), float(gathering.whole_bytes)
        return Progress(what="the run's data", done=done, whole=whole, unit="bytes", since_at=self._since_at)

    def wanted(self, record: Record, room_bytes: int) -> WantedData:
        """What stays, and in which order the rest would go; asked in a thread, by the collector."""
        kept, index = frozenset(self._node.manifest.data.kept_by_all), self._node.shard_index.here()
        if index is None:
            return WantedData(kept)
        if is_first(self._node):
            return WantedData(kept.union(shard.blob for shard in index.shards()))
        now = kept.union(shard.blob for shard in self._copied(index, record, room_bytes))
        return WantedData(now, ComingShards(Shuffle.of(self._node.manifest), index, record.next_position))

    def _copied(self, index: ShardIndex, record: Record, room_bytes: int) -> Iterator[Shard]:
        """As many as there is room for, as training comes to them."""
        data = self._node.manifest.data
        room_bytes -= sum(data.kept_by_all.values())
        for shard in map(index.shard, Shuffle.of(self._node.manifest).shards_from(record.next_position)):
            room_bytes -= data.size_bytes(shard)
            if room_bytes < 0:
                return
            yield shard

    async def run(self) -> None:
        """Copy what is missing, for ever; what cannot be had is tried again."""
        trouble = ""
        while True:
            try:
                await self.fetch()
                trouble = ""
            except (SpesError, OSError) as error:
                if trouble != (trouble := str(error)):
                    logger.warning("cannot have all of the run's data yet reason=%s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def fetch(self) -> None:
        """Have what there is room for; the first error of what cannot be had."""
        node, head, room_bytes = self._node, self._node.chain.head, self._room_bytes()
        if head is None or room_bytes is None:
            return
        index = await node.shard_index.get()
        missing = await asyncio.to_thread(self._missing, index, head.record, room_bytes)
        if not missing:
            return
        self._since_at = time.time()
        gathering = self._gathering = Gathering(node.transfers)
        for blob, size in missing.items():
            gathering.expect(blob, size)
        try:
            coming = iter(missing.items())
            while some := list(islice(coming, _AT_ONCE)):
                wanted = [(blob, size, node.others()) for blob, size in some]
                await node.fetcher.fetch_all(wanted, gathering=gathering)
        finally:
            self._gathering = None
        logger.info("the run's data is here blobs=%d bytes=%d", len(missing), gathering.whole_bytes)

    def _missing(self, index: ShardIndex, record: Record, room_bytes: int) -> dict[str, int]:
        """Sizes of the blobs in bytes, in the order in which they are fetched."""
        data, has = self._node.manifest.data, self._node.blobs.has
        shards = index.shards() if is_first(self._node) else self._copied(index, record, room_bytes)
        wanted = data.kept_by_all | {shard.blob: data.size_bytes(shard) for shard in shards}
        return {blob: size for blob, size in wanted.items() if not has(blob)}
