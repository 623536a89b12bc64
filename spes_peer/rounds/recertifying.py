"""How an uncertified record comes to count: more than half of the roster that it went on without sign it after all.

It is the same instance of Paxos, run to its end later: the coordinator of today takes a later term of the round that
the last certified record opened, asks that roster for votes, and proposes the record that stands. If the votes name
another record, that one may have been certified elsewhere: with every further vote it may turn out that it was not, and
when more than half have signed it, the record that stands never will be.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spes_peer.identity import PeerId
from spes_peer.rounds.election import bound_hash, fault_in_vote
from spes_peer.rounds.messages import Proposal, RecordSignature, Vote, VoteRequest
from spes_peer.rounds.phases import Outgoing
from spes_peer.run.certificates import is_certified_by, is_more_than_half
from spes_peer.run.records import CertifiedRecord, SealedRecord
from spes_peer.run.signed import Signed


@dataclass(frozen=True)
class Recertifying:
    """The attempt of one node that coordinates; `base` is the last record that counts as certified."""

    base: SealedRecord
    record: SealedRecord
    term: int
    asked_at: float
    votes: Mapping[PeerId, Signed] = field(default_factory=dict)
    signatures: Mapping[PeerId, Signed] = field(default_factory=dict)

    @property
    def has_votes(self) -> bool:
        """Whether enough have voted, and leave it free to propose this record."""
        num_voters = len(self.base.record.roster)
        if not is_more_than_half(len(self.votes), of=num_voters):
            return False
        return bound_hash(self.opened_votes, num_voters) in (b"", self.record.hash)

    @property
    def opened_votes(self) -> list[Vote]:
        return [signed.open(Vote, self.base.record.run_id) for signed in self.votes.values()]


def begin(base: SealedRecord, standing: CertifiedRecord, me: PeerId, now: float) -> Recertifying | None:
    """For the record `standing` that follows `base` uncertified; None for a node that owns no term of that round."""
    candidates = base.record.candidates
    if me not in candidates or not base.record.roster:
        return None
    place = candidates.index(me)
    term = standing.term + 1
    term += (place - term) % len(candidates)
    return Recertifying(base, standing.sealed, term, now)


def requests(state: Recertifying, here: Collection[PeerId]) -> tuple[Outgoing, ...]:
    """What to ask those of the old roster that attend; nothing while they cannot be enough."""
    members = [entry.peer_id for entry in state.base.record.roster if entry.peer_id in here]
    if not is_more_than_half(len(members), of=len(state.base.record.roster)):
        return ()
    if not state.has_votes:
        request = VoteRequest(state.base.round, state.term)
        return tuple(Outgoing(peer, request) for peer in members if peer not in state.votes)
    votes = tuple(state.votes[peer] for peer in sorted(state.votes))
    proposal = Proposal(state.term, state.record.content, votes)
    return tuple(Outgoing(peer, proposal) for peer in members if peer not in state.signatures)


def tried_again(state: Recertifying, now: float) -> Recertifying:
    """In the next term of this node: some have voted in a later one."""
    return Recertifying(state.base, state.record, state.term + len(state.base.record.candidates), now)


def with_vote(state: Recertifying, signed: Signed, vote: Vote) -> Recertifying | str:
    """Votes that come when it has enough change nothing. A refusal says why the record cannot be certified any more."""
    if state.has_votes or fault_in_vote(vote, signed.peer_id, state.term, state.base):
        return state
    state = replace(state, votes={**state.votes, signed.peer_id: signed})
    counts = Counter(one.record_hash for one in state.opened_votes if one.record_hash not in (b"", state.record.hash))
    if any(is_more_than_half(count, of=len(state.base.record.roster)) for count in counts.values()):
        return f"more than half have signed another record {state.record.round} behind record {state.base.round}"
    return state


def with_signature(state: Recertifying, signed: Signed, signature: RecordSignature) -> Recertifying:
    if signature != RecordSignature(state.record.round, state.term, state.record.hash):
        return state
    if state.base.record.entry_of(signed.peer_id) is None:
        return state
    return replace(state, signatures={**state.signatures, signed.peer_id: signed})


def certificate(state: Recertifying) -> CertifiedRecord | None:
    """The certificate, once there are enough signatures."""
    if not is_certified_by(state.signatures, state.record.record, state.base.record):
        return None
    return CertifiedRecord(
        state.record.content, state.term, tuple(state.signatures[peer] for peer in sorted(state.signatures))
    )
