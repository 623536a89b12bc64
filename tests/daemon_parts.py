"""One member on a real node that is not running, with a made-up trainer: what records and messages make it do."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from data_parts import INDEX
from rounds_swarm import BOOTSTRAP, BOOTSTRAP_IDENTITY, contribution_of, genesis

from spes_peer.blobs import BlobName
from spes_peer.daemon.joining import Claiming
from spes_peer.daemon.member import Member
from spes_peer.daemon.phases import PhaseKeeper
from spes_peer.daemon.replica import Replica
from spes_peer.daemon.status import add_member
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.errors import ChildFailed
from spes_peer.folder import StateFolder
from spes_peer.guest.rules import Reason
from spes_peer.identity import Identity, PeerId
from spes_peer.node import Node, NodeSettings
from spes_peer.ports import Ports
from spes_peer.process import Service
from spes_peer.run.certificates import electorate, sign_genesis
from spes_peer.run.manifest import Manifest, sign_manifest
from spes_peer.run.peers import Claim, PeerEntry, PeerState, Role
from spes_peer.run.records import (
    BlockName,
    CertifiedRecord,
    Contributor,
    DataRange,
    RecordSignature,
    RosterEntry,
    SealedRecord,
    Update,
    state_root,
)
from spes_peer.run.signed import Signer
from spes_peer.training.work import (
    AheadTrained,
    DeviceFigures,
    HeldOut,
    RecordApplied,
    RoundTrained,
    TrainAhead,
    TrainerOpened,
    TrainRound,
)
from spes_peer.wire.control_pb2 import Status

OTHER = Identity.from_seed(b"\x22" * 32)
QUICK = {
    "heartbeat_seconds": 0.05,
    "fetch_stall_seconds": 0.1,
    "round_grace_seconds": 0.2,
    "coordinator_timeout_seconds": 0.3,
    "stall_timeout_seconds": 1.0,
}


def make_node(folder: Path, manifest: Manifest, organizer: Identity) -> Node:
    """A node of a run that has record 0; its fetcher has everything already."""
    node = Node(
        StateFolder(folder),
        sign_manifest(manifest, organizer),
        NodeSettings(Role.VOLUNTEER, "self", "127.0.0.1", (), Ports(0, 0, 0), inbound=True),
    )
    if node.chain.head is None:
        first = dataclasses.replace(genesis(node.layout), run_id=node.run_id)
        node.chain.append(sign_genesis(first, organizer, node.run_id))

    async def nothing_to_fetch(_wanted: Sequence[Any], parallel: int = 4, gathering: object = None) -> None:
        pass

    node.fetcher.fetch_all = nothing_to_fetch  # type: ignore[method-assign]
    return node


def entry_of(peer: Identity, **changes: Any) -> PeerEntry:
    """What another volunteer says of itself in the DHT."""
    entry = PeerEntry(
        peer_id=peer.peer_id,
        name="other",
        version="0.1.0",
        protocol=5,
        role=Role.VOLUNTEER,
        state=PeerState.ONLINE,
        incarnation=1,
        grpc_addresses=(),
        certificate=b"",
        libp2p_addresses=(),
        dht_addresses=(),
        max_subsets=1,
        written_at=1e9,
    )
    return dataclasses.replace(entry, **changes)


class FakeTrainer:
    """Stands for the host of a trainer and the process in it. Rounds end at once, or when `may_finish` is set."""

    def __init__(self, node: Node) -> None:
        self.opened = TrainerOpened("cpu", 1, 100.0)
        self.service = Service("trainer")
        self.max_subsets = 1
        self.is_dead = False
        self.num_refused = 0
        """So often it was asked for while it was dead."""
        self.device: DeviceFigures | None = None
        self.router_choices: tuple[int, ...] = ()
        """Of the rounds that it trains from now on."""
        self.num_failures = 0
        """So many rounds it will fail to train."""
        self.round = -1
        self.trained: list[TrainRound] = []
        self.trained_ahead: list[TrainAhead] = []
        self.loaded: list[int] = []
        self.applied: list[int] = []
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.is_resting = False
        self.is_waking = False
        self.why_resting = ""
        self.steps_made = 0
        """Before it is told to stop in a round."""
        self.is_stopped = False
        self.on_progress: Any = None
        self.on_restart: Any = None
        self._node = node

    def get(self) -> "FakeTrainer":
        if self.is_dead:
            self.num_refused += 1
            raise ChildFailed("the trainer has ended")
        return self

    def restart(self) -> None:
        self.is_dead, self.is_waking, self.round = False, False, -1
        self.max_subsets = self.opened.max_subsets
        self.on_restart()

    async def rest(self, why: str) -> None:
        self.is_resting, self.is_dead, self.why_resting = True, True, why

    def wake(self) -> None:
        """Another is there when `restart` is called."""
        self.is_waking, self.is_resting = self.is_waking or self.is_resting, False

    async def stop_training(self) -> None:
        self.is_stopped = True
        self.may_finish.set()

    def fail(self) -> None:
        """In the middle of a round; another stands there at once."""
        self.num_failures = 1
        self.may_finish.set()
        self.may_finish = asyncio.Event()
        self.restart()

    async def load_state(self, round: int, blocks: tuple[BlockName, ...]) -> str:
        self.round = round
        self.loaded.append(round)
        return state_root(blocks)

    async def apply_record(self, content: bytes, keep_snapshot: bool) -> RecordApplied:
        record = SealedRecord.from_bytes(content).record
        if self.round != record.round - 1:
            raise ChildFailed(f"the state is that of round {self.round}")
        self.round = record.round
        self.applied.append(record.round)
        names = tuple(
            BlockName(block.id, self._node.blobs.put(f"{record.round} {block.id}".encode()).name, 1)
            for block in self._node.layout.blocks
        )
        return RecordApplied(state_root(names), names if keep_snapshot else ())

    async def measure_held_out(self, _slice: int, _num_slices: int) -> HeldOut:
        return HeldOut(2.0, 1)

    async def train_round(self, task: TrainRound) -> RoundTrained:
        if self.round != task.round:
            raise ChildFailed(f"the state is that of round {self.round}")
        self.trained.append(task)
        await self.may_finish.wait()
        if self.num_failures:
            self.num_failures -= 1
            raise ChildFailed("the trainer has ended in a round")
        record = self._node.chain.record(task.round).sealed.record
        entry = record.entry_of(self._node.peer_id)
        assert entry is not None
        steps = task.num_steps
        if self.is_stopped:
            steps, self.is_stopped = self.steps_made, False
            if not steps:
                raise ChildFailed(f"round {task.round} ended before this peer made a step")
        made = contribution_of(entry, record, self._node.layout, "", steps)
        return RoundTrained(
            made.offers, made.tokens, made.steps, made.train_loss, made.tokens_per_second, self.router_choices
        )

    async def train_ahead(self, task: TrainAhead) -> AheadTrained:
        self.trained_ahead.append(task)
        await asyncio.Event().wait()  # until the record comes
        raise AssertionError


class FakeDirectory:
    """A DHT in which only this peer is."""

    def __init__(self) -> None:
        self.addresses = ()
        self.claims: list[tuple[int, ...]] = []

    async def publish_claim(self, claim: Claim) -> bool:
        self.claims.append(claim.subsets)
        return True

    async def read_claims(self) -> dict[PeerId, Claim]:
        return {}

    async def read_entries(self) -> dict[PeerId, PeerEntry]:
        return {}


class Scene:
    """A living member, and the coordinator's part done by hand: it attends nobody."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch, *reasons: Reason) -> None:
        monkeypatch.setattr("spes_peer.daemon.joining._SECOND_LOOK_SECONDS", 0.0)
        monkeypatch.setattr("spes_peer.daemon.member._RETRY_SECONDS", 0.01)
        self.node = node
        node.max_subsets = 1
        node.blobs.put(INDEX)
        self.trainer = FakeTrainer(node)
        self.directory = FakeDirectory()
        self.phases = PhaseKeeper(lambda: None)
        self.ended = asyncio.Event()
        self.sent: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()
        host: TrainerHost = self.trainer  # type: ignore[assignment]
        self.replica = Replica(node, host)
        claiming = Claiming(node.peer_id, node.layout, node.chain, self.directory, node.now)  # type: ignore[arg-type]
        self.member = Member(node, host, self.replica, claiming, self.phases, self._spawn, self.ended.set, reasons)
        self.member.follower.attendance.send = self.sent.append  # type: ignore[method-assign]
        self.member.follower.run = asyncio.Event().wait  # type: ignore[method-assign,assignment]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator["Scene"]:
        self._spawn(self.member.live())
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not [one for one in results if isinstance(one, Exception)]

    def next_record(self, *peers: Identity, **changes: Any) -> CertifiedRecord:
        """What may follow the newest record, with these peers on the roster."""
        return following(self.node, *peers, **changes)

    def tell(self, certified: CertifiedRecord) -> None:
        """As the coordinator does."""
        self.member.follower.attendance.on_message(BOOTSTRAP, certified)

    def sent_of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if type(message) is kind]


def following(node: Node, *peers: Identity, **changes: Any) -> CertifiedRecord:
    assert node.chain.head is not None
    previous = node.chain.head
    first = previous.record.next_position
    roster = tuple(
        RosterEntry(peer.peer_id, 1, (index,), (DataRange(first + 8 * index, first + 8 * index + 8),), 1)
        for index, peer in enumerate(sorted(peers, key=lambda one: one.peer_id))
    )
    record = dataclasses.replace(
        previous.record,
        round=previous.round + 1,
        previous_hash=previous.hash,
        state_root="",
        updates=(),
        roster=roster,
        genesis=(),
        next_position=first + 8 * len(roster),
        opened_at=1000.0,
        deadline_at=1000.0 + node.manifest.timing.round_seconds,
    )
    sealed = dataclasses.replace(record, **changes).seal()
    voters = {*electorate(sealed.record, previous.record), *previous.record.candidates[:1]}
    known = {peer.peer_id: peer for peer in (node.identity, OTHER, BOOTSTRAP_IDENTITY)}
    signature = RecordSignature(sealed.round, 0, sealed.hash)
    signatures = tuple(Signer(known[peer], node.run_id, 1).sign(signature) for peer in sorted(voters))
    return CertifiedRecord(sealed.content, 0, signatures)


def updates_by(node: Node, **tokens: int) -> tuple[Update, ...]:
    """One of the shared parameters by `self` and `other`, and one of an expert of each, with so many tokens."""
    peers = {"self": node.peer_id, "other": OTHER.peer_id}
    parts = [Contributor(peers[name], count, 1.0, 1.0) for name, count in tokens.items()]
    of_experts = [(node.layout.expert_blocks(number)[0], (part,)) for number, part in enumerate(parts)]
    return tuple(
        Update(block.id, BlobName(f"{number:064x}"), 1_000, by, ())
        for number, (block, by) in enumerate([(node.layout.shared_blocks[0], tuple(parts)), *of_experts])
    )


def closing(node: Node, seconds: float = 40.0, **tokens: int) -> CertifiedRecord:
    """A record that closes a round of so many seconds with these tokens."""
    assert node.chain.head is not None
    opened_at = node.chain.head.record.opened_at + seconds
    updates = updates_by(node, **tokens)
    return following(
        node, node.identity, OTHER, opened_at=opened_at, updates=updates, tokens=sum(tokens.values()), train_loss=2.5
    )


def status_of(scene: Scene) -> Status:
    status = Status()
    add_member(status, scene.member)
    return status
