"""Which data a peer keeps for the rounds to come, and how it comes by it."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from daemon_parts import following, make_node
from rounds_swarm import changed

from spes_peer.daemon import data_ahead
from spes_peer.daemon.data_ahead import COPIES, DataAhead, shards_ahead
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import Unreachable
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.manifest import Manifest, Shard
from spes_peer.run.records import DataRange, Record

NUM_SHARDS = 12
SEQUENCES = 30  # in each shard


@pytest.fixture
def manifest(manifest: Manifest) -> Manifest:
    num_tokens = SEQUENCES * manifest.model.sequence_length + 1
    shards = [Shard(blob=f"{number:02x}" * 32, num_tokens=num_tokens) for number in range(NUM_SHARDS)]
    return changed(manifest, "data", shards=shards)


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    return make_node(tmp_path / "self", manifest, organizer)


def opened(node: Node, *peers: Identity, **changes: Any) -> Record:
    record = following(node, node.identity).sealed.record
    roster = tuple(dataclasses.replace(record.roster[0], peer_id=peer.peer_id) for peer in peers)
    return dataclasses.replace(record, roster=roster, **changes)


def test_the_data_of_the_open_round_comes_first_and_then_what_training_comes_to(node: Node) -> None:
    shuffle, position = Shuffle.of(node.manifest), 3 * SEQUENCES + 5
    record = opened(node, node.identity, next_position=position, returned=(DataRange(0, 1),))
    entry = dataclasses.replace(record.roster[0], ranges=(DataRange(position - 1, position),))
    record = dataclasses.replace(record, roster=(entry,))
    kept = [node.manifest.data.shards.index(shard) for shard in shards_ahead(node.manifest, record, node.peer_id)]
    assert set(kept[:2]) == {shuffle.sequence_at(0).shard, shuffle.sequence_at(position - 1).shard}
    order = [shuffle.sequence_at(position + offset).shard for offset in range(2 * NUM_SHARDS * SEQUENCES)]
    assert kept[2:] == [shard for shard in dict.fromkeys(order) if shard not in kept[:2]]
    assert sorted(kept) == list(range(NUM_SHARDS))


def test_of_every_shard_some_of_many_members_keep_a_copy_and_all_of_few(node: Node) -> None:
    def copies(peers: Sequence[Identity]) -> set[int]:
        record = opened(node, *peers)
        kept = [set(shards_ahead(node.manifest, record, peer.peer_id)) for peer in peers]
        assert not set(shards_ahead(node.manifest, record, Identity.generate().peer_id))
        counts = Counter(shard for one in kept for shard in one)
        return {counts[shard] for shard in node.manifest.data.shards}

    many = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 11)]
    assert copies(many) == {COPIES}
    assert copies(many[:3]) == {3}


def test_of_a_large_corpus_only_what_comes_soon_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    data = node.manifest.data
    record = opened(node, node.identity)
    everything = list(shards_ahead(node.manifest, record, node.peer_id))
    monkeypatch.setattr(data_ahead, "AHEAD_BYTES", 5 * data.size_bytes(data.shards[0]))
    assert list(shards_ahead(node.manifest, record, node.peer_id)) == everything[:5]


class Disk(NamedTuple):
    total: int
    used: int
    free: int


class Source:
    """Stands for the others' nodes: everything can be had of them, or nothing."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked: list[str] = []
        self.is_gone = False
        node.fetcher.fetch_all = self.fetch_all  # type: ignore[method-assign]

    async def fetch_all(self, wanted: Sequence[Any], parallel: int = 4) -> None:
        self.asked += [blob for blob, _size, _sources in wanted]
        if self.is_gone and wanted:
            raise Unreachable("nobody is here")
        for blob in self.asked:
            self.node.blobs.path(blob).parent.mkdir(parents=True, exist_ok=True)
            self.node.blobs.path(blob).touch()


async def test_what_is_missing_is_fetched_once_for_each_record(node: Node) -> None:
    node.chain.append(following(node, node.identity))
    source, ahead = Source(node), DataAhead(node)
    source.is_gone = True
    with pytest.raises(Unreachable):
        await ahead.fetch()
    source.is_gone = False
    source.asked.clear()
    await ahead.fetch()
    assert sorted(source.asked) == sorted(shard.blob for shard in node.manifest.data.shards)
    node.blobs.path(source.asked[0]).unlink()
    await ahead.fetch()
    assert len(source.asked) == NUM_SHARDS
    node.chain.append(following(node, node.identity))
    await ahead.fetch()
    assert source.asked[NUM_SHARDS:] == source.asked[:1]


async def test_a_disk_without_much_room_is_left_to_what_the_round_needs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.chain.append(following(node, node.identity))
    source = Source(node)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Disk(10**12, 0, data_ahead.SPARE_BYTES - 1))
    await DataAhead(node).fetch()
    assert source.asked == []
