"""Certificates: which signatures make a record take effect, certified or not."""

from dataclasses import replace

import pytest
from chain_parts import FIRST, PEERS, STRANGER, certify, following, roster
from rounds_swarm import CHECKS, ORGANIZER, RUN_ID, genesis

from spes_peer.errors import BadMessage, BadSignature, PeerError
from spes_peer.run.certificates import check_record, electorate, may_sign, sign_genesis, stalled_at
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord, SealedRecord


@pytest.fixture
def zero(manifest: Manifest) -> SealedRecord:
    return genesis(Layout(manifest)).seal()


@pytest.fixture
def one(zero: SealedRecord) -> SealedRecord:
    return following(zero).seal()


def is_certified(certified: CertifiedRecord, previous: SealedRecord) -> bool:
    """Raises for a record that does not take effect at all."""
    return check_record(certified, previous, CHECKS).is_certified


# ---- record 0 ----


def test_record_0_takes_effect_by_an_organizers_signature(zero: SealedRecord) -> None:
    checked = check_record(sign_genesis(zero.record, ORGANIZER, RUN_ID), None, CHECKS)
    assert checked.sealed == zero
    assert checked.is_certified
    assert checked.has_organizer


def test_record_0_by_anybody_else_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="has no vote on record 0"):
        check_record(sign_genesis(zero.record, STRANGER, RUN_ID), None, CHECKS)


def test_record_0_without_a_signature_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="record 0 needs the signature of an organizer"):
        check_record(CertifiedRecord(zero.content, 0, ()), None, CHECKS)


def test_record_0_with_a_signature_that_is_no_vote_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="record 0 needs the signature of an organizer"):
        check_record(certify(zero.record, uncertified=[ORGANIZER]), None, CHECKS)


def test_record_0_with_another_root_than_its_blocks_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="not that of its genesis blocks"):
        check_record(sign_genesis(replace(zero.record, state_root="00" * 32), ORGANIZER, RUN_ID), None, CHECKS)


def test_a_later_record_where_record_0_belongs_is_refused(zero: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="record 1 where record 0 belongs"):
        check_record(certify(following(zero), *PEERS), None, CHECKS)


# ---- certified ----


@pytest.mark.parametrize("num_signers", [3, 4])
def test_more_than_half_of_the_previous_roster_certifies_a_record(one: SealedRecord, num_signers: int) -> None:
    record = following(one, roster=roster(STRANGER))
    assert is_certified(certify(record, *PEERS[:num_signers]), one)


def test_half_of_the_roster_is_not_enough(one: SealedRecord) -> None:
    assert not is_certified(certify(following(one), *PEERS[:2]), one)


def test_signatures_of_the_new_roster_do_not_certify(one: SealedRecord) -> None:
    record = following(one, roster=roster(STRANGER))
    assert not is_certified(certify(record, *PEERS[:2], STRANGER), one)


def test_who_signs_without_a_vote_does_not_certify(one: SealedRecord) -> None:
    assert not is_certified(certify(following(one), *PEERS[:2], uncertified=PEERS[2:]), one)
    assert is_certified(certify(following(one), *PEERS[:3], uncertified=PEERS[3:]), one)


def test_an_organizers_signature_counts_for_rank_and_not_for_certifying(one: SealedRecord) -> None:
    checked = check_record(certify(following(one), *PEERS[:2], ORGANIZER), one, CHECKS)
    assert checked.has_organizer
    assert not checked.is_certified


def test_behind_an_empty_roster_the_first_candidate_and_more_than_half_of_its_own_certify(zero: SealedRecord) -> None:
    assert is_certified(certify(following(zero), FIRST, *PEERS[1:]), zero)
    with pytest.raises(BadSignature, match="2 signatures of 4 voters and needs 3"):
        is_certified(certify(following(zero), FIRST, *PEERS[:2]), zero)


def test_a_first_candidate_that_is_a_member_counts_as_both(zero: SealedRecord) -> None:
    empty = following(zero, roster=(), candidates=(PEERS[0].peer_id,)).seal()
    assert is_certified(certify(following(empty, roster=roster(*PEERS[:3])), *PEERS[:2]), empty)
    with pytest.raises(BadSignature, match="2 signatures of 3 voters"):
        is_certified(certify(following(empty, roster=roster(*PEERS[:3])), *PEERS[1:3]), empty)


def test_behind_a_roster_the_first_candidates_signature_is_not_needed(one: SealedRecord) -> None:
    assert one.record.candidates[0] == FIRST.peer_id
    assert is_certified(certify(following(one), *PEERS[1:]), one)


def test_a_record_between_two_empty_rosters_cannot_take_effect(zero: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="nobody can sign it"):
        is_certified(certify(following(zero, roster=()), FIRST), zero)


# ---- uncertified ----


def test_one_of_the_previous_roster_lets_a_record_stand_uncertified(one: SealedRecord) -> None:
    checked = check_record(certify(following(one), uncertified=PEERS[:1]), one, CHECKS)
    assert not checked.is_certified
    assert checked.signers == {PEERS[0].peer_id}


def test_where_all_of_the_previous_roster_are_gone_more_than_half_of_its_own_let_it_stand(one: SealedRecord) -> None:
    newcomers = sorted((FIRST, STRANGER), key=lambda peer: peer.peer_id)
    record = following(one, roster=roster(*newcomers))
    assert not is_certified(certify(record, uncertified=newcomers), one)
    with pytest.raises(BadSignature, match="0 signatures of 4 voters and needs 3"):
        is_certified(certify(record, uncertified=newcomers[:1]), one)


def test_strangers_cannot_end_or_take_over_a_run_behind_an_empty_roster(zero: SealedRecord) -> None:
    mine = following(zero, roster=roster(STRANGER), candidates=(STRANGER.peer_id,), is_final=True)
    with pytest.raises(BadSignature, match="1 signatures of 1 voters, and none of who may coordinate"):
        is_certified(certify(mine, STRANGER), zero)
    with pytest.raises(BadSignature):
        is_certified(certify(mine, uncertified=[STRANGER]), zero)


def test_behind_an_empty_roster_another_bootstrap_node_goes_on_with_whom_it_admits(zero: SealedRecord) -> None:
    second = PEERS[3]
    empty = following(zero, roster=(), candidates=(FIRST.peer_id, second.peer_id)).seal()
    record = following(empty, roster=roster(*PEERS[:2]))
    assert not is_certified(certify(record, uncertified=[*PEERS[:2], second]), empty)
    with pytest.raises(BadSignature):
        is_certified(certify(record, uncertified=PEERS[:2]), empty)


def test_a_record_that_only_its_first_candidate_and_the_organizer_signed_is_refused(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="0 signatures of 4 voters and needs 3"):
        is_certified(certify(following(one), FIRST, ORGANIZER), one)


def test_a_record_without_signatures_is_refused(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="0 signatures of 4 voters and needs 3"):
        is_certified(certify(following(one)), one)


def test_an_uncertified_record_may_follow_only_after_the_deadline_and_the_stall_timeout(one: SealedRecord) -> None:
    assert stalled_at(replace(one.record, deadline_at=100.0), 20.0) == 120.0


# ---- whose signatures, under what ----


def test_the_previous_roster_votes_and_behind_an_empty_one_the_records_own(
    zero: SealedRecord, one: SealedRecord
) -> None:
    theirs = tuple(peer.peer_id for peer in PEERS)
    record = following(one, roster=roster(STRANGER))
    assert electorate(one.record, zero.record) == theirs
    assert electorate(record, one.record) == theirs
    assert may_sign(record, one.record) == {*theirs, STRANGER.peer_id, FIRST.peer_id}


def test_a_signature_counts_once(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="two signatures of one peer"):
        is_certified(certify(following(one), PEERS[0], PEERS[0], PEERS[1]), one)


def test_a_peer_cannot_vote_and_abstain_under_one_record(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="two signatures of one peer"):
        is_certified(certify(following(one), *PEERS[:3], uncertified=PEERS[:1]), one)


def test_more_signatures_than_there_can_be_are_not_even_looked_at(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="more signatures than there are voters"):
        is_certified(certify(following(one), *PEERS, *PEERS), one)


def test_a_strangers_signature_spoils_the_certificate(one: SealedRecord) -> None:
    with pytest.raises(BadSignature, match="has no vote"):
        is_certified(certify(following(one), *PEERS[:3], STRANGER), one)


def test_signatures_of_another_term_do_not_count(one: SealedRecord) -> None:
    certified = certify(following(one), *PEERS, term=1)
    with pytest.raises(BadSignature, match="signed another record"):
        is_certified(replace(certified, term=2), one)


def test_signatures_under_another_record_do_not_count(one: SealedRecord) -> None:
    certified = certify(following(one), *PEERS)
    with pytest.raises(BadSignature, match="signed another record"):
        is_certified(replace(certified, record=following(one, tokens=1).seal().content), one)


def test_signatures_of_another_run_do_not_count(one: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="of another run"):
        is_certified(certify(following(one), *PEERS, run_id=bytes(32)), one)


def test_forged_signatures_do_not_count(one: SealedRecord) -> None:
    certified = certify(following(one), *PEERS)
    forged = replace(certified.signatures[0], signature=bytes(64))
    with pytest.raises(BadSignature, match="is not"):
        is_certified(replace(certified, signatures=(forged, *certified.signatures[1:])), one)


# ---- its place ----


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 3}, "record 3 does not follow record 1"),
        ({"previous_hash": bytes(32)}, "follows another record 1 than ours"),
        ({"run_id": bytes(32)}, "of another run"),
        ({"version": 2}, "has version 2"),
        ({"roster": roster(*reversed(PEERS))}, "not in peer-id order"),
        ({"roster": roster(PEERS[0], PEERS[0])}, "names a peer twice"),
    ],
)
def test_a_record_out_of_place_is_refused_by_name(one: SealedRecord, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        is_certified(certify(following(one, **changes), *PEERS), one)


def test_a_later_record_with_genesis_blocks_is_refused(zero: SealedRecord, one: SealedRecord) -> None:
    with pytest.raises(BadMessage, match="which only record 0 may"):
        is_certified(certify(following(one, genesis=zero.record.genesis), *PEERS), one)


def test_nothing_follows_the_final_record(zero: SealedRecord) -> None:
    last = following(zero, is_final=True).seal()
    with pytest.raises(BadMessage, match="the last of the run"):
        is_certified(certify(following(last), *PEERS), last)


def test_bytes_that_are_no_record_are_refused() -> None:
    with pytest.raises(PeerError):
        check_record(CertifiedRecord(b"\xff" * 40, 0, ()), None, CHECKS)
