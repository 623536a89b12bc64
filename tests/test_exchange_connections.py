"""Connections: pinned, dialled on whatever path works, and dialled again after a failure."""

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from exchange_nodes import Node, running

from spes_peer.errors import Unreachable
from spes_peer.exchange.holdings import Holdings
from spes_peer.identity import Identity, TlsIdentity
from spes_peer.wire.peer_pb2 import HaveRequest

HAVE = HaveRequest(name="0" * 64)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with running(tmp_path, Holdings, Holdings) as both:
        yield both


def port_of(node: Node) -> int:
    assert node.server is not None
    assert node.server.port is not None
    return node.server.port


@pytest.fixture
def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def test_a_link_is_kept_and_shared(nodes: list[Node]) -> None:
    links = await asyncio.gather(*(nodes[1].connections.to(nodes[0].peer_id) for _ in range(5)))
    assert len({id(link) for link in links}) == 1
    assert links[0].transport == "grpc"


async def test_a_dead_address_is_passed_over(nodes: list[Node], dead_port: int) -> None:
    addresses = ["unix:/tmp/x", f"127.0.0.1:{dead_port}", f"127.0.0.1:{port_of(nodes[0])}"]
    nodes[1].connections.update_entry(nodes[0].entry(addresses))
    link = await nodes[1].connections.to(nodes[0].peer_id)
    await link.call(link.stub.Have, HAVE, 5.0)


async def test_a_server_with_another_certificate_than_the_entry_names_is_not_the_peer(nodes: list[Node]) -> None:
    entry = dataclasses.replace(nodes[0].entry(), certificate=TlsIdentity.generate().certificate_der)
    nodes[1].connections.update_entry(entry)
    with pytest.raises(Unreachable, match="refuses, or is not the node it should be"):
        await nodes[1].connections.to(nodes[0].peer_id)
    nodes[1].connections.update_entry(dataclasses.replace(entry, certificate=b"none"))
    with pytest.raises(Unreachable, match="not a certificate"):
        await nodes[1].connections.to(nodes[0].peer_id)


async def test_a_tunnel_carries_the_call_when_no_address_does(
    tmp_path: Path, nodes: list[Node], dead_port: int
) -> None:
    async def open_tunnel(peer_id: str, addresses: tuple[str, ...]) -> Path:
        return nodes[0].unix_path

    caller = Node(tmp_path / "caller", open_tunnel=open_tunnel)
    caller.connections.update_entry(nodes[0].entry([f"127.0.0.1:{dead_port}"], ["/ip4/192.0.2.1/p2p-circuit"]))
    link = await caller.connections.to(nodes[0].peer_id)
    assert link.transport == "libp2p"
    await link.call(link.stub.Have, HAVE, 5.0)
    await caller.stop()


async def test_an_unreachable_peer_is_not_dialled_again_at_once_until_it_has_a_new_address(
    nodes: list[Node], dead_port: int
) -> None:
    connections = nodes[1].connections
    connections.update_entry(nodes[0].entry([f"127.0.0.1:{dead_port}"]))
    for reason in ("refuses", "tried again in"):
        with pytest.raises(Unreachable, match=reason):
            await connections.to(nodes[0].peer_id)
    connections.update_entry(nodes[0].entry())
    assert (await connections.to(nodes[0].peer_id)).transport == "grpc"


async def test_an_older_entry_changes_nothing(nodes: list[Node]) -> None:
    connections, peer_id = nodes[1].connections, nodes[0].peer_id
    link = await connections.to(peer_id)
    connections.update_entry(dataclasses.replace(nodes[0].entry([]), incarnation=0))
    assert connections.entry_of(peer_id) == nodes[0].entry()
    assert await connections.to(peer_id) is link


async def test_a_lost_link_is_dropped_and_dialled_again_when_the_peer_is_back(nodes: list[Node]) -> None:
    connections, peer_id, port = nodes[1].connections, nodes[0].peer_id, port_of(nodes[0])
    link = await connections.to(peer_id)
    assert nodes[0].server is not None
    await nodes[0].server.stop(0.0)
    with pytest.raises(Unreachable):
        await link.call(link.stub.Have, HAVE, 5.0)
    with pytest.raises(Unreachable):
        await connections.to(peer_id)
    await nodes[0].start(f"127.0.0.1:{port}")
    async with asyncio.timeout(5):
        while True:
            try:
                again = await connections.to(peer_id)
                break
            except Unreachable:
                await asyncio.sleep(0.05)
    assert again is not link
    await again.call(again.stub.Have, HAVE, 5.0)


async def test_a_dropped_link_does_not_end_the_calls_on_it(nodes: list[Node]) -> None:
    connections, peer_id = nodes[1].connections, nodes[0].peer_id
    link = await connections.to(peer_id)
    call = link.stub.Attend(metadata=link.metadata())
    await call.wait_for_connection()
    connections.drop(peer_id)
    assert await connections.to(peer_id) is not link
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_closing_ends_calls_with_an_error_and_not_with_a_cancellation(nodes: list[Node]) -> None:
    link = await nodes[1].connections.to(nodes[0].peer_id)

    async def attend(*_: object) -> None:
        await asyncio.sleep(30)

    nodes[0].records_from = attend  # type: ignore[assignment,method-assign]
    nodes[0].attend = attend  # type: ignore[method-assign]
    stream = link.stream(lambda _request, metadata: link.stub.Attend(metadata=metadata), HAVE, 30.0)
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.1)
    await nodes[1].connections.close()
    with pytest.raises(Unreachable, match="was closed"):
        await reading


async def test_a_peer_nobody_knows_is_unreachable(nodes: list[Node]) -> None:
    with pytest.raises(Unreachable, match="no address"):
        await nodes[1].connections.to(Identity.generate().peer_id)
    with pytest.raises(Unreachable, match="no address"):
        await nodes[1].connections.to(nodes[1].peer_id)
