"""The server: who may call, what callers may ask, and that nothing they ask hurts it."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from exchange_nodes import PATIENT_SECONDS, RUN_ID, Node, eventually, running

from spes_peer.blobs import PIECE_BYTES
from spes_peer.errors import BadConfiguration, BadMessage, BadSignature
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.limits import MAX_FETCHES_PER_CALLER, Busy
from spes_peer.exchange.link import Link
from spes_peer.exchange.tokens import TOKEN_KEY, make_token
from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import Identity
from spes_peer.run.peers import Claim
from spes_peer.run.records import CertifiedRecord
from spes_peer.run.signed import Signed, Signer
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import FetchRequest, HaveRequest, RecordsRequest, SnapshotsRequest


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with running(tmp_path, Holdings, Holdings) as both:
        yield both


@pytest.fixture
async def link(nodes: list[Node]) -> Link:
    """From the second node to the first."""
    return await nodes[1].connections.to(nodes[0].peer_id)


async def fetched(link: Link, **request: Any) -> list[Any]:
    return [reply async for reply in link.stream(link.stub.Fetch, FetchRequest(**request), PATIENT_SECONDS)]


async def fetched_when_not_busy(link: Link, **request: Any) -> list[Any]:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Busy):
                return await fetched(link, **request)
            await asyncio.sleep(0.01)


async def test_every_call_but_describe_needs_a_token_for_this_node_and_run(nodes: list[Node], link: Link) -> None:
    me, caller, now = nodes[0].peer_id, nodes[1].identity, time.time()
    bad_tokens = [
        (),
        ((TOKEN_KEY, b"forged"),),
        ((TOKEN_KEY, make_token(nodes[1].signer, caller.peer_id, now)),),
        ((TOKEN_KEY, make_token(nodes[1].signer, me, now - 120)),),
        ((TOKEN_KEY, make_token(Signer(caller, b"q" * 32, 1), me, now)),),
    ]
    for metadata in bad_tokens:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await link.stub.Have(HaveRequest(name="0" * 64), metadata=metadata, timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        streams = [
            link.stub.Fetch(FetchRequest(), metadata=metadata),
            link.stub.Records(RecordsRequest(), metadata=metadata),
        ]
        for stream in [*streams, link.stub.Attend(metadata=metadata)]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream.read()
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError):
            await link.stub.ListSnapshots(SnapshotsRequest(), metadata=metadata, timeout=5)
    assert (await link.call(link.stub.Have, HaveRequest(name="0" * 64), 5.0)).bitmap == b""


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "x" * 100_000])
async def test_a_strange_blob_name_is_refused(link: Link, name: str) -> None:
    with pytest.raises(BadMessage, match="is not a blob name"):
        await link.call(link.stub.Have, HaveRequest(name=name), 5.0)
    with pytest.raises(BadMessage, match="is not a blob name"):
        await fetched(link, name=name, pieces=[0])


async def test_pieces_behind_the_end_and_a_million_pieces_are_refused(nodes: list[Node], link: Link) -> None:
    blob = nodes[0].store.put(b"x" * (PIECE_BYTES + 1))
    with pytest.raises(BadMessage, match="piece 2 of a blob"):
        await fetched(link, name=blob.name, pieces=[0, 2])
    with pytest.raises(BadMessage, match="1000000 pieces at once"):
        await fetched(link, name=blob.name, pieces=[0] * 1_000_000)
    replies = await fetched(link, name=blob.name, with_digests=True, pieces=[1])
    assert replies[0].digests == nodes[0].store.digests(blob.name)
    assert [(reply.piece, reply.content) for reply in replies[1:]] == [(1, b"x")]


async def test_a_caller_that_never_reads_gets_no_more_than_its_slots(nodes: list[Node], link: Link) -> None:
    blob = nodes[0].store.put(b"x" * (8 * PIECE_BYTES))
    request = FetchRequest(name=blob.name, pieces=list(range(8)) * 8)
    unread = [link.stub.Fetch(request, metadata=link.metadata()) for _ in range(40)]
    codes = [asyncio.ensure_future(call.code()) for call in unread]
    await eventually(lambda: sum(code.done() for code in codes) == 40 - MAX_FETCHES_PER_CALLER, deadline_seconds=30)
    assert {code.result() for code in codes if code.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for call in unread:
        call.cancel()
    await eventually(lambda: all(code.done() for code in codes))
    assert await fetched_when_not_busy(link, name=blob.name, pieces=[0])


async def test_records_come_from_the_round_asked_for(nodes: list[Node], link: Link) -> None:
    nodes[0].records = [CertifiedRecord(bytes([number]), 0, ()) for number in range(5)]
    records = [
        convert.from_message(CertifiedRecord, message)
        async for message in link.stream(link.stub.Records, RecordsRequest(from_round=3), 5.0)
    ]
    assert records == nodes[0].records[3:]
    assert [m async for m in link.stream(link.stub.Records, RecordsRequest(from_round=9), 5.0)] == []


async def test_a_member_and_the_coordinator_talk_both_ways_until_the_member_ends(nodes: list[Node], link: Link) -> None:
    call = link.stub.Attend(metadata=link.metadata())
    for number in range(3):
        await call.write(convert.to_message(nodes[1].signer.sign(Claim((number,), 0.0))))
        answer = convert.from_message(Signed, await call.read())
        assert answer.open(Claim, RUN_ID).subsets == (number,)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_what_the_host_says_last_still_arrives(nodes: list[Node], link: Link) -> None:
    async def attend(caller: str, incoming: AsyncIterator[Signed], send: Any) -> None:
        assert caller == nodes[1].peer_id
        for number in range(50):
            send(nodes[0].signer.sign(Claim((number,), 0.0)))

    nodes[0].attend = attend  # type: ignore[method-assign]
    call = link.stub.Attend(metadata=link.metadata())
    assert len([message async for message in call]) == 50


async def test_a_member_that_does_not_read_loses_its_call_and_the_host_never_waits(
    nodes: list[Node], link: Link
) -> None:
    ended = asyncio.Event()

    async def attend(caller: str, incoming: AsyncIterator[Signed], send: Any) -> None:
        try:
            big = nodes[0].signer.sign(CertifiedRecord(b"x" * 100_000, 0, ()))
            for _ in range(2_000):
                send(big)
            await asyncio.Event().wait()
        finally:
            ended.set()

    nodes[0].attend = attend  # type: ignore[method-assign]
    call = link.stub.Attend(metadata=link.metadata())
    await asyncio.wait_for(ended.wait(), 30)
    call.cancel()


async def test_the_host_is_told_when_a_member_is_gone(nodes: list[Node], link: Link) -> None:
    present, gone = asyncio.Event(), asyncio.Event()

    async def attend(caller: str, incoming: AsyncIterator[Signed], send: Any) -> None:
        try:
            async for _ in incoming:
                present.set()
        finally:
            gone.set()

    nodes[0].attend = attend  # type: ignore[method-assign]
    call = link.stub.Attend(metadata=link.metadata())
    await call.write(convert.to_message(nodes[1].signer.sign(Claim((), 0.0))))
    await asyncio.wait_for(present.wait(), 30)
    call.cancel()
    await asyncio.wait_for(gone.wait(), 30)


async def test_a_fault_of_our_own_is_not_told_to_strangers(
    nodes: list[Node], link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    nodes[0].records_from = lambda round: 1 // 0  # type: ignore[assignment,method-assign]
    with pytest.raises(Exception, match=r"INTERNAL: failed$"):
        assert [m async for m in link.stream(link.stub.Records, RecordsRequest(), 5.0)]
    assert "ZeroDivisionError" in caplog.text


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        node = Node(tmp_path / "node")
        with pytest.raises(BadConfiguration, match=f"port {port} on 127.0.0.1 is in use"):
            await node.start(f"127.0.0.1:{port}")


async def test_a_second_server_on_the_port_of_the_first_is_refused(nodes: list[Node], tmp_path: Path) -> None:
    assert nodes[0].server is not None
    with pytest.raises(BadConfiguration, match="is in use"):
        await Node(tmp_path / "second").start(f"127.0.0.1:{nodes[0].server.port}")


@pytest.mark.parametrize("listen", ["4510", "127.0.0.1", "unix:/x", "192.0.2.1:4510"])
async def test_an_address_that_is_not_ours_to_listen_on_is_refused(tmp_path: Path, listen: str) -> None:
    with pytest.raises(BadConfiguration):
        await Node(tmp_path / "node").start(listen)


async def test_a_socket_left_by_a_killed_start_is_no_obstacle_and_a_stopped_server_leaves_none(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(node.unix_path))
    await node.start(listen=None)
    assert node.server is not None
    assert node.server.port is None
    await node.stop()
    assert not node.unix_path.exists()


async def test_a_state_folder_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.unix_path = tmp_path / ("x" * 100)
    with pytest.raises(BadConfiguration, match="shorter"):
        await node.start(listen=None)


async def test_peers_that_agree_what_time_it_is_talk_whatever_their_wall_clocks_show(
    nodes: list[Node], link: Link
) -> None:
    for node in nodes:
        node.ahead_seconds = 3600.0
    await link.call(link.stub.Have, HaveRequest(name="0" * 64), 5.0)


@pytest.mark.parametrize("ahead_seconds", [-3600.0, 3600.0])
async def test_a_peer_for_which_it_is_another_time_is_refused_and_its_time_is_heard(
    nodes: list[Node], link: Link, ahead_seconds: float
) -> None:
    nodes[1].ahead_seconds = ahead_seconds
    with pytest.raises(BadSignature, match="compare the clocks"):
        await link.call(link.stub.Have, HaveRequest(name="0" * 64), 5.0)
    ((peer, their_time),) = nodes[0].heard_times
    assert peer == nodes[1].peer_id
    assert their_time == pytest.approx(time.time() + ahead_seconds, abs=60)


async def test_a_forged_token_tells_no_time(nodes: list[Node], link: Link) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await link.stub.Have(HaveRequest(name="0" * 64), metadata=((TOKEN_KEY, b"forged"),))
    assert not nodes[0].heard_times


async def test_whoever_forges_a_token_of_another_peer_is_refused(nodes: list[Node]) -> None:
    stranger = Signer(Identity.generate(), RUN_ID, 1)
    link = await nodes[1].connections.to(nodes[0].peer_id)
    forged = stranger.sign(Claim((), 0.0))
    metadata = ((TOKEN_KEY, convert.encode(forged)),)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await link.stub.Have(HaveRequest(name="0" * 64), metadata=metadata, timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(BadSignature):
        await Link(nodes[1].peer_id, "grpc", link.channel, nodes[1].signer, Traffic()).call(
            link.stub.Have, HaveRequest(name="0" * 64), 5.0
        )
