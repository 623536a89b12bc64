"""How a node comes to coordinate a round: appeals, then votes, then the record that the votes bind it to.

Members that have lost the coordinator appeal to the owner of the next term. Appeals bind nobody, so one member with a
bad line disturbs nothing; with appeals from more than half of the roster their owner asks for votes, which do. When
more than half of the roster stay away until the stall time-out is over, who has the appeals of those present
coordinates without votes, and makes an uncertified record.
"""

from collections.abc import Collection
from dataclasses import replace

from spes_peer.identity import PeerId
from spes_peer.rounds.ballot import MOST_TERMS_AHEAD
from spes_peer.rounds.election import Mandate, bound_hash, fault_in_vote, opened_votes, owner_of
from spes_peer.rounds.messages import Appeal, Referral, SignedBefore, Vote, VoteRequest
from spes_peer.rounds.phases import Closing, Coordinator, Outgoing, Step
from spes_peer.run.certificates import is_more_than_half, stalled_at
from spes_peer.run.invitations import InvitationProof, fault_in_proof
from spes_peer.run.records import SealedRecord
from spes_peer.run.rules import rules_of
from spes_peer.run.signed import Signed


def is_stalled(state: Coordinator, now: float) -> bool:
    """Whether the open round has waited for so long that it may go on with an uncertified record."""
    seconds = state.fixed.manifest.timing.stall_timeout_seconds
    return now >= stall_ends_at(state) if state.head.round else now >= state.phase.since_at + seconds


def stall_ends_at(state: Coordinator) -> float:
    """Unix seconds; nobody knows how long ago record 0 was made, so it does not count from that."""
    return stalled_at(state.head.record, state.fixed.manifest.timing.stall_timeout_seconds)


def has_votes(state: Coordinator) -> bool:
    """Whether what this node proposes can be certified."""
    mandate, record = state.mandate, state.head.record
    if mandate.term == 0 or not record.roster:
        return owner_of(record, 0) == state.me
    return is_more_than_half(len(mandate.votes), of=len(record.roster))


def leads(state: Coordinator, now: float) -> bool:
    """Whether this node coordinates the open round."""
    return has_votes(state) or (is_stalled(state, now) and bool(supporters(state)))


def supporters(state: Coordinator) -> frozenset[PeerId]:
    """Who attends and would vote for this node, in whatever term."""
    return frozenset(peer for peer in state.mandate.appeals if peer in _heeded(state))


def _heeded(state: Coordinator) -> Collection[PeerId]:
    """Whose appeals count: those of members; where none of those attends, anybody's, for then they may all be gone."""
    return state.present or state.crowd.links.keys()


def take_appeal(state: Coordinator, signed: Signed, appeal: Appeal) -> Step | str:
    """A member has lost the coordinator. Who hears that, says so."""
    head, sender = state.head, signed.peer_id
    if appeal.round != head.round:
        return f"appeal in round {appeal.round}: round {head.round} is open"
    if owner_of(head.record, appeal.term) != state.me:
        return f"appeal: term {appeal.term} of round {head.round} is not ours"
    if appeal.term > max(state.mandate.term, state.mandate.asked_term) + MOST_TERMS_AHEAD:
        return f"appeal: nobody comes to term {appeal.term}"
    if state.heard_term is not None:
        return Step(state, (Outgoing(sender, Referral(head.round, state.heard_term)),))
    if sender not in _heeded(state):
        return Step(state)
    appeals = {**state.mandate.appeals, sender: max(appeal.term, state.mandate.appeals.get(sender, 0))}
    state = replace(state, mandate=replace(state.mandate, appeals=appeals))
    if state.mandate.asked_term >= appeal.term and state.mandate.asked_term > state.term:
        return Step(state, (Outgoing(sender, VoteRequest(head.round, state.mandate.asked_term)),))
    return Step(state)


def take_vote(state: Coordinator, signed: Signed, vote: Vote) -> Coordinator | str:
    mandate = state.mandate
    if vote.round == state.head.round and 0 < vote.term <= mandate.term:
        return state  # said again
    if fault := fault_in_vote(vote, signed.peer_id, vote.term, state.head):
        return f"vote: {fault}"
    if owner_of(state.head.record, vote.term) != state.me:
        return f"vote: term {vote.term} of round {state.head.round} is not ours"
    if vote.term != mandate.asked_term:
        return state  # one that this node asked for before it started again is given again when it asks again
    return replace(state, mandate=replace(mandate, votes={**mandate.votes, signed.peer_id: signed}))


def take_signed_before(
    state: Coordinator, message: SignedBefore, sealed: SealedRecord, now: float
) -> Coordinator | str:
    """A record that a vote names; anything else is not kept."""
    named = {vote.record_hash for vote in opened_votes(state.mandate.votes.values(), state.head)}
    if message.round != state.head.round or sealed.hash not in named:
        return "a record that no vote names"
    if sealed.record.previous_hash != state.head.hash:
        return f"a record that does not follow record {state.head.round}, which its voter cannot have signed"
    proofs = {**state.mandate.proofs.get(sealed.hash, {}), **_good_proofs(state, sealed, message.proofs, now)}
    mandate = replace(
        state.mandate,
        signed_before={**state.mandate.signed_before, sealed.hash: sealed},
        proofs={**state.mandate.proofs, sealed.hash: proofs},
    )
    return _with_proofs(replace(state, mandate=mandate), sealed)


def _good_proofs(
    state: Coordinator, sealed: SealedRecord, proofs: tuple[InvitationProof, ...], now: float
) -> dict[PeerId, InvitationProof]:
    """Those that members will want to see: whoever sent them may have sent anything."""
    record, known = sealed.record, state.past.leases.by_peer
    if state.fixed.manifest.admission.mode != "invitation":
        return {}
    rules = rules_of(record, state.fixed.first_rules)
    came_at = min(now, record.opened_at) - state.fixed.manifest.timing.lease_seconds
    return {
        one.peer_id: one
        for one in proofs
        if one.peer_id in record.members
        and one.peer_id not in known
        and fault_in_proof(one, rules, record.run_id, came_at) is None
    }


def _with_proofs(state: Coordinator, sealed: SealedRecord) -> Coordinator:
    """What is proposed shows also the proofs that came after it."""
    phase, proofs = state.phase, state.mandate.proofs.get(sealed.hash, {})
    if not isinstance(phase, Closing) or phase.proposal.hash != sealed.hash or not proofs:
        return state
    shown = {one.peer_id: one for one in phase.proofs} | dict(proofs)
    return replace(state, phase=replace(phase, proofs=tuple(shown[peer] for peer in sorted(shown))))


def seek_mandate(state: Coordinator, now: float) -> Step:
    """Ask for votes when enough have appealed; take the term when enough have voted."""
    mandate, num_voters = state.mandate, len(state.head.record.roster)
    if mandate.asked_term > mandate.term and is_more_than_half(len(mandate.votes), of=num_voters):
        elected = _elected(state, now)
        if elected.term > state.term:
            return Step(elected)
    asking = sorted({term for term in mandate.appeals.values() if term > max(mandate.term, mandate.asked_term)})
    for term in reversed(asking):
        count = sum(peer in state.present for peer, one in mandate.appeals.items() if one >= term)
        if is_more_than_half(count, of=num_voters) or _is_overtaken(state):
            mandate = replace(mandate, asked_term=term, asked_at=now, votes={}, signed_before={}, proofs={})
            return Step(replace(state, mandate=mandate), (Outgoing(None, VoteRequest(state.head.round, term)),))
    return Step(state)


def _is_overtaken(state: Coordinator) -> bool:
    """Whether this node proposes, and too few are there who have not voted in a later term: those cannot sign, and they
    appeal for a later term of the same coordinator."""
    if not isinstance(state.phase, Closing) or state.phase.term != state.term:
        return False
    able = [peer for peer in state.present if state.mandate.appeals.get(peer, 0) <= state.term]
    return not is_more_than_half(len(able), of=len(state.head.record.roster))


def _elected(state: Coordinator, now: float) -> Coordinator:
    """With the term, and the proposal that it is bound to; the same as before while the bytes of that are missing."""
    mandate = state.mandate
    votes = opened_votes(mandate.votes.values(), state.head)
    bound = bound_hash(votes, len(state.head.record.roster))
    closing = state.phase if isinstance(state.phase, Closing) else None
    own = closing.proposal if closing else None
    proposal = own if own is not None and bound in (b"", own.hash) else mandate.signed_before.get(bound)
    if bound and proposal is None:
        return state
    state = replace(state, mandate=replace(mandate, term=mandate.asked_term))
    # what has been said in an earlier term is said again: `Closing` begins anew, other phases go on
    if proposal is None:
        return state
    if closing is None or proposal is not own:
        return _with_proofs(replace(state, phase=Closing(now, proposal, state.term, now)), proposal)
    # what members have to see with this node's own, they have to see again
    anew = replace(closing, since_at=now, term=state.term, asked_at=now, signatures={}, carried=frozenset())
    return replace(state, phase=anew)


def renewed(state: Coordinator) -> Coordinator:
    """Without a mandate: a new round begins."""
    return replace(state, mandate=Mandate())
