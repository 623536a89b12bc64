"""This peer's copy of the public state: held by the trainer process, brought to the newest record by blobs.

One path serves every case: a fresh peer, a restarted one, a trainer that crashed, a state that turned out different, a
chain that went back. Load the newest snapshot that the chain vouches for (our own, another peer's, or the genesis
blocks of record 0), then apply every record after it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.errors import ChildFailed, PeerError
from spes_peer.exchange.transfers import Gathering
from spes_peer.node import Node
from spes_peer.run.records import SealedRecord, Snapshot, state_root
from spes_peer.snapshots import Fetched, SnapshotStore
from spes_peer.training.work import RecordApplied

logger = logging.getLogger(__name__)

Measuring = Callable[[str, str, Callable[[], float], Callable[[], float]], contextlib.AbstractContextManager[None]]
_FIRST_PAUSE_SECONDS = 4.0
_LAST_PAUSE_SECONDS = 60.0


class Replica:
    """The public state after record `applied`; -1 before anything is loaded."""

    def __init__(self, node: Node, trainer: TrainerHost, clock: Callable[[], float] = time.monotonic) -> None:
        self.applied = -1
        self.state_root = ""
        self.num_repaired = 0
        """Blobs that were damaged on our disk and fetched again."""
        self.on_applied: Callable[[SealedRecord], None] = lambda _record: None
        self.measuring: Measuring = lambda _what, _unit, _done, _whole: contextlib.nullcontext()
        """Takes what this does that may take long, its unit, and how much of how much is done."""
        self._node = node
        self._trainer = trainer
        self.store = SnapshotStore(node)
        self._patience = _Patience(clock)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that others can have of us, newest first."""
        return self.store.kept

    @property
    def _head_round(self) -> int:
        return self._node.head_round

    @property
    def _snapshot_rounds(self) -> int:
        """How far back everybody's updates reach for certain: they go with the snapshot before the newest."""
        return self._node.manifest.sync.snapshot_rounds

    async def catch_up(self, on_progress: Callable[[str], None]) -> None:
        """Hold the state after the chain's newest record; loads first where there is nothing, or where it is so old
        that the updates since then may be gone.

        `PeerError` when something cannot be had, `ChildFailed` when the trainer cannot. What fails in the trainer
        again and again is tried again ever later: it may lie in the data, and then a load costs much and mends nothing.
        """
        await self._patience.wait(on_progress)
        if self._head_round - self.applied > self._snapshot_rounds:
            await self._load(on_progress)
        while self.applied < self._head_round:
            if self.applied < 0:  # nothing held yet, or the chain went back meanwhile
                await self._load(on_progress)
                continue
            await self._replay(on_progress)
        self._patience.end()

    async def _replay(self, on_progress: Callable[[str], None]) -> None:
        """Apply records up to the newest, or until nothing is held any more."""
        first = self.applied
        measuring: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._head_round - first > 1:  # one, as in every round, is no way to go
            measuring = self.measuring(
                "replaying records", "records", lambda: max(0, self.applied - first), lambda: self._head_round - first
            )
        with measuring:
            while 0 <= self.applied < self._head_round:
                record = self._node.chain.record(self.applied + 1).sealed
                on_progress(f"replaying record {record.round} of {self._head_round}")
                await self.apply(record)

    def forget(self) -> None:
        """The trainer lost its state, or it is not the run's: the next `catch_up` begins with a load."""
        self.applied = -1

    def rewind(self, first_changed_round: int) -> None:
        """The chain has other records from this round on: forget what was made of the old ones. Call it when the chain
        has changed; also while `catch_up` is under way."""
        if self.applied >= first_changed_round:
            self.forget()
        self.store.drop_from(first_changed_round)

    async def apply(self, record: SealedRecord) -> None:
        """Fetch the record's updates and apply them. `PeerError` when an update cannot be had: the state is then as
        before. `ChildFailed` when the trainer cannot: there may be no state then, and what there is is forgotten."""
        self.num_repaired += (await self.store.fetch_updates(record)).num_damaged
        if self.applied != record.round - 1 or not self._is_in_chain(record):
            return  # the chain went back meanwhile
        keeps_snapshot = record.round % self._snapshot_rounds == 0 or record.record.is_final
        with self.store.being_made() if keeps_snapshot else contextlib.nullcontext():
            applied = await self._applied_by_trainer(record, keeps_snapshot)
            if not self._is_in_chain(record):
                self.forget()
                return
            self.applied, self.state_root = record.round, applied.state_root
            if keeps_snapshot:
                self.store.keep(Snapshot(record.round, applied.blocks))
        self.on_applied(record)

    async def _applied_by_trainer(self, record: SealedRecord, keeps_snapshot: bool) -> RecordApplied:
        trainer = self._trainer.get()
        try:
            return await trainer.apply_record(record.content, keeps_snapshot)
        except ChildFailed:
            self._fail()
            raise

    def differs_from(self, record: SealedRecord) -> bool:
        """Whether the run, by `record`, stands on another state than ours after the record before it."""
        return (
            self.applied == record.round - 1
            and bool(record.record.state_root)
            and (record.record.state_root != self.state_root)
        )

    def _is_in_chain(self, record: SealedRecord) -> bool:
        chain = self._node.chain
        return record.round < chain.num_records and chain.record(record.round).sealed.hash == record.hash

    async def _load(self, on_progress: Callable[[str], None]) -> None:
        """Load the newest snapshot that can be had, unless what is held is newer."""
        self._trainer.get()  # without one nothing needs to be fetched yet
        failures = []
        for snapshot in await self._candidates():
            if snapshot.round <= self.applied:
                return
            on_progress(_words(snapshot))
            try:
                fetched = await self._fetched(snapshot)
            except PeerError as error:
                logger.warning("cannot have a snapshot round=%d reason=%s", snapshot.round, error)
                failures.append(error)
                continue
            logger.info("%d of %d blocks fetched round=%d", fetched.num_fetched, len(snapshot.blocks), snapshot.round)
            self.num_repaired += fetched.num_damaged
            await self._give(snapshot)
            return
        raise failures[0]

    async def _fetched(self, snapshot: Snapshot) -> Fetched:
        gathering = Gathering(self._node.transfers)
        with self.measuring(
            "fetching the snapshot", "bytes", lambda: gathering.done_bytes, lambda: gathering.whole_bytes
        ):
            return await self.store.fetch(snapshot, gathering)

    async def _give(self, snapshot: Snapshot) -> None:
        """Let the trainer load a snapshot, all of which is here."""
        trainer = self._trainer.get()
        try:
            root = await trainer.load_state(snapshot.round, snapshot.blocks)
            if root != state_root(snapshot.blocks):
                raise ChildFailed("the trainer holds another state than the one it was given")
        except ChildFailed:
            self._fail()
            raise
        if self.store.is_vouched_for(snapshot):  # or the chain went back meanwhile
            self.applied, self.state_root = snapshot.round, root

    async def _candidates(self) -> list[Snapshot]:
        """The newest that the chain vouches for, then others almost as new; others are asked where ours is too old to
        replay from."""
        found = self.store.vouched_for()
        if self._head_round - found[0].round > self._snapshot_rounds:
            found = self.store.vouched_for(await self.store.offered_by_others())
        return [one for one in found if found[0].round - one.round <= self._snapshot_rounds]

    def _fail(self) -> None:
        self.forget()
        self._patience.lose()


class _Patience:
    """How long to wait before the trainer is asked again for what it failed at; not at all after a first failure."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_failures = 0
        self._until = 0.0

    async def wait(self, on_progress: Callable[[str], None]) -> None:
        seconds = self._until - self._clock()
        if self._num_failures > 1 and seconds > 0:
            on_progress(f"the trainer failed {self._num_failures} times in a row; trying again in {seconds:.0f} s")
            await asyncio.sleep(seconds)

    def lose(self) -> None:
        self._num_failures += 1
        pause_seconds = min(_FIRST_PAUSE_SECONDS * 2 ** max(0, self._num_failures - 2), _LAST_PAUSE_SECONDS)
        self._until = self._clock() + pause_seconds

    def end(self) -> None:
        self._num_failures = 0


def _words(snapshot: Snapshot) -> str:
    size = sum(block.size_bytes for block in snapshot.blocks)
    return f"fetching the state after record {snapshot.round}, {size / 1e6:.1f} MB"
