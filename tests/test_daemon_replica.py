"""The public state of a peer: what it is loaded from, and which blobs are kept for others."""

from pathlib import Path
from typing import Any

import pytest
from daemon_parts import FakeTrainer, following, make_node

from spes_peer.blobs import digests_of, name_of
from spes_peer.daemon.replica import Replica
from spes_peer.errors import ChildFailed
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockName, Snapshot, state_root

SNAPSHOT_ROUNDS = 2


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    sync = manifest.sync.model_copy(update={"snapshot_rounds": SNAPSHOT_ROUNDS})
    return make_node(tmp_path / "self", manifest.model_copy(update={"sync": sync}), organizer)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Scene:
    """A replica whose trainer makes a state for each record; the chain vouches for each."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.trainer = FakeTrainer(node)
        self.clock = Clock()
        self.replica = Replica(node, self.trainer, lambda: self.clock.now)  # type: ignore[arg-type]

    async def catch_up(self) -> None:
        await self.replica.catch_up(lambda _why: None)

    def grow(self, num_records: int, **changes: Any) -> None:
        for _ in range(num_records):
            root = state_root(self.state_after(self.node.head_round)) if self.node.head_round else ""
            self.node.chain.append(following(self.node, self.node.identity, **{"state_root": root, **changes}))

    def state_after(self, round: int) -> tuple[BlockName, ...]:
        """What `FakeTrainer` makes of record `round`."""
        layout = self.node.layout
        return tuple(
            BlockName(block.id, name_of(digests_of(f"{round} {block.id}".encode())), layout.state_bytes(block))
            for block in layout.blocks
        )

    def let_others_offer(self, monkeypatch: pytest.MonkeyPatch, *snapshots: Snapshot) -> list[str]:
        asked: list[str] = []

        async def ask(source: str) -> list[Snapshot]:
            asked.append(source)
            return list(snapshots)

        monkeypatch.setattr(self.node, "others", lambda: ("somebody",))
        monkeypatch.setattr(self.replica.store, "_ask", ask)
        return asked


@pytest.fixture
def scene(node: Node) -> Scene:
    return Scene(node)


async def test_a_peer_that_was_away_for_long_loads_a_newer_state_instead_of_replaying(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(1)
    await scene.catch_up()
    scene.grow(9)
    scene.let_others_offer(monkeypatch, Snapshot(8, scene.state_after(8)), Snapshot(6, scene.state_after(6)))
    await scene.catch_up()
    assert scene.trainer.loaded == [0, 8]
    assert scene.trainer.applied == [1, 9, 10]


async def test_a_peer_that_is_a_little_behind_replays_and_asks_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(1)
    await scene.catch_up()
    asked = scene.let_others_offer(monkeypatch)
    scene.grow(SNAPSHOT_ROUNDS)
    await scene.catch_up()
    assert (scene.trainer.loaded, scene.trainer.applied, asked) == ([0], [1, 2, 3], [])


async def test_a_restarted_peer_asks_others_when_its_own_snapshots_are_old(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(3)
    await scene.catch_up()
    scene.grow(7)
    again = Scene(scene.node)
    assert [snapshot.round for snapshot in again.replica.snapshots] == [2]
    again.let_others_offer(monkeypatch, Snapshot(8, scene.state_after(8)))
    await again.catch_up()
    assert again.trainer.loaded == [8]


async def test_a_snapshot_that_the_chain_does_not_vouch_for_is_not_loaded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(10)
    scene.let_others_offer(
        monkeypatch,
        Snapshot(8, scene.state_after(7)),  # another state
        Snapshot(10, scene.state_after(10)),  # no record stands on it yet
        Snapshot(4, scene.state_after(4)),
    )
    await scene.catch_up()
    assert scene.trainer.loaded == [4]


async def test_damaged_snapshots_on_disk_are_as_none(scene: Scene) -> None:
    scene.node.folder.snapshots.write_bytes(b"\xff\xff")
    again = Scene(scene.node)
    assert again.replica.snapshots == ()
    await again.catch_up()
    assert again.trainer.loaded == [0]


async def test_the_kept_snapshots_and_the_updates_since_the_older_one_are_needed(scene: Scene) -> None:
    scene.grow(1)
    for _ in range(4 * SNAPSHOT_ROUNDS):
        await scene.catch_up()
        scene.grow(1)
    assert [snapshot.round for snapshot in scene.replica.snapshots] == [8, 6]
    assert scene.replica.store.replays_from == 6
    kept = {block.blob for snapshot in scene.replica.snapshots for block in snapshot.blocks}
    assert scene.replica.store.needed() == kept


async def test_a_snapshot_that_is_fetched_or_loaded_is_needed_until_two_newer_ones_are_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(10)
    scene.let_others_offer(monkeypatch, Snapshot(8, scene.state_after(8)))
    loaded = {block.blob for block in scene.state_after(8)}
    asked: list[bool] = []

    async def fetch_all(wanted: object, parallel: int = 4, gathering: object = None) -> None:
        asked.append(loaded <= scene.replica.store.needed())

    monkeypatch.setattr(scene.node.fetcher, "fetch_all", fetch_all)
    await scene.catch_up()
    assert scene.trainer.loaded == [8]
    assert all(asked)
    for newest in (10, 12):
        assert scene.replica.snapshots[0].round == newest
        assert (loaded <= scene.replica.store.needed()) == (newest < 12)
        scene.grow(SNAPSHOT_ROUNDS)
        await scene.catch_up()


async def test_while_a_trainer_writes_a_snapshot_it_is_said_that_one_is_being_made(scene: Scene) -> None:
    scene.grow(SNAPSHOT_ROUNDS)
    being_made: list[int | None] = []
    apply_record = scene.trainer.apply_record

    async def apply(content: bytes, keep_snapshot: bool) -> Any:
        being_made.append(scene.replica.store.being_made_since)
        return await apply_record(content, keep_snapshot)

    scene.trainer.apply_record = apply  # type: ignore[method-assign]
    await scene.catch_up()
    assert being_made == [None, SNAPSHOT_ROUNDS]
    assert scene.replica.store.being_made_since is None


async def test_a_trainer_that_dies_leaves_the_state_as_it_was(scene: Scene) -> None:
    scene.grow(1)
    await scene.catch_up()
    scene.grow(1)
    scene.trainer.is_dead = True
    with pytest.raises(ChildFailed):
        await scene.catch_up()
    assert scene.replica.applied == 1


async def test_a_trainer_that_fails_in_a_record_is_given_a_state_again(scene: Scene) -> None:
    """It may have stopped half-way through, and hold none any more."""
    scene.grow(3)
    await scene.catch_up()
    scene.grow(1)
    scene.trainer.round = -1
    with pytest.raises(ChildFailed):
        await scene.catch_up()
    await scene.catch_up()
    assert (scene.trainer.loaded, scene.trainer.applied) == ([0, 2], [1, 2, 3, 3, 4])


async def test_what_fails_in_the_trainer_again_and_again_is_tried_ever_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.daemon.replica.asyncio.sleep", scene.clock.sleep)
    scene.grow(3)
    said: list[str] = []

    async def fail(*_request: object) -> None:
        raise ChildFailed("a number that is not finite")

    load, scene.trainer.load_state = scene.trainer.load_state, fail  # type: ignore[method-assign,assignment]
    for _ in range(8):
        with pytest.raises(ChildFailed):
            await scene.replica.catch_up(said.append)
    assert scene.clock.slept == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert "the trainer failed 2 times in a row; trying again in 4 s" in said
    scene.trainer.load_state = load  # type: ignore[method-assign]
    await scene.catch_up()
    before = len(scene.clock.slept)
    scene.grow(1)
    scene.trainer.round = -1
    with pytest.raises(ChildFailed):
        await scene.catch_up()
    await scene.catch_up()  # a first failure is met at once
    assert len(scene.clock.slept) == before
    assert scene.replica.applied == 4


async def test_what_was_made_of_records_that_the_chain_gave_up_is_forgotten(scene: Scene) -> None:
    scene.grow(1)
    for _ in range(5):
        await scene.catch_up()
        scene.grow(1)
    assert [snapshot.round for snapshot in scene.replica.snapshots] == [4, 2]
    scene.replica.rewind(6)
    assert scene.replica.applied == 5
    scene.replica.rewind(3)
    assert scene.replica.applied == -1
    assert [snapshot.round for snapshot in scene.replica.snapshots] == [2]
    assert [snapshot.round for snapshot in Scene(scene.node).replica.snapshots] == [2]
    await scene.catch_up()
    assert scene.trainer.loaded == [0, 2]
    assert scene.replica.applied == 6


async def test_a_record_that_is_given_up_while_it_is_applied_leaves_no_state(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.grow(2)
    said_applied: list[int] = []
    scene.replica.on_applied = lambda record: said_applied.append(record.round)
    answers = iter([True, True, True, False])  # before and after the trainer works, for two records
    monkeypatch.setattr(scene.replica, "_is_in_chain", lambda _record: next(answers, True))
    await scene.catch_up()
    assert scene.trainer.loaded == [0, 0]
    assert scene.trainer.applied == [1, 2, 1, 2]
    assert said_applied == [1, 1, 2]
