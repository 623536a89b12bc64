"""Whole rounds: the coordinator's core with made-up members, under a virtual clock."""

import pytest
from rounds_swarm import BOOTSTRAP, CHECKS, Member, Swarm, changed, invented, replaced, roots

from spes_peer.identity import PeerId
from spes_peer.rounds import coordinator
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Departure,
    Excuse,
    Holding,
    RecordSignature,
    ReduceTask,
    UpdateReport,
)
from spes_peer.rounds.phases import Closing, Fixed, Reducing
from spes_peer.run.certificates import check_record
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.records import BlockId, Record

FOUR = [(0,), (1,), (2,), (3,)]


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    return Swarm(manifest, FOUR)


def contributors_of(record: Record, block: str) -> list[str]:
    return [part.peer_id for update in record.updates if update.block == block for part in update.contributors]


def shared_blocks(swarm: Swarm) -> list[str]:
    return [block.id for block in swarm.layout.shared_blocks]


def hold_back(swarm: Swarm, number: int) -> None:
    """From the next round on, this member trains without contributing."""
    swarm[number].contributes = False


# ---- all is well ----


def test_five_rounds_update_every_block_and_end_on_one_root(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 6)
    every_block = [block.id for block in swarm.layout.blocks]
    for record in swarm.records[2:]:
        assert [update.block for update in record.updates] == every_block
        assert record.held_out_loss == pytest.approx(5.0)
        assert record.train_loss == pytest.approx(4.0)
        assert record.tokens == 20 * 32 * 128
    assert [record.step for record in swarm.records] == [0, 0, 20, 40, 60, 80, 100]
    assert len(roots(swarm)) == 1
    assert not any(member.refusals or member.objections for member in swarm.members.values())


def test_rounds_that_nothing_holds_up_take_no_time(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 5)
    assert swarm.now == swarm.moments[0]


def test_round_one_waits_for_min_peers_and_says_so(manifest: Manifest) -> None:
    swarm = Swarm(manifest, FOUR[:3])
    for _ in range(5):
        swarm.settle()
        swarm.pass_second()
    assert swarm.round == 0
    assert swarm.waiting().why == "3 of the 4 volunteers that it takes to open round 1"
    swarm.join(50, (3,))
    swarm.until(lambda: swarm.round == 1, seconds=1)
    assert len(swarm.head.record.roster) == 4


def test_one_volunteer_alone_goes_round_by_round(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "run", min_peers=1), [(2,)])
    swarm.until(lambda: swarm.round == 3)
    record = swarm.records[-1]
    assert {update.reducers for update in record.updates} == {()}
    assert record.reducers == ()
    assert {update.block.split("/")[1] for update in record.updates if update.block.startswith("expert")} == {
        "04",
        "05",
    }


def test_merges_happen_at_their_steps_and_weaken(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 11)
    alphas = {record.step: record.merge_alpha for record in swarm.records[1:]}
    due = {40: 0.05 * 0.8, 80: 0.05 * 0.6, 120: 0.05 * 0.4, 160: 0.05 * 0.2}
    assert alphas == {step: pytest.approx(due.get(step, 0.0)) for step in range(0, 220, 20)}


def test_the_record_at_the_last_step_is_final_and_nobody_trains_on(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "training", total_steps=60), FOUR)
    swarm.until(lambda: swarm.phase == "finished")
    record = swarm.head.record
    assert (record.round, record.step, record.is_final) == (4, 60, True)
    assert all(not entry.ranges and entry.subsets for entry in record.roster)
    swarm.settle()
    assert len(roots(swarm)) == 1
    late = swarm.join(60, (0,))
    swarm.settle()
    assert late.refusals == ["admission: the run has ended with record 4"]


def test_the_last_rounds_have_half_the_batch_and_steps_of_their_own(manifest: Manifest) -> None:
    phase = {"final_phase_fraction": 0.3, "final_phase_steps_per_round": 30}
    swarm = Swarm(changed(manifest, "training", total_steps=100, **phase), FOUR)
    assert manifest.training.batch_sequences == 32
    swarm.until(lambda: swarm.phase == "finished")
    assert [record.step for record in swarm.records] == [0, 0, 20, 40, 60, 90, 120]  # 54 is when it begins
    batches = [sum(entry.sequences_per_step for entry in record.roster) for record in swarm.records]
    assert batches == [0, 32, 32, 32, 16, 16, 0]
    assert [record.tokens // 128 for record in swarm.records] == [0, 0, 640, 640, 640, 480, 480]
    assert not any(member.refusals or member.objections for member in swarm.members.values())


def test_the_bootstrap_node_stays_first_candidate(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 3)
    for record in swarm.records[1:]:
        assert record.candidates[0] == BOOTSTRAP
        assert set(record.candidates[1:]) == set(swarm.members)


# ---- losses ----


def test_a_round_closes_at_once_when_the_missing_member_is_known_to_be_gone(swarm: Swarm) -> None:
    hold_back(swarm, 2)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    assert swarm.waiting().waiting_for == (swarm[2].peer_id,)
    assert swarm.waiting().why == "3 of 4 have contributed to round 1"
    before = swarm.now
    swarm.die(swarm[2])
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now == before
    record = swarm.head.record
    assert record.entry_of(swarm[2].peer_id) is None
    assert set(contributors_of(record, "shared/0000")) == {swarm[n].peer_id for n in (0, 1, 3)}
    assert len(record.updates) == len(swarm.layout.blocks) - 12  # all but the blocks of the dead owner's two experts


def test_nobody_waits_for_a_member_that_cannot_train_and_the_wait_says_so(swarm: Swarm) -> None:
    hold_back(swarm, 1)
    hold_back(swarm, 2)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    swarm[2].say(Excuse(1, "the trainer has ended"))
    swarm.settle()
    assert swarm.waiting().waiting_for == (swarm[1].peer_id,)
    assert swarm.waiting().why == "2 of 4 have contributed to round 1, 1 cannot"
    before, swarm[2].contributes = swarm.now, True
    swarm[1].say(Excuse(1, "the trainer has ended"))
    swarm.until(lambda: swarm.round == 2)  # with two of four, for all have answered
    assert swarm.now == before
    assert set(contributors_of(swarm.head.record, "shared/0000")) == {swarm[n].peer_id for n in (0, 3)}
    assert swarm.head.record.entry_of(swarm[2].peer_id) is not None
    swarm.settle()
    assert swarm.waiting().waiting_for == (swarm[1].peer_id,)  # an excuse is for one round


def test_what_an_excused_member_contributes_in_time_counts(swarm: Swarm) -> None:
    hold_back(swarm, 1)
    hold_back(swarm, 2)
    swarm.until(lambda: swarm.round == 1)
    swarm[2].say(Excuse(1, "the trainer has ended"))
    swarm.settle()
    swarm[2].contribute()
    swarm.settle()
    assert swarm.waiting().why == "3 of 4 have contributed to round 1"
    swarm[1].say(Excuse(1, "the trainer has ended"))
    swarm.until(lambda: swarm.round == 2)
    assert swarm[2].peer_id in contributors_of(swarm.head.record, "shared/0000")


def test_a_round_in_which_nobody_can_train_stays_open_for_who_can_again(swarm: Swarm) -> None:
    for number in range(4):
        hold_back(swarm, number)
    swarm.until(lambda: swarm.round == 1)
    for number in range(4):
        swarm[number].say(Excuse(1, "the trainer has ended"))
    for _ in range(20):
        swarm.pass_second()
        swarm.settle()
    assert (swarm.round, swarm.phase) == (1, "training")
    swarm[3].contribute()
    swarm.until(lambda: swarm.round == 2, seconds=1)


def test_a_late_excuse_changes_nothing_and_a_strangers_is_refused(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 2)
    stranger = swarm.join(60, (0,))
    assert "not on the roster" in swarm.ask(stranger, Excuse(2, ""))
    assert swarm.ask(swarm[0], Excuse(1, "")) == ""
    swarm.until(lambda: swarm.phase != "training")
    state = swarm.state
    assert swarm.ask(swarm[0], Excuse(swarm.round, "")) == ""
    assert swarm.state.phase == state.phase


def test_data_that_a_dead_member_had_is_assigned_again_first(swarm: Swarm) -> None:
    hold_back(swarm, 2)
    swarm.until(lambda: swarm.round == 1)
    lost = swarm.head.record.entry_of(swarm[2].peer_id)
    assert lost is not None
    swarm.settle()
    swarm.die(swarm[2])
    swarm.until(lambda: swarm.round == 2)
    assigned = [part for entry in swarm.head.record.roster for part in entry.ranges]
    assert min(part.start for part in assigned) == lost.ranges[0].start
    assert swarm.head.record.returned == ()


def test_a_silent_member_is_waited_for_until_the_deadline(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "timing", coordinator_timeout_seconds=100, stall_timeout_seconds=200), FOUR)
    hold_back(swarm, 1)
    swarm.until(lambda: swarm.round == 1)
    opened = swarm.now
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now - opened == 120.0
    assert swarm.head.record.entry_of(swarm[1].peer_id) is not None  # it still beats
    assert swarm[1].peer_id not in contributors_of(swarm.head.record, "shared/0000")


def test_a_member_that_stops_beating_counts_as_gone_after_the_coordinator_timeout(swarm: Swarm) -> None:
    hold_back(swarm, 1)
    swarm.until(lambda: swarm.round == 1)
    opened = swarm.now
    swarm.die(swarm[1], is_noticed=False)
    swarm.until(lambda: swarm.round == 2)
    assert 30 < swarm.now - opened <= 32


def test_a_member_that_comes_back_before_the_round_closes_still_contributes(swarm: Swarm) -> None:
    hold_back(swarm, 0)
    hold_back(swarm, 1)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    swarm.die(swarm[1])
    swarm[1].is_alive = True
    swarm.take(coordinator.on_connected(swarm.state, swarm[1].peer_id, swarm.now))
    swarm[1].contribute()
    swarm.settle()
    swarm.die(swarm[0])
    swarm.until(lambda: swarm.round == 2)
    assert swarm[1].peer_id in contributors_of(swarm.head.record, "shared/0000")


def below_the_quorum(swarm: Swarm) -> None:
    """Two of four have gone without contributing to round 1; all that remain have."""
    hold_back(swarm, 0)
    hold_back(swarm, 1)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    swarm.die(swarm[0])
    swarm.die(swarm[1])


def test_below_the_quorum_the_round_waits_on_and_says_for_whom_and_until_when(swarm: Swarm) -> None:
    below_the_quorum(swarm)
    for _ in range(200):
        swarm.pass_second()
        swarm.settle()
    beat = swarm.waiting()
    timing, deadline_at = swarm.layout.manifest.timing, swarm.head.record.deadline_at
    assert (swarm.round, beat.phase, beat.until_at) == (1, "training", deadline_at + timing.stall_timeout_seconds)
    assert set(beat.waiting_for) == {swarm[0].peer_id, swarm[1].peer_id}
    assert beat.why == (
        "2 of 4 have contributed to round 1, and it takes more than half; without them it goes on uncertified"
    )
    swarm[0].is_alive = True
    swarm[0].contribute()
    swarm.until(lambda: swarm.round == 2, seconds=2)


def test_below_the_quorum_the_round_goes_on_uncertified_once_the_stall_timeout_is_over(swarm: Swarm) -> None:
    below_the_quorum(swarm)
    stalled_at = swarm.head.record.deadline_at + swarm.layout.manifest.timing.stall_timeout_seconds
    swarm.until(lambda: swarm.round == 2)
    patience_seconds = swarm.layout.manifest.timing.coordinator_timeout_seconds
    assert stalled_at <= swarm.moments[-1] <= stalled_at + patience_seconds + 1
    checked = check_record(swarm.certified[-1], swarm.records[1].seal(), CHECKS)
    assert not checked.is_certified
    here = {swarm[2].peer_id, swarm[3].peer_id}
    assert checked.signers == {*here, BOOTSTRAP}
    assert set(contributors_of(swarm.head.record, "shared/0000")) == here
    assert {entry.peer_id for entry in swarm.head.record.roster} == here


def restart(swarm: Swarm, old: Member) -> Member:
    swarm.die(old)
    new = swarm.join(old.number, old.subsets, old.incarnation + 1)
    new.ballots = old.ballots
    return new


def test_a_restarted_member_takes_up_its_place_in_the_open_round(swarm: Swarm) -> None:
    hold_back(swarm, 1)
    swarm.until(lambda: swarm.round == 1)
    new = restart(swarm, swarm[1])
    swarm.until(lambda: not swarm.inbox)
    assert swarm.waiting().waiting_for == (new.peer_id,)
    new.contribute()
    swarm.until(lambda: swarm.round == 2, seconds=1)
    assert new.peer_id in contributors_of(swarm.head.record, "shared/0000")
    entry = swarm.head.record.entry_of(new.peer_id)
    assert entry is not None
    assert (entry.incarnation, entry.subsets) == (2, new.subsets)


def test_a_round_in_which_half_of_the_roster_restarts_still_closes(swarm: Swarm) -> None:
    hold_back(swarm, 0)
    hold_back(swarm, 1)
    swarm.until(lambda: swarm.round == 1)
    for number in (0, 1):
        restart(swarm, swarm[number]).contribute()
    swarm.until(lambda: swarm.round == 2, seconds=1)
    assert len(contributors_of(swarm.head.record, "shared/0000")) == 4


def test_a_record_is_signed_although_half_of_the_roster_restarted_after_contributing(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.phase == "reducing")
    for number in (0, 1):
        restart(swarm, swarm[number])
    swarm.until(lambda: swarm.round == 2)


def test_what_a_newer_start_contributes_replaces_what_the_older_one_did(swarm: Swarm) -> None:
    hold_back(swarm, 0)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    new = restart(swarm, swarm[1])
    new.steps = 5
    new.contribute()
    swarm.settle()
    assert new.refusals == []
    swarm[0].contribute()
    swarm.until(lambda: swarm.round == 2, seconds=1)
    tokens = {part.peer_id: part.tokens for update in swarm.head.record.updates for part in update.contributors}
    assert tokens[new.peer_id] == tokens[swarm[0].peer_id] / 4


def test_a_member_that_departs_finishes_its_round_and_is_not_on_the_next_roster(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 1)
    swarm[3].say(Departure("paused"))
    swarm.until(lambda: swarm.round == 2)
    record = swarm.head.record
    assert swarm[3].peer_id in contributors_of(record, "shared/0000")
    assert record.entry_of(swarm[3].peer_id) is None
    assert record.owners_of(swarm[3].subsets[0]) == ()


def test_when_all_have_departed_the_run_waits_for_whoever_comes(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 1)
    for member in swarm.members.values():
        member.say(Departure("paused"))
        member.subsets = ()  # what follows is refused, so nobody comes back by itself
    swarm.until(lambda: swarm.round == 2)
    swarm.settle()
    assert swarm.head.record.roster == ()
    assert swarm.waiting().why == "0 of the 1 volunteers that it takes to open round 3"
    swarm[0].subsets = (0,)
    swarm[0].say(AdmissionRequest((0,), 0.0, PROTOCOL_VERSION))
    swarm.until(lambda: swarm.round == 4, seconds=1)
    assert [record.step for record in swarm.records[2:]] == [20, 20, 40]


def test_a_coordinator_that_starts_again_takes_up_the_round(swarm: Swarm) -> None:
    hold_back(swarm, 0)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    swarm.state = coordinator.start(Fixed(swarm.layout), swarm.head, BOOTSTRAP, swarm.now)
    assert set(swarm.waiting().waiting_for) == set(swarm.members)
    for member in swarm.members.values():
        member.contributes = True
        member.contribute()
    swarm.until(lambda: swarm.round == 3, seconds=1)
    assert len(roots(swarm)) == 1


# ---- reducing ----


def lying(swarm: Swarm, number: int) -> None:
    """Its averages are none."""
    member = swarm[number]

    def lie(task: ReduceTask) -> UpdateReport:
        return replaced(member.honest_report(task), blob=invented("a lie", task.block))

    member.reduces = lie


def test_on_dispute_a_third_reducer_decides(swarm: Swarm) -> None:
    lying(swarm, 0)
    swarm.until(lambda: swarm.round == 2)
    record = swarm.head.record
    assigned = {one.block: one.reducers for one in swarm.records[1].reducers}
    disputed = [block for block, reducers in assigned.items() if swarm[0].peer_id in reducers]
    assert disputed
    by_block = {update.block: update for update in record.updates}
    for block in shared_blocks(swarm):
        update = by_block[block]
        assert swarm[0].peer_id not in update.reducers
        assert update.blob != invented("a lie", block)
        assert len(update.reducers) == 2
        assert (set(update.reducers) != set(assigned[block])) == (block in disputed)
    assert len(roots(swarm)) == 1


def test_when_no_two_reducers_ever_agree_the_block_is_left_out(swarm: Swarm) -> None:
    for number in range(4):
        member = swarm[number]
        member.reduces = lambda task, member=member: replaced(
            member.honest_report(task), blob=invented("a lie of", member.peer_id, task.block)
        )
    swarm.until(lambda: swarm.round == 2)
    assert {update.block.split("/")[0] for update in swarm.head.record.updates} == {"expert"}


def test_a_silent_reducer_is_waited_for_half_of_the_grace_then_the_others_word_counts(swarm: Swarm) -> None:
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    begun = swarm.now
    assert swarm.waiting().waiting_for == (swarm[0].peer_id,)
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now - begun == 10.0
    assert len(swarm.head.record.updates) == len(swarm.layout.blocks)


def test_when_a_reducer_dies_the_others_word_counts_at_once(swarm: Swarm) -> None:
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    swarm.die(swarm[0])
    begun = swarm.now
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now == begun
    assert {update.block for update in swarm.head.record.updates} >= set(shared_blocks(swarm))


def test_when_all_reducers_of_a_block_die_others_are_asked(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "sync", reducers_per_block=1), FOUR)
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    swarm.die(swarm[0])
    swarm.until(lambda: swarm.round == 2, seconds=1)
    assert {update.block for update in swarm.head.record.updates} >= set(shared_blocks(swarm))


def nobody_has_the_offers_of(swarm: Swarm, number: int) -> PeerId:
    peer = swarm[number].peer_id
    for member in swarm.members.values():
        member.lacks = {peer} - {member.peer_id}
    return peer


def test_who_dies_in_the_middle_of_its_uploads_is_left_out_at_once(swarm: Swarm) -> None:
    dead = nobody_has_the_offers_of(swarm, 0)
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    begun = swarm.now
    swarm.die(swarm[0])
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now == begun
    contributors = {update.block: {one.peer_id for one in update.contributors} for update in swarm.head.record.updates}
    assert all(contributors[block] == swarm.members.keys() - {dead} for block in shared_blocks(swarm))


def test_who_withholds_what_it_offers_is_left_out_in_time_for_the_others(swarm: Swarm) -> None:
    withheld = nobody_has_the_offers_of(swarm, 0)
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    begun = swarm.now
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now - begun <= 2 / 3 * 20 + 1.0
    assert "nobody could fetch your offer of shared/" in swarm[0].refusals[0]
    contributors = {update.block: {one.peer_id for one in update.contributors} for update in swarm.head.record.updates}
    assert all(contributors[block] == swarm.members.keys() - {withheld} for block in shared_blocks(swarm))


def test_who_withholds_its_offers_and_reports_an_average_of_its_own_decides_nothing(swarm: Swarm) -> None:
    withheld = nobody_has_the_offers_of(swarm, 0)
    lying(swarm, 0)
    swarm.until(lambda: swarm.round == 2)
    updates = {update.block: update for update in swarm.head.record.updates}
    for block in shared_blocks(swarm):
        assert {one.peer_id for one in updates[block].contributors} == swarm.members.keys() - {withheld}
        assert withheld not in updates[block].reducers
    assert not any(member.objections for member in swarm.members.values())


def test_one_word_against_all_offers_leaves_none_out_though_the_other_reducer_is_slow(swarm: Swarm) -> None:
    swarm[0].lacks = swarm.members.keys() - {swarm[0].peer_id}
    slow = swarm[1]
    slow.reduces = lambda task: None
    swarm.until(lambda: swarm.round == 2)
    updates = {update.block: update for update in swarm.head.record.updates}
    for block in shared_blocks(swarm):
        assert {one.peer_id for one in updates[block].contributors} == swarm.members.keys()


def test_a_report_on_what_a_block_was_to_be_averaged_of_before_is_late(swarm: Swarm) -> None:
    nobody_has_the_offers_of(swarm, 0)
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    assert isinstance(swarm.state.phase, Reducing)
    before = {block: one.task for block, one in swarm.state.phase.reductions.items() if one.task.reducers}
    swarm.settle()
    swarm.die(swarm[0])
    assert isinstance(swarm.state.phase, Reducing)
    anew = {block: one.task for block, one in swarm.state.phase.reductions.items() if one.task.reducers}
    assert all(len(anew[block].inputs) == len(before[block].inputs) - 1 for block in before)
    for block, task in anew.items():
        for peer in task.reducers:
            assert swarm.ask(swarm.members[peer], swarm.members[peer].honest_report(before[block])) == ""
    assert isinstance(swarm.state.phase, Reducing)
    assert not any(swarm.state.phase.reductions[block].reports for block in anew)


def test_where_only_one_offer_is_to_be_had_it_is_the_update(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "run", min_peers=2), [(0,), (1,)])
    nobody_has_the_offers_of(swarm, 0)
    swarm[0].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    swarm.die(swarm[0])
    swarm.until(lambda: swarm.phase == "closing")
    assert isinstance(swarm.state.phase, Closing)
    updates = {update.block: update for update in swarm.state.phase.proposal.record.updates}
    for block in shared_blocks(swarm):
        assert ([one.peer_id for one in updates[block].contributors], updates[block].reducers) == (
            [swarm[1].peer_id],
            (),
        )


def test_a_reducer_that_says_that_nothing_is_to_be_had_changes_nothing(swarm: Swarm) -> None:
    swarm[0].lacks = set(swarm.members)
    swarm.until(lambda: swarm.round == 2)
    for block, update in {update.block: update for update in swarm.head.record.updates}.items():
        if block.startswith("shared"):
            assert {one.peer_id for one in update.contributors} == swarm.members.keys()


def test_an_offer_that_reducers_reject_is_not_in_the_update_and_its_makers_expert_is_dropped(swarm: Swarm) -> None:
    bad = swarm[2]
    for member in swarm.members.values():
        member.reduces = lambda task, member=member: replaced(
            member.honest_report(replaced(task, inputs=tuple(i for i in task.inputs if i.peer_id != bad.peer_id))),
            rejected=(bad.peer_id,),
            inputs=task.digest,
        )
    swarm.until(lambda: swarm.round == 2)
    record = swarm.head.record
    assert bad.peer_id not in {part.peer_id for update in record.updates for part in update.contributors}
    assert len(record.updates) == len(swarm.layout.blocks) - 12
    (refusal,) = bad.refusals
    first = next(block for block in shared_blocks(swarm) if block in refusal)  # of which the reducers agreed first
    assert refusal == f"contribution to round 1: reducers found that your offer of {first} is not what it claims"
    assert record.entry_of(bad.peer_id) is not None


def test_an_update_is_listed_only_when_two_others_hold_it(swarm: Swarm) -> None:
    """Nobody but its maker ever holds an expert's update: the round ends with its grace, without it."""
    for number in range(4):
        swarm[number].holds = False
    swarm[0].holds = True
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    begun = swarm.now
    assert swarm.waiting().why.endswith("updates are on their way to enough peers")
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now - begun == 20.0
    blocks = [update.block for update in swarm.head.record.updates]
    assert not [block for block in blocks if block.startswith("expert")]


def test_an_only_offer_that_died_with_its_maker_is_not_waited_for(swarm: Swarm) -> None:
    for number in range(4):
        swarm[number].holds = False
    swarm.until(lambda: swarm.phase == "reducing")
    swarm.settle()
    maker = swarm[1]
    swarm.die(maker)
    for number in (0, 2, 3):
        swarm[number].holds = True
        swarm.take(coordinator.on_connected(swarm.state, swarm[number].peer_id, swarm.now))  # told again
    begun = swarm.now
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now == begun
    experts = {update.contributors[0].peer_id for update in swarm.head.record.updates if not update.reducers}
    assert maker.peer_id not in experts


def test_large_offers_are_clipped_to_the_median_in_the_record(swarm: Swarm) -> None:
    loud = swarm[1]
    loud.change = lambda given: replaced(given, offers=tuple(replaced(offer, norm=4.0) for offer in given.offers))
    swarm.until(lambda: swarm.round == 2)
    for update in swarm.head.record.updates:
        for part in update.contributors:
            is_clipped = part.peer_id == loud.peer_id and update.block.startswith("shared")
            assert part.clip == pytest.approx(0.25 if is_clipped else 1.0)


def test_a_contribution_on_another_root_counts_for_nothing_and_its_maker_is_told_to_repair(swarm: Swarm) -> None:
    astray = swarm[3]
    astray.change = lambda given: replaced(given, state_root=invented("elsewhere"))
    swarm.until(lambda: swarm.round == 2)
    record = swarm.head.record
    assert record.state_root == swarm.records[0].state_root
    assert astray.peer_id not in {part.peer_id for update in record.updates for part in update.contributors}
    assert "repair your state" in astray.refusals[0]


# ---- newcomers and bad input ----


def test_a_late_joiner_becomes_second_owner_and_its_experts_are_averaged_from_then_on(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 2)
    swarm.join(40, (2,))
    swarm.until(lambda: swarm.round == 3)
    record = swarm.head.record
    assert len(record.owners_of(2)) == 2
    blocks = [block.id for block in swarm.layout.blocks if swarm.layout.subset_of(block) == 2]
    assert {one.block for one in record.reducers} >= set(blocks)
    swarm.until(lambda: swarm.round == 4, seconds=1)
    updates = {update.block: update for update in swarm.head.record.updates}
    assert all(len(updates[block].contributors) == 2 and len(updates[block].reducers) == 2 for block in blocks)


def test_a_garbage_contribution_is_refused_by_name_and_the_round_goes_on(swarm: Swarm) -> None:
    bad = swarm[1]
    bad.change = lambda given: replaced(given, offers=given.offers[1:])
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    assert bad.refusals == ["contribution to round 1: it lacks shared/0000"]
    swarm.until(lambda: swarm.round == 2)
    assert bad.peer_id not in contributors_of(swarm.head.record, "shared/0000")
    assert len(swarm.head.record.updates) == len(swarm.layout.blocks) - 12


def test_a_second_different_contribution_is_refused_and_the_same_again_is_not(swarm: Swarm) -> None:
    hold_back(swarm, 0)
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    said = swarm[1].contribution
    assert said is not None
    assert swarm.ask(swarm[1], said) == ""
    refusal = swarm.ask(swarm[1], replaced(said, train_loss=0.1))
    assert refusal == "contribution to round 1: the sender has made another one before"


def test_a_stranger_may_neither_contribute_nor_report_nor_hold(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.phase == "reducing")
    stranger = swarm.join(70, (0,))
    said = swarm[0].contribution
    assert said is not None
    for message in (said, UpdateReport(1, BlockId("shared/0000"), "ab" * 32, 1, (), b""), Holding(1, ())):
        assert "the sender is not on the roster of round 1" in swarm.ask(stranger, message)


def test_what_strangers_say_of_a_round_costs_no_look_at_it(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.until(lambda: swarm.phase == "reducing")
    stranger, member, report = swarm.join(70, (0,)), swarm[0], UpdateReport(1, BlockId("no"), "ab" * 32, 1, (), b"")
    looks = []
    advance = coordinator.advance
    monkeypatch.setattr(coordinator, "advance", lambda *state: looks.append(state) or advance(*state))
    for message in (AdmissionRequest((0,), 1.0, PROTOCOL_VERSION), report, Holding(1, ()), Departure("leaving")):
        swarm.ask(stranger, message)
    swarm.ask(member, report)  # refused
    assert not looks
    swarm.ask(member, Holding(1, ()))
    assert len(looks) == 1


def test_a_report_that_cannot_be_is_refused_by_name(swarm: Swarm) -> None:
    for number in range(4):
        swarm[number].reduces = lambda task: None
    swarm.until(lambda: swarm.phase == "reducing")
    assert isinstance(swarm.state.phase, Reducing)
    task = swarm.state.phase.reductions[BlockId("shared/0000")].task
    outsider = next(member for member in swarm.members.values() if member.peer_id not in task.reducers)
    insider = swarm.members[task.reducers[0]]
    report = insider.honest_report(task)
    everybody = tuple(part.peer_id for part in task.inputs)
    assert "is not the sender's to reduce" in swarm.ask(outsider, report)
    assert "has 1 bytes instead of" in swarm.ask(insider, replaced(report, size_bytes=1))
    assert "is not a blob name" in swarm.ask(insider, replaced(report, blob="../etc/passwd"))
    assert "nothing is being averaged" in swarm.ask(insider, replaced(report, round=9))
    assert "is not the sender's to reduce" in swarm.ask(insider, replaced(report, block=BlockId("shared/9999")))
    assert "that nobody made" in swarm.ask(insider, replaced(report, rejected=(BOOTSTRAP,)))
    assert "although it rejects all offers" in swarm.ask(insider, replaced(report, rejected=everybody))
    assert swarm.ask(insider, report) == ""
    assert swarm.ask(insider, report) == ""


def test_a_signature_that_does_not_count_is_refused_by_name(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 1)
    assert "no record is proposed" in swarm.ask(swarm[0], RecordSignature(2, 0, bytes(32)))
    swarm.until(lambda: swarm.phase == "closing")
    stranger = swarm.join(71, (0,))
    assert isinstance(swarm.state.phase, Closing)
    right = swarm.state.phase.proposal.hash
    assert "has no vote on record 2" in swarm.ask(stranger, RecordSignature(2, 0, right))
    assert "signed another record" in swarm.ask(swarm[0], RecordSignature(2, 0, bytes(32)))
    assert "signed another record" in swarm.ask(swarm[0], RecordSignature(2, 1, right))
    assert swarm.ask(swarm[0], RecordSignature(2, 0, right)) == ""
    assert swarm.ask(swarm[0], RecordSignature(1, 0, bytes(32))) == ""  # late, not wrong


def test_signatures_of_newcomers_do_not_certify(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 1)
    newcomers = [swarm.join(71 + number, (0,)) for number in range(3)]
    swarm.until(lambda: swarm.phase == "closing")
    swarm.inbox.clear()  # all signatures are lost
    assert isinstance(swarm.state.phase, Closing)
    right = swarm.state.phase.proposal
    assert {entry.peer_id for entry in right.record.roster} >= {member.peer_id for member in newcomers}
    for member in (*newcomers, swarm[0], swarm[1]):
        swarm.ask(member, RecordSignature(2, 0, right.hash))
    old = [peer for peer in sorted(swarm.members) if swarm.head.record.entry_of(peer)]
    assert swarm.round == 1
    for peer in old[:3]:
        swarm.ask(swarm.members[peer], RecordSignature(2, 0, right.hash))
    assert swarm.round == 2


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (AdmissionRequest((9,), 1.0, PROTOCOL_VERSION), "it asks for subset 9, and there are 4"),
        (AdmissionRequest((), 1.0, PROTOCOL_VERSION), "it asks for no subset"),
        (AdmissionRequest((1, 1), 1.0, PROTOCOL_VERSION), "it asks for a subset twice"),
        (AdmissionRequest((1,), float("inf"), PROTOCOL_VERSION), "its speed of inf tokens/s is none"),
        (AdmissionRequest((1,), 1.0, 99), f"it speaks protocol 99, and this run speaks {PROTOCOL_VERSION}"),
    ],
)
def test_a_request_that_cannot_be_admitted_is_refused_by_name(
    swarm: Swarm, wish: AdmissionRequest, reason: str
) -> None:
    assert swarm.ask(swarm[0], wish) == f"admission: {reason}"


def test_a_message_of_an_earlier_start_is_refused(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 1)
    ghost = swarm[0]
    again = swarm.join(ghost.number, ghost.subsets, incarnation=2)
    assert swarm.ask(again, Beat(1, "training", 0)) == ""
    swarm.members[ghost.peer_id] = ghost
    assert swarm.ask(ghost, Beat(1, "training", 0)) == "Beat: it is of an earlier start of yours"


# ---- signatures ----


def test_a_proposal_is_repeated_to_those_that_have_not_signed(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 1)
    swarm.until(lambda: swarm.phase == "closing")
    swarm.inbox.clear()  # all signatures are lost
    assert len(swarm.waiting().waiting_for) == 4
    assert swarm.waiting().why == "0 of 4 have signed record 2, it takes 3"
    begun = swarm.now
    swarm.until(lambda: swarm.round == 2)
    assert swarm.now - begun == 20.0
