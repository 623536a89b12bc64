"""Connections: pinned, dialled on whatever path works, and dialled again after a failure."""

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from exchange_nodes import Node, eventually, running

from spes_peer.errors import BadMessage, Unreachable
from spes_peer.exchange import connections as module
from spes_peer.exchange.connections import Connections, Way, open_channel
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.link import Link
from spes_peer.identity import Identity, PeerId, TlsIdentity
from spes_peer.ports import is_on_the_internet
from spes_peer.wire.peer_pb2 import FetchRequest, HaveRequest, RecordsRequest

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


async def test_the_round_trip_is_that_of_the_last_answered_call_that_needs_no_work(nodes: list[Node]) -> None:
    caller, peer = nodes[1].connections, nodes[0].peer_id
    assert caller.round_trip_seconds(peer) == 0.0
    link = await caller.to(peer)
    assert caller.round_trip_seconds(peer) == 0.0
    await link.call(link.stub.Have, HAVE, 5.0, needs_work=True)
    assert caller.round_trip_seconds(peer) == 0.0
    await link.call(link.stub.Have, HAVE, 5.0)
    measured = caller.round_trip_seconds(peer)
    assert 0 < measured < 5.0
    with pytest.raises(BadMessage):
        await link.call(link.stub.Have, HaveRequest(name="x"), 5.0)
    assert caller.round_trip_seconds(peer) == measured
    caller.drop(peer)
    assert caller.round_trip_seconds(peer) == 0.0


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


class Roads:
    """A caller, and a peer whose tunnels go through a relay, or directly; its address may be dead."""

    RELAY = Identity.from_seed(b"\x31" * 32).peer_id
    CIRCUIT = f"/ip4/192.0.2.1/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/x"

    def __init__(self, folder: Path, peer: Node, dead_port: int) -> None:
        self.peer = peer
        self.relay: PeerId | None = self.RELAY
        self.dead = f"127.0.0.1:{dead_port}"
        self.caller = Node(folder / "caller")
        self.caller.connections = Connections(
            self.caller.signer, self.caller.traffic, self._open_tunnel, relay_of=lambda _: self.relay
        )
        self.connections = self.caller.connections

    async def _open_tunnel(self, peer_id: str, addresses: tuple[str, ...]) -> Path:
        return self.peer.unix_path

    def announce(self, grpc: list[str], libp2p: list[str]) -> None:
        self.connections.update_entry(self.peer.entry(grpc, libp2p))

    async def link(self) -> Link:
        return await self.connections.to(self.peer.peer_id)

    @property
    def way(self) -> Way:
        return self.connections.way_to(self.peer.peer_id)

    async def improve(self) -> None:
        self.connections._peers[self.peer.peer_id].improve_at = 0.0
        await self.connections.improve()


@pytest.fixture
async def roads(tmp_path: Path, nodes: list[Node], dead_port: int) -> AsyncIterator[Roads]:
    made = Roads(tmp_path, nodes[0], dead_port)
    yield made
    await made.caller.stop()


async def test_why_calls_go_through_a_relay_is_told(roads: Roads) -> None:
    assert roads.way == Way(None, None, "")
    roads.announce([], [Roads.CIRCUIT])
    await roads.link()
    assert roads.way.relay == Roads.RELAY
    assert "it announces none" in roads.way.why
    roads.announce([roads.dead], [Roads.CIRCUIT])
    await roads.link()
    assert roads.way.transport == "libp2p"
    assert roads.way.why.startswith("its address does not answer here: ipv4:127.0.0.1:")


async def test_calls_move_up_when_an_address_answers_and_those_under_way_go_on(roads: Roads) -> None:
    roads.announce([roads.dead], [Roads.CIRCUIT])
    old = await roads.link()
    call = old.stub.Attend(metadata=old.metadata())
    await call.wait_for_connection()
    await roads.improve()
    assert await roads.link() is old
    async with contextlib.AsyncExitStack() as stack:
        # what could not be dialled can be now: its address did not change
        server = await asyncio.start_server(
            lambda reader, writer: _join(reader, writer, port_of(roads.peer)), "127.0.0.1", int(roads.dead[10:])
        )
        stack.callback(server.close)
        await roads.connections.improve()
        assert await roads.link() is old  # not so soon
        await roads.improve()
        assert roads.way == Way("grpc", None, "its address answers")
        assert await roads.link() is not old
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await roads.connections.close()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while content := await source.read(65_536):
                target.write(content)
        target.close()

    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


async def test_a_tunnel_without_a_relay_takes_the_place_of_one_with_a_relay(roads: Roads) -> None:
    roads.announce([], [Roads.CIRCUIT, "/ip4/192.0.2.2/tcp/1/p2p/x"])
    old = await roads.link()
    await roads.improve()
    assert await roads.link() is old
    roads.relay = None
    await roads.improve()
    assert await roads.link() is not old
    assert roads.way.transport == "libp2p"
    assert roads.way.relay is None


async def test_calls_go_through_a_hole_as_soon_as_it_is_punched(roads: Roads) -> None:
    roads.announce([], [Roads.CIRCUIT])
    old = await roads.link()
    await roads.connections.improve()
    assert await roads.link() is old
    roads.relay = None
    await roads.connections.improve()
    new = await roads.link()
    assert new is not old
    assert roads.way.relay is None
    roads.announce([], [Roads.CIRCUIT, "/ip4/192.0.2.2/tcp/1/p2p/x"])
    assert await roads.link() is new


async def test_a_link_through_a_relay_stands_until_its_peer_is_at_that_relay_no_more(roads: Roads) -> None:
    roads.announce([], [Roads.CIRCUIT])
    link = await roads.link()
    another = Roads.CIRCUIT.replace(Roads.RELAY, Identity.from_seed(b"\x32" * 32).peer_id)
    roads.announce([], [another, Roads.CIRCUIT])
    assert await roads.link() is link
    roads.announce([], [another])
    assert await roads.link() is not link


async def test_in_a_run_on_the_internet_nobody_is_sent_into_a_private_network(
    tmp_path: Path, nodes: list[Node]
) -> None:
    tunnels: list[tuple[str, ...]] = []

    async def open_tunnel(peer_id: str, addresses: tuple[str, ...]) -> Path:
        tunnels.append(addresses)
        return nodes[0].unix_path

    caller = Node(tmp_path / "caller")
    connections = Connections(caller.signer, caller.traffic, open_tunnel, may_dial=is_on_the_internet)
    private = [f"127.0.0.1:{port_of(nodes[0])}", f"localhost:{port_of(nodes[0])}"]
    connections.update_entry(nodes[0].entry(private))
    with pytest.raises(Unreachable, match="is a private address"):
        await connections.to(nodes[0].peer_id)
    fair = ("/ip4/11.77.0.2/tcp/1/p2p/x", "/dns/a.name/tcp/1/p2p/x", Roads.CIRCUIT.replace("192.0.2.1", "11.77.0.3"))
    connections.update_entry(nodes[0].entry(private, ["/ip4/192.168.1.1/tcp/1/p2p/x", *fair, "/ip6/::1/tcp/1/p2p/x"]))
    assert (await connections.to(nodes[0].peer_id)).transport == "libp2p"
    assert tunnels == [fair]
    await connections.close()


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


@pytest.mark.parametrize("answers", [True, False])
async def test_who_is_forgotten_while_it_is_dialled_is_unreachable_and_no_connection_is_left(
    nodes: list[Node], dead_port: int, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, peer = nodes[1], nodes[0]
    opened: list[grpc.aio.Channel] = []

    def forget(_ip_address: str) -> bool:
        connections.forget(peer.peer_id)
        return True

    async def open_and_note(*arguments: Any) -> grpc.aio.Channel:
        opened.append(await open_channel(*arguments))
        return opened[-1]

    monkeypatch.setattr(module, "open_channel", open_and_note)
    connections = Connections(caller.signer, caller.traffic, may_dial=forget)
    connections.update_entry(peer.entry(None if answers else [f"127.0.0.1:{dead_port}"]))
    with pytest.raises(Unreachable, match="was forgotten" if answers else "refuses"):
        await connections.to(peer.peer_id)
    assert [channel.get_state() for channel in opened] == [grpc.ChannelConnectivity.SHUTDOWN] * answers


async def test_the_names_of_a_peer_are_looked_up_at_the_same_time(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[str] = []
    are_all = asyncio.Event()

    async def look_up(host: str, _port: int) -> list[str]:
        under_way.append(host)
        if len(under_way) == 4:
            are_all.set()
        await are_all.wait()
        return ["127.0.0.1"] if host == "a.name" else []

    monkeypatch.setattr(module, "look_up", look_up)
    names = [f"{letter}.name:{port_of(nodes[0])}" for letter in "abcd"]
    nodes[1].connections.update_entry(nodes[0].entry(names))
    assert (await nodes[1].connections.to(nodes[0].peer_id)).transport == "grpc"


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
    async with asyncio.timeout(30):
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


async def test_calls_end_to_an_address_where_their_peer_is_no_more_and_those_to_one_that_it_keeps_go_on(
    nodes: list[Node],
) -> None:
    connections, other = nodes[1].connections, nodes[0]
    link = await connections.to(other.peer_id)
    call = link.stub.Attend(metadata=link.metadata())
    await call.wait_for_connection()
    for addresses in (["127.0.0.1:1", f"127.0.0.1:{port_of(other)}"], [], ["a.name:1"]):
        connections.update_entry(other.entry(addresses))
        await connections.improve()
        assert not call.done()
    connections.update_entry(other.entry())
    link = await connections.to(other.peer_id)
    gone = link.stub.Attend(metadata=link.metadata())
    await gone.wait_for_connection()
    connections.update_entry(other.entry([f"127.0.0.2:{port_of(other)}"]))
    await connections.improve()
    await eventually(gone.done)
    assert not call.done()


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


async def test_who_calls_on_a_link_that_was_closed_gets_an_error_of_ours(nodes: list[Node]) -> None:
    link = await nodes[1].connections.to(nodes[0].peer_id)
    await nodes[1].connections.close()
    for answer in (
        link.call(link.stub.Have, HAVE, 5.0),
        anext(link.stream(link.stub.Records, RecordsRequest(), 5.0)),
        anext(link.fetch(FetchRequest(name="0" * 64), 5.0)),
    ):
        with pytest.raises(Unreachable, match="was closed"):
            await answer


async def test_a_peer_nobody_knows_is_unreachable(nodes: list[Node]) -> None:
    with pytest.raises(Unreachable, match="no address"):
        await nodes[1].connections.to(Identity.generate().peer_id)
    with pytest.raises(Unreachable, match="no address"):
        await nodes[1].connections.to(nodes[1].peer_id)
