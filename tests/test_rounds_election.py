"""Elections: who owns a term, what votes allow, and how a node comes to coordinate, or goes on without a majority."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_swarm import BOOTSTRAP, BOOTSTRAP_IDENTITY, CHECKS, ORGANIZER, RUN_ID, Member, Swarm, changed, invented

from spes_peer.errors import BadSignature
from spes_peer.identity import Identity, PeerId
from spes_peer.rounds import coordinator
from spes_peer.rounds.election import Allegiance, bound_hash, fault_in_owner, fault_in_votes, owner_of
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Appeal,
    Beat,
    Departure,
    Holding,
    Proposal,
    RecordSignature,
    ReduceOrder,
    Referral,
    Refusal,
    SignedBefore,
    UpdateNotice,
    Vote,
    VoteRequest,
)
from spes_peer.rounds.phases import Closing, Coordinator, Fixed, Outgoing, Step
from spes_peer.rounds.transitions import first_candidate, seats
from spes_peer.run.certificates import check_record
from spes_peer.run.invitations import invite
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.records import CertifiedRecord, Record, SealedRecord
from spes_peer.run.signed import Signed, Signer

STRANGER = Identity.from_seed(b"\x63" * 32)
FOUR: list[tuple[int, ...]] = [(0,), (1,), (2,), (3,)]


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    """Round 1 of four is open, and nobody has contributed yet; the bootstrap node is first candidate."""
    swarm = Swarm(manifest, FOUR)
    for member in swarm.members.values():
        member.contributes = False
    swarm.until(lambda: swarm.round == 1)
    swarm.settle()
    return swarm


@pytest.fixture
def head(swarm: Swarm) -> SealedRecord:
    return swarm.head


# ---- terms and their owners ----


def test_the_terms_go_round_the_candidates(head: SealedRecord) -> None:
    candidates = head.record.candidates
    assert [owner_of(head.record, term) for term in range(7)] == [*candidates, *candidates[:2]]
    assert owner_of(replace(head.record, candidates=()), 3) is None


def test_who_does_not_own_a_term_is_named(head: SealedRecord) -> None:
    first, second = head.record.candidates[:2]
    assert fault_in_owner(second, 1, head.record) is None
    assert fault_in_owner(second, 6, head.record) is None
    assert fault_in_owner(first, 1, head.record) == f"term 1 of round 1 is not {first}'s"
    assert fault_in_owner(STRANGER.peer_id, 1, head.record) == (
        f"{STRANGER.peer_id} is no candidate for coordinator in record 1"
    )


def test_a_coordinator_is_given_up_after_the_timeout_and_sooner_when_it_cannot_be_reached(manifest: Manifest) -> None:
    timing = manifest.timing
    silent = Allegiance(1, 0, since_at=100.0)
    assert silent.overdue_at(is_unreachable=False, timing=timing) == 130.0
    assert silent.overdue_at(is_unreachable=True, timing=timing) == 110.0
    heard = silent.heard(1, 0, 120.0)
    assert heard.overdue_at(is_unreachable=False, timing=timing) == 150.0
    assert heard.hears(149.9, timing)
    assert not heard.hears(150.0, timing)
    assert not silent.hears(100.0, timing)


def test_a_later_coordinator_is_followed_and_an_earlier_one_is_not() -> None:
    allegiance = Allegiance(1, 2, since_at=100.0)
    assert allegiance.heard(1, 1, 110.0) == allegiance
    assert allegiance.heard(2, 5, 110.0) == allegiance  # of another round
    assert allegiance.heard(1, 5, 110.0) == Allegiance(1, 5, 110.0, 110.0)


def test_the_next_term_is_looked_for_anew_and_a_referral_leads_back() -> None:
    allegiance = Allegiance(1, 2, 100.0, 105.0)
    assert allegiance.next_term(130.0) == Allegiance(1, 3, 130.0)
    assert allegiance.referred(0, 130.0) == Allegiance(1, 0, 130.0)
    assert allegiance.referred(2, 130.0) == allegiance


# ---- what votes bind to ----

ONE, TWO, THREE = b"\1" * 32, b"\2" * 32, b"\3" * 32


def vote_for(record_hash: bytes, signed_term: int) -> Vote:
    return Vote(1, b"", 9, record_hash, signed_term)


@pytest.mark.parametrize(
    ("num_voters", "votes", "bound"),
    [
        (4, [], b""),
        (4, [(b"", 0), (b"", 0), (b"", 0)], b""),
        (4, [(b"", 0), (ONE, 0), (ONE, 0)], ONE),
        (4, [(b"", 0), (b"", 0), (ONE, 0)], b""),  # two of four at most have signed it
        (5, [(b"", 0), (b"", 0), (ONE, 0)], ONE),  # three of five may have
        (5, [(b"", 0), (b"", 0), (b"", 0), (ONE, 0)], b""),
        (5, [(ONE, 0), (ONE, 0), (TWO, 3)], TWO),  # the newest term, however few
        (5, [(ONE, 0), (ONE, 0), (TWO, 3), (b"", 0), (b"", 0)], b""),  # nobody else can have signed either
        (5, [(ONE, 2), (TWO, 2), (TWO, 2)], TWO),  # two of one term come from one that deceives
        (5, [(TWO, 2), (ONE, 2), (THREE, 1)], ONE),
        (5, [(b"", 7), (b"", 0), (ONE, 2)], ONE),  # a term without a record says nothing
    ],
)
def test_votes_bind_to_what_was_signed_in_the_newest_term_and_may_have_been_certified(
    num_voters: int, votes: list[tuple[bytes, int]], bound: bytes
) -> None:
    assert bound_hash([vote_for(*one) for one in votes], num_voters) == bound
    assert bound_hash([vote_for(*one) for one in reversed(votes)], num_voters) == bound


@given(st.data())
def test_votes_always_bind_to_a_record_that_was_certified(data: st.DataObject) -> None:
    """Whoever votes, and whatever was signed in earlier terms: in later ones only that record was proposed."""
    num_voters, certified_term = data.draw(st.integers(1, 7)), data.draw(st.integers(0, 3))
    signers = data.draw(st.sets(st.integers(0, num_voters - 1), min_size=num_voters // 2 + 1))
    voters = data.draw(st.sets(st.integers(0, num_voters - 1), min_size=num_voters // 2 + 1))
    votes = []
    for voter in voters:
        earlier = data.draw(
            st.sampled_from([(b"", 0), *[(bytes([term]) * 32, term) for term in range(certified_term)]])
        )
        later = (b"\xff" * 32, data.draw(st.integers(certified_term, certified_term + 2)))
        votes.append(vote_for(*(later if voter in signers or data.draw(st.booleans()) else earlier)))
    assert bound_hash(votes, num_voters) == b"\xff" * 32


def signed_votes(swarm: Swarm, count: int, **changes: Any) -> list[Signed]:
    """Votes of so many members in term 1."""
    vote = replace(Vote(1, swarm.head.hash, 1, b"", 0), **changes)
    return [swarm[number].signer.sign(vote) for number in range(count)]


def test_term_0_needs_no_votes(head: SealedRecord) -> None:
    assert fault_in_votes(0, ONE, (), head) is None


def test_more_than_half_of_the_roster_gives_the_right_to_propose(swarm: Swarm) -> None:
    assert fault_in_votes(1, ONE, signed_votes(swarm, 3), swarm.head) is None
    assert fault_in_votes(1, ONE, signed_votes(swarm, 2), swarm.head) == "it has 2 votes of 4 for term 1"
    assert fault_in_votes(1, ONE, (), swarm.head) == "it has 0 votes of 4 for term 1"


def test_a_vote_counts_once(swarm: Swarm) -> None:
    votes = signed_votes(swarm, 2)
    assert fault_in_votes(1, ONE, [*votes, *votes], swarm.head) == "it has 2 votes of 4 for term 1"


def test_a_vote_of_who_is_not_on_the_roster_is_refused(swarm: Swarm) -> None:
    foreign = Signer(STRANGER, RUN_ID, 1).sign(Vote(1, swarm.head.hash, 1, b"", 0))
    fault = fault_in_votes(1, ONE, [*signed_votes(swarm, 3), foreign], swarm.head)
    assert fault == f"{STRANGER.peer_id} has no vote in round 1"


def test_a_forged_vote_is_refused(swarm: Swarm) -> None:
    forged = replace(signed_votes(swarm, 1)[0], peer_id=swarm[3].peer_id)
    fault = fault_in_votes(1, ONE, [*signed_votes(swarm, 3), forged], swarm.head)
    assert fault is not None
    assert fault.startswith("a vote in the proposal is not good")


def test_a_vote_in_another_run_or_of_another_kind_is_refused(swarm: Swarm) -> None:
    vote = Vote(1, swarm.head.hash, 1, b"", 0)
    elsewhere = Signer(swarm[3].identity, bytes(32), 1).sign(vote)
    other_kind = swarm[3].signer.sign(Appeal(1, 1))
    for bad in (elsewhere, other_kind):
        fault = fault_in_votes(1, ONE, [*signed_votes(swarm, 3), bad], swarm.head)
        assert fault is not None
        assert fault.startswith("a vote in the proposal is not good")


@pytest.mark.parametrize("changes", [{"round": 2}, {"term": 6}, {"previous_hash": ONE}])
def test_votes_for_another_round_or_term_or_behind_another_record_are_refused(
    swarm: Swarm, changes: dict[str, Any]
) -> None:
    fault = fault_in_votes(1, ONE, signed_votes(swarm, 3, **changes), swarm.head)
    assert fault == f"the vote of {swarm[0].peer_id} is for another round or term"


def test_votes_that_name_a_record_allow_no_other(swarm: Swarm) -> None:
    naming = Vote(1, swarm.head.hash, 1, TWO, 0)
    votes = [*signed_votes(swarm, 1), *(swarm[number].signer.sign(naming) for number in (1, 2))]
    assert fault_in_votes(1, ONE, votes, swarm.head) == "its votes name another record that has been signed before"
    assert fault_in_votes(1, TWO, votes, swarm.head) is None


# ---- a node that is called to coordinate ----


class Heir:
    """The core of the member that owns term 1, which hears of the others what a test says. Whatever it tells them
    gathers in `told`."""

    def __init__(self, swarm: Swarm, proposal: Proposal | None = None) -> None:
        self.swarm = swarm
        self.now = swarm.now
        owner = owner_of(swarm.head.record, 1)
        assert owner is not None
        self.peer_id = owner
        self.me = swarm.members[owner]
        self.others = [member for peer, member in sorted(swarm.members.items()) if peer != owner]
        self.told: list[Outgoing] = []
        self.certified: list[CertifiedRecord] = []
        self.state = coordinator.start(Fixed(swarm.layout), swarm.head, owner, self.now, proposal=proposal)

    def take(self, step: Step) -> None:
        self.state = step.state
        self.told += step.outgoing
        if step.certified is not None:
            self.certified.append(step.certified)

    def hear(self, member: Member, *messages: Any) -> list[Any]:
        """What it answers this member, or says to all."""
        before = len(self.told)
        for message in messages:
            self.take(coordinator.on_message(self.state, member.signer.sign(message), message, self.now))
        return [out.message for out in self.told[before:] if out.to in (None, member.peer_id)]

    def pass_time(self, seconds: float, attending: Iterable[Member]) -> None:
        """All of these beat meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            for member in attending:
                self.hear(member, Beat(1, "training", 0))
            self.take(coordinator.on_time(self.state, self.now))

    def elect(self, term: int = 1, **named: Any) -> None:
        """By three of the four, itself among them."""
        for member in (self.me, *self.others[:2]):
            self.hear(member, Appeal(1, term))
        for member in (self.me, *self.others[:2]):
            self.hear(member, replace(Vote(1, self.swarm.head.hash, term, b"", 0), **named))

    def contribute(self, members: Iterable[Member]) -> None:
        """With what the reduce asks of them, until a record is proposed."""
        members = list(members)
        for member in members:
            member.contribute()
            assert member.contribution is not None
            self.hear(member, member.contribution)
        for member in members:
            for task in self.orders():
                if member.peer_id in task.reducers:
                    report = member.honest_report(task)
                    member.reports[task.block] = report.blob
                    self.hear(member, report)
        notices = [out.message for out in self.told if isinstance(out.message, UpdateNotice)]
        for member in members:
            self.hear(member, Holding(1, tuple({notice.blob for notice in notices})))

    def orders(self) -> list[Any]:
        orders = [out.message for out in self.told if isinstance(out.message, ReduceOrder)]
        return list({task.block: task for order in orders for task in order.tasks}.values())

    def proposals(self) -> list[Proposal]:
        return [out.message for out in self.told if isinstance(out.message, Proposal)]

    def all(self) -> list[Member]:
        return [self.me, *self.others]

    @property
    def leads(self) -> bool:
        return coordinator.leads(self.state, self.now)


@pytest.fixture
def heir(swarm: Swarm) -> Heir:
    return Heir(swarm)


def made_before(swarm: Swarm) -> SealedRecord:
    """A record of a coordinator that died, which some have signed."""
    for member in swarm.members.values():
        member.contribute()
    swarm.until(lambda: swarm.phase == "closing")
    assert isinstance(swarm.state.phase, Closing)
    return swarm.state.phase.proposal


def sign(heir: Heir, members: Iterable[Member], proposal: Proposal, uncertified: bool = False) -> None:
    record = SealedRecord.from_bytes(proposal.record)
    for member in members:
        heir.hear(member, RecordSignature(record.round, proposal.term, record.hash, uncertified))


def test_who_is_not_first_candidate_does_nothing_unasked(heir: Heir) -> None:
    heir.contribute(heir.all())
    heir.pass_time(60, heir.all())
    assert not heir.leads
    assert not [out for out in heir.told if not isinstance(out.message, Refusal)]
    assert coordinator.waiting(heir.state, heir.now).phase == "electing"


def test_appeals_of_half_of_the_roster_disturb_nothing(heir: Heir) -> None:
    assert heir.hear(heir.others[0], Appeal(1, 1)) == []
    assert heir.hear(heir.others[1], Appeal(1, 1), Appeal(1, 1)) == []
    beat = coordinator.waiting(heir.state, heir.now)
    assert beat.phase == "electing"
    assert beat.why == "2 of 4 have lost the coordinator, it takes 3 to elect another"
    assert set(beat.waiting_for) == {heir.peer_id, heir.others[2].peer_id}


def test_with_appeals_of_more_than_half_it_asks_all_for_votes_and_with_votes_it_leads(heir: Heir) -> None:
    for member in heir.others[:2]:
        heir.hear(member, Appeal(1, 1))
    assert heir.hear(heir.me, Appeal(1, 1)) == [VoteRequest(1, 1)]
    assert heir.told[-1].to is None
    vote = Vote(1, heir.swarm.head.hash, 1, b"", 0)
    for member in heir.others[:2]:
        heir.hear(member, vote)
    assert not heir.leads
    assert coordinator.waiting(heir.state, heir.now).why == "2 of 4 have voted for us, it takes 3"
    heir.hear(heir.me, vote)
    assert heir.leads
    assert heir.state.term == 1
    assert coordinator.waiting(heir.state, heir.now).phase == "training"


def test_who_appeals_late_is_asked_for_its_vote_too(heir: Heir) -> None:
    for member in (heir.me, *heir.others[:2]):
        heir.hear(member, Appeal(1, 1))
    assert heir.hear(heir.others[2], Appeal(1, 1)) == [VoteRequest(1, 1)]


def test_the_newest_term_that_more_than_half_have_come_to_is_asked_for(heir: Heir) -> None:
    """Terms 1 and 6 are both its own; who looks for the owner of a later one has given up the earlier."""
    heir.hear(heir.me, Appeal(1, 1))
    heir.hear(heir.others[0], Appeal(1, 6))
    assert heir.hear(heir.others[1], Appeal(1, 6)) == [VoteRequest(1, 1)]
    assert heir.hear(heir.others[2], Appeal(1, 6))[-1] == VoteRequest(1, 6)


def test_an_appeal_of_who_has_gone_does_not_count(heir: Heir) -> None:
    for member in heir.others[:2]:
        heir.hear(member, Appeal(1, 1))
    heir.take(coordinator.on_gone(heir.state, heir.others[0].peer_id, heir.now))
    assert heir.hear(heir.me, Appeal(1, 1)) == []


def test_an_appeal_of_a_stranger_does_not_count(heir: Heir) -> None:
    stranger = heir.swarm.join(70, (0,))
    for member in (*heir.others[:2], stranger):
        assert heir.hear(member, Appeal(1, 1)) == []


def test_an_appeal_in_anothers_term_or_round_is_refused_by_name(heir: Heir) -> None:
    assert heir.hear(heir.others[0], Appeal(1, 2)) == [Refusal("appeal: term 2 of round 1 is not ours")]
    assert heir.hear(heir.others[0], Appeal(2, 1)) == [Refusal("appeal in round 2: round 1 is open")]


def test_who_hears_the_coordinator_refers_an_appeal_back_to_it(heir: Heir) -> None:
    heir.state = coordinator.on_heard(heir.state, 0)
    for member in heir.others:
        assert heir.hear(member, Appeal(1, 1)) == [Referral(1, 0)]
    heir.state = coordinator.on_heard(heir.state, None)
    heir.hear(heir.others[0], Appeal(1, 1))
    heir.hear(heir.others[1], Appeal(1, 1))
    assert heir.hear(heir.others[2], Appeal(1, 1)) == [VoteRequest(1, 1)]


def test_the_elected_coordinator_closes_the_round_with_its_votes_in_the_proposal(heir: Heir) -> None:
    heir.elect()
    heir.contribute(heir.all())
    (proposal,) = {proposal.record: proposal for proposal in heir.proposals()}.values()
    record = SealedRecord.from_bytes(proposal.record)
    assert proposal.term == 1
    assert fault_in_votes(1, record.hash, proposal.votes, heir.swarm.head) is None
    sign(heir, (heir.me, *heir.others[:2]), proposal)
    (certified,) = heir.certified
    assert check_record(certified, heir.swarm.head, CHECKS).is_certified
    assert certified.term == 1
    assert {part.peer_id for update in record.record.updates for part in update.contributors} == set(heir.swarm.members)
    assert heir.state.term == 0  # of the next round
    assert heir.state.head == record


def test_members_that_are_not_there_yet_are_waited_for_as_long_as_it_takes_to_see_that_one_is_gone(
    heir: Heir,
) -> None:
    for member in heir.others:
        heir.take(coordinator.on_gone(heir.state, member.peer_id, heir.now))  # they attended the old coordinator
    heir.elect()
    present = [heir.me, *heir.others[:2]]
    heir.contribute(present)
    assert coordinator.waiting(heir.state, heir.now).waiting_for == (heir.others[2].peer_id,)
    heir.pass_time(9, present)
    assert heir.proposals() == []
    heir.pass_time(3, present)
    assert not isinstance(heir.state.phase, Closing) or heir.proposals()
    assert coordinator.waiting(heir.state, heir.now).waiting_for != (heir.others[2].peer_id,)


def test_a_coordinator_that_has_resigned_is_not_waited_for(heir: Heir) -> None:
    for member in heir.others:
        heir.take(coordinator.on_gone(heir.state, member.peer_id, heir.now))
    heir.state = coordinator.on_resigned(heir.state, heir.others[2].peer_id)
    heir.elect()
    heir.contribute([heir.me, *heir.others[:2]])
    assert len(heir.proposals()) > 0


def test_a_record_that_was_signed_before_is_proposed_again_and_no_other(swarm: Swarm) -> None:
    record = made_before(swarm)
    heir = Heir(swarm)
    heir.contribute(heir.all())  # it could make one of its own
    heir.elect(record_hash=record.hash)
    assert heir.state.term == 0  # it does not have the bytes
    assert heir.proposals() == []
    heir.hear(heir.me, SignedBefore(1, record.content))
    assert heir.state.term == 1
    assert {proposal.record for proposal in heir.proposals()} == {record.content}
    assert {out.to for out in heir.told if isinstance(out.message, Proposal)} == {*swarm.members, BOOTSTRAP}
    sign(heir, (heir.me, *heir.others[:2]), heir.proposals()[0])
    assert heir.certified[0].sealed == record
    assert check_record(heir.certified[0], swarm.head, CHECKS).is_certified


def test_a_record_that_was_signed_before_is_proposed_with_the_proofs_that_votes_bring_and_that_are_good(
    swarm: Swarm, manifest: Manifest
) -> None:
    record = made_before(swarm)
    swarm.layout = Layout(changed(manifest, "admission", mode="invitation"))
    heir = Heir(swarm)
    heir.contribute(heir.all())
    heir.elect(record_hash=record.hash)
    invitation = invite(ORGANIZER, RUN_ID, heir.now + 1e6)
    first, second = sorted(record.record.members)[:2]
    one, two = invitation.prove(first), invitation.prove(second)
    heir.hear(heir.me, SignedBefore(1, record.content, (replace(one, signature=bytes(64)), two)))
    assert heir.proposals()[-1].proofs == (two,)
    heir.hear(heir.others[0], SignedBefore(1, record.content, (one, invitation.prove(BOOTSTRAP))))
    assert isinstance(heir.state.phase, Closing)
    assert heir.state.phase.proofs == (one, two)


def test_a_record_that_no_vote_names_is_not_taken(swarm: Swarm) -> None:
    record = made_before(swarm)
    heir = Heir(swarm)
    heir.elect(record_hash=record.hash)
    other = replace(record.record, tokens=1).seal()
    assert heir.hear(heir.others[0], SignedBefore(1, other.content)) == [Refusal("a record that no vote names")]
    assert heir.hear(heir.others[0], SignedBefore(1, b"\xff")) != []
    assert heir.state.term == 0


def test_a_record_that_a_vote_names_and_that_does_not_follow_the_open_round_is_not_taken(swarm: Swarm) -> None:
    elsewhere = replace(made_before(swarm).record, previous_hash=b"\1" * 32).seal()
    heir = Heir(swarm)
    heir.elect(record_hash=elsewhere.hash)
    (refusal,) = heir.hear(heir.me, SignedBefore(1, elsewhere.content))
    assert "does not follow record 1" in refusal.why
    assert heir.state.term == 0


def test_while_the_bytes_are_missing_votes_in_a_later_term_can_be_asked_for(swarm: Swarm) -> None:
    heir = Heir(swarm)
    heir.elect(record_hash=invented("lost").encode()[:32])
    assert heir.state.term == 0
    for member in (heir.me, *heir.others[:2]):
        heir.hear(member, Appeal(1, 6))
    assert heir.told[-1].message == VoteRequest(1, 6)


def test_votes_after_the_majority_change_nothing(swarm: Swarm) -> None:
    """One that comes late names a record; but without it nobody can have certified that."""
    record = made_before(swarm)
    heir = Heir(swarm)
    heir.elect()
    before = heir.state
    late = [Vote(1, swarm.head.hash, 1, record.hash, 0), SignedBefore(1, record.content)]
    assert heir.hear(heir.others[2], *late) == [Refusal("a record that no vote names")]
    assert heir.state.mandate == before.mandate
    assert not isinstance(heir.state.phase, Closing)
    heir.hear(heir.me, Vote(1, swarm.head.hash, 1, record.hash, 0))  # nor may a voter think again
    assert heir.state.mandate == before.mandate


def test_a_vote_that_nobody_asked_for_does_not_disturb_those_that_were(heir: Heir) -> None:
    for member in (heir.me, *heir.others[:2]):
        heir.hear(member, Appeal(1, 1))
    vote = Vote(1, heir.swarm.head.hash, 1, b"", 0)
    heir.hear(heir.me, vote)
    heir.hear(heir.others[2], replace(vote, term=5 * 10**9 + 1))
    for member in heir.others[:2]:
        heir.hear(member, vote)
    assert heir.leads
    assert heir.state.term == 1


@pytest.mark.parametrize("wrong", [{"round": 2}, {"previous_hash": ONE}])
def test_a_vote_that_fits_no_request_is_refused(heir: Heir, wrong: dict[str, Any]) -> None:
    heir.elect()
    (refusal,) = heir.hear(heir.others[2], replace(Vote(1, heir.swarm.head.hash, 6, b"", 0), **wrong))
    assert "is for another round or term" in refusal.why


def test_a_vote_for_anothers_term_or_of_a_stranger_is_refused(heir: Heir) -> None:
    vote = Vote(1, heir.swarm.head.hash, 2, b"", 0)
    assert heir.hear(heir.others[0], vote) == [Refusal("vote: term 2 of round 1 is not ours")]
    stranger = heir.swarm.join(70, (0,))
    assert heir.hear(stranger, replace(vote, term=1)) == [Refusal(f"vote: {stranger.peer_id} has no vote in round 1")]


def test_another_coordinators_record_ends_the_mandate(swarm: Swarm) -> None:
    record = made_before(swarm)
    heir = Heir(swarm)
    heir.elect()
    heir.state = coordinator.on_head(heir.state, record, heir.state.past, heir.now)
    assert heir.state.term == 0
    assert not heir.leads
    assert not heir.state.mandate.appeals


# ---- another start of a coordinator ----


def test_a_start_with_the_last_proposal_proposes_it_again_in_the_same_term(swarm: Swarm) -> None:
    heir = Heir(swarm)
    heir.elect()
    heir.contribute(heir.all())
    proposal = heir.proposals()[0]
    again = Heir(swarm, proposal)
    assert again.leads
    for member in again.all():
        again.take(coordinator.on_connected(again.state, member.peer_id, again.now))
        again.contribute([member])  # of which it could make another
    assert set(map(proposal_key, again.proposals())) == {proposal_key(proposal)}
    sign(again, again.all()[:3], proposal)
    assert check_record(again.certified[0], swarm.head, CHECKS).is_certified
    assert again.certified[0].record == proposal.record


def proposal_key(proposal: Proposal) -> tuple[int, bytes, frozenset[PeerId]]:
    return proposal.term, proposal.record, frozenset(vote.peer_id for vote in proposal.votes)


def test_a_start_of_the_first_candidate_proposes_what_it_proposed_in_term_0(swarm: Swarm) -> None:
    record = made_before(swarm)
    state = coordinator.start(
        Fixed(swarm.layout), swarm.head, BOOTSTRAP, swarm.now, proposal=Proposal(0, record.content)
    )
    assert coordinator.leads(state, swarm.now)
    step = coordinator.on_connected(state, swarm[0].peer_id, swarm.now)
    assert step.outgoing == (Outgoing(swarm[0].peer_id, Proposal(0, record.content)),)


def test_a_start_behind_a_newer_record_forgets_the_last_proposal(swarm: Swarm) -> None:
    record = made_before(swarm)
    state = coordinator.start(Fixed(swarm.layout), record, BOOTSTRAP, swarm.now, proposal=Proposal(0, record.content))
    assert state.phase.name == "training"
    assert state.head == record


# ---- a minority ----


def minority(heir: Heir) -> list[Member]:
    """Two of four are there and have contributed; they have lost the others and the coordinator."""
    here = [heir.me, heir.others[0]]
    for member in heir.others[1:]:
        heir.take(coordinator.on_gone(heir.state, member.peer_id, heir.now))
    for member in here:
        heir.hear(member, Appeal(1, 1))
    heir.contribute(here)
    return here


def stalled_at(heir: Heir) -> float:
    return heir.swarm.head.record.deadline_at + heir.swarm.layout.manifest.timing.stall_timeout_seconds


def patience_seconds(heir: Heir) -> float:
    """What a record waits for before it goes on uncertified."""
    return heir.swarm.layout.manifest.timing.coordinator_timeout_seconds


def test_a_minority_waits_until_the_stall_timeout_and_says_for_whom_and_until_when(heir: Heir) -> None:
    here = minority(heir)
    heir.pass_time(stalled_at(heir) - heir.now - 1, here)
    assert not heir.leads
    assert heir.proposals() == []
    beat = coordinator.waiting(heir.state, heir.now)
    assert (beat.phase, beat.until_at) == ("electing", stalled_at(heir))
    assert set(beat.waiting_for) == {member.peer_id for member in heir.others[1:]}
    assert beat.why.endswith("to elect another; without them it goes on uncertified")


def test_a_minority_goes_on_uncertified_once_the_run_has_stalled(heir: Heir) -> None:
    here = minority(heir)
    heir.pass_time(stalled_at(heir) - heir.now + 1, here)
    assert heir.leads
    heir.contribute(here)  # the rest of the reduce
    proposal = heir.proposals()[0]
    assert (proposal.term, proposal.votes) == (1, ())
    sign(heir, here, proposal, uncertified=True)
    heir.pass_time(patience_seconds(heir), here)
    (made,) = heir.certified
    checked = check_record(made, heir.swarm.head, CHECKS)
    assert not checked.is_certified
    assert checked.signers == {member.peer_id for member in here}
    assert [entry.peer_id for entry in checked.sealed.record.roster] == sorted(checked.signers)
    assert made.term == 1


def test_signatures_that_just_go_on_never_certify_however_many(heir: Heir) -> None:
    here = minority(heir)
    heir.pass_time(stalled_at(heir) - heir.now + 1, here)
    heir.contribute(here)
    proposal = heir.proposals()[0]
    for member in heir.others[1:]:  # they come back and go on with it too
        heir.take(coordinator.on_connected(heir.state, member.peer_id, heir.now))
    sign(heir, heir.all(), proposal, uncertified=True)
    heir.pass_time(patience_seconds(heir), heir.all())
    (made,) = heir.certified
    assert len(made.signatures) == 4
    assert not check_record(made, heir.swarm.head, CHECKS).is_certified


def test_whoever_looks_for_a_coordinator_is_given_time_to_come_before_a_record_goes_on_uncertified(heir: Heir) -> None:
    here = minority(heir)
    heir.pass_time(stalled_at(heir) - heir.now + 1, here)
    heir.contribute(here)
    sign(heir, [heir.me], heir.proposals()[0], uncertified=True)
    heir.pass_time(patience_seconds(heir) - 2, here)
    assert heir.certified == []
    heir.pass_time(4, here)
    assert check_record(heir.certified[0], heir.swarm.head, CHECKS).signers == {heir.peer_id}


def test_who_comes_in_time_can_vote_so_that_the_record_is_certified_after_all(heir: Heir) -> None:
    here = minority(heir)
    heir.pass_time(stalled_at(heir) - heir.now + 1, here)
    heir.contribute(here)
    sign(heir, here, heir.proposals()[0], uncertified=True)
    heir.hear(heir.others[1], Appeal(1, 1))
    voters = [*here, heir.others[1]]
    for member in voters:
        heir.hear(member, Vote(1, heir.swarm.head.hash, 1, b"", 0))
    assert heir.certified == []
    assert len(heir.proposals()[-1].votes) == 3
    sign(heir, voters, heir.proposals()[-1])
    assert check_record(heir.certified[0], heir.swarm.head, CHECKS).is_certified
    assert heir.certified[0].record == heir.proposals()[0].record


def test_when_the_others_come_back_before_the_stall_timeout_is_over_the_record_is_certified(heir: Heir) -> None:
    here = minority(heir)
    heir.pass_time(100, here)
    heir.hear(heir.others[1], Appeal(1, 1))
    for member in (*here, heir.others[1]):
        heir.hear(member, Vote(1, heir.swarm.head.hash, 1, b"", 0))
    heir.contribute([*here, heir.others[1]])
    heir.pass_time(60, [*here, heir.others[1]])
    sign(heir, [*here, heir.others[1]], heir.proposals()[-1])
    assert check_record(heir.certified[0], heir.swarm.head, CHECKS).is_certified


# ---- handing over ----


def next_first(state: Coordinator, now: float) -> PeerId | None:
    return first_candidate(state, seats(state, now))


def test_a_bootstrap_node_that_coordinates_keeps_the_role(swarm: Swarm) -> None:
    assert next_first(swarm.state, swarm.now) == BOOTSTRAP


def test_a_peer_that_coordinates_keeps_the_role_while_no_bootstrap_node_attends(heir: Heir) -> None:
    heir.elect()
    assert next_first(heir.state, heir.now) == heir.peer_id
    heir.contribute(heir.all())
    record = SealedRecord.from_bytes(heir.proposals()[0].record).record
    assert record.candidates[0] == heir.peer_id
    assert BOOTSTRAP in record.candidates


def test_a_bootstrap_node_that_comes_back_gets_the_next_round(heir: Heir) -> None:
    heir.elect()
    heir.take(coordinator.on_connected(heir.state, BOOTSTRAP, heir.now))
    assert next_first(heir.state, heir.now) == BOOTSTRAP
    heir.contribute(heir.all())
    record = SealedRecord.from_bytes(heir.proposals()[0].record).record
    assert record.candidates[0] == BOOTSTRAP
    assert record.entry_of(BOOTSTRAP) is None


def test_a_peer_that_leaves_hands_over_to_one_that_stays(heir: Heir) -> None:
    heir.elect()
    heir.hear(heir.me, Departure("leaving"))
    heir.contribute(heir.all())
    record = SealedRecord.from_bytes(heir.proposals()[0].record).record
    assert record.entry_of(heir.peer_id) is None
    assert record.candidates[0] in {member.peer_id for member in heir.others}
    assert record.candidates[0] == next_first(heir.state, heir.now)


def test_when_the_last_peer_leaves_and_nobody_is_there_the_round_stays_open(heir: Heir) -> None:
    """A record with nobody to go on with could never be followed."""
    heir.elect()
    for member in heir.all():
        heir.hear(member, Departure("leaving"))
    heir.contribute(heir.all())
    heir.pass_time(60, heir.all())
    assert heir.proposals() == []


# ---- behind an empty roster ----


def empty_round(swarm: Swarm) -> tuple[Record, Coordinator]:
    """All have left round 1; the bootstrap node has closed it."""
    for member in swarm.members.values():
        member.contribute()
        member.say(Departure("paused"))
        member.subsets = ()
    swarm.until(lambda: swarm.round == 2)
    swarm.settle()
    assert swarm.head.record.roster == ()
    return swarm.head.record, swarm.state


def test_behind_an_empty_roster_only_the_first_candidates_word_certifies(swarm: Swarm) -> None:
    record, _ = empty_round(swarm)
    swarm[0].subsets = (0,)
    swarm[0].say(AdmissionRequest((0,), 0.0, PROTOCOL_VERSION))
    swarm.until(lambda: swarm.phase == "closing", seconds=5)
    assert isinstance(swarm.state.phase, Closing)
    sealed = swarm.state.phase.proposal
    word = RecordSignature(3, 0, sealed.hash)
    alone = CertifiedRecord(sealed.content, 0, (swarm[0].signer.sign(word),))
    with pytest.raises(BadSignature, match="none of who may coordinate behind record 2"):
        check_record(alone, record.seal(), CHECKS)
    both = replace(alone, signatures=(*alone.signatures, Signer(BOOTSTRAP_IDENTITY, RUN_ID, 1).sign(word)))
    assert check_record(both, record.seal(), CHECKS).is_certified
