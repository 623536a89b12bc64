"""This member's vote on what is proposed: by the rules and what it knows itself, at most once per round and term."""

import logging
from pathlib import Path

from spes_peer.errors import BadConfiguration, BadMessage, PeerError
from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import Proposal, RecordSignature
from spes_peer.run.layout import Layout
from spes_peer.run.records import SealedRecord

logger = logging.getLogger(__name__)


class Voter:
    """Keeps the ballot at `path`; `BadConfiguration` if that is damaged, since to vote on could be to vote twice."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._layout = layout
        try:
            self._ballot = Ballot.from_bytes(path.read_bytes()) if path.exists() else Ballot()
        except BadMessage as error:
            raise BadConfiguration(
                f"{path}: {error}; put back a copy that is whole, or join as another peer with a new --data-dir"
            ) from None

    def vote(self, proposal: Proposal, sender: PeerId, head: SealedRecord, own: Own) -> RecordSignature | None:
        """The signature for the record that `sender` proposes behind `head`, on disk already; None for a refusal."""
        try:
            sealed = SealedRecord.from_bytes(proposal.record)
        except PeerError as error:
            logger.warning("refused a proposal reason=%s", error)
            return None
        reason = objections(sealed, head, own, self._layout, sender)
        reason = reason or self._ballot.objection(sealed.round, proposal.term, sealed.hash)
        if reason:
            logger.warning("not signing a record round=%d reason=%s", sealed.round, reason)
            return None
        self._ballot = self._ballot.signed(sealed.round, proposal.term, sealed.hash)
        write_whole(self._path, self._ballot.to_bytes())
        return RecordSignature(sealed.round, proposal.term, sealed.hash)
