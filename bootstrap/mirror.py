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

from spes_peer.collection import Shards
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import SpesError
from spes_peer.exchange.transfers import Gathering
from spes_peer.node import Node
from spes_peer.run.manifest import Shard
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

    def wanted(self, record: Record, room_bytes: int) -> Shards:
        """What stays, and in which order the rest would go; asked in a thread, by the collector."""
        data = self._node.manifest.data
        if is_first(self._node):
            return Shards(frozenset(shard.blob for shard in (data.held_out, *data.shards)))
        now = {shard.blob for shard in self._copied(record, room_bytes)}
        order = enumerate(self._in_order(record))
        return Shards(frozenset(now), {shard.blob: place for place, shard in order if shard.blob not in now})

    def _copied(self, record: Record, room_bytes: int) -> Iterator[Shard]:
        data = self._node.manifest.data
        yield data.held_out  # whoever tests needs it in every round
        for shard in self._in_order(record):
            room_bytes -= data.size_bytes(shard)
            if room_bytes < 0:
                return
            yield shard

    def _in_order(self, record: Record) -> Iterator[Shard]:
        """Every training shard, as training comes to it."""
        shards = self._node.manifest.data.shards
        for index in Shuffle.of(self._node.manifest).shards_from(record.next_position):
            yield shards[index]

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
        missing = await asyncio.to_thread(self._missing, head.record, room_bytes)
        if not missing:
            return
        size_of, self._since_at = node.manifest.data.size_bytes, time.time()
        gathering = self._gathering = Gathering(node.transfers)
        for shard in missing:
            gathering.expect(shard.blob, size_of(shard))
        try:
            coming = iter(missing)
            while some := list(islice(coming, _AT_ONCE)):
                wanted = [(shard.blob, size_of(shard), node.others()) for shard in some]
                await node.fetcher.fetch_all(wanted, gathering=gathering)
        finally:
            self._gathering = None
        logger.info("the run's data is here shards=%d bytes=%d", len(missing), gathering.whole_bytes)

    def _missing(self, record: Record, room_bytes: int) -> list[Shard]:
        data, has = self._node.manifest.data, self._node.blobs.has
        wanted = (data.held_out, *data.shards) if is_first(self._node) else self._copied(record, room_bytes)
        return [shard for shard in wanted if not has(shard.blob)]
