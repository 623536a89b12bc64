"""A few real DHT nodes of `bench bootstrap`, through which simulated volunteers keep their entries."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from spes_peer.bench.crowd import Figures
from spes_peer.exchange.introduction import Introduction
from spes_peer.identity import Identity
from spes_peer.membership.directory import Directory
from spes_peer.membership.entries import sign_entry
from spes_peer.ports import choose_ports
from spes_peer.process import Child
from spes_peer.run.peers import Claim, PeerState, Role
from spes_peer.wire import convert
from spes_peer.wire.children_pb2 import Dictionary, EntryStored, ReadDictionary, StoreEntry

_LOOPBACK = "127.0.0.1"
_CALL_SECONDS = 60.0


class CrowdedNode:
    """A DHT node that stores for many: in a run each of them has its own."""

    def __init__(self, child: Child, introduction: Introduction, figures: Figures) -> None:
        self._child = child
        self._introduction = introduction
        self._figures = figures

    async def store(self, identity: Identity) -> None:
        """What a volunteer stores every beat: its entry and its claim, about as long as real ones."""
        entry = dataclasses.replace(
            self._introduction.entry,
            peer_id=identity.peer_id,
            role=Role.VOLUNTEER,
            state=PeerState.ONLINE,
            name=identity.peer_id[-8:],
            dht_addresses=(),  # or everybody would dial the bootstrap's in their name
        )
        for dictionary, value in (("peers", entry), ("claims", Claim((0,), time.time()))):
            content, expires_at = (
                convert.encode(value),
                time.time() + self._introduction.manifest.timing.dht_ttl_seconds,
            )
            request = StoreEntry(
                dictionary=dictionary,
                peer_id=identity.peer_id,
                value=content,
                expires_at=expires_at,
                signature=sign_entry(identity, dictionary, self._introduction.run_id, content, expires_at),
            )
            await self._figures.timed("DHT store", self._child.call(request, EntryStored, _CALL_SECONDS))

    async def read(self) -> int:
        """Everybody's entries, as each volunteer reads them every beat; how many."""
        request = ReadDictionary(dictionary="peers")
        found = await self._figures.timed("DHT lookup of all", self._child.call(request, Dictionary, _CALL_SECONDS))
        return len(found.entries) if found is not None else 0


@asynccontextmanager
async def dht_nodes(
    count: int, folder: Path, introduction: Introduction, figures: Figures
) -> AsyncIterator[Sequence[CrowdedNode]]:
    """So many, joined through the bootstrap node's."""
    async with AsyncExitStack() as stack:
        nodes = []
        for number in range(count):
            directory = await Directory.start(
                identity=Identity.generate(),
                run_id=introduction.run_id,
                host=_LOOPBACK,
                port=choose_ports(_LOOPBACK, 0).dht,
                initial_peers=introduction.entry.dht_addresses,
                timing=introduction.manifest.timing,
                folder=folder / f"dht{number}",
            )
            stack.push_async_callback(directory.close)
            assert directory.child is not None
            nodes.append(CrowdedNode(directory.child, introduction, figures))
        yield nodes


async def keep_stored(nodes: Sequence[CrowdedNode], identities: Sequence[Identity], beat_seconds: float) -> None:
    """Each stores once a beat, evenly over it, for ever; who falls behind goes on as fast as may be."""

    async def through(node: CrowdedNode, own: Sequence[Identity]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_at = loop.time()
            for number, identity in enumerate(own):
                await node.store(identity)
                await asyncio.sleep(began_at + (number + 1) * beat_seconds / len(own) - loop.time())

    async with asyncio.TaskGroup() as tasks:
        for number, node in enumerate(nodes):
            tasks.create_task(through(node, identities[number :: len(nodes)]))
