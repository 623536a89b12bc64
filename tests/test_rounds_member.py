"""What a member refuses to sign: an honest proposal, changed in one place at a time."""

from collections.abc import Callable
from typing import Any

import pytest
from rounds_swarm import Member, Swarm, changed, genesis, invented, replaced

from spes_peer.errors import BadMessage
from spes_peer.identity import Identity
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.member import objections
from spes_peer.rounds.messages import Vote
from spes_peer.rounds.phases import Closing
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId, Contributor, DataRange, Record, SealedRecord

STRANGER = Identity.from_seed(b"\x63" * 32).peer_id


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    """Record 3 is proposed and not yet signed; the member that is asked is the first."""
    swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 2)
    swarm.until(lambda: swarm.phase == "closing")
    return swarm


def proposal(swarm: Swarm) -> Record:
    assert isinstance(swarm.state.phase, Closing)
    return swarm.state.phase.proposal.record


def objection(swarm: Swarm, record: Record, member: Member | None = None) -> str | None:
    member = member or swarm[0]
    own = member.facts()
    return objections(record.seal(), swarm.head, own, swarm.layout)


def with_entry(record: Record, index: int, **changes: Any) -> Record:
    roster = list(record.roster)
    roster[index] = replaced(roster[index], **changes)
    return replaced(record, roster=tuple(roster))


def with_update(record: Record, name: str, **changes: Any) -> Record:
    updates = tuple(replaced(one, **changes) if one.block == name else one for one in record.updates)
    return replaced(record, updates=updates)


def test_an_honest_proposal_is_signed_by_all(swarm: Swarm) -> None:
    for member in swarm.members.values():
        assert objection(swarm, proposal(swarm), member=member) is None


@pytest.mark.parametrize("place", range(1, 5))
def test_the_candidates_may_begin_with_any_of_them(swarm: Swarm, place: int) -> None:
    """Who coordinates next is the coordinator's to judge; where it is a peer, the bootstrap node is not there."""
    record = proposal(swarm)
    bootstrap, *peers = record.candidates
    first = peers[place - 1]
    handed_over = (first, *(peer for peer in peers if peer != first), bootstrap)
    assert objection(swarm, replaced(record, candidates=handed_over)) is None
    bootstrap_next = (first, *(peer for peer in record.candidates if peer != first))
    assert objection(swarm, replaced(record, candidates=bootstrap_next)) is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: replaced(record, version=2), "version 2"),
        (lambda record: replaced(record, run_id=bytes(32)), "of another run"),
        (lambda record: replaced(record, round=4), "record 4 does not follow record 2"),
        (lambda record: replaced(record, previous_hash=bytes(32)), "follows another record 2"),
        (lambda record: replaced(record, step=41), "the step counter is 41 and should be 40"),
        (lambda record: replaced(record, merge_alpha=0.0), "merge α is 0.0 and should be 0.04"),
        (lambda record: replaced(record, deadline_at=record.deadline_at + 99), "does not last 120 s"),
        (lambda record: replaced(record, tokens=1), "counts 1 tokens"),
        (lambda record: replaced(record, roster=record.roster[::-1]), "not in peer-id order"),
        (lambda record: replaced(record, roster=record.roster[:1] + record.roster[:3]), "names a peer twice"),
        (lambda record: with_entry(record, 1, subsets=(4,)), "has a subset that does not exist"),
        (lambda record: with_entry(record, 1, subsets=(1, 1)), "one is there twice"),
        (lambda record: with_entry(record, 1, subsets=()), "are none"),
        (lambda record: with_entry(record, 1, sequences_per_step=9), "share a batch of 33 sequences instead of 32"),
        (lambda record: with_entry(record, 1, ranges=record.roster[0].ranges), "two members have position"),
        (lambda record: with_entry(record, 0, ranges=(DataRange(0, 160),)), "have been assigned before"),
        (lambda record: with_entry(record, 3, ranges=(DataRange(9_000, 9_160),)), "not the next ones of the data"),
        (lambda record: replaced(record, next_position=0), "the positions that remain"),
        (lambda record: replaced(record, returned=(DataRange(0, 9),)), "the positions that remain"),
        (lambda record: replaced(record, reducers=()), "the reducers are not those"),
        (lambda record: replaced(record, candidates=record.candidates[::-1]), "the candidates are not"),
        (lambda record: replaced(record, candidates=(STRANGER, *record.candidates)), "the candidates are not"),
        (lambda record: replaced(record, candidates=record.candidates[1:]), "the candidates are not"),
        (lambda record: replaced(record, candidates=()), "the candidates are not"),
        (lambda record: replaced(record, updates=record.updates[::-1]), "not in block order"),
        (lambda record: with_update(record, "shared/0000", block=BlockId("shared/99")), "there is no block shared/99"),
        (lambda record: with_update(record, "shared/0000", size_bytes=5), "it has 5 bytes instead of"),
        (lambda record: with_update(record, "shared/0000", reducers=()), "several contributed and nobody reduced"),
        (lambda record: with_update(record, "shared/0000", reducers=(STRANGER,)), "its reducers are not members"),
        (
            lambda record: with_update(record, "expert/00/0000", contributors=(Contributor(STRANGER, 1, 1.0, 1.0),)),
            "contributed and is not on the roster",
        ),
    ],
)
def test_a_proposal_with_a_fault_is_refused_by_name(
    swarm: Swarm, change: Callable[[Record], Record], reason: str
) -> None:
    assert reason in (objection(swarm, change(proposal(swarm))) or "signed")


def test_an_expert_update_by_somebody_who_does_not_own_it_is_refused(swarm: Swarm) -> None:
    record = proposal(swarm)
    own = next(one for one in record.updates if one.block == "expert/00/0000")
    thief = next(peer for peer in swarm.members if peer != own.contributors[0].peer_id)
    stolen = with_update(record, own.block, contributors=(replaced(own.contributors[0], peer_id=thief),))
    assert "does not own the expert" in (objection(swarm, stolen) or "signed")


def test_more_tokens_than_were_assigned_are_refused(swarm: Swarm) -> None:
    record = proposal(swarm)
    update = next(one for one in record.updates if one.block == "expert/00/0000")
    greedy = with_update(record, update.block, contributors=(replaced(update.contributors[0], tokens=10**9),))
    assert "counts 1000000000 tokens and was assigned 20480" in (objection(swarm, greedy) or "signed")


def test_my_own_offer_replaced_by_another_blob_is_refused(swarm: Swarm) -> None:
    block = f"expert/{2 * swarm[0].subsets[0]:02d}/0000"
    forged = with_update(proposal(swarm), block, blob=invented("forged"))
    assert objection(swarm, forged) == f"the update of {block} is not the offer that we made"
    assert objection(swarm, forged, member=swarm[1]) is None  # who does not know better signs


def test_another_blob_than_i_found_as_reducer_is_refused(swarm: Swarm) -> None:
    block = next(iter(swarm[0].reports))
    forged = with_update(proposal(swarm), block, blob=invented("forged"))
    assert objection(swarm, forged) == f"the update of {block} is not what we found as its reducer"


def test_another_average_of_offers_that_i_averaged_is_refused_whoever_is_said_to_have_made_it(swarm: Swarm) -> None:
    block = next(iter(swarm[0].reports))
    record = proposal(swarm)
    other = next(peer for peer in sorted(swarm.members) if peer != swarm[0].peer_id)
    forged = with_update(record, block, blob=invented("forged"), reducers=(other,))
    assert objection(swarm, forged) == f"the update of {block} is not what we found as its reducer"
    assert objection(swarm, with_update(record, block, reducers=(other,))) is None  # others found the same
    fewer = next(update for update in record.updates if update.block == block).contributors[1:]
    assert "not what we found" not in (
        objection(swarm, with_update(forged, block, contributors=fewer)) or ""
    )  # of other offers than we were given


def test_tokens_that_i_did_not_contribute_are_refused(swarm: Swarm) -> None:
    swarm[0].contribution = None
    assert "that we did not contribute" in (objection(swarm, proposal(swarm)) or "signed")


def test_a_member_that_started_again_signs_what_an_earlier_start_of_it_did(swarm: Swarm) -> None:
    swarm[0].contribution, swarm[0].reports, swarm[0].incarnation = None, {}, 2
    assert objection(swarm, proposal(swarm)) is None


def test_an_update_left_out_is_the_coordinators_to_judge(swarm: Swarm) -> None:
    record = proposal(swarm)
    assert objection(swarm, replaced(record, updates=record.updates[1:])) is None


def test_going_on_after_the_last_step_is_refused(manifest: Manifest) -> None:
    swarm = Swarm(changed(manifest, "training", total_steps=20), [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 1)
    swarm.until(lambda: swarm.phase == "closing")
    assert objection(swarm, proposal(swarm)) is None
    assert "the record goes on" in (objection(swarm, replaced(proposal(swarm), is_final=False)) or "signed")


def test_a_coordinator_cannot_end_the_run_by_itself(swarm: Swarm) -> None:
    assert "and no organizer has" in (objection(swarm, replaced(proposal(swarm), is_final=True)) or "signed")


def test_a_record_decoded_from_the_wire_is_judged_like_the_one_that_was_made(swarm: Swarm) -> None:
    record = proposal(swarm)
    assert SealedRecord.from_bytes(record.seal().content).record == record


# ---- the ballot ----


@pytest.fixture
def head(manifest: Manifest) -> SealedRecord:
    return replaced(genesis(Layout(manifest)), round=2).seal()


def after(head: SealedRecord, tokens: int) -> SealedRecord:
    return replaced(head.record, round=head.round + 1, previous_hash=head.hash, tokens=tokens).seal()


def test_a_ballot_signs_one_record_per_term(head: SealedRecord) -> None:
    one, two = after(head, 1), after(head, 2)
    ballot = Ballot.behind(head).signed(0, one)
    assert ballot.signed(0, one) == ballot  # again, should it have been lost
    with pytest.raises(BadMessage, match="we have signed another record 3 in term 0"):
        ballot.signed(0, two)


def test_a_ballot_signs_another_record_only_in_a_later_term(head: SealedRecord) -> None:
    one, two = after(head, 1), after(head, 2)
    ballot = Ballot.behind(head).signed(0, one).signed(2, two)
    with pytest.raises(BadMessage, match="proposed in term 1, and we have voted or signed in term 2"):
        ballot.signed(1, one)
    assert ballot.signed(3, one).vote().record_hash == one.hash


def test_a_ballot_signs_the_same_record_in_a_later_term(head: SealedRecord) -> None:
    one = after(head, 1)
    assert Ballot.behind(head).signed(0, one).signed(4, one).vote() == Vote(2, head.hash, 4, one.hash, 4)


def test_a_ballot_that_has_voted_signs_nothing_of_an_earlier_term(head: SealedRecord) -> None:
    one = after(head, 1)
    with pytest.raises(BadMessage, match="proposed in term 2, and we have voted or signed in term 3"):
        Ballot.behind(head).voted(3).signed(2, one)
    assert Ballot.behind(head).voted(3).signed(3, one).signed_term == 3


def test_a_ballot_that_has_voted_gives_the_signature_it_gave_before_again(head: SealedRecord) -> None:
    """It named that record in its vote, so the signature contradicts nothing."""
    ballot = Ballot.behind(head).signed(0, after(head, 1)).voted(3)
    assert ballot.signed(0, after(head, 1)) == ballot


def test_a_ballot_votes_in_a_term_as_often_as_asked_and_in_no_earlier_one(head: SealedRecord) -> None:
    ballot = Ballot.behind(head).voted(3)
    assert ballot.voted(3) == ballot
    with pytest.raises(BadMessage, match="term 2 is over, we have voted or signed in term 3"):
        ballot.voted(2)
    with pytest.raises(BadMessage, match="term 2 is over"):
        Ballot.behind(head).signed(3, after(head, 1)).voted(2)


def test_a_vote_names_the_record_that_was_signed_last_and_its_term(head: SealedRecord) -> None:
    one = after(head, 1)
    assert Ballot.behind(head).voted(3).vote() == Vote(2, head.hash, 3, b"", 0)
    assert Ballot.behind(head).signed(1, one).voted(3).vote() == Vote(2, head.hash, 3, one.hash, 1)


def test_a_ballot_survives_the_disk(head: SealedRecord) -> None:
    ballot = Ballot.behind(head).signed(1, after(head, 1)).voted(5)
    assert Ballot.from_bytes(ballot.to_bytes()) == ballot


def test_a_ballot_of_another_version_is_refused_by_name(head: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="a ballot of version 7; this program reads 2"):
        Ballot.from_bytes(replaced(Ballot.behind(head), version=7).to_bytes())


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": 1, "term": "x"}', b'{"version": 7}'])
def test_a_damaged_ballot_is_refused_rather_than_forgotten(content: bytes) -> None:
    with pytest.raises(BadMessage):
        Ballot.from_bytes(content)
