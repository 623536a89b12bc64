"""Who coordinates: terms and their owners, when a member gives up on one, and by what right one proposes.

Term t of a round belongs to candidate t modulo their number. Term 0 needs no votes: the record before names its owner
first. For a later term its owner needs the votes of more than half of the roster, and proposes the record that those
have signed in the highest term, if any has: that may have been certified where nobody here saw it (Lamport's Paxos, of
which a round is one instance and its roster the acceptors).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.rounds.ballot import MOST_TERMS_AHEAD
from spes_peer.rounds.messages import Vote
from spes_peer.run.certificates import is_more_than_half
from spes_peer.run.invitations import InvitationProof
from spes_peer.run.manifest import Timing
from spes_peer.run.records import Record, SealedRecord
from spes_peer.run.signed import Signed

UNREACHABLE_PART = 1 / 3
"""Of the coordinator time-out, after which who does not even answer is given up."""


def owner_of(record: Record, term: int) -> PeerId | None:
    """Who may coordinate the round that `record` opened in this term; None without candidates."""
    return record.candidates[term % len(record.candidates)] if record.candidates else None


def next_term_of(peer: PeerId, record: Record, first: int) -> int | None:
    """The first term, from `first` on, of a candidate for the round that `record` opened; None if it is none."""
    if peer not in record.candidates:
        return None
    return first + (record.candidates.index(peer) - first) % len(record.candidates)


@dataclass(frozen=True)
class Allegiance:
    """Which coordinator a node follows in the open round."""

    round: int
    term: int
    since_at: float
    """Unix seconds at which it began to look for the owner of this term."""
    heard_at: float | None = None
    """When the owner last gave a sign that it coordinates."""

    def heard(self, round: int, term: int, now: float) -> "Allegiance":
        """The owner of `term`, this or a later one, coordinates."""
        if round != self.round or not self.term <= term <= self.term + MOST_TERMS_AHEAD:
            return self
        since_at = self.since_at if term == self.term else now
        return replace(self, term=term, since_at=since_at, heard_at=now)

    def hears(self, now: float, timing: Timing) -> bool:
        return self.heard_at is not None and now - self.heard_at < timing.coordinator_timeout_seconds

    def overdue_at(self, is_unreachable: bool, timing: Timing, stalls_at: float = math.inf) -> float:
        """Unix seconds at which it gives up on this term: after the coordinator time-out, or a part of it if its owner
        does not even answer. An owner that is heard and yet makes no record, while members are gone or because they
        refuse what it proposes, is borne until the round stalls at `stalls_at`, and for twice that time-out."""
        patience_seconds = timing.coordinator_timeout_seconds * (UNREACHABLE_PART if is_unreachable else 1)
        lost_at = max(self.since_at, self.heard_at or 0.0) + patience_seconds
        return min(lost_at, max(self.since_at, stalls_at) + 2 * timing.coordinator_timeout_seconds)

    def next_term(self, now: float) -> "Allegiance":
        return Allegiance(self.round, self.term + 1, now)

    def referred(self, term: int, now: float) -> "Allegiance":
        """Back to an earlier term, whose coordinator lives by another's word."""
        return Allegiance(self.round, term, now) if term < self.term else self


@dataclass(frozen=True)
class Mandate:
    """By what right a node coordinates a round, if it does."""

    term: int = 0
    appeals: Mapping[PeerId, int] = field(default_factory=dict)
    """In which term each member would vote for this node."""
    asked_term: int = 0
    """The newest for which it has asked for votes."""
    asked_at: float = 0.0
    votes: Mapping[PeerId, Signed] = field(default_factory=dict)
    """Votes in `asked_term`."""
    signed_before: Mapping[bytes, SealedRecord] = field(default_factory=dict)
    """Records that votes may name, by hash."""
    proofs: Mapping[bytes, Mapping[PeerId, InvitationProof]] = field(default_factory=dict)
    """By the same, of newcomers on their rosters; each was found good."""


def bound_hash(votes: Iterable[Vote], num_voters: int) -> bytes:
    """The hash of the record that these votes, of so many voters, bind their coordinator to; empty if they leave it
    free.

    What too few have signed, even if all who did not vote had, has never been certified, and does not bind. Two records
    of one term come from a coordinator that deceives; then more votes decide, then the lower hash.
    """
    votes = tuple(votes)
    counts = Counter(vote.record_hash for vote in votes if vote.record_hash)
    num_silent = num_voters - len(votes)
    open_ones = {hash for hash, count in counts.items() if is_more_than_half(count + num_silent, of=num_voters)}
    newest = max((vote.signed_term for vote in votes if vote.record_hash in open_ones), default=0)
    signed = Counter(vote.record_hash for vote in votes if vote.record_hash in open_ones and vote.signed_term == newest)
    return min(signed, key=lambda hash: (-signed[hash], hash), default=b"")


def opened_votes(votes: Iterable[Signed], head: SealedRecord) -> list[Vote]:
    """What is in votes for the round behind `head`, each of which was checked when it came."""
    return [signed.open(Vote, head.record.run_id) for signed in votes]


def fault_in_owner(sender: PeerId, term: int, record: Record) -> str | None:
    """Why `sender` does not own this term of the round that `record` opened; None if it does."""
    if sender not in record.candidates:
        return f"{sender} is no candidate for coordinator in record {record.round}"
    if owner_of(record, term) != sender:
        return f"term {term} of round {record.round} is not {sender}'s"
    return None


def is_first_without_voters(term: int, record: Record) -> bool:
    """Whether this term is the first candidate's behind an empty roster, where nobody could vote for another.

    It may propose again in the next one of those. Without its signature nothing can be certified there, and it gives
    that to itself: so what it has given up can never be.
    """
    return not record.roster and bool(record.candidates) and term % len(record.candidates) == 0


def fault_in_votes(term: int, record_hash: bytes, votes: Iterable[Signed], head: SealedRecord) -> str | None:
    """Why the votes do not let the owner of this term propose the record behind `head`; None if they do."""
    if term == 0 or is_first_without_voters(term, head.record):
        return None
    opened: dict[PeerId, Vote] = {}
    for signed in votes:
        try:
            vote = signed.open(Vote, head.record.run_id)
        except PeerError as error:
            return f"a vote in the proposal is not good: {error}"
        if fault := fault_in_vote(vote, signed.peer_id, term, head):
            return fault
        opened[signed.peer_id] = vote
    if not is_more_than_half(len(opened), of=len(head.record.roster)):
        return f"it has {len(opened)} votes of {len(head.record.roster)} for term {term}"
    bound = bound_hash(opened.values(), len(head.record.roster))
    if bound and bound != record_hash:
        return "its votes name another record that has been signed before"
    return None


def are_binding(votes: Iterable[Signed], head: SealedRecord) -> bool:
    """Whether these votes, found good by `fault_in_votes`, bind to a record."""
    return bound_hash(opened_votes(votes, head), len(head.record.roster)) != b""


def fault_in_vote(vote: Vote, voter: PeerId, term: int, head: SealedRecord) -> str | None:
    if head.record.entry_of(voter) is None:
        return f"{voter} has no vote in round {head.round}"
    if (vote.round, vote.previous_hash, vote.term) != (head.round, head.hash, term):
        return f"the vote of {voter} is for another round or term"
    return None
