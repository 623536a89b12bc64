"""A member's memory of what it promised and signed to follow one record, as in Paxos.

It must be on disk before a vote or signature is sent: a restart may not vote twice. One ballot belongs to one record
and says nothing of what follows another.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

from spes_peer.errors import BadMessage
from spes_peer.files import with_checksum, without_checksum
from spes_peer.rounds.messages import Vote
from spes_peer.run.invitations import InvitationProof
from spes_peer.run.records import SealedRecord
from spes_peer.wire import convert

BALLOT_VERSION = 2
MOST_TERMS_AHEAD = 2**20
"""By which a term of another's word may lie ahead of ours. Nobody comes so far by time-outs, and who lies cannot use up
the terms, however often: they are 64 bits long."""


@dataclass(frozen=True)
class Ballot:
    """At most one record per term is signed, and none of a term below the newest."""

    round: int
    """That the next record opens."""
    previous_hash: bytes
    term: int = 0
    """The newest in which this member has voted or signed."""
    record: bytes = b""
    """The record that it signed last, serialized; empty for none."""
    signed_term: int = 0
    """The term in which it signed that."""
    proofs: tuple[InvitationProof, ...] = ()
    """Of newcomers on its roster, for whoever is bound to propose it again."""
    version: int = BALLOT_VERSION

    @classmethod
    def behind(cls, head: SealedRecord) -> "Ballot":
        """An empty one."""
        return cls(head.round + 1, head.hash)

    @cached_property
    def record_hash(self) -> bytes:
        """Of the record that was signed; empty for none."""
        return hashlib.sha256(self.record).digest() if self.record else b""

    def objection_to_vote(self, term: int) -> str | None:
        """Why this member may not promise `term`; None if it may, or has."""
        if term < self.term:
            return f"term {term} is over, we have voted or signed in term {self.term}"
        return self._objection_to_leap(term)

    def _objection_to_leap(self, term: int) -> str | None:
        is_leap = term > self.term + MOST_TERMS_AHEAD
        return f"nobody comes from term {self.term} to term {term}" if is_leap else None

    def objection_to_sign(self, term: int, record_hash: bytes) -> str | None:
        """Why this signature may not be given; None if it may."""
        if record_hash == self.record_hash and term == self.signed_term:
            return None  # the same again: it may have been lost on the way
        if term < self.term:
            return f"record {self.round} is proposed in term {term}, and we have voted or signed in term {self.term}"
        if self.record_hash not in (b"", record_hash) and term <= self.signed_term:
            return f"we have signed another record {self.round} in term {self.signed_term}"
        return self._objection_to_leap(term)

    def voted(self, term: int) -> "Ballot":
        """The ballot to keep before this vote is sent; `BadMessage` if it may not be given."""
        if reason := self.objection_to_vote(term):
            raise BadMessage(reason)
        return replace(self, term=term)

    def signed(self, term: int, sealed: SealedRecord, proofs: tuple[InvitationProof, ...] = ()) -> "Ballot":
        """The ballot to keep before this signature is sent; `BadMessage` if it may not be given."""
        if reason := self.objection_to_sign(term, sealed.hash):
            raise BadMessage(reason)
        if (term, sealed.hash) == (self.signed_term, self.record_hash):
            return self
        return replace(self, term=term, record=sealed.content, signed_term=term, proofs=proofs)

    def vote(self) -> Vote:
        """What to tell the owner of the promised term."""
        return Vote(self.round - 1, self.previous_hash, self.term, self.record_hash, self.signed_term)

    def to_bytes(self) -> bytes:
        return with_checksum(convert.encode(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> "Ballot":
        """Raises `BadMessage` for a damaged ballot: to vote on without one could be to vote twice."""
        try:
            ballot = convert.decode(cls, without_checksum(content))
        except BadMessage:
            raise BadMessage("the file with this peer's votes is damaged") from None
        if ballot.version != BALLOT_VERSION:
            raise BadMessage(f"a ballot of version {ballot.version}; this program reads {BALLOT_VERSION}")
        return ballot
