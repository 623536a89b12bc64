"""Peers in one home: who is told where a peer is there, and what is dialled."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from exchange_nodes import Node

from spes_peer.exchange import home_network
from spes_peer.exchange.addresses import Endpoint
from spes_peer.exchange.connections import Connections, Way
from spes_peer.exchange.dial_back import DialBack
from spes_peer.exchange.home_network import HomeNetwork, is_near, own_networks
from spes_peer.exchange.reach import Findings, Reach
from spes_peer.exchange.server import PeerServer
from spes_peer.identity import Identity
from spes_peer.ports import Ports
from spes_peer.wire.peer_pb2 import DialBackRequest, HaveRequest

OUTSIDE = "11.77.1.2"
NETWORKS = ["192.168.1.7/255.255.255.0"]
CALLER = Identity.generate().peer_id
RELAY = Identity.generate().peer_id


def reach(observed: str = OUTSIDE, **changes: Any) -> Reach:
    settings = {"own_host": "192.168.1.7", "ports": Ports(4510, 4511, 4512), "certificate": b"", "is_public": True}
    found = Findings({"grpc": (), "libp2p": (), "dht": ()}, "", frozenset([observed]) if observed else frozenset())
    return Reach(**{**settings, "findings": found, **changes})


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (Endpoint("192.168.1.9", 4510), True),
        (Endpoint("192.168.1.7", 4513), True),  # a second volunteer on this machine
        (Endpoint("192.168.2.9", 4510), False),
        (Endpoint("192.168.1.9", 1023), False),
        (Endpoint("11.77.1.2", 4510), False),
        (Endpoint("127.0.0.1", 4510), False),
        (Endpoint("printer.local", 4510), False),
        (Endpoint("fd00::9", 4510), False),
    ],
)
def test_nothing_is_dialled_but_a_private_address_of_our_own_network(endpoint: Endpoint, expected: bool) -> None:
    assert is_near(endpoint, NETWORKS) is expected
    assert not is_near(endpoint, [])
    if not expected and endpoint.host != "192.168.2.9":
        assert not is_near(endpoint, ["0.0.0.0/0.0.0.0"])


def test_the_network_of_an_address_is_the_machines_own() -> None:
    assert own_networks("127.0.0.1") == ["127.0.0.1/255.0.0.0"]
    assert own_networks("192.0.2.1") == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([f"{OUTSIDE}:4510"], True),
        (["nonsense", f"{OUTSIDE}:1"], True),
        (["11.77.1.3:4510"], False),
        ([":4510"], False),
        (["192.168.1.9:4510"], False),
        ([], False),
    ],
)
async def test_the_address_at_home_is_told_to_who_is_seen_where_we_are_and_calls_through_a_tunnel(
    asked: list[str], told: bool
) -> None:
    dial_back = DialBack(home_address=HomeNetwork(reach()).address_for)
    request = DialBackRequest(grpc_addresses=asked)
    assert (await dial_back.answer(CALLER, "", request)).home_address == ("192.168.1.7:4510" if told else "")
    assert not (await dial_back.answer(CALLER, OUTSIDE, DialBackRequest(other_addresses=[]))).home_address


@pytest.mark.parametrize(
    "changes",
    [
        {"is_public": False},
        {"has_inbound": False},
        {"own_host": "11.77.0.3"},
        {"findings": None},
        {"observed": "192.168.1.7"},
        {"observed": ""},
    ],
)
def test_who_is_in_no_home_tells_nothing_and_asks_nobody(changes: dict[str, Any]) -> None:
    home = HomeNetwork(reach(**changes))
    assert home.address_for([f"{OUTSIDE}:4510", "192.168.1.7:4510"]) == ""
    assert not home.may_be_asked(CALLER)
    assert HomeNetwork(reach()).may_be_asked(CALLER)


class Pair:
    """A caller, and a peer that it reaches through a relay, and that says to be in the same home."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.says = ""
        self.seconds = 0.0
        self.peer, self.caller = Node(folder / f"peer{number}"), Node(folder / f"caller{number}")
        self.connections = Connections(
            self.caller.signer, self.caller.traffic, self._open_tunnel, relay_of=lambda _: RELAY
        )
        self.connections.neighbours = HomeNetwork(reach(), lambda _own: NETWORKS, lambda: self.seconds)

    @property
    def here(self) -> str:
        """Where the peer really is."""
        assert self.peer.server is not None
        return f"127.0.0.1:{self.peer.server.port}"

    async def start(self) -> None:
        peer = self.peer
        peer.server = await PeerServer.start(
            peer, peer.holdings, peer.tls, "127.0.0.1:0", peer.unix_path, peer.traffic, home_address=lambda _: self.says
        )
        self.connections.update_entry(peer.entry([], [f"/ip4/192.0.2.1/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/x"]))

    async def _open_tunnel(self, peer_id: str, addresses: tuple[str, ...]) -> Path:
        return self.peer.unix_path

    async def way(self) -> Way:
        """How calls go after a look for a better way."""
        await self.connections.to(self.peer.peer_id)
        await self.connections.improve()
        return self.connections.way_to(self.peer.peer_id)

    async def stop(self) -> None:
        await self.connections.close()
        await self.caller.stop()
        await self.peer.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def loopback_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_network, "is_near", lambda _endpoint, _networks: True)


@pytest.mark.usefixtures("loopback_is_near")
async def test_a_peer_in_the_same_home_is_called_there_and_not_through_the_relay(pair: Pair) -> None:
    pair.says = pair.here
    assert await pair.way() == Way("grpc", None, "it answers in the same home network")
    link = await pair.connections.to(pair.peer.peer_id)
    await link.call(link.stub.Have, HaveRequest(name="0" * 64), 5.0)


@pytest.mark.usefixtures("loopback_is_near")
async def test_another_node_at_that_address_is_not_the_peer(pair: Pair, tmp_path: Path) -> None:
    other = Pair(tmp_path, 1)
    await other.start()
    pair.says = other.here
    assert (await pair.way()).relay == RELAY
    await other.stop()


async def test_who_names_an_address_elsewhere_has_nobody_dialled(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.2)
        for pair.says in (f"127.0.0.1:{elsewhere.getsockname()[1]}", "unix:/tmp/x:1", "x" * 100_000, "192.168.1.9:80"):
            assert (await pair.way()).relay == RELAY
            pair.seconds += 900.0
        with pytest.raises(TimeoutError):
            elsewhere.accept()


@pytest.mark.usefixtures("loopback_is_near")
async def test_a_peer_is_asked_ever_more_rarely(pair: Pair) -> None:
    neighbours = pair.connections.neighbours
    assert isinstance(neighbours, HomeNetwork)
    for pause_seconds in (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 900.0, 900.0):
        assert (await pair.way()).relay == RELAY
        pair.seconds += pause_seconds - 1.0
        assert not neighbours.may_be_asked(pair.peer.peer_id)
        pair.seconds += 1.0
    pair.says = pair.here
    assert (await pair.way()).transport == "grpc"


@pytest.mark.usefixtures("loopback_is_near")
async def test_however_many_lie_an_address_a_minute_is_dialled(pair: Pair) -> None:
    pair.says = pair.here
    neighbours = pair.connections.neighbours
    assert isinstance(neighbours, HomeNetwork)
    link = await pair.connections.to(pair.peer.peer_id)
    assert [await neighbours.address_of(link) is not None for _ in range(20)] == [True] * 4 + [False] * 16
    pair.seconds = 60.0
    assert [await neighbours.address_of(link) is not None for _ in range(2)] == [True, False]
