"""What a watcher sees of blobs on their way."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_parts import INDEX, SHARD
from exchange_nodes import eventually, running

from spes_peer.blobs import PIECE_BYTES
from spes_peer.data.index import ShardIndex
from spes_peer.exchange import transfers as module
from spes_peer.exchange.blob_words import BlobWords
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.transfers import Move, Transfers
from spes_peer.identity import Identity, PeerId
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId

ALDER, BIRCH = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (1, 2))


class Clock:
    """Both clocks of the board."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Gated(Holdings):
    """Gives the first piece that is asked for, and others when the gate is open."""

    gate = threading.Event()
    first: int | None = None

    def read_piece(self, name: str, index: int) -> bytes:
        if self.first is None:
            self.first = index
        assert index == self.first or self.gate.wait(60)
        return super().read_piece(name, index)


async def test_a_fetch_is_shown_at_both_ends_while_it_runs_and_afterwards_as_ended(tmp_path: Path) -> None:
    Gated.gate.clear()
    async with running(tmp_path, Gated, Holdings) as (alder, birch):
        blob = alder.store.put(bytes(3 * PIECE_BYTES))
        fetching = asyncio.create_task(birch.fetcher.fetch(blob.name, blob.size_bytes, [alder.peer_id]))
        await eventually(lambda: any(move.bytes_done for move in birch.transfers.in_flight))
        (down,), (up,) = birch.transfers.in_flight, alder.transfers.in_flight
        assert (down.direction, up.direction) == ("down", "up")
        assert (list(down.peers), list(up.peers)) == ([alder.peer_id], [birch.peer_id])
        for move in (down, up):
            assert (move.what, list(move.transports), move.num_bytes) == (blob.name, ["grpc"], 3 * PIECE_BYTES)
            assert 0 < move.bytes_done < move.num_bytes
        assert not birch.transfers.ended
        Gated.gate.set()
        await fetching
        assert not birch.transfers.in_flight
        assert [(move.id, move.bytes_done) for move in birch.transfers.ended] == [(down.id, 3 * PIECE_BYTES)]
        await eventually(lambda: [move.bytes_done for move in alder.transfers.ended] == [3 * PIECE_BYTES])


async def test_a_fetch_that_is_taken_up_again_begins_with_what_is_here(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings) as (alder, birch):
        blob = alder.store.put(bytes(PIECE_BYTES) + b"the end")
        partial = birch.holdings.begin(blob.name, blob.size_bytes)
        partial.accept_digests(alder.store.digests(blob.name))
        partial.accept_piece(0, bytes(PIECE_BYTES))
        await birch.fetcher.fetch(blob.name, blob.size_bytes, [alder.peer_id])
        (ended,) = birch.transfers.ended
        assert ended.bytes_done == blob.size_bytes
        assert ended.marks[0][1] == PIECE_BYTES


async def test_what_was_asked_for_in_vain_is_not_shown(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings) as (alder, birch):
        with alder.transfers.serving("f" * 64, 0, birch.peer_id):
            assert not alder.transfers.in_flight
        assert not alder.transfers.ended


def test_a_rate_is_of_the_last_few_seconds_and_none_once_nothing_comes(clock: Clock) -> None:
    board = Transfers()
    with board.fetching("blob", 10_000) as move:
        assert move.bytes_per_second(clock.now) == 0.0
        for _ in range(10):  # 100 bytes a second
            move.add(100, ALDER, "grpc")
            clock.now += 1.0
        assert move.bytes_per_second(clock.now) == pytest.approx(100.0)
        for _ in range(6):
            move.add(300, ALDER, "grpc")
            clock.now += 1.0
        assert move.bytes_per_second(clock.now) == pytest.approx(300.0)
        clock.now += 60.0
        assert move.bytes_per_second(clock.now) == 0.0
    assert move.bytes_per_second(clock.now) == pytest.approx(2800 / 76)  # of all its time
    assert move.since_at == 1e9 + 1000.0


def test_what_took_no_time_has_no_rate(clock: Clock) -> None:
    with Transfers().fetching("blob", 1_000) as move:
        move.add(1_000, ALDER, "grpc")
        clock.now += 0.01
    assert move.bytes_per_second(clock.now) == 0.0


def test_what_two_sources_send_of_the_same_does_not_make_a_blob_larger(clock: Clock) -> None:
    with Transfers().fetching("blob", 1_000) as move:
        move.add(900, ALDER, "grpc")
        move.add(900, BIRCH, "libp2p")
    assert (move.bytes_done, list(move.peers), list(move.transports)) == (1_000, [ALDER, BIRCH], ["grpc", "libp2p"])


def serve(board: Transfers, name: str, peer: PeerId, num_bytes: int) -> Move:
    with board.serving(name, 1_000, peer) as move:
        move.add(num_bytes, peer, "grpc")
    return move


def test_who_takes_a_blob_in_several_requests_is_one_transfer_that_ends_when_nothing_more_is_asked_for(
    clock: Clock,
) -> None:
    board = Transfers()
    first = serve(board, "blob", ALDER, 400)
    clock.now += 1.0
    assert serve(board, "blob", ALDER, 400) is first
    clock.now += 0.5
    assert serve(board, "blob", BIRCH, 400) is not first
    assert len(board.in_flight) == 2
    clock.now += 3.0
    assert not board.in_flight
    assert [move.bytes_done for move in board.ended] == [400, 800]
    serve(board, "blob", ALDER, 1_000)  # all of it: that is its end
    assert not board.in_flight


def test_however_many_take_blobs_the_board_stays_small(clock: Clock) -> None:
    board = Transfers()
    for number in range(1_000):
        serve(board, f"{number}", ALDER, 1)
    assert len(board.in_flight) <= module._MOST_SERVED
    assert len(board.ended) == module._MOST_ENDED
    assert [move.name for move in board.in_flight][-1] == "999"


async def test_those_that_wait_for_a_place_are_counted() -> None:
    board, turns, other = Transfers(), asyncio.Semaphore(1), asyncio.Semaphore(1)
    done = asyncio.Event()

    async def hold() -> None:
        async with board.place(other, turns):
            await done.wait()

    tasks = [asyncio.create_task(hold()) for _ in range(3)]
    await eventually(lambda: board.num_queued == 2)
    tasks.pop().cancel()
    await eventually(lambda: board.num_queued == 1)
    done.set()
    await asyncio.gather(*tasks)
    assert board.num_queued == 0
    assert not turns.locked()
    assert not other.locked()


def test_blobs_are_called_by_what_they_are(manifest: Manifest) -> None:
    index: list[ShardIndex | None] = [None]
    layout, words = Layout(manifest), BlobWords(manifest, lambda: index[0])
    assert words.of(SHARD) == "blob abababab"
    index[0] = ShardIndex(manifest.data, [INDEX])
    assert words.of(SHARD) == "data shard 0"
    assert words.of(manifest.data.sources[0].shards.index) == "index of data shards"
    assert words.of(manifest.data.held_out.blob) == "held-out data"
    assert words.of("0123456789abcdef") == "blob 01234567"
    of_shared, of_expert = layout.shared_blocks[0], layout.expert_blocks(1)[0]
    blobs = [(of_shared.id, "a"), (of_expert.id, "b"), (BlockId("no/such/block"), "c")]
    words.note_of_blocks("offer", blobs, layout.by_id)
    assert [words.of(name) for name in "ab"] == ["offer of shared parameters", "offer of expert 1"]
    words.note_of_blocks("update", blobs[1:], layout.by_id)  # an only offer is the update
    assert words.of("b") == "update of expert 1"
    words.note((f"{number}" for number in range(40_000)), "snapshot")
    assert len(words._noted) <= 32_768
    assert (words.of("39999"), words.of("a")) == ("snapshot", "blob a")
