"""Dialling back: what leads to the caller is found out, and nobody is made to dial anybody else."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from exchange_nodes import Node, running

from spes_peer.errors import BadMessage, Unreachable
from spes_peer.exchange import dial_back
from spes_peer.exchange.dial_back import Allowance, DialBack, DialledBack, ask_dial_back, caller_ip
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.limits import Busy
from spes_peer.identity import PeerId, TlsIdentity
from spes_peer.wire.peer_pb2 import DialBackRequest

CALLER = PeerId("12D3KooWcaller")
HERE = "127.0.0.1"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with running(tmp_path, Holdings, Holdings) as both:
        yield both


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """A listener of somebody who has not asked for anything, and who must not be dialled."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        server.settimeout(0.2)
        yield server


def port_of(node: Node) -> int:
    assert node.server is not None
    assert node.server.port is not None
    return node.server.port


def closed_port() -> int:
    with socket.create_server((HERE, 0)) as free:
        return int(free.getsockname()[1])


async def dialled(nodes: list[Node], *grpc: str, others: tuple[str, ...] = (), certificate: bytes = b"") -> DialledBack:
    """What the first node finds of the second."""
    asker = nodes[1]
    link = await asker.connections.to(nodes[0].peer_id)
    return await ask_dial_back(link, "birch", grpc, others, certificate or asker.tls.certificate_der)


async def test_an_address_that_leads_to_the_caller_is_found_good_and_one_that_does_not_with_the_reason(
    nodes: list[Node],
) -> None:
    port = port_of(nodes[1])
    found = await dialled(nodes, f":{port}", f"{HERE}:{port}", f"localhost:{port}", f":{closed_port()}")
    assert found.witness == "birch"
    assert found.observed == HERE
    assert found.failures[:3] == ("", "", "")
    assert "refuses" in found.failures[3]


async def test_a_port_where_another_node_answers_is_not_the_callers(nodes: list[Node]) -> None:
    found = await dialled(nodes, f":{port_of(nodes[0])}")
    assert "not the node it should be" in found.failures[0]
    mine = await dialled(nodes, f":{port_of(nodes[1])}", certificate=TlsIdentity.generate().certificate_der)
    assert mine.failures[0]


async def test_of_other_listeners_a_connection_is_enough(nodes: list[Node]) -> None:
    found = await dialled(nodes, others=(f":{port_of(nodes[1])}", f":{closed_port()}"))
    assert found.failures[0] == ""
    assert "Connect call failed" in found.failures[1]


async def test_without_an_address_the_caller_hears_where_it_is_seen(nodes: list[Node]) -> None:
    assert await dialled(nodes) == DialledBack("birch", HERE, ())


async def test_nobody_else_is_dialled(nodes: list[Node], elsewhere: socket.socket) -> None:
    port = elsewhere.getsockname()[1]
    addresses = [f"127.0.0.2:{port}", f"127.0.0.2.:{port}", "unix:/tmp/x:1", f"[::ffff:127.0.0.2]:{port}"]
    found = await dialled(nodes, *addresses, others=(f"127.0.0.2:{port}",))
    assert all(found.failures)
    assert f"does not lead to {HERE}" in found.failures[0]
    with pytest.raises(TimeoutError):
        elsewhere.accept()


async def test_a_name_that_leads_to_the_caller_and_elsewhere_is_dialled_at_the_caller_alone(
    nodes: list[Node], elsewhere: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(_host: str, _port: int) -> list[str]:
        return ["127.0.0.2", HERE]

    monkeypatch.setattr(dial_back, "look_up", look_up)
    port = elsewhere.getsockname()[1]
    found = await dialled(nodes, f"a.name:{port_of(nodes[1])}", others=(f"a.name:{port}",))
    assert found.failures[0] == ""
    assert found.failures[1]
    with pytest.raises(TimeoutError):
        elsewhere.accept()


async def test_a_caller_through_a_tunnel_is_not_dialled() -> None:
    reply = await DialBack().answer(CALLER, "", DialBackRequest(other_addresses=[":1"]))
    assert reply.observed == ""
    assert list(reply.failures) == ["you call through a tunnel"]


async def test_many_addresses_bytes_that_are_no_certificate_and_ports_that_are_none_are_refused_by_name() -> None:
    for request, words in (
        (DialBackRequest(other_addresses=[":1"] * 9), "9 addresses to dial"),
        (DialBackRequest(grpc_addresses=[":1"], certificate=b"x" * 5_000), "of 5000 bytes"),
        (DialBackRequest(grpc_addresses=[":1"], certificate=b"none"), "not a certificate"),
    ):
        with pytest.raises(BadMessage, match=words):
            await DialBack().answer(CALLER, HERE, request)
    reply = await DialBack().answer(CALLER, HERE, DialBackRequest(other_addresses=[":0", ":70000", ":x", "", ":-1"]))
    assert all("is not host:port" in failure for failure in reply.failures)


async def test_who_asks_often_is_told_to_wait_and_an_address_with_many_keys_too() -> None:
    now = 0.0
    service = DialBack(lambda: now)
    request = DialBackRequest(other_addresses=[":0"])

    async def asked(caller: str, observed: str) -> bool:
        try:
            await service.answer(PeerId(caller), observed, request)
        except Busy:
            return False
        return True

    assert [await asked("one", HERE) for _ in range(7)] == [True] * 6 + [False]
    assert await asked("two", HERE)
    now = 10.0
    assert await asked("one", HERE)
    assert sum([await asked(f"key {number}", "192.0.2.1") for number in range(100)]) == 48
    assert await asked("three", "192.0.2.2")


async def test_no_more_are_dialled_at_once_than_a_node_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "DIAL_SECONDS", 0.3)
    service = DialBack()
    with socket.create_server((HERE, 0), backlog=1) as silent:
        request = DialBackRequest(
            grpc_addresses=[f":{silent.getsockname()[1]}"], certificate=TlsIdentity.generate().certificate_der
        )
        asked = [service.answer(PeerId(f"key {number}"), HERE, request) for number in range(20)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Busy) for answer in answers) == 4
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 16


def test_what_is_remembered_of_those_that_ask_is_bounded() -> None:
    allowance = Allowance(1, 1e9, lambda: 0.0)
    assert all(allowance.take(str(number)) for number in range(10_000))
    assert not allowance.take("9999")
    assert len(allowance._left) <= 4_096


async def test_a_witness_that_says_too_little_or_something_else_is_not_believed(nodes: list[Node]) -> None:
    link = await nodes[1].connections.to(nodes[0].peer_id)

    class Stub:
        async def DialBack(self, request: object, **_: object) -> object:
            return self.reply

    from spes_peer.wire.peer_pb2 import DialBackReply

    link.stub = Stub()
    for reply in (DialBackReply(observed=HERE), DialBackReply(observed="nonsense", failures=[""])):
        link.stub.reply = reply
        with pytest.raises(BadMessage, match="does not say"):
            await ask_dial_back(link, "birch", [":1"])
    link.stub.reply = DialBackReply(observed="::ffff:1.2.3.4", failures=["a\x1b[31m\nb" + "x" * 999])
    found = await ask_dial_back(link, "birch", [":1"])
    assert found.observed == "1.2.3.4"
    assert found.failures[0].isprintable()
    assert len(found.failures[0]) == 200


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("ipv4:192.0.2.7:4510", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:4510", "2001:db8::7"),
        ("ipv6:[::ffff:192.0.2.7]:4510", "192.0.2.7"),
        ("unix:/run/peer.sock", ""),
        ("unix:", ""),
        ("", ""),
        ("ipv4:nonsense:1", ""),
    ],
)
def test_where_a_call_comes_from_is_read_from_what_grpc_says(said: str, address: str) -> None:
    assert caller_ip(said) == address


async def test_a_node_that_does_not_answer_is_no_witness(nodes: list[Node]) -> None:
    link = await nodes[1].connections.to(nodes[0].peer_id)
    assert nodes[0].server is not None
    await nodes[0].server.stop(0.0)
    with pytest.raises(Unreachable):
        await ask_dial_back(link, "birch", [":1"], (), nodes[1].tls.certificate_der)
