"""A record that went on uncertified and counts after all, once more than half of the old roster have signed it; or the
one does that they had signed before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chain_parts import FIRST, PEERS, STRANGER, certify, following, grown
from rounds_swarm import RUN_ID, genesis

from spes_peer.identity import Identity
from spes_peer.rounds.election import owner_of
from spes_peer.rounds.messages import Appeal, Proposal, SignedBefore, Vote, VoteRequest
from spes_peer.rounds.phases import Outgoing
from spes_peer.rounds.recertifying import (
    Recertifying,
    begin,
    certificate,
    chosen,
    requests,
    tried_again,
    with_appeal,
    with_signature,
    with_signed_before,
    with_vote,
)
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord, RecordSignature, SealedRecord
from spes_peer.run.signed import Signer

ME = PEERS[0]
CANDIDATES = tuple(one.peer_id for one in (FIRST, *PEERS))
EVERYBODY = {peer.peer_id for peer in PEERS}


@pytest.fixture
def base(manifest: Manifest) -> SealedRecord:
    return following(genesis(Layout(manifest)).seal(), candidates=CANDIDATES).seal()


@pytest.fixture
def standing(base: SealedRecord) -> CertifiedRecord:
    """Two of four went on with it."""
    return certify(following(base), uncertified=PEERS[:2], term=3)


def begun(base: SealedRecord, standing: CertifiedRecord) -> Recertifying:
    state = begin(base, standing, ME.peer_id, 100.0)
    assert state is not None
    return state


def voted(state: Recertifying, *voters: Identity, **changes: Any) -> Recertifying:
    for voter in voters:
        vote = replace(Vote(state.base.round, state.base.hash, state.term, b"", 0), **changes)
        state = chosen(with_vote(state, Signer(voter, RUN_ID, 1).sign(vote), vote), EVERYBODY)
    return state


def signed(state: Recertifying, *signers: Identity, **changes: Any) -> Recertifying:
    for signer in signers:
        assert state.proposed is not None
        word = replace(RecordSignature(state.proposed.round, state.term, state.proposed.hash), **changes)
        state = with_signature(state, Signer(signer, RUN_ID, 1).sign(word), word)
    return state


def test_a_candidate_takes_its_next_term_of_the_round_that_was_not_certified(
    base: SealedRecord, standing: CertifiedRecord
) -> None:
    state = begun(base, standing)
    assert state.term > standing.term
    assert owner_of(base.record, state.term) == ME.peer_id
    again = tried_again(voted(state, *PEERS[:2]), 130.0)
    assert again.term > state.term
    assert owner_of(base.record, again.term) == ME.peer_id
    assert (again.votes, again.proposed, again.signatures, again.asked_at) == ({}, None, {}, 130.0)


def test_who_owns_no_term_of_that_round_cannot_try(base: SealedRecord, standing: CertifiedRecord) -> None:
    assert begin(base, standing, STRANGER.peer_id, 100.0) is None


def test_behind_an_empty_roster_the_first_candidate_asks_those_who_went_on_and_needs_no_votes(
    base: SealedRecord,
) -> None:
    empty = replace(base.record, roster=()).seal()
    standing = certify(following(empty), uncertified=PEERS[:3])
    assert begin(empty, standing, ME.peer_id, 100.0) is None
    state = begin(empty, standing, FIRST.peer_id, 100.0)
    assert state is not None
    state = chosen(state, EVERYBODY)
    asked = requests(state, EVERYBODY | {FIRST.peer_id})
    assert {one.to for one in asked} == EVERYBODY | {FIRST.peer_id}
    assert all(one.message == Proposal(state.term, standing.record) for one in asked)
    state = signed(state, *PEERS[:3])
    assert certificate(state) is None
    assert certificate(signed(state, FIRST)) is not None


def test_nobody_is_asked_while_no_more_than_half_of_the_old_roster_are_there(
    base: SealedRecord, standing: CertifiedRecord
) -> None:
    half = {peer.peer_id for peer in PEERS[:2]} | {STRANGER.peer_id}
    assert requests(begun(base, standing), half) == ()


def test_first_votes_are_asked_for_and_then_signatures_from_those_that_are_missing(
    base: SealedRecord, standing: CertifiedRecord
) -> None:
    state = begun(base, standing)
    here = EVERYBODY | {STRANGER.peer_id}
    asked = requests(voted(state, PEERS[3]), here)
    assert asked == tuple(Outgoing(peer.peer_id, VoteRequest(1, state.term)) for peer in PEERS[:3])
    state = signed(voted(state, *PEERS[:3]), PEERS[1])
    proposal = Proposal(state.term, standing.record, tuple(state.votes[peer] for peer in sorted(state.votes)))
    assert len(proposal.votes) == 3
    expected = [peer.peer_id for peer in (PEERS[0], PEERS[2], PEERS[3])]
    assert requests(state, here) == tuple(Outgoing(peer, proposal) for peer in expected)


def test_signatures_of_more_than_half_make_the_record_and_those_behind_it_count(
    tmp_path: Path, manifest: Manifest
) -> None:
    chain = grown(tmp_path, genesis(Layout(manifest)).seal(), 1)
    assert chain.head is not None
    chain.append(certify(following(chain.head, candidates=CANDIDATES), *PEERS, FIRST))
    base = chain.head
    standing = certify(following(base), uncertified=PEERS[:2])
    chain.append(standing)
    chain.append(certify(following(standing.sealed), *PEERS))
    state = signed(voted(begun(base, standing), *PEERS[1:]), *PEERS[2:])
    assert certificate(state) is None
    certified = certificate(signed(state, PEERS[0]))
    assert certified is not None
    assert certified.term == state.term
    assert chain.improve(certified)
    assert chain.certified_round == 3


@pytest.mark.parametrize("changes", [{"term": 1}, {"record_hash": b"\1" * 32}, {"uncertified": True}, {"round": 7}])
def test_signatures_that_say_something_else_do_not_count(
    base: SealedRecord, standing: CertifiedRecord, changes: dict[str, Any]
) -> None:
    state = voted(begun(base, standing), *PEERS)
    assert signed(state, *PEERS, **changes) == state
    assert signed(state, STRANGER) == state


@pytest.mark.parametrize("changes", [{"term": 1}, {"previous_hash": b"\1" * 32}, {"round": 7}])
def test_votes_that_say_something_else_do_not_count(
    base: SealedRecord, standing: CertifiedRecord, changes: dict[str, Any]
) -> None:
    state = begun(base, standing)
    assert voted(state, *PEERS, **changes) == state
    assert voted(state, STRANGER) == state


def test_votes_that_name_this_very_record_are_fine(base: SealedRecord, standing: CertifiedRecord) -> None:
    state = voted(begun(base, standing), *PEERS[:3], record_hash=standing.sealed.hash, signed_term=2)
    assert state.proposed == standing.sealed


def test_a_record_that_too_few_can_have_signed_does_not_hinder(base: SealedRecord, standing: CertifiedRecord) -> None:
    state = voted(begun(base, standing), *PEERS[:1], record_hash=b"\1" * 32)
    assert voted(state, PEERS[1]).proposed is None  # the two others may have
    assert voted(state, *PEERS[1:3]).proposed == standing.sealed


def before(state: Recertifying, sealed: SealedRecord, **changes: Any) -> Recertifying:
    message = replace(SignedBefore(state.base.round, sealed.content), **changes)
    return with_signed_before(state, message, sealed)


def test_a_record_that_may_be_certified_is_proposed_once_all_who_attend_have_voted(
    base: SealedRecord, standing: CertifiedRecord
) -> None:
    """The two that have signed it and one that is away would be more than half."""
    other = following(base, tokens=5).seal()
    state = begun(base, standing)
    assert before(state, other).signed_before == {}  # no vote names it
    state = before(voted(state, *PEERS[:2], record_hash=other.hash), other)
    assert before(state, other, round=7) == state
    elsewhere = replace(other.record, previous_hash=b"\1" * 32).seal()
    named = voted(begun(base, standing), PEERS[0], record_hash=elsewhere.hash)
    assert before(named, elsewhere) == named
    state = voted(state, PEERS[2])
    assert state.proposed is None  # the fourth may say that it has not
    assert requests(state, EVERYBODY) == (Outgoing(PEERS[3].peer_id, VoteRequest(1, state.term)),)
    assert voted(state, PEERS[3]).proposed == standing.sealed
    state = chosen(state, EVERYBODY - {PEERS[3].peer_id})  # it is away
    assert state.proposed == other
    certified = certificate(signed(state, *PEERS[:3]))
    assert certified is not None
    assert certified.sealed == other
    assert chosen(state, EVERYBODY) == state


def test_what_votes_bind_to_waits_for_the_bytes_of_the_record(base: SealedRecord, standing: CertifiedRecord) -> None:
    other = following(base, tokens=5).seal()
    state = voted(begun(base, standing), *PEERS, record_hash=other.hash)
    assert state.proposed is None
    assert chosen(before(state, other), EVERYBODY).proposed == other


def test_votes_after_the_majority_change_nothing(base: SealedRecord, standing: CertifiedRecord) -> None:
    state = voted(begun(base, standing), *PEERS[:3])
    assert voted(state, PEERS[3], record_hash=b"\1" * 32) == state


def test_the_next_term_is_one_for_which_who_has_voted_later_would_vote(
    base: SealedRecord, standing: CertifiedRecord
) -> None:
    state = begun(base, standing)
    later = state.term + 1_000 * len(CANDIDATES)
    assert with_appeal(state, Appeal(1, later + 1)) == state  # another's term
    assert with_appeal(state, Appeal(1, state.term + len(CANDIDATES) * 2**20)) == state  # nobody comes so far
    again = tried_again(with_appeal(state, Appeal(1, later)), 130.0)
    assert again.term == later
    assert tried_again(with_appeal(again, Appeal(1, state.term)), 160.0).term > later
