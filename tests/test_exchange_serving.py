"""What callers can keep a node from by what they ask of it: others are served, and its disk is its own."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import grpc
import pytest
from exchange_nodes import PATIENT_SECONDS, Node, eventually

from spes_peer.blobs import PIECE_BYTES, BlobStore
from spes_peer.errors import BadMessage, BlobMissing
from spes_peer.exchange.holdings import Have, Holdings
from spes_peer.exchange.limits import FETCHES_PER_SOURCE, Busy, Slots
from spes_peer.exchange.link import Link
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.server import PeerServer
from spes_peer.identity import Identity, PeerId
from spes_peer.wire.peer_pb2 import FetchRequest, HaveRequest

UPLOAD = Pace(500_000)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """One that serves at a pace, and four that know it."""
    serving, *others = (Node(tmp_path / f"node{number}") for number in range(5))
    serving.server = await PeerServer.start(
        serving, serving.holdings, serving.tls, "127.0.0.1:0", serving.unix_path, serving.traffic, UPLOAD
    )
    for other in others:
        other.connections.update_entry(serving.entry())
    yield [serving, *others]
    for node in (*others, serving):
        await node.stop()


async def fetched(link: Link, name: str, *pieces: int) -> bytes:
    request = FetchRequest(name=name, pieces=pieces)
    return b"".join([bytes(chunk.content) async for chunk in link.fetch(request, PATIENT_SECONDS)])


async def test_strangers_that_read_nothing_leave_places_for_members(nodes: list[Node]) -> None:
    serving, member, *strangers = nodes
    serving.named = {member.peer_id}
    large, small = serving.store.put(b"x" * (8 * PIECE_BYTES)), serving.store.put(b"small")
    request = FetchRequest(name=large.name, pieces=list(range(8)) * 8)
    links = [await stranger.connections.to(serving.peer_id) for stranger in strangers]
    unread = [link.stub.Fetch(request, metadata=link.metadata()) for link in links for _ in range(10)]
    codes = [asyncio.ensure_future(call.code()) for call in unread]
    await eventually(lambda: sum(code.done() for code in codes) >= len(unread) - UPLOAD.num_at_once * 3 // 4)
    assert {code.result() for code in codes if code.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert await fetched(await member.connections.to(serving.peer_id), small.name, 0) == b"small"
    with pytest.raises(Busy):
        await fetched(links[0], small.name, 0)
    for call in unread:
        call.cancel()
    await asyncio.gather(*codes)


async def test_who_asks_for_blobs_and_takes_nothing_of_them_keeps_none_of_them_on_the_disk(nodes: list[Node]) -> None:
    serving, caller, *_ = nodes
    link = await caller.connections.to(serving.peer_id)
    old, taken = serving.store.put(b"old"), serving.store.put(b"taken")
    assert await fetched(link, old.name) == b""
    with pytest.raises(BlobMissing):
        await fetched(link, "0" * 64, 0)
    assert await fetched(link, taken.name, 0) == b"taken"
    assert serving.holdings.served_within(3600.0) == {taken.name}


async def test_a_piece_that_a_blob_does_not_have_is_refused_before_there_is_any(nodes: list[Node]) -> None:
    serving, caller, *_ = nodes
    blob = caller.store.put(b"x" * (2 * PIECE_BYTES))
    partial = serving.holdings.begin(blob.name, blob.size_bytes)
    partial.accept_digests(caller.store.digests(blob.name))
    link = await caller.connections.to(serving.peer_id)
    with pytest.raises(BadMessage, match="piece 2147483648 of a blob"):
        await fetched(link, blob.name, 0, 1 << 31)
    with pytest.raises(BlobMissing):
        await fetched(link, blob.name, 0, 1)


class Waiting(Holdings):
    """Reads when it may."""

    may_read = threading.Event()

    def read_piece(self, name: str, index: int) -> bytes:
        assert self.may_read.wait(60)
        return super().read_piece(name, index)


async def test_who_asks_early_for_impossible_pieces_keeps_no_other_from_what_is_here(nodes: list[Node]) -> None:
    serving, caller, other, *_ = nodes
    serving.holdings.__class__ = Waiting
    content = b"x" * (PIECE_BYTES + 1)
    blob = caller.store.put(content)
    links = [await node.connections.to(serving.peer_id) for node in (caller, other)]
    asking = asyncio.create_task(fetched(links[0], blob.name, 0, 1 << 31))
    try:
        await eventually(lambda: blob.name in serving.holdings.served_within(0.0))
        partial = serving.holdings.begin(blob.name, blob.size_bytes)
        partial.accept_digests(caller.store.digests(blob.name))
        partial.accept_piece(1, b"x")
        reply = await links[1].call(links[1].stub.Have, HaveRequest(name=blob.name), PATIENT_SECONDS)
        assert Have.from_bitmap(reply.size_bytes, reply.bitmap).pieces == {1}
        assert [upload.peer for upload in reply.uploads] == [caller.peer_id]
    finally:
        Waiting.may_read.set()
        await asyncio.gather(asking, return_exceptions=True)


def test_of_many_blobs_that_were_sent_the_latest_are_kept_for_more(tmp_path: Path) -> None:
    holdings = Holdings(BlobStore(tmp_path))
    for number in (*range(1_000), 900):
        holdings.note_served(f"blob {number}")
    assert holdings.served_within(3600.0) == {f"blob {number}" for number in range(872, 1_000)}
    assert "blob 900" not in holdings.served_within(0.0)


@pytest.mark.parametrize("total", [2, 3, 15, 32, 128])
def test_one_caller_may_ask_for_what_an_honest_one_does_and_nobody_takes_all(total: int) -> None:
    slots, caller = Slots.for_fetches(total), Identity.generate().peer_id

    def num_held(callers: Iterable[PeerId], is_stranger: bool) -> int:
        with contextlib.ExitStack() as stack:
            for number, one in enumerate(callers):
                try:
                    stack.enter_context(slots.hold(one, is_stranger))
                except Busy:
                    return number
        raise AssertionError

    of_one = num_held(itertools.repeat(caller), is_stranger=False)
    assert min(FETCHES_PER_SOURCE, total - 1) <= of_one <= max(FETCHES_PER_SOURCE, total // 4)
    crowd = (PeerId(f"{number}") for number in itertools.count())
    assert num_held(crowd, is_stranger=True) == max(1, total * 3 // 4) < total
    assert num_held(crowd, is_stranger=False) == total
