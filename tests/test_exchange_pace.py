"""Limits on what leaves and comes: kept, shared fairly, and not in the way of small messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from exchange_nodes import Node

from spes_peer.exchange import pace
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.limits import CHUNK_BYTES, MAX_FETCHES
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.server import PeerServer
from spes_peer.identity import Identity
from spes_peer.wire.peer_pb2 import HaveRequest

RATE = 2_000_000
PEERS = [Identity.generate().peer_id for _ in range(3)]


class Clock:
    """The loop's time, which passes as fast as everybody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now, self._real = loop.time(), loop.call_at
        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(loop, "call_at", self._at)

    def _at(
        self, when: float, callback: Callable[..., object], *args: object, **_kwargs: object
    ) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        handle = asyncio.TimerHandle(when, callback, args, loop)

        def fire() -> None:
            if not handle.cancelled():
                self.now = max(self.now, when) + 1e-6  # as a real one, it never stands
                handle._run()

        loop.call_soon(fire)
        return handle


async def test_the_pace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limited, began_at = Pace(RATE), clock.now
    for _ in range(100):
        await limited.take(RATE // 10, PEERS[0])
    assert 10.0 * 0.95 < clock.now - began_at < 10.0 * 1.05


async def test_what_a_relay_passes_on_counts_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limited, began_at = Pace(RATE), clock.now
    for _ in range(100):
        limited.charge(RATE // 20)
        await limited.take(RATE // 20, PEERS[0])
    assert 10.0 * 0.95 < clock.now - began_at < 10.0 * 1.05
    Pace().charge(RATE)


async def test_a_peer_gets_no_more_by_asking_for_more_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limited, began_at = Pace(RATE), clock.now
    taken = [0, 0]

    async def transfer(number: int) -> None:
        while clock.now < began_at + 20.0:
            await limited.take(100_000, PEERS[number])
            taken[number] += 100_000

    await asyncio.gather(transfer(0), *(transfer(1) for _ in range(7)))
    assert taken[0] == pytest.approx(taken[1], rel=0.05)


async def test_who_gives_up_waiting_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limited, began_at = Pace(RATE), clock.now
    waiting = [asyncio.create_task(limited.take(RATE, peer)) for peer in (*PEERS, PEERS[1])]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, True, False, False]
    assert clock.now - began_at < 3.0
    await limited.take(1, PEERS[0])


async def test_without_a_limit_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    began_at = clock.now
    await Pace().take(10**12, PEERS[0])
    assert clock.now == began_at
    assert (Pace().chunk_bytes(), Pace().num_at_once) == (CHUNK_BYTES, MAX_FETCHES)


async def test_all_get_the_same_share_whatever_the_size_of_their_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limited, began_at = Pace(RATE), clock.now
    taken = [0, 0, 0]

    async def transfer(number: int, chunk_bytes: int) -> None:
        while clock.now < began_at + 20.0:
            await limited.take(chunk_bytes, PEERS[number])
            taken[number] += chunk_bytes

    await asyncio.gather(transfer(0, 100_000), transfer(1, 100_000), transfer(2, 30_000))
    assert taken[0] == pytest.approx(taken[1], rel=0.02)
    assert taken[2] == pytest.approx(0.3 * taken[0], rel=0.05)  # who comes again too late for its turn waits for one
    assert sum(taken) == pytest.approx(20 * RATE, rel=0.05)


@pytest.mark.parametrize("rate", [1_000, 50_000, 1_000_000, 10**9])
def test_the_slower_the_smaller_are_chunks_and_the_fewer_are_served_at_once(rate: int) -> None:
    limited = Pace(rate)
    seconds_between_chunks = limited.num_at_once * limited.chunk_bytes() / rate
    assert seconds_between_chunks < 10 or limited.chunk_bytes() == pace._LEAST_CHUNK_BYTES
    assert limited.chunk_bytes() <= CHUNK_BYTES


# ---- real transfers ----


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """One that has blobs and sends at the pace, one that fetches."""
    source, asker = Node(tmp_path / "source"), Node(tmp_path / "asker")
    source.server = await PeerServer.start(
        source, source.holdings, source.tls, "127.0.0.1:0", source.unix_path, source.traffic, upload=Pace(RATE)
    )
    asker.connections.update_entry(source.entry())
    yield source, asker
    await asker.connections.close()
    await source.server.stop(0)


async def rate_of(fetcher: Fetcher, source: Node, read_ahead_bytes: int = 0) -> float:
    """At which three blobs come, in bytes a second; it counts what must have waited for the pace."""
    blobs = [source.store.put(bytes([number]) * 2_000_000) for number in range(3)]
    now = asyncio.get_running_loop().time
    began_at = now()
    await fetcher.fetch_all([(blob.name, blob.size_bytes, [source.peer_id]) for blob in blobs])
    return (sum(blob.size_bytes for blob in blobs) - read_ahead_bytes) / (now() - began_at)


async def test_no_more_bytes_a_second_are_sent_than_was_said(ends: tuple[Node, Node]) -> None:
    source, asker = ends
    assert await rate_of(asker.fetcher, source, int(RATE * 0.1)) < RATE * 1.05


async def test_no_more_bytes_a_second_are_taken_than_was_said(tmp_path: Path) -> None:
    source, asker = Node(tmp_path / "source"), Node(tmp_path / "asker")
    await source.start()
    asker.connections.update_entry(source.entry())
    fetcher = Fetcher(asker.holdings, asker.connections, 1.0, download=Pace(RATE))
    assert await rate_of(fetcher, source, int(RATE * 0.1)) < RATE * 1.05
    await asker.connections.close()
    assert source.server is not None
    await source.server.stop(0.0)


async def test_small_messages_do_not_wait_for_blobs(ends: tuple[Node, Node]) -> None:
    source, asker = ends
    blob = source.store.put(b"x" * 3_000_000)
    fetching = asyncio.ensure_future(asker.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id]))
    link = await asker.connections.to(source.peer_id)
    num_answers = 0
    while not fetching.done():
        await link.call(link.stub.Have, HaveRequest(name="0" * 64), timeout_seconds=10.0)
        num_answers += 1
    await fetching
    assert num_answers > 3
