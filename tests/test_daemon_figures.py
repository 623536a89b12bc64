"""What a watcher is told of devices, peers, experts and transfers: what this daemon knows, and nothing made up."""

import dataclasses
from pathlib import Path

import pytest
from daemon_parts import OTHER, QUICK, Scene, closing, entry_of, following, make_node, status_of
from data_parts import SHARD
from exchange_nodes import eventually
from rounds_swarm import BOOTSTRAP

from spes_peer import __version__
from spes_peer.blobs import BlobName
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.rounds.messages import Contribution, ReduceInput, ReduceOrder, ReduceTask, UpdateNotice, UpdateReport
from spes_peer.run.manifest import Manifest
from spes_peer.training.work import UNKNOWN, BlockReduced, DeviceFigures
from spes_peer.wire.control_pb2 import PeerStatus


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    timing = manifest.timing.model_copy(update=QUICK)
    return make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing}), organizer)


@pytest.fixture
def scene(node: Node, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(node, monkeypatch)


def peers_of(scene: Scene) -> dict[str, PeerStatus]:
    return {peer.peer_id: peer for peer in status_of(scene).peers}


def test_of_the_device_is_told_what_the_trainer_measured(scene: Scene) -> None:
    assert not status_of(scene).HasField("device")
    scene.trainer.device = DeviceFigures("cuda:0 NVIDIA RTX 4090", 14 << 30, 6 << 30, 24 << 30, 0.97, UNKNOWN, 71.0)
    device = status_of(scene).device
    assert (device.name, device.temperature) == ("cuda:0 NVIDIA RTX 4090", 71.0)
    assert (device.used_bytes, device.own_bytes, device.total_bytes) == (14 << 30, 6 << 30, 24 << 30)
    assert device.use == pytest.approx(0.97)


async def test_how_much_the_router_used_a_subset_is_known_once_a_round_was_trained(scene: Scene) -> None:
    num_experts = scene.node.manifest.model.num_experts
    scene.trainer.router_choices = tuple(range(num_experts))
    scene.node.chain.append(following(scene.node, scene.node.identity))
    assert {subset.router_share for subset in status_of(scene).subsets} == {-1.0}
    async with scene.living():
        await eventually(lambda: bool(scene.member.router_choices))
    subsets = status_of(scene).subsets
    assert [subset.router_share for subset in subsets] == pytest.approx(
        [sum(subset.experts) / sum(range(num_experts)) for subset in subsets]
    )


def test_an_owner_of_whom_nothing_is_heard_any_more_is_lapsing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    node = scene.node
    node.chain.append(following(node, node.identity, OTHER))
    (lapsing,) = [subset.subset for subset in status_of(scene).subsets if subset.lapsing]
    assert status_of(scene).subsets[lapsing].lapsing == [OTHER.peer_id]
    node.take_entry(entry_of(OTHER))
    assert not any(subset.lapsing for subset in status_of(scene).subsets)
    monkeypatch.setattr(node, "unlisted_seconds", lambda _peer: node.manifest.timing.dht_ttl_seconds + 1)
    assert status_of(scene).subsets[lapsing].lapsing == [OTHER.peer_id]


def test_a_peers_speed_is_what_the_newest_closed_round_took_in_of_it(scene: Scene) -> None:
    node = scene.node
    node.chain.append(following(node, node.identity, OTHER))
    assert {peer.tokens_per_second for peer in status_of(scene).peers} == {0.0}
    node.chain.append(closing(node, 40.0, other=8_000))
    peers = peers_of(scene)
    assert peers[OTHER.peer_id].tokens_per_second == 200.0
    assert peers[node.peer_id].tokens_per_second == 0.0


def test_a_peers_version_is_told_in_no_more_words_than_a_version_needs(scene: Scene) -> None:
    scene.node.chain.append(following(scene.node, scene.node.identity, OTHER))
    assert peers_of(scene)[OTHER.peer_id].version == ""
    scene.node.take_entry(entry_of(OTHER, version="0.4.2"))
    assert peers_of(scene)[OTHER.peer_id].version == "0.4.2"
    scene.node.take_entry(entry_of(OTHER, version="\x1b[2J" * 500, incarnation=2))
    version = peers_of(scene)[OTHER.peer_id].version
    assert version.isprintable()
    assert len(version) <= 33
    assert peers_of(scene)[scene.node.peer_id].version == __version__


def test_what_stands_against_a_peer_is_said_with_what_follows_from_it(scene: Scene) -> None:
    node = scene.node
    node.chain.append(following(node, node.identity, OTHER))
    assert peers_of(scene)[OTHER.peer_id].standing == ""
    node.fetcher.bad_sources[OTHER.peer_id] += 2
    node.chain.append(following(node, node.identity, OTHER, harmful=(OTHER.peer_id,)))
    assert peers_of(scene)[OTHER.peer_id].standing == (
        "1 mark for experts that did harm, the last in record 2; sent us bad bytes 2 times"
    )
    for _ in range(2):
        node.chain.append(following(node, node.identity, OTHER, harmful=(OTHER.peer_id,)))
    assert "3 marks for experts that did harm, the last in record 4; no seat before record 22" in (
        peers_of(scene)[OTHER.peer_id].standing
    )
    assert peers_of(scene)[node.peer_id].standing == ""


def test_transfers_of_the_moment_and_those_that_ended_are_told_with_the_owners_limits(scene: Scene) -> None:
    node = scene.node
    node.settings = dataclasses.replace(node.settings, max_upload=1_000_000)
    assert node.shard_index.here()
    with node.transfers.fetching(SHARD, 4_000) as down:
        down.add(1_000, OTHER.peer_id, "libp2p")
        with node.transfers.serving("f" * 64, 500, OTHER.peer_id) as up:
            up.add(500, OTHER.peer_id, "grpc")
        exchange = status_of(scene).exchange
    (transfer,), (ended,) = exchange.transfers, exchange.ended
    assert (transfer.what, transfer.direction, transfer.bytes_done, transfer.num_bytes) == (
        "data shard 0",
        "down",
        1_000,
        4_000,
    )
    assert (list(transfer.peers), list(transfer.transports)) == ([OTHER.peer_id], ["libp2p"])
    assert 0 <= transfer.bytes_per_second <= 1_000
    assert (ended.what, ended.direction, ended.bytes_done) == ("blob ffffffff", "up", 500)
    assert (exchange.max_upload, exchange.max_download) == (1_000_000, 0)


async def test_what_travels_in_a_round_is_called_by_what_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    node, block = scene.node, scene.node.layout.shared_blocks[0]
    theirs, made, told = (BlobName(f"{number:064x}") for number in (1, 2, 3))

    async def fetch(_name: str, _size_bytes: int, _sources: object) -> None:
        pass

    async def reduce_block(_task: ReduceTask) -> BlockReduced:
        return BlockReduced(made, 10, ())

    monkeypatch.setattr(node.fetcher, "fetch", fetch)
    monkeypatch.setattr(scene.trainer, "reduce_block", reduce_block, raising=False)
    async with scene.living():
        node.chain.append(following(node, node.identity, OTHER))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        (contribution,) = scene.sent_of(Contribution)
        kinds = {node.blob_words.of(offer.blob).partition(" of ")[0] for offer in contribution.offers}
        assert kinds == {"offer"}
        say = scene.member.follower.attendance.on_message
        inputs = (ReduceInput(OTHER.peer_id, theirs, node.layout.offer_bytes(block), 1.0, 1, 1.0),)
        say(BOOTSTRAP, ReduceOrder(1, (ReduceTask(block.id, (node.peer_id,), inputs),)))
        say(BOOTSTRAP, UpdateNotice(1, block.id, told, node.layout.mean_bytes(block), ()))
        await eventually(lambda: bool(scene.sent_of(UpdateReport)))
    assert [node.blob_words.of(name) for name in (theirs, made, told)] == [
        "offer of shared parameters",
        "update of shared parameters",
        "update of shared parameters",
    ]
