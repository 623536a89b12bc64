"""Snapshots of the public state on a node's disk: which are kept, whom to believe, which blobs they need.

Volunteers and bootstrap nodes alike keep the two newest, and all updates since the older one: whoever comes later loads
a snapshot and replays. Only what the chain vouches for is loaded or kept on, and a blob on our own disk is checked
against its name before anything is made of it: one that has been damaged is fetched again, and only that. What nothing
needs any more is the collector's to remove, who hears from here what is `needed`.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from spes_peer.errors import BadMessage, BlobMissing, PeerError
from spes_peer.exchange.fetch import Wanted
from spes_peer.exchange.link import blaming
from spes_peer.exchange.transfers import Gathering
from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.run.records import SealedRecord, Snapshot, state_root
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import Snapshots, SnapshotsRequest

logger = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 2
_ASK_SECONDS = 10.0
_ASKED_AT_ONCE = 8  # of all others, by chance: most have the same
_LISTED_SNAPSHOTS = 4  # of one peer; an honest one has two


@dataclass(frozen=True)
class Fetched:
    """What it took to have some blobs whole."""

    num_fetched: int
    num_damaged: int
    """Of those fetched: were here, and not what their names say."""


class SnapshotStore:
    """The snapshots of one node, and the blobs that they and the records since then need."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._path = node.folder.snapshots
        self.kept = self._read()
        """Newest first."""
        self.being_made_since: int | None = None
        """The newest record when the snapshot was begun whose blobs are being written: nothing can name those yet."""
        self._fetched: Snapshot | None = None
        """The last one that was asked for, which what this node holds may stand on."""
        self._updates: dict[int, frozenset[str]] = {}
        """Blobs by record, so that not every look at what is needed reads them from disk."""

    @property
    def genesis(self) -> Snapshot:
        return Snapshot(0, self._node.chain.record(0).sealed.record.genesis)

    # ---- whom to believe ----

    def vouched_for(self, snapshots: Iterable[Snapshot] = ()) -> list[Snapshot]:
        """Of those kept, the genesis and `snapshots`: those that the chain vouches for, newest first."""
        by_round = {one.round: one for one in (*self.kept, self.genesis, *snapshots) if self.is_vouched_for(one)}
        return sorted(by_round.values(), key=lambda snapshot: -snapshot.round)

    def is_vouched_for(self, snapshot: Snapshot) -> bool:
        """Record r+1 names the root on which round r stood, so it vouches for the state after record r."""
        if snapshot.round == 0:
            return snapshot == self.genesis
        return state_root(snapshot.blocks) == self._root_after(snapshot.round)

    def _root_after(self, round: int) -> str | None:
        """The root of the state after record `round` by the record behind it; None without one."""
        if round >= self._node.head_round:
            return None
        return self._node.chain.record(round + 1).sealed.record.state_root

    async def offered_by_others(self) -> list[Snapshot]:
        """What some others can serve; the chain has not been asked about it."""
        sources = list(self._node.others())
        if len(sources) > _ASKED_AT_ONCE:  # the last are bootstrap nodes, which stay when all volunteers change
            sources = [*random.sample(sources[:-1], _ASKED_AT_ONCE - 1), sources[-1]]
        answers = await asyncio.gather(*map(self._ask, sources))
        return [snapshot for answer in answers for snapshot in answer]

    async def _ask(self, source: PeerId) -> list[Snapshot]:
        try:
            link = await self._node.connections.to(source)
            with blaming(source):
                answer = await link.call(link.stub.ListSnapshots, SnapshotsRequest(), timeout_seconds=_ASK_SECONDS)
                offered = answer.snapshots[:_LISTED_SNAPSHOTS]
                return [self._checked(convert.from_message(Snapshot, message)) for message in offered]
        except (PeerError, BlobMissing) as error:
            logger.info("no snapshots from a peer peer=%s reason=%s", source[-8:], error)
            return []

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        expected = [(block.id, self._node.layout.state_bytes(block)) for block in self._node.layout.state_blocks]
        if [(block.block, block.size_bytes) for block in snapshot.blocks] != expected:
            raise BadMessage("a snapshot with other blocks than the run's")
        return snapshot

    # ---- having the blobs ----

    async def fetch(self, snapshot: Snapshot, gathering: Gathering | None = None) -> Fetched:
        """Have every block of a snapshot whole, and needed until two newer ones are kept; `PeerError` when one cannot
        be had. `gathering` hears how much is here."""
        self._fetched = snapshot
        self._name(snapshot)
        sources = self._node.others()
        wanted = [(block.blob, block.size_bytes, sources) for block in snapshot.blocks]
        return await self._have(wanted, "blocks", gathering)

    async def fetch_updates(self, record: SealedRecord) -> Fetched:
        """Have every update of a record whole; `PeerError` when one cannot be had."""
        others = self._node.others()
        updates = ((update.block, update.blob) for update in record.record.updates)
        self._node.blob_words.note_of_blocks("update", updates, self._node.layout.by_id)
        wanted = []
        for update in record.record.updates:
            first = [one.peer_id for one in update.contributors]
            wanted.append((update.blob, update.size_bytes, [*first, *(peer for peer in others if peer not in first)]))
        return await self._have(wanted, "updates")

    async def _have(self, wanted: Sequence[Wanted], what: str, gathering: Gathering | None = None) -> Fetched:
        gathering = gathering or Gathering(self._node.transfers)
        for name, size_bytes, _sources in wanted:
            gathering.expect(name, size_bytes)
        damaged = await self._node.fetcher.set_aside_damaged([name for name, _size, _sources in wanted])
        missing = [one for one in wanted if not self._node.blobs.renew(one[0])]
        for name in {one[0] for one in wanted}.difference(one[0] for one in missing):
            gathering.have(name)
        # each in an order of its own, so that several who come at once serve each other
        await self._node.fetcher.fetch_all(random.sample(missing, len(missing)), gathering=gathering)
        if damaged:
            logger.warning("repaired: %d of %d %s fetched", len(missing), len(wanted), what)
        return Fetched(len(missing), len(damaged))

    # ---- keeping ----

    def keep(self, snapshot: Snapshot) -> None:
        """Add a snapshot, and keep the two newest."""
        self._name(snapshot)
        others = [one for one in self.kept if one.round < snapshot.round and not self._is_refuted(one)]
        self._replace((snapshot, *others)[:KEPT_SNAPSHOTS])
        if len(self.kept) == KEPT_SNAPSHOTS and self._fetched is not None and self._fetched.round < self.kept[-1].round:
            self._fetched = None

    @contextlib.contextmanager
    def being_made(self) -> Iterator[None]:
        """While the blocks of a snapshot are written that is kept next."""
        self.being_made_since = self._node.head_round
        try:
            yield
        finally:
            self.being_made_since = None

    def drop_from(self, round: int) -> None:
        """Forget the states after record `round` and later ones: the chain has other records there now."""
        self._replace(tuple(one for one in self.kept if one.round < round))
        if self._fetched is not None and 0 < round <= self._fetched.round:
            self._fetched = None
        self._updates = {number: names for number, names in self._updates.items() if number < round}

    def _name(self, snapshot: Snapshot) -> None:
        """For whoever watches its blobs travel."""
        self._node.blob_words.note((block.blob for block in snapshot.blocks), "snapshot")

    def _is_refuted(self, snapshot: Snapshot) -> bool:
        root = self._root_after(snapshot.round)
        return bool(root) and root != state_root(snapshot.blocks)

    def _replace(self, kept: tuple[Snapshot, ...]) -> None:
        if kept == self.kept:
            return
        self.kept = kept
        message = Snapshots()
        for one in kept:
            message.snapshots.append(convert.to_message(one))  # type: ignore[arg-type]
        try:
            write_whole(self._path, message.SerializeToString())
        except OSError as error:  # a full disk: others have snapshots
            logger.warning("cannot keep a snapshot round=%d reason=%s", kept[0].round if kept else 0, error)

    def _read(self) -> tuple[Snapshot, ...]:
        try:
            kept = Snapshots.FromString(self._path.read_bytes())
            return tuple(convert.from_message(Snapshot, message) for message in kept.snapshots)
        except FileNotFoundError:
            return ()
        except (DecodeError, BadMessage) as error:
            logger.warning("starting without our own snapshots path=%s reason=%s", self._path, error)
            return ()

    # ---- what is needed ----

    @property
    def replays_from(self) -> int:
        """All updates of the records after this one are kept: from the older snapshot on, and without two from as far
        back as anybody's reach."""
        if len(self.kept) == KEPT_SNAPSHOTS:
            return self.kept[-1].round
        return max(0, self._node.head_round - KEPT_SNAPSHOTS * self._node.manifest.sync.snapshot_rounds)

    def needed(self) -> set[str]:
        """Blobs that must stay: of the snapshots that are kept or asked for, and of the records since then."""
        snapshots = [*self.kept, *([self._fetched] if self._fetched else [])]
        if len(self.kept) < KEPT_SNAPSHOTS:
            snapshots.append(self.genesis)
        oldest = min([self.replays_from, *([self._fetched.round] if self._fetched else [])])
        records = range(oldest + 1, self._node.head_round + 1)
        self._updates = {number: self._updates_of(number) for number in records}
        return {block.blob for one in snapshots for block in one.blocks}.union(*self._updates.values())

    def _updates_of(self, number: int) -> frozenset[str]:
        if number in self._updates:
            return self._updates[number]
        return frozenset(update.blob for update in self._node.chain.record(number).sealed.record.updates)
