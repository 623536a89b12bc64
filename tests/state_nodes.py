"""Real nodes with real servers on loopback that share a chain of made-up states: for the tests of snapshots.

The state after a record is a function of its round, and so are the record's updates; a trainer here only checks that it
is given exactly these bytes.
"""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from daemon_parts import OTHER, following, make_node

from spes_peer.blobs import BlobName, digests_of, name_of
from spes_peer.daemon.replica import Replica
from spes_peer.errors import ChildFailed
from spes_peer.exchange.server import PeerServer
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import PeerEntry
from spes_peer.run.records import BlockName, Contributor, SealedRecord, Snapshot, Update, state_root
from spes_peer.training.work import RecordApplied

SNAPSHOT_ROUNDS = 2
STALL_SECONDS = 15.0
"""Only who never answers is silent for so long, also on a machine that does much else."""


def small(manifest: Manifest) -> Manifest:
    """Seven blocks of a few kilobytes, and a snapshot every second round."""
    content = manifest.model_dump(mode="json")
    sizes = {"d_model": 16, "num_layers": 1, "num_experts": 4, "expert_hidden": 32, "sequence_length": 16}
    content["model"].update(sizes)
    content["sync"].update(block_elements=4096, snapshot_rounds=SNAPSHOT_ROUNDS)
    content["timing"].update(fetch_stall_seconds=STALL_SECONDS)
    return Manifest.model_validate(content)


class World:
    """Nodes that know each other and have the same chain, which `grow` makes longer on all of them."""

    def __init__(self, folder: Path, manifest: Manifest, organizer: Identity) -> None:
        self.nodes: list[Node] = []
        self._folder = folder
        self._manifest = small(manifest)
        self._organizer = organizer
        self._servers: dict[Node, PeerServer] = {}
        self._numbers = itertools.count()
        self.head_round = 0

    async def start_node(self) -> Node:
        """Without any blobs."""
        node = make_node(self._folder / f"n{next(self._numbers)}", self._manifest, self._organizer)
        del node.fetcher.fetch_all  # the real one
        server = await PeerServer.start(
            node, node.holdings, node.tls, "127.0.0.1:0", node.folder.peer_socket, node.traffic
        )
        if self.nodes:
            for certified in self.nodes[0].chain.from_round(1):
                node.chain.append(certified)
        entry = dataclasses.replace(node.entry(), grpc_addresses=(f"127.0.0.1:{server.port}",))
        for other in self.nodes:
            other.take_entry(entry)
            node.take_entry(self.entry_of(other))
        self._servers[node] = server
        self.nodes.append(node)
        return node

    def entry_of(self, node: Node) -> PeerEntry:
        return dataclasses.replace(node.entry(), grpc_addresses=(f"127.0.0.1:{self._servers[node].port}",))

    async def stop_node(self, node: Node) -> None:
        """As if its machine were gone."""
        self.nodes.remove(node)
        await node.connections.close()
        await self._servers.pop(node).stop(0.0)

    async def stop(self) -> None:
        for node in list(self.nodes):
            await self.stop_node(node)

    # ---- what the run made ----

    def grow(self, num_records: int) -> None:
        for _ in range(num_records):
            root = state_root(self.blocks_after(self.head_round)) if self.head_round else ""
            made = following(self.nodes[0], OTHER, state_root=root, updates=self.updates_of(self.head_round + 1))
            for node in self.nodes:
                node.chain.append(made)
            self.head_round += 1

    def blocks_after(self, round: int) -> tuple[BlockName, ...]:
        return tuple(
            BlockName(block.id, _name(self._content(round, block.id, size)), size)
            for block, size in ((block, self._layout.state_bytes(block)) for block in self._layout.state_blocks)
        )

    def snapshot(self, round: int) -> Snapshot:
        return Snapshot(round, self.blocks_after(round))

    def updates_of(self, round: int) -> tuple[Update, ...]:
        return tuple(
            Update(block.id, _name(self._update(round, block.id)), len(self._update(round, block.id)), _BY, ())
            for block in self._layout.blocks[:3]
        )

    def give_snapshot(self, node: Node, *rounds: int) -> None:
        """Let a node have these and offer them, as a veteran does."""
        for round in rounds:
            for name in self.blocks_after(round):
                node.blobs.put(self._content(round, name.block, name.size_bytes))
        snapshots = tuple(self.snapshot(round) for round in sorted(rounds, reverse=True))
        node.list_snapshots = lambda: snapshots

    def give_updates(self, node: Node, rounds: Iterable[int]) -> None:
        for round in rounds:
            for update in self.updates_of(round):
                node.blobs.put(self._update(round, update.block))

    def take_everything(self, node: Node) -> None:
        """It is there, and has nothing any more."""
        for name in list(node.blobs.names()):
            node.blobs.remove(name)
        node.list_snapshots = tuple

    @property
    def _layout(self) -> Layout:
        return self.nodes[0].layout

    def _content(self, round: int, block: str, size_bytes: int) -> bytes:
        return random.Random(f"state {round} {block}").randbytes(size_bytes)

    def _update(self, round: int, block: str) -> bytes:
        return random.Random(f"update {round} {block}").randbytes(700)


_BY = (Contributor(OTHER.peer_id, 10, 1.0, 1.0),)


def _name(content: bytes) -> BlobName:
    return name_of(digests_of(content))


class CheckingTrainer:
    """Stands for the host of a trainer and the process in it: fails when a blob is not what its name says."""

    def __init__(self, node: Node, world: World) -> None:
        self.round = -1
        self.loaded: list[int] = []
        self.applied: list[int] = []
        self._node = node
        self._world = world

    def get(self) -> "CheckingTrainer":
        return self

    async def load_state(self, round: int, blocks: tuple[BlockName, ...]) -> str:
        for block in blocks:
            self._check(block.blob)
        self.round = round
        self.loaded.append(round)
        return state_root(blocks)

    async def apply_record(self, content: bytes, keep_snapshot: bool) -> RecordApplied:
        record = SealedRecord.from_bytes(content).record
        if self.round != record.round - 1:
            raise ChildFailed(f"the state is that of round {self.round}")
        for update in record.updates:
            self._check(update.blob)
        self.round = record.round
        self.applied.append(record.round)
        if keep_snapshot:
            self._world.give_snapshot(self._node, record.round)
        blocks = self._world.blocks_after(record.round)
        return RecordApplied(state_root(blocks), blocks if keep_snapshot else ())

    def _check(self, name: str) -> None:
        if name_of(digests_of(self._node.blobs.read(name))) != name:
            raise ChildFailed(f"blob {name} is not what its name says")


class Joiner:
    """A node that catches up with its chain."""

    def __init__(self, node: Node, world: World) -> None:
        self.node = node
        self.trainer = CheckingTrainer(node, world)
        self.replica = Replica(node, self.trainer)  # type: ignore[arg-type]
        node.list_snapshots = lambda: self.replica.snapshots

    async def catch_up(self) -> None:
        await self.replica.catch_up(lambda _why: None)


@contextlib.contextmanager
def impatient(*nodes: Node, seconds: float = 1.0) -> Iterator[None]:
    """Where what they want is nowhere to be had, they need not wait for long."""
    for node in nodes:
        node.fetcher._means.stall_seconds = seconds
    yield
    for node in nodes:
        node.fetcher._means.stall_seconds = STALL_SECONDS


def flip_a_byte(node: Node, name: str, at: int = 100) -> None:
    path = node.blobs.path(name)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@contextlib.asynccontextmanager
async def world_of(folder: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[World]:
    world = World(folder, manifest, organizer)
    try:
        yield world
    finally:
        await world.stop()
