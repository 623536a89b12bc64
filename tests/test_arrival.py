"""Who introduces a peer: the nodes that were named, those that it met before, or nobody yet."""

import asyncio
import dataclasses
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from exchange_nodes import Node, address_of, eventually, running

from spes_peer.errors import BadConfiguration, NoBootstrap, TooNew, TooOld
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.introduction import Introduction, WrongNode
from spes_peer.following import arrival
from spes_peer.following.arrival import Arrival, Unanswered
from spes_peer.identity import Identity
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest, SignedManifest, sign_manifest

SOMEBODY = Identity.from_seed(b"\5" * 32).peer_id


@pytest.fixture
async def nodes(tmp_path: Path, signed_manifest: SignedManifest) -> AsyncIterator[list[Node]]:
    async with running(tmp_path, Holdings, Holdings) as pair:
        for node in pair:
            node.describe_run(signed_manifest)
        yield pair


def dead() -> NodeAddress:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return NodeAddress("127.0.0.1", free.getsockname()[1], SOMEBODY)


class Scene:
    """An arrival, and what it says; `run_id` is of the only run that is accepted."""

    def __init__(self, *named: NodeAddress, known: tuple[NodeAddress, ...] = (), run_id: bytes = b"") -> None:
        self.run_id = run_id
        self.said: list[tuple[str, float]] = []
        """And in how many seconds it ends."""
        self.num_waits = 0
        self.arrival = Arrival(named, lambda: known, self._accept, self._say)

    def _accept(self, introduction: Introduction) -> None:
        if self.run_id and introduction.run_id != self.run_id:
            raise BadConfiguration("it holds the state of another run")

    def _say(self, why: str, until_at: float) -> None:
        self.said.append((why, until_at - time.time()))

    async def on_waiting(self) -> None:
        self.num_waits += 1


async def test_any_of_several_named_nodes_introduces(nodes: list[Node]) -> None:
    scene = Scene(dead(), address_of(nodes[1]))
    assert (await scene.arrival.ask()).entry == nodes[1].entry()


async def test_a_node_that_was_met_before_introduces_when_those_named_are_gone(nodes: list[Node]) -> None:
    scene = Scene(dead(), known=(dead(), address_of(nodes[0])))
    introduction = await scene.arrival.ask()
    assert introduction.entry == nodes[0].entry()
    assert introduction.address == address_of(nodes[0])


async def test_without_a_name_those_met_before_are_asked_at_once(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "_HEAD_START_SECONDS", 600.0)
    async with asyncio.timeout(30.0):
        await Scene(known=(address_of(nodes[0]),)).arrival.ask()


async def test_a_silent_node_holds_up_no_other(nodes: list[Node]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        named = NodeAddress("127.0.0.1", silent.getsockname()[1], SOMEBODY)
        async with asyncio.timeout(30.0):
            await Scene(named, known=(address_of(nodes[0]),)).arrival.ask(seconds=600.0)


async def test_a_run_that_the_folder_is_not_of_is_refused_though_its_own_is_there(
    nodes: list[Node], signed_manifest: SignedManifest, manifest: Manifest, organizer: Identity
) -> None:
    run = manifest.run.model_copy(update={"name": "another"})
    nodes[1].describe_run(sign_manifest(manifest.model_copy(update={"run": run}), organizer))
    scene = Scene(address_of(nodes[1]), known=(address_of(nodes[0]),), run_id=signed_manifest.run_id)
    with pytest.raises(BadConfiguration, match="another run"):
        await scene.arrival.ask()


async def test_a_wrong_node_at_the_only_address_is_refused(nodes: list[Node]) -> None:
    wrong = dataclasses.replace(address_of(nodes[0]), peer_id=SOMEBODY)
    with pytest.raises(WrongNode, match="another node than expected"):
        await Scene(wrong).arrival.insist(on_waiting=Scene().on_waiting)
    with pytest.raises(Unanswered):
        await Scene(wrong, dead()).arrival.ask()


async def test_a_run_that_is_too_new_is_refused(nodes: list[Node], signed_manifest: SignedManifest) -> None:
    nodes[0].describe_run(signed_manifest, protocol=PROTOCOL_VERSION + 1)
    for scene in (Scene(address_of(nodes[0]), dead()), Scene(known=(address_of(nodes[0]),))):
        with pytest.raises(TooOld, match="pip install"):
            await scene.arrival.ask()


async def test_a_run_that_is_too_old_for_this_program_is_refused_at_once_with_what_to_do(
    nodes: list[Node], manifest: Manifest, organizer: Identity
) -> None:
    raw = {**manifest.model_dump(mode="json"), "protocol": PROTOCOL_VERSION - 1}
    content = json.dumps(raw).encode()
    old = SignedManifest(content, organizer.peer_id, organizer.sign(b"spes-peer manifest\0" + content))
    nodes[0].describe_run(old, protocol=PROTOCOL_VERSION - 1)
    scene = Scene(address_of(nodes[0]))
    with pytest.raises(TooNew, match=f"speaks protocol {PROTOCOL_VERSION - 1}.* join it with the version"):
        await scene.arrival.insist(scene.on_waiting)
    assert scene.num_waits == 0


async def test_who_does_not_answer_is_named_with_the_reason() -> None:
    one, two = dead(), dead()
    with pytest.raises(Unanswered, match=f"^nothing listens at 127.0.0.1:{one.port}; check the port"):
        await Scene(one).arrival.ask()
    with pytest.raises(Unanswered, match=r"^nobody answers: .*; and 2 more$") as several:
        await Scene(one, two, dead(), dead(), dead()).arrival.ask()
    assert str(one.port) in str(several.value)
    assert str(two.port) in str(several.value)
    with pytest.raises(Unanswered, match="no other node of the run is known"):
        await Scene().arrival.ask()
    assert issubclass(Unanswered, NoBootstrap)


async def test_while_nobody_answers_the_wait_counts_down_and_the_first_to_appear_introduces(
    tmp_path: Path, signed_manifest: SignedManifest
) -> None:
    node = Node(tmp_path / "node")
    address = dataclasses.replace(dead(), peer_id=node.peer_id)
    scene = Scene(address)
    waiting = asyncio.create_task(scene.arrival.insist(scene.on_waiting))
    try:
        await eventually(lambda: len(scene.said) > 1)
        why, seconds = scene.said[1]
        assert "nothing listens at" in why
        assert why.endswith("trying again in 1 s (attempt 2)")
        assert -30 < seconds <= 1.0  # by the wall clock
        await node.start(f"127.0.0.1:{address.port}")
        node.describe_run(signed_manifest)
        introduction = await asyncio.shield(waiting)
        assert introduction.entry == node.entry()
        assert scene.num_waits == 1
    finally:
        waiting.cancel()
        await node.stop()


async def test_a_wait_can_be_ended_at_any_moment() -> None:
    scene = Scene(dead(), NodeAddress("no-such-host.invalid", 4510, SOMEBODY))
    waiting = asyncio.create_task(scene.arrival.insist(scene.on_waiting))
    await eventually(lambda: scene.num_waits == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5.0):  # a resolver without a network takes half a minute
            await waiting
