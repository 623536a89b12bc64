"""Which data a peer keeps for the rounds to come, and how it comes by it."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from daemon_parts import following, make_node
from data_parts import made_up_source
from rounds_swarm import changed

from spes_peer.daemon.data_ahead import COPIES, DataAhead, SoundShards, shards_ahead, wanted_shards
from spes_peer.data.index import ShardIndex, index_of
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import Unreachable
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.data import Shard
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import DataRange, Record

NUM_SHARDS = 12
SHARDS = [f"{number:02x}" * 32 for number in range(NUM_SHARDS)]
SEQUENCES = 30  # in each shard
ROOM_BYTES = 1 << 30


@pytest.fixture
def manifest(manifest: Manifest) -> Manifest:
    num_tokens = SEQUENCES * manifest.model.sequence_length + 1
    return changed(manifest, "data", sources=[made_up_source(SHARDS, num_tokens)])


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    node = make_node(tmp_path / "self", manifest, organizer)
    node.blobs.put(index_of(SHARDS))
    assert node.shard_index.here()
    held_out = node.blobs.path(manifest.data.held_out.blob)
    held_out.parent.mkdir()
    held_out.touch()
    return node


@pytest.fixture
def index(manifest: Manifest) -> ShardIndex:
    return ShardIndex(manifest.data, [index_of(SHARDS)])


def opened(node: Node, *peers: Identity, **changes: Any) -> Record:
    record = following(node, node.identity).sealed.record
    roster = tuple(dataclasses.replace(record.roster[0], peer_id=peer.peer_id) for peer in peers)
    return dataclasses.replace(record, roster=roster, **changes)


def test_the_data_of_the_open_round_comes_first_and_then_what_training_comes_to(node: Node, index: ShardIndex) -> None:
    shuffle, position = Shuffle.of(node.manifest), 3 * SEQUENCES + 5
    record = opened(node, node.identity, next_position=position, returned=(DataRange(0, 1),))
    entry = dataclasses.replace(record.roster[0], ranges=(DataRange(position - 1, position),))
    record = dataclasses.replace(record, roster=(entry,))
    kept = [index.find(shard.blob) for shard in shards_ahead(node.manifest, index, record, node.peer_id, ROOM_BYTES)]
    assert set(kept[:2]) == {shuffle.sequence_at(0).shard, shuffle.sequence_at(position - 1).shard}
    order = [shuffle.sequence_at(position + offset).shard for offset in range(2 * NUM_SHARDS * SEQUENCES)]
    assert kept[2:] == [shard for shard in dict.fromkeys(order) if shard not in kept[:2]]
    assert set(kept) == set(index.numbers())


def test_of_every_shard_some_of_many_members_keep_a_copy_and_all_of_few(node: Node, index: ShardIndex) -> None:
    def copies(peers: Sequence[Identity]) -> set[int]:
        record = opened(node, *peers)
        kept = [set(shards_ahead(node.manifest, index, record, peer.peer_id, ROOM_BYTES)) for peer in peers]
        assert not set(shards_ahead(node.manifest, index, record, Identity.generate().peer_id, ROOM_BYTES))
        counts = Counter(shard for one in kept for shard in one)
        return {counts[shard] for shard in index.shards()}

    many = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 11)]
    assert copies(many) == {COPIES}
    assert copies(many[:3]) == {3}


def test_only_as_much_of_what_comes_soon_is_kept_as_there_is_room_for(node: Node, index: ShardIndex) -> None:
    data = node.manifest.data
    record = opened(node, node.identity)
    everything = list(shards_ahead(node.manifest, index, record, node.peer_id, ROOM_BYTES))
    room_bytes = 5 * data.size_bytes(next(index.shards()))
    assert list(shards_ahead(node.manifest, index, record, node.peer_id, room_bytes)) == everything[:5]


def test_what_a_round_needs_is_wanted_now_and_the_rest_in_the_order_in_which_training_comes_to_it(
    node: Node, index: ShardIndex
) -> None:
    shuffle, data, position = Shuffle.of(node.manifest), node.manifest.data, 3 * SEQUENCES
    record = opened(node, node.identity, next_position=position)
    entry = dataclasses.replace(record.roster[0], ranges=(DataRange(0, 1),), ahead=(DataRange(position, position + 1),))
    record = dataclasses.replace(record, roster=(entry,))
    own = {index.shard(shuffle.sequence_at(at).shard).blob for at in (0, position)}
    without_room = wanted_shards(node.manifest, index, record, node.peer_id, 0)
    assert without_room.now == {*data.kept_by_all, *own}
    order = [index.shard(at).blob for at in shuffle.shards_from(position)]
    assert sorted(without_room.later, key=without_room.later.__getitem__) == order
    room_bytes = 4 * data.size_bytes(next(index.shards()))
    ahead = {shard.blob for shard in shards_ahead(node.manifest, index, record, node.peer_id, room_bytes)}
    assert wanted_shards(node.manifest, index, record, node.peer_id, room_bytes).now == without_room.now | ahead
    assert wanted_shards(node.manifest, index, record, Identity.generate().peer_id, room_bytes).now == set(
        data.kept_by_all
    )


class Source:
    """Stands for the others' nodes: everything can be had of them, or nothing."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked: list[str] = []
        self.is_gone = False
        self.lacks = ""
        node.fetcher.fetch_all = self.fetch_all  # type: ignore[method-assign]

    async def fetch_all(self, wanted: Sequence[Any], parallel: int = 4, gathering: object = None) -> None:
        self.asked += [blob for blob, _size, _sources in wanted]
        if self.is_gone and wanted:
            raise Unreachable("nobody is here")
        if self.lacks in [blob for blob, _size, _sources in wanted]:
            raise Unreachable("nobody has it")
        for blob in self.asked:
            self.node.blobs.path(blob).parent.mkdir(parents=True, exist_ok=True)
            self.node.blobs.path(blob).touch()


async def test_what_is_missing_is_fetched_once_for_each_record(node: Node) -> None:
    node.chain.append(following(node, node.identity))
    source, ahead = Source(node), DataAhead(node, lambda: ROOM_BYTES)
    source.is_gone = True
    with pytest.raises(Unreachable):
        await ahead.fetch()
    source.is_gone = False
    source.asked.clear()
    await ahead.fetch()
    assert sorted(source.asked) == SHARDS
    node.blobs.path(source.asked[0]).unlink()
    await ahead.fetch()
    assert len(source.asked) == NUM_SHARDS
    node.chain.append(following(node, node.identity))
    await ahead.fetch()
    assert source.asked[NUM_SHARDS:] == source.asked[:1]


async def test_nothing_is_fetched_ahead_before_it_is_known_how_much_there_is_room_for(node: Node) -> None:
    node.chain.append(following(node, node.identity))
    source, room = Source(node), iter([None, 0, ROOM_BYTES])
    ahead = DataAhead(node, lambda: next(room))
    await ahead.fetch()
    assert source.asked == []
    await ahead.fetch()  # of this record nothing more
    node.chain.append(following(node, node.identity))
    assert source.asked == []
    await ahead.fetch()
    assert len(source.asked) == NUM_SHARDS


async def test_one_that_nobody_has_holds_no_other_up(node: Node, index: ShardIndex) -> None:
    node.chain.append(following(node, node.identity))
    source, ahead = Source(node), DataAhead(node, lambda: ROOM_BYTES)
    head = node.chain.head
    assert head is not None
    source.lacks = next(shards_ahead(node.manifest, index, head.record, node.peer_id, ROOM_BYTES)).blob
    with pytest.raises(Unreachable):
        await ahead.fetch()
    assert len(source.asked) == NUM_SHARDS


async def test_nothing_more_is_fetched_ahead_once_there_is_a_reason_to_rest(node: Node) -> None:
    node.chain.append(following(node, node.identity))
    source = Source(node)
    ahead = DataAhead(node, lambda: ROOM_BYTES, rests=lambda: len(source.asked) >= 4)
    await ahead.fetch()
    assert len(source.asked) == 4
    await ahead.fetch()
    assert len(source.asked) == 4
    rests = [True]
    ahead = DataAhead(node, lambda: ROOM_BYTES, rests=lambda: rests[0])
    await ahead.fetch()
    assert len(source.asked) == 4
    rests[0] = False
    await ahead.fetch()
    assert len(source.asked) == NUM_SHARDS


async def test_a_shard_of_an_earlier_start_that_the_disk_has_damaged_is_fetched_again_before_its_first_use(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(2 * node.manifest.model.sequence_length + 2)
    name = node.blobs.put(content).name
    shard = Shard(blob=name, num_tokens=len(content) // 2)
    looked_at: list[str] = []
    is_sound = node.blobs.is_sound
    monkeypatch.setattr(node.blobs, "is_sound", lambda name: looked_at.append(name) or is_sound(name))
    source = Source(node)
    sound = SoundShards(node)
    await sound.have([shard])
    await sound.have([shard])
    assert looked_at == [name]
    node.blobs.path(name).write_bytes(b"x" + content[1:])
    await SoundShards(node).have([shard])  # the next start
    assert looked_at == [name, name]
    assert [one.name for one in node.holdings.unfinished()] == [name]  # set aside, and asked for
    assert source.asked[-1] == name
