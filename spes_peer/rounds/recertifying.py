"""How an uncertified record comes to count: more than half of the roster that it went on without sign it after all.

It is the same instance of Paxos, run to its end later: the coordinator of today takes a later term of the round that
the last certified record opened, asks that roster for votes, and proposes the record that stands. Votes may name
another record, which may have been certified elsewhere. With every further vote it may turn out that it was not; when
all who attend have voted and it still may, it is that record which is proposed: what stands loses, as it must.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spes_peer.identity import PeerId
from spes_peer.rounds.ballot import MOST_TERMS_AHEAD
from spes_peer.rounds.election import (
    bound_hash,
    fault_in_vote,
    is_first_without_voters,
    next_term_of,
    opened_votes,
    owner_of,
)
from spes_peer.rounds.messages import Appeal, Proposal, RecordSignature, SignedBefore, Vote, VoteRequest
from spes_peer.rounds.phases import Outgoing
from spes_peer.run.certificates import electorate, is_certified_by, is_more_than_half
from spes_peer.run.records import CertifiedRecord, Record, SealedRecord
from spes_peer.run.signed import Signed


@dataclass(frozen=True)
class Recertifying:
    """The attempt of one node that coordinates; `base` is the last record that counts as certified."""

    base: SealedRecord
    standing: SealedRecord
    """The record behind it in the chain of this node."""
    term: int
    asked_at: float
    voted_term: int = 0
    """The newest of its terms for which somebody would vote who has voted in a later one than this."""
    votes: Mapping[PeerId, Signed] = field(default_factory=dict)
    signed_before: Mapping[bytes, SealedRecord] = field(default_factory=dict)
    """Records that votes name, by hash."""
    proposed: SealedRecord | None = None
    """Once votes allow one; it does not change in a term."""
    signatures: Mapping[PeerId, Signed] = field(default_factory=dict)


def certifiers(base: Record) -> frozenset[PeerId]:
    """Who may try behind this record: its candidates, behind an empty roster the first of them."""
    return frozenset(base.candidates if base.roster else base.candidates[:1])


def begin(base: SealedRecord, standing: CertifiedRecord, me: PeerId, now: float) -> Recertifying | None:
    """For the record `standing` that follows `base` uncertified; None for a node that may not try."""
    if me not in certifiers(base.record):
        return None
    term = next_term_of(me, base.record, first=standing.term + 1)
    assert term is not None
    return Recertifying(base, standing.sealed, term, now)


def tried_again(state: Recertifying, now: float) -> Recertifying:
    """In the next term of this node, or the one for which somebody would vote."""
    term = max(state.term + len(state.base.record.candidates), state.voted_term)
    return Recertifying(state.base, state.standing, term, now)


def with_appeal(state: Recertifying, appeal: Appeal) -> Recertifying:
    """Who has voted in a later term says so: that is tried next."""
    is_ours = owner_of(state.base.record, appeal.term) == owner_of(state.base.record, state.term)
    if not is_ours or not state.voted_term < appeal.term <= state.term + MOST_TERMS_AHEAD:
        return state
    return replace(state, voted_term=appeal.term)


def chosen(state: Recertifying, here: Collection[PeerId]) -> Recertifying:
    """With the record to propose, once the votes allow it; `here` are those who attend."""
    if state.proposed is not None:
        return state
    if is_first_without_voters(state.term, state.base.record):
        return replace(state, proposed=state.standing)
    roster = state.base.record.members
    if not is_more_than_half(len(state.votes), of=len(roster)):
        return state
    bound = bound_hash(opened_votes(state.votes.values(), state.base), len(roster))
    if bound in (b"", state.standing.hash):
        return replace(state, proposed=state.standing)
    if not roster.intersection(here) <= state.votes.keys():
        return state
    return replace(state, proposed=state.signed_before.get(bound))


def requests(state: Recertifying, here: Collection[PeerId]) -> tuple[Outgoing, ...]:
    """What to ask those who attend; nothing while they cannot be enough."""
    signers = _signers(state.proposed or state.standing, state.base)
    if not is_more_than_half(len(signers.intersection(here)), of=len(signers)):
        return ()
    if state.proposed is None:
        request = VoteRequest(state.base.round, state.term)
        return tuple(Outgoing(peer, request) for peer in sorted(signers.intersection(here) - state.votes.keys()))
    proposal = Proposal(state.term, state.proposed.content, tuple(state.votes[peer] for peer in sorted(state.votes)))
    return tuple(Outgoing(peer, proposal) for peer in sorted(signers.intersection(here) - state.signatures.keys()))


def with_vote(state: Recertifying, signed: Signed, vote: Vote) -> Recertifying:
    """Votes that come when a record is proposed change nothing."""
    if state.proposed is not None or fault_in_vote(vote, signed.peer_id, state.term, state.base):
        return state
    return replace(state, votes={**state.votes, signed.peer_id: signed})


def with_signed_before(state: Recertifying, message: SignedBefore, sealed: SealedRecord) -> Recertifying:
    """A record that a vote names; anything else is not kept."""
    named = {vote.record_hash for vote in opened_votes(state.votes.values(), state.base)}
    if message.round != state.base.round or sealed.hash not in named:
        return state
    if sealed.record.previous_hash != state.base.hash:
        return state
    return replace(state, signed_before={**state.signed_before, sealed.hash: sealed})


def with_signature(state: Recertifying, signed: Signed, signature: RecordSignature) -> Recertifying:
    proposed = state.proposed
    if proposed is None or signature != RecordSignature(proposed.round, state.term, proposed.hash):
        return state
    if signed.peer_id not in _signers(proposed, state.base):
        return state
    return replace(state, signatures={**state.signatures, signed.peer_id: signed})


def certificate(state: Recertifying) -> CertifiedRecord | None:
    """The certificate, once there are enough signatures."""
    if state.proposed is None or not is_certified_by(state.signatures, state.proposed.record, state.base.record):
        return None
    signatures = tuple(state.signatures[peer] for peer in sorted(state.signatures))
    return CertifiedRecord(state.proposed.content, state.term, signatures)


def _signers(record: SealedRecord, base: SealedRecord) -> frozenset[PeerId]:
    """Whose signatures help; behind an empty roster the first candidate's must be among them."""
    voters = frozenset(electorate(record.record, base.record))
    return voters if base.record.roster else voters | certifiers(base.record)
