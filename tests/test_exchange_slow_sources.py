"""Sources that send a little now and then, or are busy for long: they hold up nobody who has others to ask."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from exchange_nodes import Node, eventually, introduce, running

from spes_peer.blobs import PIECE_BYTES, Blob
from spes_peer.errors import Unreachable
from spes_peer.exchange import connections, sources
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.limits import FETCHES_PER_SOURCE
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.server import PeerServer
from spes_peer.exchange.transfer import Means, Transfer
from spes_peer.exchange.transfers import Transfers
from spes_peer.identity import Identity, PeerId

CONTENT = b"x" * PIECE_BYTES
STALL_SECONDS = 1.5


class Drip(Pace):
    """Sends so many bytes, and after a moment as many more."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._num_bytes = num_bytes

    def chunk_bytes(self, num_served: int = 1) -> int:
        return self._num_bytes

    async def take(self, num_bytes: int, peer: PeerId) -> None:
        await asyncio.sleep(0.05)


async def fetched(node: Node, blob: Blob, *sources: Node) -> None:
    """As whoever needs it does: who is silent for so short a time may be one of a machine that does much else."""
    async with asyncio.timeout(60):
        while not node.store.has(blob.name):
            with contextlib.suppress(Unreachable):
                await node.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id for source in sources])


async def serve_at(node: Node, upload: Pace) -> None:
    """From now on, at a new port."""
    assert node.server is not None
    await node.server.stop(0.0)
    node.server = await PeerServer.start(
        node, node.holdings, node.tls, "127.0.0.1:0", node.unix_path, node.traffic, upload
    )


@pytest.mark.parametrize("num_bytes", [1, 128])
async def test_any_number_of_sources_that_drip_hold_up_nobody(tmp_path: Path, num_bytes: int) -> None:
    """Some of them so that each would be done after a quarter of an hour."""
    async with running(tmp_path, *[Holdings] * 5, stall_seconds=STALL_SECONDS) as (*dripping, good, newcomer):
        for node in dripping:
            await serve_at(node, Drip(num_bytes))
        introduce(*dripping, good, newcomer)
        for node in (*dripping, good):
            blob = node.store.put(CONTENT)
        await fetched(newcomer, blob, *dripping, good)
        assert newcomer.store.read(blob.name) == CONTENT


async def test_the_only_source_is_left_if_what_it_sends_is_as_good_as_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings, stall_seconds=STALL_SECONDS) as (dripping, newcomer):
        await serve_at(dripping, Drip(1))
        introduce(dripping, newcomer)
        blob = dripping.store.put(CONTENT)
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable, match=r"sends less than 512 bytes a second|sent nothing"):
                await newcomer.fetcher.fetch(blob.name, blob.size_bytes, [dripping.peer_id])


async def test_who_has_kept_us_waiting_is_known_until_it_serves_as_it_should(tmp_path: Path) -> None:
    async with running(tmp_path, *[Holdings] * 3, stall_seconds=STALL_SECONDS) as (one, other, newcomer):
        await serve_at(one, Drip(128))
        introduce(one, other, newcomer)
        for node in (one, other):
            blob = node.store.put(CONTENT)
        late = newcomer.fetcher._means.late
        fetching = asyncio.create_task(fetched(newcomer, blob, one))
        await eventually(lambda: one.peer_id in late)
        await fetched(newcomer, blob, other)
        await fetching
        assert one.peer_id in late
        await serve_at(one, Pace())
        introduce(one, newcomer)
        await fetched(newcomer, one.store.put(CONTENT[1:]), one)
        assert one.peer_id not in late


async def test_sources_that_are_dialled_or_are_busy_with_others_keep_nobody_from_asking_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_PREPARING_SECONDS", 0.1)
    monkeypatch.setattr(connections, "DIAL_SECONDS", 600.0)
    async with running(tmp_path, *[Holdings] * 3) as (busy, good, newcomer):
        silent = Node(tmp_path / "silent")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            newcomer.connections.update_entry(silent.entry([f"127.0.0.1:{listening.getsockname()[1]}"]))
            for _ in range(FETCHES_PER_SOURCE):
                await newcomer.fetcher._means.turns[busy.peer_id].acquire()
            for node in (busy, good):
                blob = node.store.put(CONTENT)
            await fetched(newcomer, blob, silent, busy, good)
            assert newcomer.store.read(blob.name) == CONTENT


async def test_members_are_asked_before_strangers_and_who_is_late_last(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    loaded, stranger, idle, late, failing = peers = [Identity.generate().peer_id for _ in range(5)]
    means = Means(node.holdings, node.connections, STALL_SECONDS, Pace(), names=lambda peer: peer != stranger)
    means.load[loaded], means.late = 4, {late}
    with Transfers().fetching("0" * 64, 1) as move:
        transfer = Transfer(node.holdings.begin("0" * 64, 1), means, set(), move)
    transfer.add_sources(peers)
    transfer._sources[failing].num_failures = 1

    def preferred() -> list[PeerId]:
        return [source.peer_id for source in sorted(transfer._sources.values(), key=transfer._preference)]

    assert preferred() == [idle, failing, loaded, stranger, late]
