"""This peer's copy of the public state: held by the trainer process, brought to the newest record by blobs.

One path serves every case: a fresh peer, a restarted one, a trainer that crashed, a state that turned out different.
Load the newest snapshot that the chain vouches for (our own, another peer's, or the genesis blocks of record 0), then
apply every record after it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from spes_peer.blobs import BlobName
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.errors import BadMessage, BlobMissing, ChildFailed, PeerError
from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.run.records import BlockName, SealedRecord, Snapshot, state_root
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import Snapshots, SnapshotsRequest

logger = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_KEPT_SNAPSHOTS = 2


class Replica:
    """The public state after record `applied`; -1 before anything is loaded."""

    def __init__(self, node: Node, trainer: TrainerHost) -> None:
        self.applied = -1
        self.state_root = ""
        self._node = node
        self._trainer = trainer
        self._path = node.folder.snapshots
        self.on_applied: Callable[[SealedRecord], None] = lambda _record: None
        self.snapshots = self._kept_snapshots()
        """Newest first."""
        self._unneeded: set[BlobName] = set()

    @property
    def _head_round(self) -> int:
        return self._node.chain.num_records - 1

    @property
    def _genesis(self) -> tuple[BlockName, ...]:
        return self._node.chain.record(0).sealed.record.genesis

    @property
    def _snapshot_rounds(self) -> int:
        """How far back everybody's updates reach for certain: they go with the snapshot before the newest."""
        return self._node.manifest.sync.snapshot_rounds

    async def catch_up(self, on_progress: Callable[[str], None]) -> None:
        """Hold the state after the chain's newest record; loads first where there is nothing, or where it is so old
        that the updates since then may be gone."""
        if self.applied < 0 or self._head_round - self.applied > self._snapshot_rounds:
            await self._load(on_progress)
        while self.applied < self._head_round:
            record = self._node.chain.record(self.applied + 1).sealed
            on_progress(f"replaying record {record.round} of {self._head_round}")
            await self.apply(record)

    def forget(self) -> None:
        """The trainer lost its state, or it is not the run's: the next `catch_up` begins with a load."""
        self.applied = -1

    async def apply(self, record: SealedRecord) -> None:
        """Fetch the record's updates and apply them. `PeerError` when an update cannot be had: the state is then as
        before. `ChildFailed` when the trainer cannot: there may be no state then, and what there is is forgotten."""
        await self._node.fetcher.fetch_all(
            [
                (update.blob, update.size_bytes, self._holders_first(one.peer_id for one in update.contributors))
                for update in record.record.updates
            ]
        )
        keeps_snapshot = record.round % self._snapshot_rounds == 0
        trainer = self._trainer.get()
        try:
            applied = await trainer.apply_record(record.content, keeps_snapshot)
        except ChildFailed:
            self.forget()
            raise
        self.applied, self.state_root = record.round, applied.state_root
        if keeps_snapshot:
            self._keep(Snapshot(record.round, applied.blocks))
        self.on_applied(record)

    def differs_from(self, record: SealedRecord) -> bool:
        """Whether the run, by `record`, stands on another state than ours after the record before it."""
        return (
            self.applied == record.round - 1
            and bool(record.record.state_root)
            and (record.record.state_root != self.state_root)
        )

    async def _load(self, on_progress: Callable[[str], None]) -> None:
        """Load the newest snapshot there is, unless what is held is newer."""
        snapshot = await self._newest_snapshot()
        if snapshot.round <= self.applied:
            return
        size = sum(block.size_bytes for block in snapshot.blocks)
        on_progress(f"fetching the state after record {snapshot.round}, {size / 1e6:.1f} MB")
        sources = self._node.others()
        await self._node.fetcher.fetch_all([(block.blob, block.size_bytes, sources) for block in snapshot.blocks])
        root = await self._trainer.get().load_state(snapshot.round, snapshot.blocks)
        if root != state_root(snapshot.blocks):
            raise ChildFailed("the trainer holds another state than the one it was given")
        self.applied, self.state_root = snapshot.round, root

    async def _newest_snapshot(self) -> Snapshot:
        """The newest that the chain vouches for; others are asked where ours is too old to replay from."""
        own = self._newest_vouched_for([*self.snapshots, Snapshot(0, self._genesis)])
        if self._head_round - own.round <= self._snapshot_rounds:
            return own
        answers = await asyncio.gather(*(self._ask(source) for source in self._node.others()))
        return self._newest_vouched_for([own, *(snapshot for answer in answers for snapshot in answer)])

    def _newest_vouched_for(self, snapshots: Iterable[Snapshot]) -> Snapshot:
        return max(filter(self._is_vouched_for, snapshots), key=lambda snapshot: snapshot.round)

    def _is_vouched_for(self, snapshot: Snapshot) -> bool:
        """Record r+1 names the root on which round r stood, so it vouches for the state after record r."""
        if snapshot.round == 0:
            return snapshot.blocks == self._genesis
        if snapshot.round >= self._head_round:
            return False
        return state_root(snapshot.blocks) == self._node.chain.record(snapshot.round + 1).sealed.record.state_root

    def _kept_snapshots(self) -> tuple[Snapshot, ...]:
        try:
            kept = Snapshots.FromString(self._path.read_bytes())
            return tuple(convert.from_message(Snapshot, message) for message in kept.snapshots)
        except FileNotFoundError:
            return ()
        except (DecodeError, BadMessage) as error:
            logger.warning("starting without our own snapshots path=%s reason=%s", self._path, error)
            return ()

    async def _ask(self, source: PeerId) -> list[Snapshot]:
        try:
            link = await self._node.connections.to(source)
            answer = await link.call(link.stub.ListSnapshots, SnapshotsRequest(), timeout_seconds=_ASK_SECONDS)
            return [self._checked(convert.from_message(Snapshot, message)) for message in answer.snapshots[:4]]
        except (PeerError, BlobMissing) as error:
            logger.info("no snapshots from a peer peer=%s reason=%s", source[-8:], error)
            return []

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        expected = [(block.id, self._node.layout.state_bytes(block)) for block in self._node.layout.state_blocks]
        if [(block.block, block.size_bytes) for block in snapshot.blocks] != expected:
            raise BadMessage("a snapshot with other blocks than the run's")
        return snapshot

    def _holders_first(self, contributors: Iterable[PeerId]) -> list[PeerId]:
        first = list(contributors)
        return [*first, *(source for source in self._node.others() if source not in first)]

    def _keep(self, snapshot: Snapshot) -> None:
        """Add a snapshot, keep the two newest, and drop every blob that nothing needs any more.

        A blob goes when it was not needed the last time either: one that is just being made or fetched for the open
        round is in no record yet.
        """
        self.snapshots = (snapshot, *self.snapshots)[:_KEPT_SNAPSHOTS]
        kept = Snapshots()
        for one in self.snapshots:
            kept.snapshots.append(convert.to_message(one))  # type: ignore[arg-type]
        write_whole(self._path, kept.SerializeToString())
        blobs, holdings = self._node.blobs, self._node.holdings
        unneeded = {*blobs.names(), *holdings.unfinished()} - self._needed_blobs()
        for name in unneeded & self._unneeded:
            blobs.remove(name)
            holdings.forget(name)
        self._unneeded = unneeded

    def _needed_blobs(self) -> set[str]:
        data = self._node.layout.manifest.data
        needed = {data.held_out.blob, *(shard.blob for shard in data.shards)}
        needed |= {block.blob for snapshot in self.snapshots for block in snapshot.blocks}
        oldest = min(snapshot.round for snapshot in self.snapshots) if len(self.snapshots) == _KEPT_SNAPSHOTS else 0
        needed |= {block.blob for block in self._genesis} if oldest == 0 else set()
        for number in range(oldest + 1, self._head_round + 1):
            needed |= {update.blob for update in self._node.chain.record(number).sealed.record.updates}
        return needed
