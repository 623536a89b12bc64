"""A newcomer's first call: it believes the node of the address, and tells four kinds of silence apart."""

import asyncio
import dataclasses
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from exchange_nodes import Node, address_of, running

from spes_peer.errors import NoBootstrap, TooOld
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.introduction import Introduction, describe
from spes_peer.identity import Identity, TlsIdentity
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest, SignedManifest

SOMEBODY = Identity.from_seed(b"\5" * 32).peer_id


@pytest.fixture
async def node(tmp_path: Path, signed_manifest: SignedManifest) -> AsyncIterator[Node]:
    async with running(tmp_path, Holdings) as (one,):
        one.describe_run(signed_manifest)
        yield one


async def asked(address: NodeAddress, timeout_seconds: float = 60.0) -> Introduction:
    return await describe(address, timeout_seconds)


async def refusal(address: NodeAddress, timeout_seconds: float = 60.0) -> str:
    with pytest.raises(NoBootstrap) as refused:
        await asked(address, timeout_seconds)
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_a_node_introduces_the_run_and_itself(node: Node, manifest: Manifest) -> None:
    for address in (
        address_of(node),
        address_of(node, host="localhost"),
        address_of(node, host="localhost", name_kind="dns4"),
    ):
        introduction = await asked(address)
        assert introduction.manifest == manifest
        assert introduction.run_id == introduction.signed_manifest.run_id
        assert introduction.head_round == 3
        assert introduction.entry == node.entry()


async def test_it_tells_what_time_it_is(node: Node, signed_manifest: SignedManifest) -> None:
    node.ahead_seconds = 3600.0
    node.describe_run(signed_manifest)
    introduction = await asked(address_of(node))
    assert introduction.clock.time() == pytest.approx(time.time() + 3600.0, abs=60)


async def test_a_name_that_does_not_exist() -> None:
    reason = await refusal(NodeAddress("no-such-host.invalid", 4510, SOMEBODY))
    assert "'no-such-host.invalid' cannot be resolved" in reason


async def test_a_dead_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert f"nothing listens at 127.0.0.1:{port}" in await refusal(NodeAddress("127.0.0.1", port, SOMEBODY))


async def test_a_silent_port_within_the_time_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(30.0):
            reason = await refusal(NodeAddress("127.0.0.1", silent.getsockname()[1], SOMEBODY), 0.5)
    assert "does not answer within 0.5 s" in reason


async def test_another_node_than_the_address_names(node: Node) -> None:
    reason = await refusal(address_of(node, peer_id=SOMEBODY))
    assert "another node than expected" in reason
    assert node.peer_id in reason
    assert SOMEBODY in reason


async def test_a_port_of_something_else() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert "no spes-peer node" in await refusal(NodeAddress("127.0.0.1", port, SOMEBODY))


async def test_a_run_with_a_newer_protocol(node: Node, signed_manifest: SignedManifest) -> None:
    node.describe_run(signed_manifest, protocol=PROTOCOL_VERSION + 1)
    with pytest.raises(TooOld, match="pip install --upgrade spes-peer"):
        await asked(address_of(node))


async def test_somebody_in_between_with_a_certificate_of_his_own(node: Node, signed_manifest: SignedManifest) -> None:
    node.describe_run(signed_manifest, certificate=TlsIdentity.generate().certificate_der)
    assert "another certificate" in await refusal(address_of(node))


async def test_an_entry_that_the_node_did_not_sign(node: Node, signed_manifest: SignedManifest) -> None:
    forged = dataclasses.replace(node.description().entry, incarnation=9)
    node.described = dataclasses.replace(node.description(), entry=forged)
    assert "cannot be trusted" in await refusal(address_of(node))


async def test_a_manifest_that_its_organizer_did_not_sign(node: Node, signed_manifest: SignedManifest) -> None:
    changed = dataclasses.replace(signed_manifest, signature=b"\0" * 64)
    node.describe_run(changed)
    assert "cannot be trusted" in await refusal(address_of(node))
