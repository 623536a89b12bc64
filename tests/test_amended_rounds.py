"""What amendments do to rounds: nobody trains while the run is paused, the banned are out, the end is the end."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from rounds_swarm import BOOTSTRAP, ORGANIZER, Member, Swarm, changed, replaced

from spes_peer.identity import Identity
from spes_peer.rounds import coordinator
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import AdmissionRequest, Beat, Proposal
from spes_peer.rounds.phases import Closing, Resting
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.records import Record, SealedRecord
from spes_peer.run.rules import Change, amendment_in

STRANGER = Identity.from_seed(b"\x63" * 32)


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    """Three members in round 2."""
    swarm = Swarm(changed(manifest, "run", min_peers=3), [(0,), (1,), (2,)])
    swarm.until(lambda: swarm.round == 2)
    return swarm


def paused(swarm: Swarm) -> Swarm:
    swarm.amend(Change(is_paused=True))
    swarm.until(lambda: swarm.phase == "resting")
    return swarm


def refused(swarm: Swarm) -> list[str]:
    return [why for member in swarm.members.values() for why in (*member.refusals, *member.objections)]


def test_the_next_record_carries_an_amendment_and_every_record_after_it_too(swarm: Swarm) -> None:
    amendment = swarm.amend(Change(round_seconds=100.0))
    swarm.until(lambda: swarm.round == 5)
    assert [record.amendment for record in swarm.records] == [None, None, None, *[amendment] * 3]
    assert [record.deadline_at - record.opened_at for record in swarm.records[3:]] == [100.0] * 3
    assert not refused(swarm)


def test_nobody_trains_in_a_paused_run_and_all_keep_their_places(swarm: Swarm) -> None:
    before = swarm.state.head.record
    record = paused(swarm).state.head.record
    assert record.updates
    assert [entry.peer_id for entry in record.roster] == [entry.peer_id for entry in before.roster]
    assert [entry.subsets for entry in record.roster] == [entry.subsets for entry in before.roster]
    assert not record.trains
    assert all(not entry.ranges for entry in record.roster)
    assert "paused" in swarm.waiting().why
    assert not refused(swarm)


def test_a_paused_round_ends_at_its_deadline_with_the_root_on_which_members_stand(swarm: Swarm) -> None:
    opened = paused(swarm).round
    swarm.until(lambda: swarm.round == opened + 2)
    assert swarm.moments[opened + 1] - swarm.moments[opened] >= swarm.state.rules.round_seconds
    first, second = swarm.records[opened + 1], swarm.records[opened + 2]
    assert first.state_root == second.state_root == swarm[0].root
    assert first.step == second.step == swarm.records[opened].step
    assert first.next_position == swarm.records[opened].next_position
    assert not refused(swarm)


def test_a_run_that_is_resumed_goes_on_at_once_and_trains_what_comes_next(swarm: Swarm) -> None:
    opened = paused(swarm).round
    resumed_at = swarm.now
    swarm.amend(Change(is_paused=False))
    swarm.until(lambda: swarm.round == opened + 1)
    assert swarm.now - resumed_at < 5
    assert swarm.state.head.record.trains
    swarm.until(lambda: swarm.round == opened + 3)
    trained = [part for record in swarm.records for entry in record.roster for part in entry.ranges]
    assert len({part.start for part in trained}) == len(trained)
    assert swarm.records[-1].step == swarm.records[opened].step + 2 * (swarm.records[2].step - swarm.records[1].step)
    assert not refused(swarm)


def test_newcomers_are_admitted_while_the_run_is_paused(swarm: Swarm) -> None:
    paused(swarm)
    newcomer = swarm.join(20, (0,))
    swarm.until(lambda: newcomer.peer_id in swarm.state.head.record.members)
    assert swarm.phase == "resting"


def test_the_end_that_an_organizer_sets_is_the_next_record(swarm: Swarm) -> None:
    swarm.amend(Change(finish_after_round=swarm.round))
    swarm.until(lambda: swarm.phase == "finished")
    assert swarm.round == 3
    assert swarm.records[-1].updates


def test_a_paused_run_ends_at_once(swarm: Swarm) -> None:
    opened = paused(swarm).round
    swarm.amend(Change(finish_after_round=1))
    swarm.settle()
    assert swarm.phase == "finished"
    assert swarm.round == opened + 1


def test_a_later_end_comes_later(swarm: Swarm) -> None:
    swarm.amend(Change(finish_after_round=4))
    swarm.until(lambda: swarm.phase == "finished")
    assert swarm.round == 5


def test_who_is_banned_is_out_of_the_next_roster_and_is_not_heard_any_more(swarm: Swarm) -> None:
    out = swarm[1]
    swarm.amend(Change(ban=(out.peer_id,)))
    swarm.until(lambda: swarm.round == 3)
    assert out.peer_id not in swarm.state.head.record.members
    assert out.peer_id not in swarm.records[-1].trained or swarm.records[-1].round == 3
    for message in (AdmissionRequest((0,), 1.0, PROTOCOL_VERSION), Beat(3, "here", 0)):
        assert "banned" in swarm.ask(out, message)
    swarm.take(coordinator.on_connected(swarm.state, out.peer_id, swarm.now))
    assert out.peer_id not in swarm.state.crowd.links
    swarm.until(lambda: swarm.round == 5)
    assert out.peer_id not in swarm.records[-1].members


def test_who_is_no_longer_banned_may_come_back(swarm: Swarm) -> None:
    out = swarm[1]
    swarm.amend(Change(ban=(out.peer_id,)))
    swarm.until(lambda: swarm.round == 3)
    swarm.amend(Change(unban=(out.peer_id,)))
    swarm.until(lambda: swarm.round == 4)
    out.say(AdmissionRequest((1,), 1.0, PROTOCOL_VERSION))
    swarm.until(lambda: out.peer_id in swarm.state.head.record.members)


def test_a_banned_bootstrap_node_coordinates_no_further_round(swarm: Swarm) -> None:
    swarm.amend(Change(ban=(BOOTSTRAP,)))
    swarm.until(lambda: swarm.round == 3)
    assert BOOTSTRAP not in swarm.state.head.record.candidates
    assert set(swarm.state.head.record.candidates) == swarm.state.head.record.members


def test_rounds_with_fewer_members_than_the_quorum_rest_until_there_are_enough(swarm: Swarm) -> None:
    swarm.amend(Change(quorum=4))
    swarm.until(lambda: swarm.phase == "resting")
    assert "3 of the 4 members" in swarm.waiting().why
    opened, since = swarm.round, swarm.now
    swarm.join(20, (0,))
    swarm.until(lambda: swarm.phase == "training")
    assert swarm.round == opened + 1
    assert swarm.now - since < 5


def test_an_amended_quorum_opens_the_first_round(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "run", min_peers=3), [(0,), (1,)])
    swarm.settle()
    assert swarm.phase == "admitting"
    swarm.amend(Change(quorum=2))
    swarm.until(lambda: swarm.round == 1)
    assert swarm.phase == "training"


@pytest.mark.parametrize("signer", [STRANGER, Identity.from_seed(bytes([10]) * 32)])
def test_a_forged_amendment_changes_nothing_and_is_refused(swarm: Swarm, signer: Identity) -> None:
    swarm.amend(Change(is_paused=True), signer)
    swarm.until(lambda: swarm.round == 4)
    assert swarm.state.head.record.amendment is None
    assert any("is no organizer" in why for why in refused(swarm))


Forge = Callable[[Record], Record]


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda record: replace(record, amendment=None), "drops the amendment"),
        (lambda record: replace(record, deadline_at=record.deadline_at + 60.0), "does not last"),
        (lambda record: replace(record, is_final=False), "has ended the run"),
    ],
)
def test_members_sign_no_record_that_goes_by_other_rules(swarm: Swarm, forge: Forge, why: str) -> None:
    swarm.amend(Change(round_seconds=100.0, finish_after_round=4))
    swarm.until(lambda: swarm.round == 4)
    swarm.until(lambda: isinstance(swarm.state.phase, Closing))
    assert isinstance(swarm.state.phase, Closing)
    forged = forge(swarm.state.phase.proposal.record).seal()
    found = objections(forged, swarm.state.head, Own(STRANGER.peer_id), swarm.layout)
    assert found is not None
    assert why in found


def test_members_sign_no_record_in_which_a_paused_run_trains(swarm: Swarm) -> None:
    paused(swarm)
    head = swarm.state.head
    training = swarm.records[2]
    forged = replaced(
        head.record,
        round=head.round + 1,
        previous_hash=head.hash,
        updates=(),
        tokens=0,
        step=head.record.step,
        merge_alpha=0.0,
        roster=training.roster,
    ).seal()
    assert "sequences per step" in str(objections(forged, head, Own(STRANGER.peer_id), swarm.layout))


def test_a_coordinator_cannot_make_up_a_state_root_while_nobody_trains(swarm: Swarm) -> None:
    opened = paused(swarm).round
    member: Member = swarm[0]
    swarm.until(lambda: swarm.now >= swarm.state.head.record.deadline_at - 1)
    assert isinstance(swarm.state.phase, Resting)
    phase = replace(
        swarm.state.phase,
        footings={
            peer: (signed, replace(footing, state_root="ab" * 32))
            for peer, (signed, footing) in swarm.state.phase.footings.items()
        },
    )
    swarm.state = replace(swarm.state, phase=phase)
    for _ in range(4):
        swarm.pass_second()
        swarm.settle()
    assert swarm.round == opened
    assert any("too few say that they stood on" in why for why in member.objections)


def test_a_proposal_with_an_amendment_that_is_not_valid_is_not_signed(swarm: Swarm) -> None:
    swarm.amend(Change(is_paused=True))
    swarm.until(lambda: isinstance(swarm.state.phase, Closing))
    assert isinstance(swarm.state.phase, Closing)
    record = swarm.state.phase.proposal.record
    assert amendment_in(record) is not None
    assert record.amendment is not None
    forged = replace(record, amendment=replace(record.amendment, peer_id=STRANGER.peer_id)).seal()
    member = swarm[0]
    member.sign(Proposal(0, forged.content))
    assert "carries an amendment that is not valid" in member.objections[-1]
    assert SealedRecord.from_bytes(forged.content).record.run_id == record.run_id
    assert ORGANIZER.peer_id in swarm.state.rules.organizers
