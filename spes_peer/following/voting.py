"""This node's votes and signatures: by the rules and what it knows itself, on disk before they are given."""

import logging
from collections.abc import Collection
from pathlib import Path

from spes_peer.errors import BadConfiguration, BadMessage, PeerError
from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.election import are_binding, fault_in_owner, fault_in_votes, next_term_of
from spes_peer.rounds.footings import fault_in_root
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import Appeal, Proposal, RecordSignature, SignedBefore, Vote, VoteRequest
from spes_peer.rounds.verdicts import fault_in_verdicts
from spes_peer.run.certificates import stalled_at
from spes_peer.run.invitations import InvitationProof, fault_in_newcomers
from spes_peer.run.layout import Layout
from spes_peer.run.norms import Norms
from spes_peer.run.records import Record, SealedRecord
from spes_peer.run.rules import Rules, rules_of

logger = logging.getLogger(__name__)

_SUFFIX = ".ballot"
_NOBODY = PeerId("")


class Voter:
    """Keeps a ballot for each record that it was asked to let another follow, in a folder of their own."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        """`BadConfiguration` if a ballot is damaged, since to vote on could be to vote twice."""
        self._folder = folder
        self._layout = layout
        folder.mkdir(exist_ok=True, mode=0o700)
        for path in self._paths():
            self._read(path)

    def vote(self, request: VoteRequest, sender: PeerId, head: SealedRecord) -> tuple[Vote | SignedBefore, ...]:
        """The vote for `sender` as coordinator of the round behind `head`, with the record that it names; nothing for a
        refusal."""
        ballot = self._ballot_behind(head)
        reason = fault_in_owner(sender, request.term, head.record) or ballot.objection_to_vote(request.term)
        if reason:
            logger.warning("not voting round=%d term=%d reason=%s", head.round, request.term, reason)
            return ()
        self._keep(ballot.voted(request.term))
        return self.vote_again(request.term, head)

    def vote_again(self, term: int, head: SealedRecord) -> tuple[Vote | SignedBefore, ...]:
        """The vote that has been given in this term, for who may have lost it."""
        ballot = self._ballot_behind(head)
        if ballot.term != term:
            return ()
        if not ballot.record:
            return (ballot.vote(),)
        return (ballot.vote(), SignedBefore(head.round, ballot.record, ballot.proofs))

    def sign(
        self,
        proposal: Proposal,
        sender: PeerId,
        head: SealedRecord,
        own: Own,
        now: float,
        past: Norms | None = None,
        known: Collection[PeerId] = (),
    ) -> RecordSignature | None:
        """The signature under the record that `sender` proposes behind `head`; None for a refusal. `known` have stood
        in a roster up to there.

        One whose proposer lacks the votes for it is signed only when the round has stalled, and only to go on with it.
        """
        try:
            sealed = SealedRecord.from_bytes(proposal.record)
        except PeerError as error:
            logger.warning("refused a proposal reason=%s", error)
            return None
        unvoted = fault_in_votes(proposal.term, sealed.hash, proposal.votes, head)
        is_stalled = now >= stalled_at(head.record, self._layout.manifest.timing.stall_timeout_seconds)
        reason = fault_in_owner(sender, proposal.term, head.record)
        reason = reason or objections(sealed, head, own, self._layout, past)
        # what votes bind it to was proposed by another, and what members say came with that
        is_bound = bool(head.record.roster) and proposal.term > 0 and not unvoted and are_binding(proposal.votes, head)
        ours = own.objections()
        reason = reason or fault_in_verdicts(proposal.verdicts, sealed.record, head, self._layout, ours, is_bound)
        if not is_bound:
            reason = reason or fault_in_root(sealed.record, head.record, own, proposal.footings, now)
        # votes bring the proofs along with the record that they name, which may be old by now
        came_at = min(now, sealed.record.opened_at) if is_bound else now
        reason = reason or self._fault_in_newcomers(sealed.record, proposal, known, came_at)
        if unvoted and is_stalled and not reason:
            return RecordSignature(sealed.round, proposal.term, sealed.hash, uncertified=True)
        return self._signature(
            sealed, proposal.term, head, reason or unvoted, self._of_newcomers(proposal, sealed, known)
        )

    def _fault_in_newcomers(
        self, record: Record, proposal: Proposal, known: Collection[PeerId], now: float
    ) -> str | None:
        """Clocks differ, and a round lasts: what was good when somebody came is good for a lease longer here."""
        manifest = self._layout.manifest
        rules, came_at = rules_of(record, Rules.of(manifest)), now - manifest.timing.lease_seconds
        return fault_in_newcomers(record, known, proposal.proofs, rules, manifest, came_at)

    def _of_newcomers(
        self, proposal: Proposal, sealed: SealedRecord, known: Collection[PeerId]
    ) -> tuple[InvitationProof, ...]:
        """Those of the proofs that `_fault_in_newcomers` has looked at."""
        if self._layout.manifest.admission.mode != "invitation":
            return ()
        listed = rules_of(sealed.record, Rules.of(self._layout.manifest)).listed
        new = sealed.record.members.difference(known, listed)
        shown = {proof.peer_id: proof for proof in proposal.proofs}
        return tuple(shown[peer] for peer in sorted(new) if peer in shown)

    def appeal(self, term: int, sender: PeerId, head: SealedRecord) -> Appeal | None:
        """What to tell who asks in a term that is over for this node, which has voted in a later one: in which term of
        its own it could have the vote or signature. None if the term is not the reason that it has none."""
        voted_term = self._ballot_behind(head).term
        later = next_term_of(sender, head.record, voted_term) if term < voted_term else None
        return None if later is None else Appeal(head.round, later)

    def sign_late(
        self,
        proposal: Proposal,
        sender: PeerId,
        ours: SealedRecord,
        base: SealedRecord,
        past: Norms | None = None,
    ) -> RecordSignature | None:
        """A vote for a record behind `base`, the last certified one, when our chain has gone on uncertified: for `ours`
        there, or for another to which the votes bind, since it may be certified already; None for a refusal."""
        try:
            sealed = SealedRecord.from_bytes(proposal.record)
        except PeerError as error:
            logger.warning("refused a proposal reason=%s", error)
            return None
        reason = fault_in_owner(sender, proposal.term, base.record)
        reason = reason or fault_in_votes(proposal.term, sealed.hash, proposal.votes, base)
        if not reason and sealed.hash != ours.hash and not are_binding(proposal.votes, base):
            reason = f"another record {ours.round} than ours, to which no votes bind"
        # what we did in that round is forgotten
        reason = reason or objections(sealed, base, Own(_NOBODY), self._layout, past)
        return self._signature(sealed, proposal.term, base, reason)

    def forget_before(self, certified_round: int) -> None:
        """Remove ballots for what is certified long since: nobody asks for them."""
        for path in self._paths():
            if self._read(path).round < certified_round:
                path.unlink(missing_ok=True)

    def _signature(
        self,
        sealed: SealedRecord,
        term: int,
        base: SealedRecord,
        reason: str | None,
        proofs: tuple[InvitationProof, ...] = (),
    ) -> RecordSignature | None:
        ballot = self._ballot_behind(base)
        if reason := reason or ballot.objection_to_sign(term, sealed.hash):
            logger.warning("not signing a record round=%d reason=%s", sealed.round, reason)
            return None
        self._keep(ballot.signed(term, sealed, proofs))
        return RecordSignature(sealed.round, term, sealed.hash)

    def _ballot_behind(self, head: SealedRecord) -> Ballot:
        path = self._path(head.hash)
        return self._read(path) if path.exists() else Ballot.behind(head)

    def _paths(self) -> list[Path]:
        """Of all ballots; what a kill left half written beside them was never given."""
        return list(self._folder.glob(f"*{_SUFFIX}"))

    def _path(self, previous_hash: bytes) -> Path:
        return self._folder / f"{previous_hash.hex()}{_SUFFIX}"

    def _keep(self, ballot: Ballot) -> None:
        write_whole(self._path(ballot.previous_hash), ballot.to_bytes())

    def _read(self, path: Path) -> Ballot:
        try:
            return Ballot.from_bytes(path.read_bytes())
        except BadMessage as error:
            raise BadConfiguration(
                f"{path}: {error}; put back a copy that is whole, or join as another peer with a new --data-dir"
            ) from None
