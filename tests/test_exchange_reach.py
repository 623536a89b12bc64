"""How others reach a node: what is measured is announced, a private address never to a run on the internet."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from exchange_nodes import Node, eventually, running

from spes_peer import troubles
from spes_peer.errors import BadConfiguration
from spes_peer.exchange import reach as module
from spes_peer.exchange.addresses import Endpoint
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.reach import SERVICES, Door, Findings, Reach, Verdict, doors_given, parse_announced, settle
from spes_peer.ports import Ports

PORTS = Ports(4510, 4511, 4512)
SEEN = Door("", PORTS)
HERE, PUBLIC, OTHER = "127.0.0.1", "11.77.0.3", "11.77.0.4"


def verdict(observed: str, *failing: str, witness: str = "birch", door: Door = SEEN) -> Verdict:
    return Verdict(witness, observed, {(door, one): "it refuses" if one in failing else "" for one in SERVICES})


def grpc(*verdicts: Verdict, is_public: bool = True) -> tuple[str, ...]:
    return tuple(str(endpoint) for endpoint in settle(verdicts, is_public).open["grpc"])


# ---- what witnesses find together ----


def test_what_a_witness_got_through_to_is_announced_each_listener_by_itself() -> None:
    found = settle([verdict(PUBLIC, "libp2p")], True)
    assert found.open == {"grpc": (Endpoint(PUBLIC, 4510),), "libp2p": (), "dht": (Endpoint(PUBLIC, 4512),)}
    assert found.why == "11.77.0.3:4510 answered when birch dialled it back"
    assert found.observed == {PUBLIC}


def test_what_nobody_got_through_to_is_not_announced_and_the_reason_is_given() -> None:
    found = settle([verdict(PUBLIC, "grpc")], True)
    assert not found.open["grpc"]
    assert found.why == "11.77.0.3:4510 did not answer a dial back by birch: it refuses"


def test_one_of_three_witnesses_neither_takes_an_address_away_nor_invents_one() -> None:
    honest = [verdict(PUBLIC), verdict(PUBLIC)]
    assert grpc(*honest, verdict(PUBLIC, "grpc")) == (f"{PUBLIC}:4510",)
    assert grpc(*honest, verdict(OTHER)) == (f"{PUBLIC}:4510",)
    assert grpc(verdict(PUBLIC, "grpc"), verdict(PUBLIC, "grpc"), verdict(PUBLIC)) == ()


def test_a_private_address_counts_in_a_run_at_home_alone() -> None:
    at_home = verdict("192.168.1.7")
    assert grpc(at_home, is_public=False) == ("192.168.1.7:4510",)
    assert grpc(at_home) == ()
    assert "a private address" in settle([at_home], True).why


def test_ports_that_a_router_opened_are_announced_with_its_address() -> None:
    mapped = Door("", Ports(30_000, 30_001, 30_002))
    found = Verdict("birch", PUBLIC, {(mapped, "grpc"): "", (SEEN, "grpc"): "it refuses"})
    assert grpc(found) == (f"{PUBLIC}:30000",)


# ---- what a node announces ----


def made(**changes: Any) -> Reach:
    return Reach(**{"own_host": PUBLIC, "ports": PORTS, "certificate": b"", **changes})


def take(reach: Reach, *verdicts: Verdict) -> Reach:
    reach._take(settle(verdicts, reach.is_public))
    return reach


def test_until_somebody_has_tried_only_an_address_that_the_run_can_have_is_announced() -> None:
    assert made(is_public=True).endpoints("grpc") == (Endpoint(PUBLIC, 4510),)
    assert made(own_host="192.168.1.7").endpoints("grpc") == (Endpoint("192.168.1.7", 4510),)
    hidden = made(own_host="192.168.1.7", is_public=True)
    assert hidden.endpoints("grpc") == ()
    assert hidden.needs_relay
    assert "192.168.1.7 is a private address" in hidden.why


def test_where_this_machine_is_no_more_it_is_not_announced() -> None:
    changes: list[int] = []
    reach = take(made(on_change=lambda: changes.append(1)), verdict(PUBLIC))
    reach.move(OTHER, is_cut=False)
    assert reach.endpoints("grpc") == (Endpoint(PUBLIC, 4510),)  # it is there still, until somebody has looked
    reach.move(OTHER, is_cut=True)
    assert reach.endpoints("grpc") == (Endpoint(OTHER, 4510),)
    assert len(changes) == 2
    hidden = take(made(is_public=True), verdict(PUBLIC))
    hidden.move("192.168.1.7", is_cut=True)
    assert hidden.endpoints("grpc") == ()
    assert hidden.needs_relay


def test_a_port_that_is_none_is_not_announced() -> None:
    assert made(ports=Ports(0, 0, 0)).endpoints("grpc") == ()


def test_a_node_that_nobody_gets_through_to_needs_a_relay_and_one_that_is_dialled_does_not() -> None:
    changes: list[int] = []
    reach = made(is_public=True, on_change=lambda: changes.append(1))
    assert not reach.needs_relay
    take(reach, verdict(PUBLIC, "grpc"))
    assert reach.needs_relay
    assert reach.endpoints("grpc") == ()
    assert reach.endpoints("libp2p") == (Endpoint(PUBLIC, 4511),)
    assert len(changes) == 1
    take(reach, verdict(PUBLIC, "grpc"))
    assert len(changes) == 1
    take(reach, verdict(OTHER))
    assert reach.endpoints("grpc") == (Endpoint(OTHER, 4510),)
    assert not reach.needs_relay
    assert len(changes) == 2


@pytest.mark.parametrize("num_liars", [1, 2])
def test_no_number_of_witnesses_takes_the_relay_from_a_node_to_which_one_did_not_get_through(num_liars: int) -> None:
    liars = num_liars * [verdict(PUBLIC)]
    reach = take(made(is_public=True), verdict(PUBLIC, "grpc"), *liars)
    assert reach.is_confirmed
    assert reach.needs_relay
    assert not take(reach, verdict(PUBLIC), *liars).needs_relay


def test_witnesses_that_see_a_node_at_different_addresses_and_get_through_to_each_agree() -> None:
    assert not take(made(is_public=True), verdict(PUBLIC), verdict("2a01:4f8::7")).needs_relay


def test_who_takes_no_connections_announces_nothing_and_is_relayed() -> None:
    reach = made(has_inbound=False)
    assert all(reach.endpoints(service) == () for service in SERVICES)
    assert reach.needs_relay
    assert "--no-inbound" in reach.why


def test_what_the_owner_gives_is_announced_and_said_to_be_wrong_where_nobody_gets_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(troubles, "board", troubles.Troubles())
    given = doors_given([Endpoint("home.example.org", 7000), Endpoint(PUBLIC, 0)], PORTS)
    reach = made(given=given, is_public=True)
    expected = (Endpoint("home.example.org", 7000), Endpoint(PUBLIC, 4510))
    assert reach.endpoints("grpc") == expected
    assert reach.endpoints("dht") == (Endpoint("home.example.org", 7002), Endpoint(PUBLIC, 4512))
    take(reach, verdict(PUBLIC, "grpc", door=given[0]))
    assert reach.endpoints("grpc") == expected
    assert reach.needs_relay  # too
    assert "nobody gets through" in troubles.board.texts[0]
    assert "home.example.org:7000" in troubles.board.texts[0]
    take(reach, verdict(PUBLIC, door=given[0]))
    assert not troubles.board.texts
    assert not reach.needs_relay


def test_a_bootstrap_node_needs_no_relay_whatever_is_found() -> None:
    assert not take(made(needs_no_relay=True), verdict(PUBLIC, "grpc")).needs_relay


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("203.0.113.7:4510", "203.0.113.7", 4510),
        ("203.0.113.7", "203.0.113.7", 0),
        ("[2001:db8::7]:4510", "2001:db8::7", 4510),
        ("2001:db8::7", "2001:db8::7", 0),
        ("[2001:db8::7]", "2001:db8::7", 0),
        ("home.example.org:4510", "home.example.org", 4510),
        ("home.example.org", "home.example.org", 0),
    ],
)
def test_an_announced_address_has_a_port_or_the_one_that_is_listened_on(text: str, host: str, port: int) -> None:
    assert parse_announced(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text", ["", ":4510", "host:0", "host:70000", "a b:1", "/ip4/1.2.3.4/tcp/1", "[::1]x:3", "1.2.3.4:"]
)
def test_an_address_that_nobody_can_dial_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadConfiguration, match="write HOST:PORT") as refused:
        parse_announced(text)
    assert "\n" not in str(refused.value)


# ---- finding out, with real nodes ----


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with running(tmp_path, Holdings, Holdings, Holdings) as three:
        yield three


def reach_of(node: Node, **changes: Any) -> Reach:
    assert node.server is not None
    assert node.server.port is not None
    port = node.server.port
    settings = {"own_host": HERE, "ports": Ports(port, port, 1), "certificate": node.tls.certificate_der}
    return Reach(**{**settings, **changes})


async def test_a_node_finds_out_from_others_where_it_can_be_dialled(nodes: list[Node]) -> None:
    reach = reach_of(nodes[2])
    assert await reach.measure(nodes[2].connections, {nodes[0].peer_id: "alder", nodes[1].peer_id: "birch"})
    port = reach.ports.grpc
    assert reach.findings is not None
    assert reach.findings.open == {"grpc": (Endpoint(HERE, port),), "libp2p": (Endpoint(HERE, port),), "dht": ()}
    assert reach.is_confirmed


async def test_a_port_at_which_another_answers_is_not_its_own(nodes: list[Node]) -> None:
    reach = reach_of(nodes[2], certificate=nodes[0].tls.certificate_der)
    await reach.measure(nodes[2].connections, {nodes[0].peer_id: "alder"})
    assert not reach.is_confirmed
    assert "did not answer a dial back by alder" in reach.why


async def test_where_nobody_answers_what_was_known_stands(nodes: list[Node]) -> None:
    reach = reach_of(nodes[2])
    await reach.measure(nodes[2].connections, {nodes[0].peer_id: "alder"}, ("grpc",))
    before = reach.findings
    assert nodes[0].server is not None
    await nodes[0].server.stop(0.0)
    assert not await reach.measure(nodes[2].connections, {nodes[0].peer_id: "alder"})
    assert not await reach.measure(nodes[2].connections, {})
    assert reach.findings == before


async def test_a_node_that_is_seen_elsewhere_is_measured_anew(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GLANCE_SECONDS", 0.05)
    changed = asyncio.Event()
    reach = reach_of(nodes[2], on_change=changed.set)
    reach.findings = Findings({service: (Endpoint(OTHER, 1),) for service in SERVICES}, "", frozenset({OTHER}))
    keeping = asyncio.create_task(reach.keep(nodes[2].connections, lambda: {nodes[0].peer_id: "alder"}))
    try:
        async with asyncio.timeout(30):
            await changed.wait()
        assert reach.endpoints("grpc") == (Endpoint(HERE, reach.ports.grpc),)
    finally:
        keeping.cancel()


async def test_who_is_seen_where_it_was_is_not_measured_again_until_it_is_time_or_something_has_changed(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GLANCE_SECONDS", 0.01)
    reach = reach_of(nodes[2])
    await reach.measure(nodes[2].connections, {nodes[0].peer_id: "alder"})
    measured: list[int] = []
    measure = reach.measure

    async def counted(*arguments: Any) -> bool:
        measured.append(1)
        return await measure(*arguments)

    monkeypatch.setattr(reach, "measure", counted)
    keeping = asyncio.create_task(reach.keep(nodes[2].connections, lambda: {nodes[0].peer_id: "alder"}))
    try:
        await asyncio.sleep(0.2)
        assert not measured
        reach.measure_soon()
        await eventually(lambda: bool(measured))
    finally:
        keeping.cancel()


async def test_one_that_few_have_looked_at_is_looked_at_again_soon(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GLANCE_SECONDS", 0.01)
    monkeypatch.setattr(module, "_FIRST_RETRY_SECONDS", 0.01)
    reach, known = reach_of(nodes[2]), {nodes[0].peer_id: "alder"}
    assert await reach.measure(nodes[2].connections, known)
    known[nodes[1].peer_id] = "birch"
    keeping = asyncio.create_task(reach.keep(nodes[2].connections, lambda: known))
    try:
        await eventually(lambda: reach.findings is not None and reach.findings.num_witnesses == 2)
    finally:
        keeping.cancel()


async def test_a_name_is_announced_when_it_leads_here(nodes: list[Node]) -> None:
    reach = reach_of(nodes[2])
    reach.given = (dataclasses.replace(SEEN, host="localhost", ports=reach.ports),)
    await reach.measure(nodes[2].connections, {nodes[0].peer_id: "alder"}, ("grpc",))
    assert reach.is_confirmed
    assert reach.endpoints("grpc") == (Endpoint("localhost", reach.ports.grpc),)
