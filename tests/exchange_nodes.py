"""Small nodes with real servers on loopback, for the tests of the exchange."""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path

from spes_peer.blobs import BlobStore
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.connections import Connections, OpenTunnel
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.introduction import Description
from spes_peer.exchange.server import PeerServer
from spes_peer.exchange.traffic import Traffic
from spes_peer.exchange.transfers import Transfers
from spes_peer.identity import Identity, PeerId, TlsIdentity
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.peers import PeerEntry, PeerState, Role
from spes_peer.run.pending import AmendReply
from spes_peer.run.records import CertifiedRecord, Snapshot
from spes_peer.run.signed import Signed, Signer

RUN_ID = b"r" * 32
PATIENT_SECONDS = 15.0
"""For which a source may be silent: only those that never answer are, also on a machine that does much else."""
_TLS = [TlsIdentity.generate() for _ in range(6)]  # as many as there are nodes in one test
_numbers = itertools.count()


class Node:
    """A server and a fetcher of one peer; also the server's host."""

    def __init__(
        self,
        folder: Path,
        holdings: type[Holdings] = Holdings,
        open_tunnel: OpenTunnel | None = None,
        stall_seconds: float = PATIENT_SECONDS,
    ) -> None:
        number = next(_numbers)
        folder.mkdir()
        self.identity = Identity.generate()
        self.peer_id = self.identity.peer_id
        self.run_id = RUN_ID
        self.tls = _TLS[number % len(_TLS)]
        self.signer = Signer(self.identity, RUN_ID, incarnation=1)
        self.traffic = Traffic()
        self.holdings = holdings(BlobStore(folder / "blobs"))
        self.ahead_seconds = 0.0
        self.named: set[PeerId] = set()
        self.heard_times: list[tuple[PeerId, float]] = []
        self.connections = Connections(self.signer, self.traffic, open_tunnel, now=lambda: self.now())
        self.transfers = Transfers()
        self.fetcher = Fetcher(self.holdings, self.connections, stall_seconds, transfers=self.transfers)
        self.unix_path = folder / "peer.sock"
        self.records: list[CertifiedRecord] = []
        self.described: Description | None = None
        self.server: PeerServer | None = None

    @property
    def store(self) -> BlobStore:
        return self.holdings.store

    async def start(self, listen: str | None = "127.0.0.1:0") -> None:
        self.server = await PeerServer.start(
            self, self.holdings, self.tls, listen, self.unix_path, self.traffic, transfers=self.transfers
        )

    def entry(self, grpc_addresses: Sequence[str] | None = None, libp2p_addresses: Sequence[str] = ()) -> PeerEntry:
        if grpc_addresses is None:
            grpc_addresses = [f"127.0.0.1:{self.server.port}"] if self.server and self.server.port else []
        return PeerEntry(
            peer_id=self.peer_id,
            name="node",
            version="0",
            protocol=1,
            role=Role.VOLUNTEER,
            state=PeerState.ONLINE,
            incarnation=1,
            grpc_addresses=tuple(grpc_addresses),
            certificate=self.tls.certificate_der,
            libp2p_addresses=tuple(libp2p_addresses),
            dht_addresses=(),
            max_subsets=1,
            written_at=0.0,
        )

    def describe_run(self, manifest: SignedManifest, **changes: object) -> None:
        """Let the node describe itself as a node of that run; `changes` go into its entry."""
        signer = Signer(self.identity, manifest.run_id, 1)
        entry = dataclasses.replace(self.entry(), **changes)  # type: ignore[arg-type]
        self.described = Description(manifest, signer.sign(entry), 3, self.now())

    def now(self) -> float:
        return time.time() + self.ahead_seconds

    def hears_time(self, peer: PeerId, their_time: float) -> None:
        self.heard_times.append((peer, their_time))

    def names(self, peer: PeerId) -> bool:
        return peer in self.named

    def description(self) -> Description:
        assert self.described is not None
        return self.described

    def records_from(self, round: int) -> Iterable[CertifiedRecord]:
        return self.records[round:]

    def amend(self, brought: Signed | None) -> AmendReply:
        return AmendReply("no organizer's node", None, None)

    def snapshots(self) -> Sequence[Snapshot]:
        return ()

    async def attend(self, caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        """An echo."""
        async for message in incoming:
            send(message)

    async def stop(self) -> None:
        await self.connections.close()
        if self.server is not None:
            await self.server.stop(0.0)


def address_of(node: Node, **changes: str) -> NodeAddress:
    """Where others ask it; with `changes` a wrong one."""
    assert node.server is not None
    assert node.server.port is not None
    return dataclasses.replace(NodeAddress("127.0.0.1", node.server.port, node.peer_id), **changes)  # type: ignore[arg-type]


async def eventually(condition: Callable[[], bool], deadline_seconds: float = 30.0) -> None:
    """Wait for what other tasks or machines bring about, also on a machine that does much else."""
    async with asyncio.timeout(deadline_seconds):
        while not condition():  # noqa: ASYNC110 - nobody signals it
            await asyncio.sleep(0.01)


def introduce(*nodes: Node) -> None:
    """Let every node know every other's entry."""
    for node, other in itertools.permutations(nodes, 2):
        node.connections.update_entry(other.entry())


@contextlib.asynccontextmanager
async def running(
    folder: Path, *holdings: type[Holdings], stall_seconds: float = PATIENT_SECONDS
) -> AsyncIterator[list[Node]]:
    """So many nodes that know each other."""
    nodes = [Node(folder / f"node{index}", kind, stall_seconds=stall_seconds) for index, kind in enumerate(holdings)]
    try:
        for node in nodes:
            await node.start()
        introduce(*nodes)
        yield nodes
    finally:
        for node in nodes:
            await node.stop()
