"""Answers and requests that are no messages, for every call of proto/peer.proto: they cost who sent them that call, and
nobody his node. Also where what a peer says meets a fault of ours that nobody has foreseen."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from exchange_nodes import eventually
from google.protobuf.message_factory import GetMessageClass
from run_nodes import RunNodes, run_nodes

from spes_peer.amending.network import Network
from spes_peer.errors import BadMessage, SpesError
from spes_peer.exchange import introduction, link
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.holdings import Have
from spes_peer.exchange.introduction import describe
from spes_peer.exchange.link import Link
from spes_peer.following import attendance
from spes_peer.following.attendance import Attendance
from spes_peer.following.follower import Follower
from spes_peer.following.records import fetch_from
from spes_peer.identity import Identity, PeerId
from spes_peer.node import Node
from spes_peer.run.manifest import Manifest
from spes_peer.snapshots import SnapshotStore
from spes_peer.wire import peer_pb2

SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"]
METHODS = [method.name for method in SERVICE.methods]
UNREADABLE = b"\xff\xff\xff"
PATIENT = {
    "fetch_stall_seconds": 30.0,
    "round_grace_seconds": 40.0,
    "coordinator_timeout_seconds": 50.0,
    "stall_timeout_seconds": 60.0,
}
GARBAGE: dict[str, list[bytes]] = {
    "unreadable": [UNREADABLE],
    "cut off": [b"\x0a\x7f" + b"x" * 9],
    "of another shape": [b"\x0d\0\0\0\0\x15\0\0\0\0\x1d\0\0\0\0"],
    "with unknown fields": [b"\xfa\x38\x01x"],
    "empty": [b""],
    "none": [],
}


class Liar:
    """A server with a node's certificate that answers each call with the bytes it is told to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.answers: dict[str, Sequence[bytes]] = {}
        self._server = grpc.aio.server()
        handlers = {name: grpc.stream_stream_rpc_method_handler(self._handler(name)) for name in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
        pair = (node.tls.key_pem, node.tls.certificate_pem)
        self.port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))

    def _handler(self, name: str) -> Callable[[Any, Any], AsyncIterator[bytes]]:
        async def answer(_incoming: Any, _context: Any) -> AsyncIterator[bytes]:
            for content in self.answers.get(name, ()):
                yield content

        return answer

    @contextlib.asynccontextmanager
    async def serving(self, run: RunNodes) -> AsyncIterator[None]:
        await self._server.start()
        for other in run.nodes:
            other.take_entry(dataclasses.replace(self.node.entry(), grpc_addresses=(f"127.0.0.1:{self.port}",)))
        try:
            yield
        finally:
            await self._server.stop(0)


class Scene:
    """The liar is the bootstrap node that record 0 names; then an honest node, and the one that asks."""

    def __init__(self, run: RunNodes, liar: Liar) -> None:
        self.run, self.liar = run, liar
        self.honest, self.asker = run.nodes
        self.blob = self.honest.blobs.put(b"what everybody wants")
        have = Have(self.blob.size_bytes, frozenset([0]))
        liar.answers["Have"] = [
            peer_pb2.HaveReply(size_bytes=have.size_bytes, bitmap=have.bitmap()).SerializeToString()
        ]
        self.spawned: list[Any] = []
        self.follower = Follower(self.asker, self.spawned.append)

    async def link(self) -> Link:
        return await self.asker.connections.to(self.liar.node.peer_id)

    async def ask(self, method: str) -> None:
        """As the program asks, whatever it makes of the answer; what a node does not survive is raised."""
        liar = self.liar.node.peer_id
        match method:
            case "Describe":
                await describe(parse_address(f"/ip4/127.0.0.1/tcp/{self.liar.port}/p2p/{liar}"), 60.0)
            case "Stand":
                await self.follower._learn_from(liar)
            case "Records":
                await fetch_from(self.asker, liar)
            case "ListSnapshots":
                await SnapshotStore(self.asker).offered_by_others()
            case "Have" | "Fetch":
                await self.asker.fetcher.fetch(self.blob.name, self.blob.size_bytes, [liar, self.honest.peer_id])
            case "Attend":
                await self._attend(liar)
            case "DialBack":
                assert not await self.asker.reach.measure(self.asker.connections, {liar: "liar"})
            case "Amend":
                links = [await self.link()]
                introduction: Any = SimpleNamespace(clock=self.asker.clock)
                await Network(self.asker.chain.checks, links, introduction, None).bring(None)
            case _:
                raise AssertionError(f"nothing here calls {method}")

    async def _attend(self, liar: PeerId) -> None:
        """Until the stream has ended, and another has too."""
        lost: list[str] = []
        attending = Attendance(self.asker.connections, self.asker.signer, lambda: liar, 60.0)
        attending.on_lost = lost.append
        task = asyncio.create_task(attending.run())
        try:
            await eventually(lambda: task.done() or len(lost) > 1)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def scene(
    tmp_path: Path, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(attendance, "_FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(attendance, "_LONGEST_RETRY_SECONDS", 0.01)
    async with run_nodes(tmp_path, manifest, organizer, 0, PATIENT) as run:
        liar = Liar(run.make(0))
        for number in (1, 2):
            await run.start(run.make(number))
        async with liar.serving(run):
            yield Scene(run, liar)


@pytest.mark.parametrize("method", METHODS)
async def test_an_answer_that_is_no_message_is_a_bad_message(scene: Scene, method: str) -> None:
    scene.liar.answers[method] = [UNREADABLE]
    described, link = SERVICE.methods_by_name[method], await scene.link()
    call, request = getattr(link.stub, method), GetMessageClass(described.input_type)()

    def attend(_request: Any, metadata: Any) -> Any:
        return call(metadata=metadata)

    if method == "Fetch":
        answer = anext(link.fetch(request, 60.0))
    elif described.server_streaming:
        answer = anext(link.stream(attend if described.client_streaming else call, request, 60.0))
    else:
        answer = link.call(call, request, 60.0)
    with pytest.raises(BadMessage, match="cannot be read"):
        await answer


@pytest.mark.parametrize("method", METHODS)
async def test_no_answer_ends_who_asked(scene: Scene, method: str) -> None:
    for garbage in GARBAGE.values():
        scene.liar.answers[method] = garbage
        with contextlib.suppress(SpesError):
            await scene.ask(method)
    assert not scene.spawned


@pytest.mark.parametrize("method", ["Have", "Fetch"])
async def test_a_blob_comes_from_who_has_it_when_another_answers_nonsense(scene: Scene, method: str) -> None:
    for kind, garbage in GARBAGE.items():
        scene.liar.answers[method] = garbage
        scene.blob = scene.honest.blobs.put(kind.encode().ljust(scene.blob.size_bytes))
        await scene.ask(method)
        assert scene.asker.blobs.has(scene.blob.name)


@pytest.mark.parametrize("method", METHODS)
async def test_an_answer_that_meets_a_fault_of_ours_ends_nobody_and_is_logged(
    scene: Scene, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(_answer: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    for module in (link, introduction, attendance):
        monkeypatch.setattr(module, "parsed", faulty)
    scene.liar.answers[method] = [b""]
    with contextlib.suppress(SpesError):
        await scene.ask(method)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("method", METHODS)
async def test_no_request_is_a_fault_of_ours(scene: Scene, method: str, caplog: pytest.LogCaptureFixture) -> None:
    Follower(scene.honest, scene.spawned.append)  # it may be attended
    link = await scene.asker.connections.to(scene.honest.peer_id)
    send = link.channel.unary_stream(f"/{SERVICE.full_name}/{method}")
    codes = {}
    for kind, garbage in GARBAGE.items():
        for content in garbage:
            call = send(content, metadata=link.metadata(), timeout=60)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            codes[kind] = await call.code()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    refused = {kind for kind, code in codes.items() if code is grpc.StatusCode.INVALID_ARGUMENT}
    assert {codes[kind] for kind in codes.keys() - refused} <= {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}
    if method != "Describe":  # which says the same to whatever it is asked
        assert refused >= {"unreadable", "cut off", "with unknown fields"}
