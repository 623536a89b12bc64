"""The bootstrap node keeps the state, so that a joiner gets it when all who made it have left."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from daemon_parts import OTHER
from exchange_nodes import eventually
from state_nodes import Joiner, World, flip_a_byte, impatient, world_of

from bootstrap.keeper import Keeper
from spes_peer.errors import PeerError
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.rounds.messages import UpdateNotice
from spes_peer.run.manifest import Manifest


@pytest.fixture
async def world(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[World]:
    async with world_of(tmp_path, manifest, organizer) as one:
        await one.start_node()
        yield one


@pytest.fixture
def volunteer(world: World) -> Node:
    return world.nodes[0]


@pytest.fixture
async def keeper(world: World, volunteer: Node) -> Keeper:
    return await keeper_of(world)


async def keeper_of(world: World, node: Node | None = None) -> Keeper:
    node = node or await world.start_node()
    keeper = Keeper(node)
    node.list_snapshots = lambda: keeper.snapshots
    return keeper


@contextlib.asynccontextmanager
async def running(keeper: Keeper) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("bootstrap.keeper._LOOK_SECONDS", 0.02)
    monkeypatch.setattr("bootstrap.keeper._LAST_PAUSE_SECONDS", 0.1)
    return


def train(world: World, volunteer: Node, num_records: int) -> None:
    """As a volunteer does: it has the updates of each record, and a snapshot after every second one."""
    for _ in range(num_records):
        world.grow(1)
        world.give_updates(volunteer, [world.head_round])
        kept = list(range(2, world.head_round + 1, 2))[-2:]
        world.give_snapshot(volunteer, *kept)


def has_everything(keeper: Keeper, world: World) -> bool:
    """The newest snapshot that can be vouched for, and all updates since the older one."""
    blobs, newest = keeper._node.blobs, (world.head_round - 1) // 2 * 2
    updates = [update for round in range(newest - 1, world.head_round + 1) for update in world.updates_of(round)]
    names = [one.blob for one in (*world.blocks_after(newest), *updates)]
    return bool(keeper.snapshots) and keeper.snapshots[0].round == newest and all(map(blobs.has, names))


@pytest.mark.usefixtures("_impatient")
async def test_a_joiner_gets_the_newest_state_from_the_bootstrap_node_when_all_veterans_have_left(
    world: World, volunteer: Node, keeper: Keeper
) -> None:
    async with running(keeper):
        for _ in range(7):
            train(world, volunteer, 1)
            await eventually(lambda: keeper._complete_head == keeper._node.head_hash)
        await eventually(lambda: has_everything(keeper, world))
    late_node = await world.start_node()
    await world.stop_node(volunteer)
    late = Joiner(late_node, world)
    await late.catch_up()
    assert (late.trainer.loaded, late.trainer.applied) == ([6], [7])
    assert late.replica.applied == world.head_round


async def test_an_update_is_fetched_when_it_is_reported_and_not_only_with_its_record(
    world: World, volunteer: Node, keeper: Keeper
) -> None:
    world.give_updates(volunteer, [1])
    update = world.updates_of(1)[0]
    block, format, round = world.nodes[0].layout.by_id[update.block], UpdateNotice, keeper._node.head_round
    keeper.on_notice(format(round, block.id, update.blob, update.size_bytes, (volunteer.peer_id,)))
    await keeper.hold_noticed()
    assert not keeper._node.blobs.has(update.blob)  # of a size that no update of the block has

    encoded = volunteer.blobs.put(bytes(world.nodes[0].layout.mean_bytes(block)))
    keeper.on_notice(format(round, block.id, encoded.name, encoded.size_bytes, (OTHER.peer_id, volunteer.peer_id)))
    await keeper.hold_noticed()
    assert keeper._node.blobs.has(encoded.name)


async def test_a_coordinator_cannot_fill_the_disk_with_updates_that_no_round_can_use(
    world: World, volunteer: Node, keeper: Keeper
) -> None:
    layout, open_round = keeper._node.layout, keeper._node.head_round
    block = layout.blocks[0]
    size = layout.mean_bytes(block)

    def noticed(round: int, number: int) -> str:
        blob = volunteer.blobs.put(number.to_bytes(4) + bytes(size - 4))
        keeper.on_notice(UpdateNotice(round, block.id, blob.name, size, (volunteer.peer_id,)))
        return blob.name

    elsewhere = [noticed(open_round + step, number) for number, step in enumerate((-1, 1, 1000))]
    many = [noticed(open_round, number) for number in range(10, 30)]
    await keeper.hold_noticed()
    has = keeper._node.blobs.has
    assert not any(map(has, elsewhere))
    assert [name for name in many if has(name)] == many[:4]
    world.grow(1)
    await eventually(lambda: keeper._node.head_round == open_round + 1)
    next_one = noticed(open_round + 1, 40)
    await keeper.hold_noticed()
    assert has(next_one)


async def test_a_snapshot_that_the_chain_does_not_vouch_for_is_not_kept(
    world: World, volunteer: Node, keeper: Keeper
) -> None:
    train(world, volunteer, 5)
    world.give_snapshot(volunteer, 3)
    offered = world.snapshot(3)
    volunteer.list_snapshots = lambda: (type(offered)(4, offered.blocks),)
    with pytest.raises(PeerError, match="nobody offers the state after record 4"):
        await keeper.hold_snapshot()
    assert keeper.snapshots == ()


async def test_an_update_that_nobody_has_spoils_no_other(world: World, volunteer: Node, keeper: Keeper) -> None:
    world.grow(3)
    world.give_updates(volunteer, [1, 3])
    with pytest.raises(PeerError), impatient(keeper._node):
        await keeper.hold_updates()
    assert all(keeper._node.blobs.has(update.blob) for round in (1, 3) for update in world.updates_of(round))
    world.give_updates(volunteer, [2])
    await keeper.hold_updates()
    assert all(keeper._node.blobs.has(update.blob) for update in world.updates_of(2))


async def test_after_a_restart_what_the_disk_has_damaged_is_fetched_again(
    world: World, volunteer: Node, keeper: Keeper
) -> None:
    train(world, volunteer, 7)
    await keeper.hold_updates()
    await keeper.hold_snapshot()
    node, block, update = keeper._node, world.blocks_after(6)[3], world.updates_of(7)[1]
    flip_a_byte(node, block.blob)
    flip_a_byte(node, update.blob)
    again = await keeper_of(world, node)
    assert [snapshot.round for snapshot in again.snapshots] == [6]
    await again.hold_updates()
    await again.hold_snapshot()
    assert node.blobs.is_sound(block.blob)
    assert node.blobs.is_sound(update.blob)


async def test_snapshots_of_records_that_the_chain_gave_up_are_dropped(
    world: World, volunteer: Node, keeper: Keeper
) -> None:
    train(world, volunteer, 5)
    await keeper.hold_snapshot()
    train(world, volunteer, 2)
    await keeper.hold_snapshot()
    assert [snapshot.round for snapshot in keeper.snapshots] == [6, 4]
    keeper.rewind(5)
    assert [snapshot.round for snapshot in keeper.snapshots] == [4]
