"""Joining late over real sockets: the newest snapshot that can be had, replay, and what is damaged on the way."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from exchange_nodes import eventually
from state_nodes import Joiner, World, flip_a_byte, impatient, world_of

from spes_peer.errors import PeerError
from spes_peer.identity import Identity
from spes_peer.run.manifest import Manifest


@pytest.fixture
async def world(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[World]:
    async with world_of(tmp_path, manifest, organizer) as one:
        yield one


async def veterans(world: World, number: int, head_round: int = 7) -> None:
    """Nodes that hold what is held after this record: the snapshots of 6 and 4, and all updates since 4."""
    for _ in range(number):
        await world.start_node()
    world.grow(head_round)
    newest = (head_round - 1) // 2 * 2
    for node in world.nodes:
        world.give_snapshot(node, newest, newest - 2)
        world.give_updates(node, range(newest - 1, head_round + 1))


async def joiner(world: World) -> Joiner:
    return Joiner(await world.start_node(), world)


async def test_a_joiner_loads_the_newest_snapshot_from_several_and_replays(world: World) -> None:
    await veterans(world, 3)
    for lacks, node in enumerate(world.nodes):  # nobody has all of it
        for block in world.blocks_after(6)[lacks::3]:
            node.blobs.remove(block.blob)
    late = await joiner(world)
    await late.catch_up()
    assert (late.trainer.loaded, late.trainer.applied) == ([6], [7])
    assert late.replica.applied == world.head_round
    assert len({flow.peer for flow in late.node.traffic.flows() if flow.received_bytes > 5000}) >= 2


async def test_a_joiner_is_no_round_behind_though_the_round_number_moves(world: World) -> None:
    await veterans(world, 1)
    late = await joiner(world)
    load = late.trainer.load_state

    async def load_slowly(*request: object) -> str:
        world.grow(2)
        for node in world.nodes[:1]:
            world.give_updates(node, (8, 9))
        return await load(*request)  # type: ignore[arg-type]

    late.trainer.load_state = load_slowly  # type: ignore[method-assign]
    await late.catch_up()
    assert late.replica.applied == world.head_round == 9
    assert late.trainer.applied == [7, 8, 9]


async def test_a_joiner_takes_the_newer_snapshot_when_the_donors_have_moved_on(world: World) -> None:
    await veterans(world, 2)
    late = await joiner(world)
    donors = world.nodes[:2]
    for node in donors:  # they still list what they have just dropped
        listed = node.list_snapshots()
        world.take_everything(node)
        node.list_snapshots = lambda listed=listed: listed  # type: ignore[misc]
    with pytest.raises(PeerError), impatient(late.node):
        await late.catch_up()
    world.grow(2)
    for node in donors:
        world.give_snapshot(node, 8)
        world.give_updates(node, (9,))
    await late.catch_up()
    assert (late.trainer.loaded, late.trainer.applied) == ([8], [9])


async def test_the_older_of_two_snapshots_serves_when_the_newer_cannot_be_had(world: World) -> None:
    await veterans(world, 1)
    late = await joiner(world)
    world.nodes[0].blobs.remove(world.blocks_after(6)[2].blob)
    with impatient(late.node, seconds=3.0):
        await late.catch_up()
    assert (late.trainer.loaded, late.trainer.applied) == ([4], [5, 6, 7])


async def test_two_joiners_and_one_veteran_do_not_wait_for_each_other(world: World) -> None:
    await veterans(world, 1)
    late = [await joiner(world) for _ in range(2)]
    await asyncio.gather(*(one.catch_up() for one in late))
    assert [one.replica.applied for one in late] == [7, 7]


async def test_joiners_alone_with_each_other_say_so_instead_of_waiting(world: World) -> None:
    await veterans(world, 1)
    late = [await joiner(world) for _ in range(2)]
    await world.stop_node(world.nodes[0])
    with impatient(*(one.node for one in late)):
        answers = await asyncio.gather(*(one.catch_up() for one in late), return_exceptions=True)
    assert [isinstance(answer, PeerError) for answer in answers] == [True, True]


async def test_six_joiners_and_one_donor_serve_each_other_and_take_nothing_twice(world: World) -> None:
    await veterans(world, 1)
    donor = world.nodes[0]
    late = [await joiner(world) for _ in range(6)]
    await asyncio.gather(*(one.catch_up() for one in late))
    assert [one.replica.applied for one in late] == [7] * 6
    state_bytes = sum(block.size_bytes for block in world.blocks_after(6))
    assert state_bytes < donor.traffic.sent_bytes < 6 * state_bytes
    everything = sum(one.node.traffic.received_bytes for one in late)
    assert everything < 6 * 1.2 * state_bytes


async def test_a_peer_that_is_alone_goes_on_from_its_own_disk(world: World) -> None:
    await veterans(world, 1)
    late = await joiner(world)
    await late.catch_up()
    await world.stop_node(world.nodes[0])
    again = Joiner(late.node, world)
    again.replica.store.keep(world.snapshot(6))
    await again.catch_up()
    assert (again.trainer.loaded, again.trainer.applied) == ([6], [7])


# ---- repair ----


async def test_a_flipped_byte_in_a_snapshot_costs_the_fetch_of_that_block(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await veterans(world, 2)
    late = await joiner(world)
    await late.catch_up()
    victim = world.blocks_after(6)[1]
    flip_a_byte(late.node, victim.blob)
    before = late.node.traffic.received_bytes
    late.replica.forget()
    with caplog.at_level(logging.WARNING):
        await late.catch_up()
    assert late.trainer.loaded == [6, 6]
    assert "repaired: 1 of 7 blocks fetched" in caplog.text
    assert late.replica.num_repaired == 1
    assert victim.size_bytes < late.node.traffic.received_bytes - before < 1.3 * victim.size_bytes


async def test_a_flipped_byte_in_an_update_costs_the_fetch_of_that_update(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await veterans(world, 1)
    late = await joiner(world)
    await late.catch_up()
    flip_a_byte(late.node, world.updates_of(7)[0].blob)
    late.replica.forget()
    with caplog.at_level(logging.WARNING):
        await late.catch_up()
    assert late.trainer.applied == [7, 7]
    assert "repaired: 1 of 3 updates fetched" in caplog.text


async def test_a_blob_cut_short_by_the_disk_is_fetched_again(world: World) -> None:
    await veterans(world, 1)
    late = await joiner(world)
    await late.catch_up()
    path = late.node.blobs.path(world.blocks_after(6)[0].blob)
    path.write_bytes(path.read_bytes()[:1000])
    late.node.blobs.pieces_path(world.blocks_after(6)[1].blob).unlink()
    late.replica.forget()
    await late.catch_up()
    assert late.trainer.loaded == [6, 6]
    assert late.replica.num_repaired == 2


async def test_a_damaged_state_of_a_peer_that_is_alone_is_made_from_the_older_snapshot(world: World) -> None:
    await veterans(world, 1, head_round=5)
    late = await joiner(world)
    await late.catch_up()
    world.grow(2)
    for node in world.nodes:
        world.give_updates(node, (6, 7))
    await late.catch_up()
    late.replica.store.keep(world.snapshot(4))
    late.replica.store.keep(world.snapshot(6))
    await world.stop_node(world.nodes[0])
    flip_a_byte(late.node, world.blocks_after(6)[0].blob)
    late.replica.forget()
    with impatient(late.node):
        await late.catch_up()
    assert late.trainer.loaded == [4, 4]
    assert late.replica.applied == 7


async def test_a_damaged_blob_is_served_to_nobody_once_it_was_noticed(world: World) -> None:
    await veterans(world, 1)
    donor = world.nodes[0]
    name = world.blocks_after(6)[0].blob
    flip_a_byte(donor, name)
    assert await donor.fetcher.set_aside_damaged([name, world.blocks_after(6)[1].blob]) == (name,)
    assert not donor.holdings.have(name).pieces
    await eventually(lambda: [one.name for one in donor.holdings.unfinished()] == [name])
