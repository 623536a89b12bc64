"""A member's memory of what it signed. It must be on disk before a signature is sent: a restart may not vote twice."""

import json
from dataclasses import dataclass

from spes_peer.errors import BadMessage

BALLOT_VERSION = 1


@dataclass(frozen=True)
class Ballot:
    """The newest signature: at most one record per round and term, none of a term below the newest."""

    term: int = 0
    round: int = 0
    record_hash: bytes = b""
    """Empty before the first signature."""

    def objection(self, round: int, term: int, record_hash: bytes) -> str | None:
        """Why this signature may not be given; None if it may."""
        if term < self.term:
            return f"record {round} is proposed in term {term}, and we have signed in term {self.term}"
        if (term, round, record_hash) == (self.term, self.round, self.record_hash):
            return None  # the same again: it may have been lost on the way
        if self.record_hash and (term, round) <= (self.term, self.round):
            return f"we have signed record {self.round} in term {self.term}, and now another record {round} is proposed"
        return None

    def signed(self, round: int, term: int, record_hash: bytes) -> "Ballot":
        """The ballot to keep before this signature is sent; `BadMessage` if it may not be given."""
        if reason := self.objection(round, term, record_hash):
            raise BadMessage(reason)
        return Ballot(term, round, record_hash)

    def to_bytes(self) -> bytes:
        fields = {
            "version": BALLOT_VERSION,
            "term": self.term,
            "round": self.round,
            "record_hash": self.record_hash.hex(),
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Ballot":
        """Raises `BadMessage` for a damaged ballot: to vote on without one could be to vote twice."""
        try:
            fields = json.loads(content)
            if fields["version"] != BALLOT_VERSION:
                raise BadMessage(f"a ballot of version {fields['version']}; this program reads {BALLOT_VERSION}")
            return cls(int(fields["term"]), int(fields["round"]), bytes.fromhex(fields["record_hash"]))
        except (ValueError, KeyError, TypeError):
            raise BadMessage("the file with this peer's votes is damaged") from None
