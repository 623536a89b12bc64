"""Real nodes of one run in one process, each with a real server on loopback, and records that they all have signed."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rounds_swarm import changed, genesis

from spes_peer.errors import Unreachable
from spes_peer.exchange.server import PeerServer
from spes_peer.folder import StateFolder
from spes_peer.identity import Identity
from spes_peer.node import Node, NodeSettings
from spes_peer.ports import Ports
from spes_peer.rounds.admission import Seat
from spes_peer.rounds.proposal import next_record, untrained_findings
from spes_peer.run.certificates import sign_genesis
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, sign_manifest
from spes_peer.run.peers import PeerEntry, Role
from spes_peer.run.records import CertifiedRecord, DataRange, Record, RecordSignature, RosterEntry, SealedRecord
from spes_peer.run.signed import Signer

TIMING = {
    "heartbeat_seconds": 0.1,
    "fetch_stall_seconds": 0.3,
    "round_grace_seconds": 0.5,
    "coordinator_timeout_seconds": 1.2,
    "stall_timeout_seconds": 2.0,
}
STALL_SECONDS = 15.0
SMALL = {"d_model": 16, "num_layers": 1, "num_experts": 4, "expert_hidden": 32, "sequence_length": 16}


def small(manifest: Manifest) -> Manifest:
    """Seven blocks, one for each expert."""
    return changed(changed(manifest, "model", **SMALL), "sync", block_elements=4096, merge_warmup_steps=0)


class RunNodes:
    """Nodes that know each other. Their identities come from seeds, in the order in which they are made; the first is
    the bootstrap node that record 0 names."""

    def __init__(
        self, folder: Path, manifest: Manifest, organizer: Identity, timing: Mapping[str, float] | None = None
    ) -> None:
        self.nodes: list[Node] = []
        self.identities = [Identity.from_seed(bytes([100 + number]) * 32) for number in range(8)]
        self._folder = folder
        self._manifest = small(changed(manifest, "timing", **{**TIMING, **(timing or {})}))
        self._organizer = organizer
        self._servers: dict[Node, PeerServer] = {}

    def make(self, number: int, has_genesis: bool = True) -> Node:
        """With record 0; again for another start on the same folder."""
        folder = StateFolder(self._folder / f"n{number}")
        folder.identity_key.write_text(self.identities[number].seed.hex())
        role = Role.BOOTSTRAP if number == 0 else Role.VOLUNTEER
        settings = NodeSettings(role, f"node {number}", "127.0.0.1", (), Ports(0, 0, 0), inbound=True)
        node = Node(folder, sign_manifest(self._manifest, self._organizer), settings)
        # More than a manifest may have: only who never answers is silent for so long, also on a busy machine.
        timing = node.manifest.timing.model_copy(update={"fetch_stall_seconds": STALL_SECONDS})
        node.manifest = node.manifest.model_copy(update={"timing": timing})
        if node.chain.head is None and has_genesis:
            zero = dataclasses.replace(
                genesis(node.layout), run_id=node.run_id, candidates=(self.identities[0].peer_id,)
            )
            node.chain.append(sign_genesis(zero, self._organizer, node.run_id))
        return node

    async def start(self, node: Node) -> Node:
        """Let it serve, and all know where."""
        server = await PeerServer.start(
            node, node.holdings, node.tls, "127.0.0.1:0", node.folder.peer_socket, node.traffic
        )
        self._servers[node] = server
        node.connections.update_entry(self.entry(node))  # a coordinator attends itself
        for other in self.nodes:
            other.take_entry(self.entry(node))
            node.take_entry(self.entry(other))
        self.nodes.append(node)
        return node

    def entry(self, node: Node) -> PeerEntry:
        return dataclasses.replace(node.entry(), grpc_addresses=(f"127.0.0.1:{self._servers[node].port}",))

    async def stop(self, node: Node) -> None:
        """As if its process were killed."""
        self.nodes.remove(node)
        await node.connections.close()
        await self._servers.pop(node).stop(0.0)

    async def separate(self, one: Node, other: Node) -> None:
        """From now on `one` has no connection to `other`, and cannot dial it; the other way it goes on."""
        with contextlib.suppress(Unreachable):
            link = await one.connections.to(other.peer_id)
            one.connections.drop(other.peer_id)
            await link.channel.close(None)
        self.cut(one, other)

    def cut(self, one: Node, other: Node) -> None:
        """From now on `one` cannot dial `other`."""
        one.connections.update_entry(dataclasses.replace(self.entry(other), grpc_addresses=("127.0.0.1:1",)))

    def reconnect(self, one: Node, other: Node) -> None:
        one.connections.update_entry(self.entry(other))

    # ---- records by hand ----

    def following(self, previous: SealedRecord, members: Sequence[int], **changes: Any) -> Record:
        """Opens a round of these members now; the bootstrap node comes first, then they, in order of their numbers."""
        peers = sorted((self.identities[number] for number in members), key=lambda one: one.peer_id)
        first = previous.record.next_position
        starts = itertools.count(first, 8)
        roster = tuple(
            RosterEntry(peer.peer_id, 1, (index % 4,), (DataRange(start, start + 8),), 1)
            for index, (peer, start) in enumerate(zip(peers, starts, strict=False))
        )
        record = dataclasses.replace(
            previous.record,
            round=previous.round + 1,
            previous_hash=previous.hash,
            updates=(),
            roster=roster,
            genesis=(),
            candidates=(self.identities[0].peer_id, *(self.identities[number].peer_id for number in members)),
            next_position=first + 8 * len(roster),
        )
        return dataclasses.replace(record, **changes)

    def opened(
        self,
        head: SealedRecord,
        members: Sequence[int],
        layout: Layout,
        deadline_in_seconds: float = 60.0,
        **changes: Any,
    ) -> Record:
        """The record with which an honest coordinator would open a round of these members now, without updates."""
        seats = sorted(
            (Seat(self.identities[number].peer_id, 1, (number % 4,)) for number in members),
            key=lambda seat: seat.peer_id,
        )
        first, now = self.identities[0].peer_id, time.time()
        speeds = [0.0] * len(seats)
        findings = untrained_findings(head.record)
        record = next_record(head, (), findings, seats, speeds, layout, first, now)
        return dataclasses.replace(record, deadline_at=now + deadline_in_seconds, **changes)

    def signed(
        self, record: Record, signers: Sequence[int], term: int = 0, uncertified: bool = False
    ) -> CertifiedRecord:
        sealed = record.seal()
        word = RecordSignature(sealed.round, term, sealed.hash, uncertified)
        signatures = tuple(Signer(self.identities[number], record.run_id, 1).sign(word) for number in signers)
        return CertifiedRecord(sealed.content, term, signatures)


@contextlib.asynccontextmanager
async def run_nodes(
    folder: Path, manifest: Manifest, organizer: Identity, count: int, timing: Mapping[str, float] | None = None
) -> AsyncIterator[RunNodes]:
    """So many nodes that serve."""
    run = RunNodes(folder, manifest, organizer, timing)
    try:
        for number in range(count):
            await run.start(run.make(number))
        yield run
    finally:
        for node in list(run.nodes):
            await run.stop(node)
