"""Transfers through real relays, on loopback: a relay that dies costs a new circuit, and not the transfer."""

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from exchange_nodes import Node, eventually

from spes_peer.blobs import PIECE_BYTES
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.relay_limits import OF_BOOTSTRAP
from spes_peer.exchange.tunnels import Libp2pNode
from spes_peer.identity import Identity, PeerId
from spes_peer.wire.peer_pb2 import HaveRequest

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
BLOB_BYTES = 24 * PIECE_BYTES
DEADLINE_SECONDS = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: socket paths are limited."""
    with tempfile.TemporaryDirectory(prefix="spes-") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def libp2p(folder: Path, identity: Identity, socket: Path, **roles: object) -> AsyncIterator[Libp2pNode]:
    started = await Libp2pNode.start(
        **{  # type: ignore[arg-type]
            "identity": identity,
            "host": HOST,
            "port": random.randrange(20_000, 32_000),
            "relay": None,
            "relays": (),
            "inbound_socket": socket,
            "folder": folder,
            **roles,
        }
    )
    try:
        yield started
    finally:
        await started.close()


def process_of(node: Libp2pNode) -> psutil.Process:
    """The child behind a node: it listens at the node's port."""
    port = int(node.addresses[0].split("/")[4])
    for child in psutil.Process().children():
        if any(one.laddr.port == port for one in child.net_connections("tcp") if one.status == psutil.CONN_LISTEN):
            return child
    raise AssertionError("no such process")


@pytest.mark.timeout(180)
async def test_a_relay_that_is_killed_in_the_middle_of_a_transfer_is_replaced_and_the_transfer_goes_on(
    folder: Path,
) -> None:
    keys = [Identity.generate() for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        relays = [
            await stack.enter_async_context(
                libp2p(folder / f"r{number}", key, folder / f"r{number}.sock", relay=OF_BOOTSTRAP)
            )
            for number, key in enumerate(keys)
        ]
        source, taker = Node(folder / "s"), Node(folder / "t")
        await source.start(listen=None)
        stack.push_async_callback(source.stop)
        both = tuple(relay.addresses[0] for relay in relays)
        own = await stack.enter_async_context(libp2p(folder / "sl", source.identity, source.unix_path, relays=both))
        calling = await stack.enter_async_context(libp2p(folder / "tl", taker.identity, taker.unix_path))
        await eventually(lambda: len(own.standing_relays) == 2, DEADLINE_SECONDS)

        taker.connections = Connections(
            taker.signer,
            taker.traffic,
            calling.open_tunnel,
            relay_of=lambda peer: PeerId(calling.relay_of(peer)) or None,
        )
        stack.push_async_callback(taker.connections.close)
        taker.fetcher = Fetcher(taker.holdings, taker.connections, stall_seconds=10.0)
        circuits = [address for address in own.addresses if "/p2p-circuit" in address]
        taker.connections.update_entry(source.entry([], circuits))
        content = os.urandom(BLOB_BYTES)
        name = source.store.put(content).name
        fetching = asyncio.create_task(taker.fetcher.fetch(name, BLOB_BYTES, [source.peer_id]))
        await eventually(lambda: taker.traffic.received_bytes > BLOB_BYTES // 4, DEADLINE_SECONDS)
        used = taker.connections.way_to(source.peer_id).relay
        dying = next(relay for relay in relays if relay.addresses[0].endswith(str(used)))
        assert not fetching.done()
        process_of(dying).kill()
        await dying.close()  # or it is back before anybody looks for another
        async with asyncio.timeout(DEADLINE_SECONDS):
            await fetching
        assert taker.store.path(name).read_bytes() == content
        now_used = taker.connections.way_to(source.peer_id).relay
        assert now_used != used
        assert now_used in [key.peer_id for key in keys]
        standing = [str(now_used)]
        await eventually(lambda: [one.rpartition("/")[2] for one in own.standing_relays] == standing, DEADLINE_SECONDS)
        assert taker.traffic.received_bytes < 1.5 * BLOB_BYTES  # what had come was not fetched again


@contextlib.asynccontextmanager
async def behind_one_relay(folder: Path) -> AsyncIterator[tuple[Libp2pNode, Node, Libp2pNode, Node, Libp2pNode]]:
    """A relay; a source that is reached through it alone, and its libp2p node; and the same of a taker."""
    source, taker = Node(folder / "s"), Node(folder / "t")
    async with (
        libp2p(folder / "r", Identity.generate(), folder / "r.sock", relay=OF_BOOTSTRAP) as relay,
        libp2p(folder / "sl", source.identity, source.unix_path, relays=relay.addresses) as own,
        libp2p(folder / "tl", taker.identity, taker.unix_path) as calling,
    ):
        await source.start(listen=None)
        taker.connections = Connections(taker.signer, taker.traffic, calling.open_tunnel)
        taker.fetcher = Fetcher(taker.holdings, taker.connections, stall_seconds=30.0)
        await eventually(lambda: bool(own.standing_relays), DEADLINE_SECONDS)
        taker.connections.update_entry(source.entry([], [one for one in own.addresses if "/p2p-circuit" in one]))
        try:
            yield relay, source, own, taker, calling
        finally:
            await taker.connections.close()
            await source.stop()


@pytest.mark.timeout(180)
async def test_a_transfer_through_one_relay_goes_on_when_that_starts_again(folder: Path) -> None:
    async with behind_one_relay(folder) as (relay, source, own, taker, _):
        blob = source.store.put(os.urandom(64 * PIECE_BYTES))
        fetching = asyncio.create_task(taker.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id]))
        await eventually(lambda: taker.traffic.received_bytes > blob.size_bytes // 4, DEADLINE_SECONDS)
        assert not fetching.done()
        process_of(relay).kill()  # it comes back with its key and its port
        await eventually(lambda: not own.standing_relays, DEADLINE_SECONDS)
        await eventually(lambda: bool(own.standing_relays), DEADLINE_SECONDS)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await fetching
        assert taker.store.read(blob.name) == source.store.read(blob.name)
        assert taker.traffic.received_bytes < 1.25 * blob.size_bytes  # what had come was not fetched again


@pytest.mark.timeout(180)
async def test_a_peer_that_connects_again_and_again_through_a_relay_gets_through_each_time(folder: Path) -> None:
    async with behind_one_relay(folder) as (_, source, _own, taker, calling):
        for number in range(20):
            if number % 7 == 6:  # with another connection to the relay, and another circuit
                process_of(calling).kill()
                await eventually(lambda: not calling.addresses, DEADLINE_SECONDS)
                await eventually(lambda: bool(calling.addresses), DEADLINE_SECONDS)
            await taker.connections.close()
            link = await taker.connections.to(source.peer_id)
            await link.call(link.stub.Have, HaveRequest(name="0" * 64), 10.0)
