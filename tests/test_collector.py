"""What the collector does to a real disk: several processes use it, and each of them may be killed at any instant."""

import asyncio
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from exchange_nodes import eventually
from state_nodes import Joiner, World, impatient, world_of

from spes_peer import collector as collector_module
from spes_peer import troubles
from spes_peer.blobs import PIECE_BYTES, Blob, BlobStore, digests_of, name_of
from spes_peer.collection import WantedData
from spes_peer.collector import Collector, least_bytes, state_bytes
from spes_peer.errors import PeerError
from spes_peer.exchange.pace import Pace
from spes_peer.files import write_whole
from spes_peer.identity import Identity, PeerId
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import Record
from spes_peer.snapshots import SnapshotStore

SHARD_BYTES = 30_000
NUM_SHARDS = 6


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's disk does not matter."""
    monkeypatch.setattr(collector_module, "SPARE_BYTES", -(1 << 60))


@pytest.fixture
async def world(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[World]:
    async with world_of(tmp_path, manifest, organizer) as one:
        await one.start_node()
        yield one


class Peer:
    """A joiner that collects; the rounds take its shards in turn."""

    def __init__(self, joiner: Joiner, max_bytes: int = 0) -> None:
        self.joiner = joiner
        self.node = joiner.node
        self.blobs = joiner.node.blobs
        self.shards: list[Blob] = []
        self.collector = Collector(self.node, joiner.replica.store, self.wanted, max_bytes)

    @classmethod
    async def of(cls, world: World, max_bytes: int = 0) -> "Peer":
        return cls(Joiner(await world.start_node(), world), max_bytes)

    def wanted(self, record: Record, _ahead_bytes: int) -> WantedData:
        names = [shard.name for shard in self.shards]
        later = {name: (place - record.round) % NUM_SHARDS for place, name in enumerate(names)}
        return WantedData(frozenset(name for name, place in later.items() if place == 0), later)

    def use_shard(self, round: int) -> None:
        content = random.Random(f"shard {round % NUM_SHARDS}").randbytes(SHARD_BYTES)
        blob = self.blobs.put(content)
        if blob not in self.shards:
            self.shards.append(blob)

    def names(self) -> set[str]:
        return set(self.blobs.names())

    def taken_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.node.folder.path.rglob("*") if path.is_file())

    async def age(self, world: World, num_records: int) -> None:
        for _ in range(num_records):
            world.grow(1)
            await self.collector.look()


class Gate(Pace):
    """Lets two pieces pass, and the rest when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()
        self._num_bytes = 0

    async def take(self, num_bytes: int, peer: PeerId) -> None:
        if self._num_bytes >= 2 * PIECE_BYTES:
            await self.opened.wait()
        self._num_bytes += num_bytes


def begin(world: World) -> None:
    """Seven records, and all that a joiner needs at one node."""
    world.grow(7)
    world.give_snapshot(world.nodes[0], 6, 4)
    world.give_updates(world.nodes[0], range(5, 8))


async def test_over_a_long_run_the_limit_is_kept_and_nothing_that_is_needed_goes(world: World) -> None:
    source = world.nodes[0]
    peer = await Peer.of(world)
    folder_bytes = peer.collector._disk().other_bytes
    limit = peer.collector.max_bytes = folder_bytes + 150_000 + least_bytes(peer.node.layout)
    before_looks, after, evicted = [], [], False
    begin(world)
    for round in range(8, 19):
        world.give_updates(peer.node, [round])
        world.grow(1)
        await peer.joiner.catch_up()
        peer.use_shard(round)
        offers = [peer.blobs.put(f"offer {round} {number}".encode() * 500).name for number in range(3)]
        before = peer.names()
        before_looks.append(peer.taken_bytes())
        await peer.collector.look()
        needed = peer.joiner.replica.store.needed() | peer.wanted(peer.node.chain.head.record, 0).now
        assert needed & before <= peer.names()
        assert set(offers) <= peer.names()
        assert peer.collector.used_bytes == pytest.approx(peer.taken_bytes(), rel=0.05)  # without the lists of pieces
        after.append(peer.taken_bytes())
        evicted |= not {shard.name for shard in peer.shards} <= peer.names()
    assert max(after) <= limit
    assert max(before_looks) <= 1.1 * limit  # a shard came since the last look
    assert evicted
    assert not troubles.board.texts
    assert [snapshot.round for snapshot in peer.joiner.replica.snapshots] == [18, 16]
    peer.node.list_snapshots = lambda: peer.joiner.replica.snapshots
    late = Joiner(await world.start_node(), world)  # what is kept is enough for others
    await world.stop_node(source)
    await late.catch_up()
    assert late.replica.applied == 18


async def test_without_a_limit_data_stays_and_what_nothing_needs_goes(world: World) -> None:
    peer = await Peer.of(world)
    for round in range(NUM_SHARDS):
        peer.use_shard(round)
    garbage = peer.blobs.put(b"an offer that no record took").name
    await peer.collector.look()
    await peer.age(world, 1)
    assert garbage in peer.names()
    await peer.age(world, 1)
    assert peer.names() == {shard.name for shard in peer.shards}


async def test_a_disk_that_is_nearly_full_is_as_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = await Peer.of(world)
    for round in range(NUM_SHARDS):
        peer.use_shard(round)
    free_bytes = 10**9 - 3 * SHARD_BYTES + state_bytes(peer.node.layout)  # for the next snapshot
    free = shutil.disk_usage(peer.node.folder.path)._replace(free=free_bytes)
    monkeypatch.setattr(collector_module, "SPARE_BYTES", 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: free)
    await peer.collector.look()
    assert peer.names() == {shard.name for shard in peer.shards[: NUM_SHARDS - 3]}  # training comes to those last
    assert peer.collector.ahead_bytes == 0  # the snapshots need what is left


async def test_a_limit_below_what_must_be_kept_is_said_and_costs_nothing_that_is_needed(world: World) -> None:
    begin(world)
    peer = await Peer.of(world)
    await peer.joiner.catch_up()
    needed = peer.joiner.replica.store.needed() & peer.names()
    peer.collector.max_bytes = 50_000
    peer.use_shard(1)
    assert needed < peer.names()
    await peer.collector.look()
    assert peer.names() == needed
    (text,) = troubles.board.texts
    assert text.startswith("--max-disk 0.1 MB is too small: ")
    await peer.collector.look()
    assert troubles.board.texts == (text,)
    peer.collector.max_bytes = 10**9
    await peer.collector.look()
    assert troubles.board.texts == ()


async def test_what_is_being_fetched_stays_until_it_is_here(world: World) -> None:
    source, peer = world.nodes[0], await Peer.of(world, max_bytes=1)
    content = random.Random(1).randbytes(3 << 20)
    blob = source.blobs.put(content)
    gate = peer.node.fetcher._means.download = Gate()
    fetching = asyncio.create_task(peer.node.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id]))
    await eventually(lambda: bool(peer.node.holdings.have(blob.name).pieces))
    await peer.age(world, 5)
    assert [one.name for one in peer.node.holdings.unfinished()] == [blob.name]
    gate.opened.set()
    await fetching
    await peer.collector.look()
    assert peer.blobs.read(blob.name) == content  # it may be of the open round
    await peer.age(world, 2)
    assert peer.names() == set()


async def test_pieces_of_what_nobody_fetches_any_more_go(world: World) -> None:
    peer = await Peer.of(world)
    peer.node.holdings.begin("a" * 64, 5000)
    await peer.age(world, 2)
    assert [one.name for one in peer.node.holdings.unfinished()] == ["a" * 64]
    await peer.age(world, 1)
    assert peer.node.holdings.unfinished() == []


async def test_what_is_being_served_stays_until_that_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, taker = await Peer.of(world), await world.start_node()
    content = random.Random(1).randbytes(3 << 20)
    blob = peer.blobs.put(content)
    await peer.age(world, 1)
    gate = taker.fetcher._means.download = Gate()
    taking = asyncio.create_task(taker.fetcher.fetch(blob.name, blob.size_bytes, [peer.node.peer_id]))
    await eventually(lambda: bool(taker.holdings.have(blob.name).pieces))
    await peer.age(world, 4)
    gate.opened.set()
    await taking
    assert taker.blobs.read(blob.name) == content
    assert peer.names() == {blob.name}  # it may be asked for more
    monkeypatch.setattr(collector_module, "_SERVED_SECONDS", 0.0)
    await peer.collector.look()
    assert peer.names() == set()


async def test_who_fetches_what_has_just_been_collected_hears_so_and_takes_it_of_another(world: World) -> None:
    """Between two requests of one fetch, for one is spared that has just had a piece."""
    giver, other = world.nodes[0], await Peer.of(world)
    blob = giver.blobs.put(b"content")
    taker = await world.start_node()
    giver.blobs.remove(blob.name)
    with pytest.raises(PeerError, match="has none of the missing pieces"), impatient(taker):
        await taker.fetcher.fetch(blob.name, blob.size_bytes, [giver.peer_id])
    other.blobs.put(b"content")
    await taker.fetcher.fetch(blob.name, blob.size_bytes, [giver.peer_id, other.node.peer_id])
    assert taker.blobs.read(blob.name) == b"content"


async def test_a_snapshot_that_takes_many_rounds_to_write_is_not_collected_before_it_is_kept(world: World) -> None:
    peer = await Peer.of(world, max_bytes=1)
    store: SnapshotStore = peer.joiner.replica.store
    snapshot = world.snapshot(2)
    with store.being_made():
        world.give_snapshot(peer.node, 2)
        await peer.age(world, 4)
        store.keep(snapshot)
    await peer.age(world, 3)
    assert {block.blob for block in snapshot.blocks} == peer.names()


async def test_a_snapshot_that_is_asked_for_is_not_taken_by_a_look_that_has_begun(world: World) -> None:
    begin(world)
    source, peer = world.nodes[0], await Peer.of(world)
    world.give_snapshot(peer.node, 6)
    decided, _ = peer.blobs.found()
    await peer.joiner.replica.store.fetch(world.snapshot(6))
    assert peer.blobs.remove_as_found(decided) == []
    assert source.traffic.sent_bytes == 0


async def test_what_killed_processes_have_left_is_removed(world: World) -> None:
    peer = await Peer.of(world)
    whole = peer.blobs.put(b"whole")
    folder = peer.blobs.path(whole.name).parent
    litter = [
        folder / f".{whole.name}.data.x1.writing",
        folder / f".{whole.name}.writing",
        folder / f"{'f' * 64}.pieces",
    ]
    for path in litter:
        path.write_bytes(b"left behind")
    await peer.collector.look()
    assert [path for path in litter if path.exists()] == []
    assert peer.blobs.is_sound(whole.name)


async def test_a_record_that_the_disk_has_damaged_costs_no_blob(world: World) -> None:
    """What it needs is not known then."""
    peer = await Peer.of(world)
    blob = peer.blobs.put(b"content")
    await peer.age(world, 1)
    peer.node.chain._path(1).write_bytes(b"damaged")
    peer.joiner.replica.store._updates.clear()
    task = asyncio.create_task(peer.collector.run())
    world.grow(3)
    await asyncio.sleep(0.2)
    assert not task.done()
    assert peer.blobs.has(blob.name)
    task.cancel()


# ---- the store between processes ----


def test_a_blob_that_was_put_again_since_it_was_found_is_not_removed(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    blob = store.put(b"content")
    (before,), _ = store.found()
    for use_again in (lambda: store.put(b"content"), lambda: store.renew(blob.name)):
        use_again()
        assert store.remove_as_found([before]) == []
        (now,), _ = store.found()
        assert now != before
        before = now
    assert store.remove_as_found([before]) == [before]
    assert store.remove_as_found([before]) == []
    assert not store.renew(blob.name)
    assert os.listdir(store.path(blob.name).parent) == []


def test_a_blob_is_here_also_where_the_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path / "blobs")
    blob = store.put(b"content")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(os, "utime", refuse)
    assert store.renew(blob.name)
    assert not store.renew("0" * 64)


def test_nothing_is_removed_while_somebody_puts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spes_peer.blobs._LOCK_SECONDS", 0.02)
    store, other = BlobStore(tmp_path / "blobs"), BlobStore(tmp_path / "blobs")
    store.put(b"content")
    (found,), _ = store.found()
    stray = store.path(found.name).with_suffix(".stray")
    stray.write_bytes(b"")
    with other._sharing():
        assert store.remove_as_found([found]) == []
        assert store.remove_strays([stray]) == 0
    assert store.remove_as_found([found]) == [found]
    assert store.remove_strays([stray]) == 1


COLLECT_FOR_EVER = """
import sys
from pathlib import Path
from spes_peer.blobs import BlobStore
from spes_peer.collection import Needs, judged, marked, to_remove
store, round, marks = BlobStore(Path(sys.argv[1])), Path(sys.argv[2]), {}
while True:
    needs = Needs(int(round.read_text()), frozenset())
    found, strays = store.found()
    store.remove_strays(strays)
    marks = marked(found, needs, marks, int(round.read_text()))
    num_removed = len(store.remove_as_found(to_remove(judged(found, needs, marks), 0)))
    print(num_removed, flush=True)
"""


def collecting(store: BlobStore, round: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", COLLECT_FOR_EVER, str(store.folder), str(round)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_what_one_process_has_put_in_a_round_is_whole_while_another_collects_and_is_killed(tmp_path: Path) -> None:
    """Half of what is put was there before, and is just about to be removed."""
    store, round_file, chance = BlobStore(tmp_path / "blobs"), tmp_path / "round", random.Random(1)
    round_file.write_text("0")
    num_kept = num_removed = 0
    process = collecting(store, round_file)
    until, number = time.monotonic() + 2.5, 0
    while time.monotonic() < until or not num_kept or not num_removed:
        number += 1
        write_whole(round_file, str(number).encode())
        contents = [random.Random(chance.randrange(60)).randbytes(20_000) for _ in range(20)]
        num_kept += sum(store.has(name_of(digests_of(content))) for content in contents)
        for content in contents:
            blob = store.put(content)
            assert store.read(blob.name) == content
        for content in contents:
            name = name_of(digests_of(content))
            assert store.is_sound(name)
        if number % 10 == 0:
            process.kill()
            assert process.stdout is not None
            num_removed += sum(map(int, process.stdout.read().split()))
            process.wait()
            process = collecting(store, round_file)
        assert time.monotonic() < until + 60
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    found, strays = store.found()
    store.remove_strays(strays)
    for one in found:
        assert store.is_sound(one.name)
    left = [path for path in store.folder.rglob("*") if path.is_file() and path.suffix not in (".data", ".pieces")]
    assert left == [store.folder / ".lock"]
