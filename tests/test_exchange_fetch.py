"""Fetching over real sockets: from many sources, some of them bad, through cuts and restarts."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from exchange_nodes import PATIENT_SECONDS, Node, eventually, introduce, running

from spes_peer.blobs import PIECE_BYTES, BlobStore
from spes_peer.errors import BadMessage, Unreachable
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.holdings import Holdings, PartialBlob
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.server import PeerServer
from spes_peer.exchange.traffic import Flow, Traffic
from spes_peer.exchange.uploads import MAX_PEERS_PER_BLOB, Uploads
from spes_peer.identity import Identity

CONTENT = random.Random(2).randbytes(11 * PIECE_BYTES + 77)
NUM_PIECES = 12
IMPATIENT_SECONDS = 2.5
"""Of silence, in tests that wait for its end."""


class Corrupt(Holdings):
    """Serves other bytes than it has."""

    def read_piece(self, name: str, index: int) -> bytes:
        content = super().read_piece(name, index)
        return bytes([content[0] ^ 1]) + content[1:]


class Stalling(Holdings):
    """Promises everything and sends nothing until it is released."""

    released = threading.Event()

    def read_piece(self, name: str, index: int) -> bytes:
        self.released.wait(20)
        return super().read_piece(name, index)


class Counting(Holdings):
    """Remembers which pieces it was asked for."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.asked: list[int] = []

    def read_piece(self, name: str, index: int) -> bytes:
        self.asked.append(index)
        return super().read_piece(name, index)


class Cut(Counting):
    """Fails after three pieces, until it is mended."""

    is_mended = False

    def read_piece(self, name: str, index: int) -> bytes:
        if not self.is_mended and len(self.asked) >= 3:
            raise OSError("cut")
        return super().read_piece(name, index)


class Freezing(Counting):
    """Is stopped after five pieces of twelve."""

    def read_piece(self, name: str, index: int) -> bytes:
        if len(self.asked) >= 5:
            Stalling.released.wait(20)
        return super().read_piece(name, index)


@pytest.fixture(autouse=True)
def _let_go() -> AsyncIterator[None]:
    Stalling.released.clear()
    yield  # type: ignore[misc]
    Stalling.released.set()


async def serve_at(node: Node, bytes_per_second: int) -> None:
    """From now on, at a new port."""
    assert node.server is not None
    await node.server.stop(0.0)
    node.server = await PeerServer.start(
        node, node.holdings, node.tls, "127.0.0.1:0", node.unix_path, node.traffic, Pace(bytes_per_second)
    )


def is_content_once(num_bytes: int) -> bool:
    """The content, and a little for what messages carry besides."""
    return len(CONTENT) < num_bytes < len(CONTENT) * 1.002


async def test_a_blob_comes_from_several_sources_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, Counting, Counting, Holdings) as (one, two, newcomer):
        blob = one.store.put(CONTENT)
        two.store.put(CONTENT)
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [one.peer_id, two.peer_id])
        assert newcomer.store.read(blob.name) == CONTENT
        assert one.holdings.asked  # type: ignore[attr-defined]
        assert two.holdings.asked  # type: ignore[attr-defined]
        assert sorted(one.holdings.asked + two.holdings.asked) == list(range(NUM_PIECES))  # type: ignore[attr-defined]
        assert is_content_once(newcomer.traffic.received_bytes)
        assert one.traffic.sent_bytes + two.traffic.sent_bytes == newcomer.traffic.received_bytes
        assert one.traffic.received_bytes + two.traffic.received_bytes == newcomer.traffic.sent_bytes > 0
        assert {flow.transport for flow in newcomer.traffic.flows()} == {"grpc"}


async def test_corrupted_bytes_and_a_stall_cost_their_source_only(tmp_path: Path) -> None:
    nodes = running(tmp_path, Corrupt, Stalling, Holdings, Holdings, stall_seconds=IMPATIENT_SECONDS)
    async with nodes as (corrupt, stalling, good, newcomer):
        blob = corrupt.store.put(CONTENT)
        for node in (stalling, good):
            node.store.put(CONTENT)
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [n.peer_id for n in (corrupt, stalling, good)])
        assert newcomer.store.read(blob.name) == CONTENT
        assert newcomer.fetcher.bad_sources == {corrupt.peer_id: 1}
        Stalling.released.set()


async def test_a_source_of_bad_bytes_is_not_asked_again_for_the_blob(tmp_path: Path) -> None:
    async with running(tmp_path, Corrupt, Holdings) as (corrupt, newcomer):
        blob = corrupt.store.put(CONTENT)
        for _ in range(2):
            with pytest.raises(Unreachable):
                await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [corrupt.peer_id])
        assert newcomer.fetcher.bad_sources == {corrupt.peer_id: 1}
        assert not newcomer.store.has(blob.name)


async def test_who_was_tried_and_why_it_did_not_do_is_said(tmp_path: Path) -> None:
    nodes = running(tmp_path, Stalling, Holdings, Holdings, stall_seconds=IMPATIENT_SECONDS)
    async with nodes as (stalling, empty, newcomer):
        blob = stalling.store.put(b"content")
        nobody = Identity.generate().peer_id
        with pytest.raises(Unreachable) as failure:
            await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [stalling.peer_id, empty.peer_id, nobody])
        Stalling.released.set()
        assert f"{stalling.peer_id}: {stalling.peer_id} sent nothing for 2.5 s" in str(failure.value)
        assert f"{empty.peer_id}: has none of the missing pieces" in str(failure.value)
        assert f"{nobody}: no address of {nobody} is known" in str(failure.value)


async def test_another_size_than_the_announced_one_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings) as (source, newcomer):
        blob = source.store.put(b"content")
        with pytest.raises(Unreachable, match="has 7 bytes, not the 8 announced"):
            await newcomer.fetcher.fetch(blob.name, 8, [source.peer_id])
        for size_bytes in (-1, 1 << 40):
            with pytest.raises(BadMessage, match="at most"):
                await newcomer.fetcher.fetch(blob.name, size_bytes, [source.peer_id])
        await newcomer.fetcher.fetch(blob.name, 7, [source.peer_id])
        with pytest.raises(BadMessage, match="has 7 bytes, not the 8 announced"):
            await newcomer.fetcher.fetch(blob.name, 8, [source.peer_id])


async def test_a_cut_transfer_is_resumed_after_a_restart_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path, Cut, Holdings, stall_seconds=IMPATIENT_SECONDS) as (source, newcomer):
        blob = source.store.put(CONTENT)
        with pytest.raises(Unreachable, match="INTERNAL"):
            await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])
        before, source.holdings.asked, source.holdings.is_mended = source.holdings.asked, [], True  # type: ignore[attr-defined]
        restarted = Fetcher(Holdings(newcomer.store), newcomer.connections, PATIENT_SECONDS)
        await restarted.fetch(blob.name, blob.size_bytes, [source.peer_id])
        assert newcomer.store.read(blob.name) == CONTENT
        assert sorted(before + source.holdings.asked) == list(range(NUM_PIECES))  # type: ignore[attr-defined]


async def test_a_partial_blob_is_served_on_while_it_is_on_its_way(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings, Holdings) as (source, middle, newcomer):
        blob = source.store.put(CONTENT)
        partial = middle.holdings.begin(blob.name, blob.size_bytes)
        partial.accept_digests(source.store.digests(blob.name))
        for index in range(4):
            partial.accept_piece(index, source.store.read_piece(blob.name, index))
        fetching = asyncio.create_task(newcomer.fetcher.fetch(blob.name, blob.size_bytes, [middle.peer_id]))
        await eventually(lambda: newcomer.holdings.have(blob.name).pieces == {0, 1, 2, 3})
        assert not fetching.done()
        await middle.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])
        await fetching  # the rest came from the same source, as it got it
        assert newcomer.store.read(blob.name) == CONTENT
        assert is_content_once(source.traffic.sent_bytes + 4 * PIECE_BYTES)


async def test_several_who_want_one_blob_share_one_transfer(tmp_path: Path) -> None:
    async with running(tmp_path, Counting, Holdings) as (source, newcomer):
        blob = source.store.put(CONTENT)
        nobody = Identity.generate().peer_id
        fetches = [newcomer.fetcher.fetch(blob.name, blob.size_bytes, [peer]) for peer in (nobody, source.peer_id)]
        await asyncio.gather(*fetches, newcomer.fetcher.fetch(blob.name, blob.size_bytes, []))
        assert sorted(source.holdings.asked) == list(range(NUM_PIECES))  # type: ignore[attr-defined]


async def test_a_transfer_goes_on_for_those_who_still_want_it(tmp_path: Path) -> None:
    async with running(tmp_path, Stalling, Holdings) as (source, newcomer):
        blob = source.store.put(b"content")
        first, second = (
            asyncio.create_task(newcomer.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])) for _ in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        Stalling.released.set()
        await second
        assert first.cancelled()
        assert newcomer.store.has(blob.name)


async def test_a_cancelled_transfer_can_be_begun_again_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, Stalling, Holdings) as (source, newcomer):
        blob = source.store.put(b"content")
        first = asyncio.create_task(newcomer.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id]))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)  # it is ending, and has not ended
        Stalling.released.set()
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])


async def test_many_blobs_are_fetched_and_one_that_cannot_be_had_spoils_no_other(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings) as (source, newcomer):
        blobs = [source.store.put(bytes([index]) * (index * 50_000)) for index in range(8)]
        wanted = [(blob.name, blob.size_bytes, [source.peer_id]) for blob in blobs]
        with pytest.raises(Unreachable, match="nobody is known to have it"):
            await newcomer.fetcher.fetch_all([("0" * 64, 5, []), *wanted])
        assert all(newcomer.store.has(blob.name) for blob in blobs)


async def test_a_source_that_dies_in_the_middle_is_replaced_by_another(tmp_path: Path) -> None:
    async with running(tmp_path, Stalling, Holdings, Holdings) as (dying, other, newcomer):
        blob = dying.store.put(CONTENT)
        fetching = asyncio.create_task(newcomer.fetcher.fetch(blob.name, blob.size_bytes, [dying.peer_id]))
        await eventually(lambda: newcomer.holdings.have(blob.name).size_bytes > 0)
        assert dying.server is not None
        await dying.server.stop(0.0)
        other.store.put(CONTENT)
        await asyncio.gather(newcomer.fetcher.fetch(blob.name, blob.size_bytes, [other.peer_id]), fetching)
        assert newcomer.store.read(blob.name) == CONTENT
        Stalling.released.set()


async def test_when_a_source_freezes_at_forty_percent_another_goes_on_from_there(tmp_path: Path) -> None:
    nodes = running(tmp_path, Freezing, Counting, Holdings, stall_seconds=IMPATIENT_SECONDS)
    async with nodes as (freezing, other, newcomer):
        blob = freezing.store.put(CONTENT)
        other.store.put(CONTENT)
        fetching = asyncio.create_task(newcomer.fetcher.fetch(blob.name, blob.size_bytes, [freezing.peer_id]))
        await eventually(lambda: len(newcomer.holdings.have(blob.name).pieces) == 5)
        had = newcomer.holdings.have(blob.name).pieces
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [other.peer_id])
        await fetching
        assert newcomer.store.read(blob.name) == CONTENT
        assert sorted({*other.holdings.asked}) == sorted({*range(NUM_PIECES)} - had)  # type: ignore[attr-defined]
        Stalling.released.set()


async def test_of_five_sources_four_of_which_are_broken_the_fifth_serves(tmp_path: Path) -> None:
    kinds = (Corrupt, Stalling, Cut, Holdings, Holdings, Holdings)
    async with running(tmp_path, *kinds, stall_seconds=IMPATIENT_SECONDS) as (*sources, newcomer):
        empty = sources[3]
        for node in sources:
            if node is not empty:
                blob = node.store.put(CONTENT)
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [node.peer_id for node in sources])
        assert newcomer.store.read(blob.name) == CONTENT
        Stalling.released.set()


async def test_when_many_cannot_be_had_the_rest_is_not_tried(tmp_path: Path) -> None:
    """They are of a snapshot that nobody keeps any more: each would cost a stall."""
    async with running(tmp_path, Counting, Holdings) as (source, newcomer):
        blob = source.store.put(CONTENT)
        gone = [(f"{index:064x}", 5, []) for index in range(3)]
        with pytest.raises(Unreachable):
            await newcomer.fetcher.fetch_all([*gone, (blob.name, blob.size_bytes, [source.peer_id])], parallel=2)
        assert not source.holdings.asked  # type: ignore[attr-defined]


async def test_who_fetches_from_a_source_is_asked_too(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Counting, Counting, Holdings) as (origin, one, stranger, newcomer):
        blob = origin.store.put(CONTENT)
        for node in (one, stranger):
            await node.fetcher.fetch(blob.name, blob.size_bytes, [origin.peer_id])
        newcomer.connections.forget(stranger.peer_id)  # whom it does not know it cannot ask
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [origin.peer_id])
        assert newcomer.store.read(blob.name) == CONTENT
        assert one.holdings.asked  # type: ignore[attr-defined]
        assert not stranger.holdings.asked  # type: ignore[attr-defined]


async def test_who_is_named_first_is_asked_first_unless_it_is_slow(tmp_path: Path) -> None:
    async with running(tmp_path, Counting, Counting, Holdings) as (one, two, newcomer):
        blobs = [two.store.put(bytes([number])) for number in range(2)]
        for number in range(2):
            one.store.put(bytes([number]))
        named = [two.peer_id, one.peer_id]
        await newcomer.fetcher.fetch(blobs[0].name, 1, named)
        assert (len(one.holdings.asked), len(two.holdings.asked)) == (0, 1)  # type: ignore[attr-defined]
        for node, seconds in ((one, 0.1), (two, 1.0)):
            newcomer.fetcher._means.piece_seconds[node.peer_id] = seconds
        await newcomer.fetcher.fetch(blobs[1].name, 1, named)
        assert (len(one.holdings.asked), len(two.holdings.asked)) == (1, 1)  # type: ignore[attr-defined]


async def test_a_source_that_tells_of_too_many_others_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, Holdings, Holdings) as (liar, newcomer):
        blob = liar.store.put(CONTENT)
        crowd = {f"peer {number}": frozenset({0}) for number in range(MAX_PEERS_PER_BLOB + 1)}
        monkeypatch.setattr(Uploads, "to_others", lambda *_arguments, **_named: crowd)
        with pytest.raises(Unreachable, match="33 others fetch from it"):
            await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [liar.peer_id])
        assert newcomer.fetcher.bad_sources == {liar.peer_id: 1}
        del crowd["peer 0"]  # so many that nobody knows are passed over
        again = Fetcher(newcomer.holdings, newcomer.connections, PATIENT_SECONDS)
        await again.fetch(blob.name, blob.size_bytes, [liar.peer_id])


async def test_a_disk_that_stalls_for_longer_than_a_source_may_costs_no_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, stalls = PartialBlob.accept_piece, iter([IMPATIENT_SECONDS + 1.0])

    def stalling(partial: PartialBlob, index: int, content: bytes | memoryview) -> None:
        time.sleep(next(stalls, 0.0))
        accept(partial, index, content)

    monkeypatch.setattr(PartialBlob, "accept_piece", stalling)
    async with running(tmp_path, Counting, Holdings, stall_seconds=IMPATIENT_SECONDS) as (source, newcomer):
        blob = source.store.put(CONTENT)
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])
        assert newcomer.store.read(blob.name) == CONTENT


async def test_many_who_fetch_one_blob_serve_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, Counting, *[Counting] * 4) as (origin, *peers):
        await serve_at(origin, 4_000_000)
        introduce(origin, *peers)
        blob = origin.store.put(CONTENT)
        everybody = [node.peer_id for node in (origin, *peers)]
        await asyncio.gather(*(node.fetcher.fetch(blob.name, blob.size_bytes, everybody) for node in peers))
        assert all(node.store.read(blob.name) == CONTENT for node in peers)
        assert len(origin.holdings.asked) < 3.5 * NUM_PIECES  # type: ignore[attr-defined]
        assert sum(len(node.holdings.asked) for node in peers) > 0.5 * NUM_PIECES  # type: ignore[attr-defined]


async def test_a_slow_source_holds_up_nothing_and_the_untried_are_tried(tmp_path: Path) -> None:
    kinds = (Counting, Counting, Counting, Holdings)
    nodes = running(tmp_path, *kinds, stall_seconds=IMPATIENT_SECONDS)
    async with nodes as (slow, fast, untried, newcomer):
        await serve_at(slow, 16_000)
        introduce(slow, newcomer)
        for content in (CONTENT, CONTENT[::-1]):
            for node in (slow, fast, untried):
                blob = node.store.put(content)
            sources = [slow, fast] if content is CONTENT else [slow, fast, untried]
            async with asyncio.timeout(45.0):  # one piece takes the slow one more than a minute
                await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [node.peer_id for node in sources])
            assert newcomer.store.read(blob.name) == content
        assert slow.holdings.asked  # type: ignore[attr-defined]
        assert untried.holdings.asked  # type: ignore[attr-defined]
        assert len(fast.holdings.asked) > NUM_PIECES  # type: ignore[attr-defined]


async def test_of_a_blob_that_our_disk_has_damaged_only_the_bad_piece_is_fetched(tmp_path: Path) -> None:
    async with running(tmp_path, Counting, Holdings) as (source, newcomer):
        blob = source.store.put(CONTENT)
        newcomer.store.put(CONTENT)
        path = newcomer.store.path(blob.name)
        path.write_bytes(
            CONTENT[: 7 * PIECE_BYTES] + bytes([CONTENT[7 * PIECE_BYTES] ^ 1]) + CONTENT[7 * PIECE_BYTES + 1 :]
        )
        assert await newcomer.fetcher.set_aside_damaged([blob.name, "0" * 64]) == (blob.name,)
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])
        assert newcomer.store.read(blob.name) == CONTENT
        assert source.holdings.asked == [7]  # type: ignore[attr-defined]
        assert await newcomer.fetcher.set_aside_damaged([blob.name]) == ()


async def test_bytes_through_a_unix_socket_count_as_libp2p(tmp_path: Path) -> None:
    hidden = Node(tmp_path / "hidden")

    async def open_tunnel(peer_id: str, addresses: tuple[str, ...]) -> Path:
        assert (peer_id, addresses) == (hidden.peer_id, ("/p2p-circuit",))
        return hidden.unix_path

    newcomer = Node(tmp_path / "newcomer", open_tunnel=open_tunnel)
    try:
        await hidden.start(listen=None)
        newcomer.connections.update_entry(hidden.entry(libp2p_addresses=["/p2p-circuit"]))
        blob = hidden.store.put(CONTENT)
        await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [hidden.peer_id])
        (received,), (sent,) = newcomer.traffic.flows(), hidden.traffic.flows()
        assert (received.peer, received.transport) == (hidden.peer_id, "libp2p")
        assert (sent.peer, sent.transport) == (newcomer.peer_id, "libp2p")
        assert is_content_once(received.received_bytes)
        assert (sent.sent_bytes, sent.received_bytes) == (received.received_bytes, received.sent_bytes)
    finally:
        await newcomer.stop()
        await hidden.stop()


def test_traffic_is_counted_per_peer_and_transport_and_between_two_moments() -> None:
    traffic, peer = Traffic(), Identity.generate().peer_id
    traffic.sent(peer, "grpc", 5)
    before = traffic.snapshot()
    traffic.sent(peer, "grpc", 2)
    traffic.received(peer, "libp2p", 3)
    assert traffic.since(before).flows() == (Flow(peer, "grpc", 2, 0), Flow(peer, "libp2p", 0, 3))
    assert (traffic.sent_bytes, traffic.received_bytes, before.sent_bytes) == (7, 3, 5)
