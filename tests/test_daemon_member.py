"""A member's life between records: what it trains, says and waits for, whatever comes when."""

import dataclasses
from pathlib import Path

import pytest
from daemon_parts import OTHER, QUICK, Scene, following, make_node
from exchange_nodes import eventually
from rounds_swarm import BOOTSTRAP

from spes_peer.blobs import BlobName
from spes_peer.errors import BadConfiguration, BlobMissing
from spes_peer.guest.rules import BY_OWNER
from spes_peer.identity import Identity, PeerId
from spes_peer.node import Node
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Contribution,
    CoordinatorBeat,
    Departure,
    Excuse,
    ReduceInput,
    ReduceOrder,
    ReduceTask,
    UpdateNotice,
)
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import PeerState
from spes_peer.run.records import BlockId, Contributor, DataRange, Update
from spes_peer.training.work import TrainerOpened, TrainProgress


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    timing = manifest.timing.model_copy(update=QUICK)
    return make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing}), organizer)


@pytest.fixture
def scene(node: Node, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(node, monkeypatch)


def rounds_trained(scene: Scene) -> list[int]:
    return [task.round for task in scene.trainer.trained]


async def test_a_newcomer_loads_the_state_claims_and_asks_for_a_place(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        assert scene.trainer.loaded == [0]
        assert scene.phases.name == "waiting"
        assert len(scene.directory.claims[-1]) == 1
        assert scene.node.state == PeerState.JOINING


async def test_a_member_trains_each_round_once_and_contributes(scene: Scene) -> None:
    async with scene.living():
        scene.node.chain.append(scene.next_record(scene.node.identity))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 1)
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 2)
        assert rounds_trained(scene) == [1, 2]
        assert scene.node.state == PeerState.ONLINE


async def test_a_record_that_was_fetched_opens_work_as_one_that_was_told(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.node.take_record(scene.next_record(scene.node.identity))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 1)


async def test_fetching_records_again_keeps_what_the_round_has_brought(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        scene.member._open_work()
        assert [message for message in scene.member.follower.attendance.on_open() if isinstance(message, Contribution)]


async def test_a_record_that_comes_while_a_round_is_trained_ends_it(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.trainer.may_finish.clear()
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: rounds_trained(scene) == [1])
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: rounds_trained(scene) == [1, 2])
        assert scene.trainer.applied == [1, 2]
        assert not scene.sent_of(Contribution)


async def test_when_another_chain_takes_the_place_of_ours_its_rounds_are_trained_instead(scene: Scene) -> None:
    """An uncertified round of this peer alone loses against one that the others certified."""
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity, OTHER))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 1)
        better = scene.next_record(scene.node.identity, updates=(update_by(scene.node),))
        ours = scene.next_record(scene.node.identity, tokens=1)
        alone = tuple(one for one in ours.signatures if one.peer_id == scene.node.peer_id)
        scene.tell(dataclasses.replace(ours, signatures=alone))
        assert scene.node.chain.certified_round == 1
        await eventually(lambda: len(scene.sent_of(Contribution)) == 2)
        switch = scene.node.take_branch([better])
        assert switch is not None
        assert [lost.hash for lost in switch.lost] == [ours.sealed.hash]
        await eventually(lambda: len(scene.sent_of(Contribution)) == 3)
        assert rounds_trained(scene) == [1, 2, 2]
        assert scene.member.head.hash == better.sealed.hash
        assert scene.trainer.applied[-1] == 2


async def test_a_member_whose_time_is_over_trains_on_because_nobody_goes_on_without_it(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity, deadline_at=1000.0))
        await eventually(lambda: bool(scene.sent_of(Contribution)))


async def test_a_new_trainer_gets_the_state_and_the_round_counts_once(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        scene.tell(scene.next_record(scene.node.identity, updates=(update_by(scene.node),)))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 2)
        scene.trainer.restart()
        await eventually(lambda: scene.trainer.loaded == [0, 0] and scene.trainer.round == 2)
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 3)
        assert rounds_trained(scene) == [1, 2, 3]
        assert [entry.round for entry in scene.member.accounts.history.rounds] == [1]


async def test_a_dead_trainer_is_waited_for(scene: Scene) -> None:
    scene.trainer.is_dead = True
    async with scene.living():
        await eventually(lambda: "the trainer has ended" in scene.phases.message.why)
        scene.trainer.restart()
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))


async def test_a_member_whose_trainer_died_asks_once_that_nobody_waits_for_it_and_goes_on(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.trainer.is_dead = True
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.sent_of(Excuse)))
        num_refused = scene.trainer.num_refused
        await eventually(lambda: scene.trainer.num_refused > num_refused + 3)  # it tries on
        assert scene.sent_of(Excuse) == [Excuse(1, "the trainer has ended")]
        assert Excuse(1, "the trainer has ended") in list(scene.member.follower.attendance.on_open())
        scene.trainer.restart()
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert {type(message) for message in scene.member.follower.attendance.on_open()} >= {Contribution}
        assert Excuse not in {type(message) for message in scene.member.follower.attendance.on_open()}
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 2)
        assert len(scene.sent_of(Excuse)) == 1


async def test_a_fault_of_a_moment_is_no_excuse(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.trainer.num_failures = 1
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert (scene.trainer.num_failures, scene.sent_of(Excuse)) == (0, [])


async def test_a_member_whose_plan_shrank_gives_up_the_subsets_that_it_has_no_memory_for(scene: Scene) -> None:
    scene.trainer.opened, scene.node.max_subsets = TrainerOpened("cpu", 2, 100.0), 2
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        entry = dataclasses.replace(scene.next_record(scene.node.identity).sealed.record.roster[0], subsets=(0, 1))
        scene.trainer.may_finish.clear()
        scene.tell(scene.next_record(scene.node.identity, roster=(entry,)))
        await eventually(lambda: bool(scene.trainer.trained))
        scene.sent.clear()

        scene.trainer.opened = TrainerOpened("cpu", 1, 100.0)  # as after one that ran out of memory
        scene.trainer.fail()
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest) and scene.sent_of(Excuse)))
        (request,) = scene.sent_of(AdmissionRequest)
        assert len(request.subsets) == 1
        assert scene.directory.claims[-1] == scene.member.claiming.subsets == request.subsets
        assert "memory for 1 of 2 subsets" in scene.phases.message.why
        assert len(scene.trainer.trained) == 1  # what does not fit is not tried

        scene.trainer.may_finish.set()
        scene.tell(
            scene.next_record(scene.node.identity, roster=(dataclasses.replace(entry, subsets=request.subsets),))
        )
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert scene.trainer.trained[-1].subsets == request.subsets


async def test_a_leaving_member_stays_for_a_round_whose_roster_has_it(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity, OTHER))
        scene.member.leave()
        assert scene.node.state == PeerState.LEAVING
        scene.tell(scene.next_record(scene.node.identity, OTHER))  # was proposed before the departure came
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert not scene.ended.is_set()
        scene.tell(scene.next_record(OTHER))
        assert scene.ended.is_set()
        await eventually(lambda: scene.member._measured_round == 3)
        assert len(scene.sent_of(AdmissionRequest)) == 1


async def test_a_leave_has_an_end_whatever_the_others_do(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(node, monkeypatch)
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity, deadline_at=1000.0))
        seconds = scene.member.leave()
        timing = node.manifest.timing
        assert seconds == pytest.approx(timing.round_seconds + timing.round_grace_seconds, abs=1.0)
        await scene.member._end_in(0.0)
        assert scene.ended.is_set()


async def test_a_member_that_was_left_out_chooses_subsets_anew(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity, OTHER))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        before = len(scene.directory.claims)
        scene.tell(scene.next_record(OTHER))
        await eventually(lambda: len(scene.sent_of(AdmissionRequest)) == 2)
        assert len(scene.directory.claims) > before


async def test_a_paused_start_says_so_loads_nothing_and_seeks_no_place_until_resumed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(node, monkeypatch, BY_OWNER)
    async with scene.living():
        await eventually(lambda: scene.phases.name == "paused" and scene.trainer.is_resting)
        assert [type(message) for message in scene.member.follower.attendance.on_open()] == [Departure]
        assert scene.node.state == PeerState.PAUSED
        scene.member.rest_for(())
        await eventually(lambda: scene.phases.message.why == "starting the trainer again")
        assert not scene.trainer.loaded
        scene.trainer.restart()
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        assert scene.node.state == PeerState.JOINING


async def test_a_paused_start_within_a_round_that_is_resumed_asks_for_its_place_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.chain.append(following(node, node.identity))
    scene = Scene(node, monkeypatch, BY_OWNER)
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        scene.member.rest_for(())
        (request,) = scene.sent_of(AdmissionRequest)
        assert request.subsets == (0,)


async def test_who_was_resumed_while_it_attended_nobody_tells_the_coordinator_that_it_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.chain.append(following(node, node.identity))
    scene = Scene(node, monkeypatch)
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        scene.member.rest_for((BY_OWNER,))
        scene.member.rest_for(())  # a message that reaches nobody
        said = scene.member.follower.attendance.on_open()
        assert [one.subsets for one in said if isinstance(one, AdmissionRequest)] == [(0,)]


async def test_without_a_coordinator_the_wait_says_so(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: scene.phases.name == "waiting")
        scene.member.follower.attendance.on_lost("nobody there " + 1000 * "x")
        assert scene.phases.message.why.startswith("for a coordinator: nobody there")
        assert len(scene.phases.message.why) < 300
        assert list(scene.phases.message.waiting_for) == list(scene.member.head.record.candidates)


async def test_a_damaged_ballot_says_what_to_do(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.folder.ballots.mkdir()
    (node.folder.ballots / f"{node.head_hash.hex()}.ballot").write_bytes(b"{")
    with pytest.raises(BadConfiguration, match="put back a copy"):
        Scene(node, monkeypatch)


def update_by(node: Node) -> Update:
    block = next(block for block in node.layout.blocks if block.expert is None)
    size_bytes = node.layout.mean_bytes(block)
    return Update(
        BlockId(block.id), node.blobs.put(b"update").name, size_bytes, (Contributor(node.peer_id, 1, 1.0, 1.0),), ()
    )


def test_a_restart_is_newer_than_the_last_also_when_the_clock_goes_back(
    tmp_path: Path, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_node(tmp_path / "self", manifest, organizer)
    monkeypatch.setattr("spes_peer.node.time.time_ns", lambda: 1)
    second = make_node(tmp_path / "self", manifest, organizer)
    assert second.signer.incarnation > first.signer.incarnation


async def test_a_peer_that_the_dht_has_not_had_for_a_lease_is_forgotten_unless_the_record_needs_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(node, monkeypatch)
    node.directory = scene.directory  # type: ignore[assignment]
    node.chain.append(scene.next_record(OTHER, node.identity))
    stranger = Identity.from_seed(b"\x23" * 32)
    for peer in (OTHER, stranger):
        node.take_entry(dataclasses.replace(node.entry(), peer_id=peer.peer_id))
    await node.refresh_entries()
    assert node.entries.keys() == {OTHER.peer_id, stranger.peer_id}
    later = node.manifest.timing.lease_seconds + 1.0
    monkeypatch.setattr(node, "unlisted_seconds", lambda _peer: later)
    await node.refresh_entries()
    assert node.entries.keys() == {OTHER.peer_id}
    assert node.connections.entry_of(stranger.peer_id) is None


async def test_a_member_trains_ahead_on_what_it_has_for_that_until_the_record_comes(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        certified = scene.next_record(scene.node.identity)
        entry = dataclasses.replace(certified.sealed.record.roster[0], ahead=(DataRange(100, 103),))
        scene.tell(scene.next_record(scene.node.identity, roster=(entry,)))
        await eventually(lambda: bool(scene.trainer.trained_ahead))
        assert len(scene.sent_of(Contribution)) == 1  # said before, not after
        (task,) = scene.trainer.trained_ahead
        assert (task.round, task.ranges, task.sequences_per_step) == (1, (DataRange(100, 103),), 1)
        assert task.first_step == scene.node.manifest.training.steps_per_round
        carried = dataclasses.replace(entry, carried_steps=3, carried_sequences_per_step=1, ahead=())
        scene.tell(scene.next_record(scene.node.identity, roster=(carried,)))
        await eventually(lambda: len(scene.sent_of(Contribution)) == 2)
        assert (scene.trainer.trained[1].carried_steps, scene.trainer.trained[1].carried_sequences_per_step) == (3, 1)
        assert len(scene.trainer.trained_ahead) == 1


@pytest.mark.parametrize("wish", ["pause", "leave"])
async def test_who_takes_no_part_in_the_next_round_does_not_train_ahead_of_it(scene: Scene, wish: str) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        entry = scene.next_record(scene.node.identity).sealed.record.roster[0]
        scene.trainer.may_finish.clear()
        scene.tell(
            scene.next_record(scene.node.identity, roster=(dataclasses.replace(entry, ahead=(DataRange(9, 12),)),))
        )
        await eventually(lambda: bool(scene.trainer.trained))
        scene.member.leave() if wish == "leave" else scene.member.rest_for((BY_OWNER,))
        scene.trainer.may_finish.set()
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        scene.tell(scene.next_record(OTHER))
        await eventually(lambda: scene.trainer.applied[-1:] == [2] or scene.trainer.is_resting)
        assert scene.trainer.trained_ahead == []


async def test_only_steps_of_the_open_round_are_shown(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        own, ahead = TrainProgress(1, 20, 2.0, 100.0, 1), TrainProgress(2, 3, 1.9, 100.0, 1)
        scene.trainer.on_progress(own)
        scene.trainer.on_progress(ahead)
        assert scene.member.progress == own
        scene.tell(scene.next_record(scene.node.identity))
        scene.trainer.on_progress(own)  # came late
        assert scene.member.progress is None
        scene.trainer.on_progress(ahead)
        assert scene.member.progress == ahead


async def test_a_coordinator_that_babbles_is_shown_in_a_few_words_and_names_nobody_it_need_not(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: scene.phases.name == "waiting")
        strangers = tuple(PeerId(f"p{number}" * 1_000) for number in range(1_000))
        known = scene.node.chain.record(0).sealed.record.candidates[0]
        babble = "\x1b[2J\nERROR " * 100_000
        beat = CoordinatorBeat(0, 0, babble, 1e300, (known, *strangers), 1e300, babble, 0.0)
        scene.member.follower.attendance.on_message(known, beat)
        shown = scene.member.round_phase
        assert shown is not None
        assert shown.waiting_for == (known,)
        for text in (shown.phase, shown.why, scene.phases.message.why):
            assert text.isprintable()
            assert len(text) <= 200


async def test_a_coordinator_that_names_blob_after_blob_has_no_more_of_them_fetched_than_an_honest_one_names(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetched: list[str] = []

    async def fetch(name: str, _size_bytes: int, _sources: object) -> None:
        fetched.append(name)
        raise BlobMissing("nobody has it")

    monkeypatch.setattr(scene.node.fetcher, "fetch", fetch)
    monkeypatch.setattr(scene.trainer, "try_expert", None, raising=False)
    node = scene.node
    async with scene.living():
        scene.trainer.may_finish.clear()
        scene.tell(scene.next_record(node.identity, OTHER))
        await eventually(lambda: bool(scene.trainer.trained), 20)
        say = scene.member.follower.attendance.on_message
        block = next(block for block in node.layout.blocks if block.expert is None)
        names = [BlobName(f"{number:064x}") for number in range(300)]

        def order(*peers: PeerId, name: BlobName = names[0]) -> ReduceOrder:
            inputs = tuple(ReduceInput(peer, name, node.layout.offer_bytes(block), 1.0, 1, 1.0) for peer in peers)
            return ReduceOrder(1, (ReduceTask(BlockId(block.id), (node.peer_id,), inputs),))

        for number in range(300):  # each with an only offer of its own, which makes it an update
            say(BOOTSTRAP, order(PeerId(f"stranger {number}")))
            say(BOOTSTRAP, order(OTHER.peer_id, OTHER.peer_id, name=names[number]))
        assert caplog.text.count("not one offer each of members") == 600
        for name in names:
            say(BOOTSTRAP, UpdateNotice(1, BlockId(block.id), name, node.layout.mean_bytes(block), ()))
            say(BOOTSTRAP, order(OTHER.peer_id, name=name))
        await eventually(lambda: len(set(fetched)) >= 32, 20)
        assert "a block that has had too many" in caplog.text
        assert len(set(fetched)) <= 64
