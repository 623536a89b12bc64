"""Keeps the public state on the bootstrap node's disk: who comes when all have left gets it from there.

The bootstrap node has no trainer and makes no state of its own. It follows the chain and fetches what peers have: the
two newest snapshots that the chain vouches for, and all updates since the older one, those of the newest record first;
updates already when they are reported, because with the record that lists them all may leave. A fault costs one
attempt.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from spes_peer.errors import PeerError, SpesError, Unreachable
from spes_peer.node import Node
from spes_peer.rounds.messages import UpdateNotice
from spes_peer.run.records import BlockId, Snapshot
from spes_peer.snapshots import SnapshotStore

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_LAST_PAUSE_SECONDS = 30.0
_MAX_NOTICES = 10_000  # of updates not fetched yet; what is dropped comes with its record
_MOST_NAMED = 4  # updates of a block in a round; more than one where reducers die or disagree


class Keeper:
    """Compose it with `node.list_snapshots = lambda: keeper.snapshots`, a task of `run`, and `on_notice` for every
    update that is reported."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.store = SnapshotStore(node)
        self._complete: set[bytes] = set()
        """Hashes of the records all of whose updates are here."""
        self._complete_head = b""
        """The newest record up to which nothing is missing."""
        self._whole: set[Snapshot] = set()
        """Snapshots that this start has found whole on the disk."""
        self._notices: asyncio.Queue[UpdateNotice] = asyncio.Queue(_MAX_NOTICES)
        self._noticed_round = -1
        self._noticed: dict[BlockId, set[str]] = {}
        """Blobs that were named in that round."""

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Newest first."""
        return self.store.kept

    def rewind(self, first_changed_round: int) -> None:
        """The chain has other records from this round on."""
        self.store.drop_from(first_changed_round)

    def on_notice(self, notice: UpdateNotice) -> None:
        """An update of the open round is there: fetch it soon. Never waits. What a coordinator names beyond what a
        round can use is left alone, or it could fill the disk."""
        if self._is_possible(notice) and self._is_among_the_first(notice):
            with contextlib.suppress(asyncio.QueueFull):
                self._notices.put_nowait(notice)

    async def run(self) -> None:
        """Follow the chain, for ever; snapshots are large, and updates do not wait for them."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_again_and_again(self.hold_noticed, "an update of the open round"))
            tasks.create_task(_again_and_again(self.hold_updates, "the updates"))
            tasks.create_task(_again_and_again(self.hold_snapshot, "the newest snapshot"))

    async def hold_noticed(self) -> None:
        """Have the updates that were noticed since; what cannot be had is left to the record that lists it."""
        notices = [self._notices.get_nowait() for _ in range(self._notices.qsize())]
        others = self._node.others()
        await self._node.fetcher.fetch_all(
            [(one.blob, one.size_bytes, [*one.holders, *others]) for one in notices if self._is_open(one.round)]
        )

    def _is_possible(self, notice: UpdateNotice) -> bool:
        layout = self._node.layout
        block = layout.by_id.get(notice.block)
        sizes = (layout.offer_bytes(block), layout.mean_bytes(block)) if block is not None else ()
        return self._is_open(notice.round) and notice.size_bytes in sizes

    def _is_open(self, round: int) -> bool:
        return round == self._node.head_round

    def _is_among_the_first(self, notice: UpdateNotice) -> bool:
        if notice.round != self._noticed_round:
            self._noticed_round, self._noticed = notice.round, {}
        named = self._noticed.setdefault(notice.block, set())
        if notice.blob not in named and len(named) >= _MOST_NAMED:
            return False
        named.add(notice.blob)
        return True

    async def hold_updates(self) -> None:
        """Have all updates that a joiner may need. Tries all records before it raises the first `PeerError`."""
        head = self._node.chain.head
        if head is None or head.hash == self._complete_head:
            return
        failures, complete = [], set()
        for round in range(head.round, self.store.replays_from, -1):
            record = self._node.chain.record(round).sealed
            try:
                if record.hash not in self._complete:
                    await self.store.fetch_updates(record)
                complete.add(record.hash)
            except PeerError as error:
                failures.append(error)
        self._complete = complete
        if failures:
            raise failures[0]
        self._complete_head = head.hash

    async def hold_snapshot(self) -> None:
        """Have the newest snapshot that the chain vouches for, if it is due and offered; `PeerError` if it is not."""
        for one in {*self.snapshots} - self._whole:
            await self.store.fetch(one)
            self._whole.add(one)
        held = max((one.round for one in self.snapshots), default=0)
        every = self._node.manifest.sync.snapshot_rounds
        due = (self._node.head_round - 1) // every * every
        if due <= held:
            return
        newest = self.store.vouched_for(await self.store.offered_by_others())[0]
        if newest.round <= held:
            raise Unreachable(f"nobody offers the state after record {due}")
        fetched = await self.store.fetch(newest)
        if self.store.is_vouched_for(newest):  # or the chain went back meanwhile
            self.store.keep(newest)
            self._whole = {*self.snapshots}
            logger.info("keeping the state after record %d blocks_fetched=%d", newest.round, fetched.num_fetched)


async def _again_and_again(work: Callable[[], Awaitable[None]], what: str) -> None:
    """Do it whenever there may be something new; after a fault later and later."""
    trouble, pause_seconds = "", _LOOK_SECONDS
    while True:
        try:
            await work()
        except (SpesError, OSError) as error:  # of a peer, or of a full disk: the node serves on
            if trouble != (trouble := str(error)):
                logger.warning("cannot have %s yet reason=%s", what, error)
            pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)
        else:
            trouble, pause_seconds = "", _LOOK_SECONDS
        await asyncio.sleep(pause_seconds)
