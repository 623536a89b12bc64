"""Brings the data of the coming rounds to this run's peers before a range asks for it.

At first the organizer's node alone has it. Were each shard fetched only when it is needed, a run whose bootstrap node
is down would end with the shard that it is in. So of every shard that comes soon some members, by rendezvous hash, keep
a copy, from which the others have it then; in a small run that is everybody. How much may be fetched ahead is what the
collector finds room for; what it removes to make some is said by `wanted_shards`, too.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from spes_peer.collection import WantedData
from spes_peer.data.coming import ComingShards
from spes_peer.data.index import ShardIndex
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import SpesError
from spes_peer.exchange.transfers import Gathering
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.assignment import joined, rendezvous
from spes_peer.run.data import Shard
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import Record

logger = logging.getLogger(__name__)

COPIES = 4
_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 10.0  # after something could not be had
_PARALLEL = 2


def shards_ahead(
    manifest: Manifest, index: ShardIndex, record: Record, peer_id: PeerId, room_bytes: int
) -> Iterator[Shard]:
    """Those that `peer_id` keeps a copy of while the round is open that `record` opened, in the order in which they are
    needed: of what its members train now and might not finish, and of what comes then, as far as there is room for the
    copies of all."""
    shuffle, data = Shuffle.of(manifest), manifest.data
    members = [entry.peer_id for entry in record.roster]
    assigned = [part for entry in record.roster for part in (*entry.ranges, *entry.ahead)]
    now = shuffle.shards_of(joined((*record.returned, *assigned)))
    coming = (at for at in shuffle.shards_from(record.next_position) if at not in now)
    for shard in map(index.shard, chain(sorted(now), coming)):
        room_bytes -= data.size_bytes(shard)
        if room_bytes < 0:
            return
        if peer_id in rendezvous(f"data {shard.blob}", members)[:COPIES]:
            yield shard


def wanted_shards(
    manifest: Manifest, index: ShardIndex | None, record: Record, peer_id: PeerId, ahead_bytes: int
) -> WantedData:
    """What a peer needs in the round that `record` opened and keeps for others, and in which order the rest comes.

    Before the index is here nobody knows: then all shards are as what was needed until now."""
    if index is None:
        return WantedData(frozenset(manifest.data.kept_by_all))
    shuffle = Shuffle.of(manifest)
    entry = record.entry_of(peer_id)
    own = shuffle.shards_of((*entry.ranges, *entry.ahead)) if entry is not None else ()
    now = [*manifest.data.kept_by_all, *(index.shard(at).blob for at in own)]
    if ahead_bytes:
        now += (shard.blob for shard in shards_ahead(manifest, index, record, peer_id, ahead_bytes))
    return WantedData(frozenset(now), ComingShards(shuffle, index, record.next_position))


class SoundShards:
    """The shards on a peer's disk; one of an earlier start is checked before the first use, so that nobody trains on
    what the disk has made of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._checked: set[str] = set()

    async def have(self, shards: Iterable[Shard], parallel: int = 4, gathering: Gathering | None = None) -> None:
        """Have them whole; `PeerError` for one that cannot be had. `gathering` hears how much is here."""
        node = self._node
        sizes = {shard.blob: node.manifest.data.size_bytes(shard) for shard in shards}
        await node.fetcher.set_aside_damaged(sizes.keys() - self._checked)
        await node.fetcher.fetch_all([(blob, size, node.others()) for blob, size in sizes.items()], parallel, gathering)
        self._checked.update(sizes)


class DataAhead:
    """Compose it with a task of `run`."""

    def __init__(
        self, node: Node, room_bytes: Callable[[], int | None], rests: Callable[[], bool] = lambda: False
    ) -> None:
        """`room_bytes` is how much may be fetched ahead; None while that is not known. While this peer `rests`, or will
        from the next round on, nothing is."""
        self._node = node
        self._room_bytes = room_bytes
        self._rests = rests
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
        node, head, room_bytes = self._node, self._node.chain.head, self._room_bytes()
        if head is None or head.hash == self._complete_head or room_bytes is None or self._rests():
            return
        index = await node.shard_index.get()
        # in a thread: of a large roster it is many hashes
        sizes = await asyncio.to_thread(self._missing, index, head.record, room_bytes)
        failures: list[SpesError] = []
        coming = iter(sizes.items())
        while some := list(islice(coming, _PARALLEL)):
            if self._rests():
                return
            try:
                await node.fetcher.fetch_all([(blob, size, node.others()) for blob, size in some], _PARALLEL)
            except SpesError as error:
                failures.append(error)
                if len(failures) >= _PARALLEL:  # the others are likely gone too
                    break
        if failures:
            raise failures[0]
        self._complete_head = head.hash

    def _missing(self, index: ShardIndex, record: Record, room_bytes: int) -> dict[str, int]:
        """Sizes of the blobs in bytes, in the order in which they are fetched."""
        node, data = self._node, self._node.manifest.data
        ahead = shards_ahead(node.manifest, index, record, node.peer_id, room_bytes)
        sizes = data.kept_by_all | {shard.blob: data.size_bytes(shard) for shard in ahead}
        return {blob: size for blob, size in sizes.items() if not node.blobs.has(blob)}
