"""Brings the data of the coming rounds to this run's peers before a range asks for it.

At first the organizer's node alone has it. Were each shard fetched only when it is needed, a run whose bootstrap node
is down would end with the shard that it is in. So of every shard that comes soon some members, by rendezvous hash, keep
a copy, from which the others have it then; in a small run that is everybody.
"""

import asyncio
import logging
import shutil
from collections.abc import Iterator

from spes_peer.data.ranges import Shuffle
from spes_peer.errors import SpesError
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.assignment import rendezvous
from spes_peer.run.manifest import Manifest, Shard
from spes_peer.run.records import Record

logger = logging.getLogger(__name__)

COPIES = 4
AHEAD_BYTES = 1 << 30  # in which COPIES are kept of every shard: half a billion tokens
SPARE_BYTES = 2 << 30  # a disk with less room than this is left alone
_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 10.0  # after something could not be had
_PARALLEL = 2


def shards_ahead(manifest: Manifest, record: Record, peer_id: PeerId) -> Iterator[Shard]:
    """Those that `peer_id` keeps a copy of while the round is open that `record` opened, in the order in which they are
    needed: of what its members train now and might not finish, and of what comes then."""
    shuffle, data = Shuffle.of(manifest), manifest.data
    members = [entry.peer_id for entry in record.roster]
    assigned = [part for entry in record.roster for part in (*entry.ranges, *entry.ahead)]
    now = sorted(shuffle.shards_of((*record.returned, *assigned)))
    room_bytes = AHEAD_BYTES
    for index in dict.fromkeys((*now, *shuffle.shards_from(record.next_position))):
        shard = data.shards[index]
        room_bytes -= data.size_bytes(shard)
        if room_bytes < 0:
            return
        if peer_id in rendezvous(f"data {shard.blob}", members)[:COPIES]:
            yield shard


class DataAhead:
    """Compose it with a task of `run`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._complete_head = b""
        """The record for which nothing is missing."""

    async def run(self) -> None:
        """Follow the chain, for ever. What cannot be had is tried again: the round that needs it says so by then."""
        while True:
            try:
                await self.fetch()
            except (SpesError, OSError) as error:
                logger.debug("cannot have the data of coming rounds yet reason=%s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                await asyncio.sleep(_LOOK_SECONDS)

    async def fetch(self) -> None:
        """Have what the newest record makes this peer keep; the first error of those that cannot be had."""
        node, head = self._node, self._node.chain.head
        if head is None or head.hash == self._complete_head:
            return
        wanted = await asyncio.to_thread(self._wanted, head.record)  # of a large roster it is many hashes
        if wanted and shutil.disk_usage(node.folder.path).free < SPARE_BYTES:
            return
        sizes = {shard.blob: node.manifest.data.size_bytes(shard) for shard in wanted}
        await node.fetcher.fetch_all([(blob, size, node.others()) for blob, size in sizes.items()], _PARALLEL)
        self._complete_head = head.hash

    def _wanted(self, record: Record) -> list[Shard]:
        node = self._node
        return [one for one in shards_ahead(node.manifest, record, node.peer_id) if not node.blobs.has(one.blob)]
