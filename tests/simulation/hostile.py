"""Nodes that deceive: the program's own, with a tongue that says something else than it decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spes_peer.rounds.admission import Seat
from spes_peer.rounds.contributions import Findings
from spes_peer.rounds.messages import Proposal
from spes_peer.rounds.proposal import next_record
from spes_peer.run.layout import Layout
from spes_peer.run.peers import Standing
from spes_peer.run.records import (
    CertifiedRecord,
    Contributor,
    RecordSignature,
    RosterEntry,
    SealedRecord,
    Update,
)
from spes_peer.run.signed import Signed

from .node import SimulatedNode, Volunteer, invented
from .stage import QuickSigner

if TYPE_CHECKING:
    from .machine import Machine


class _Tongue:
    """Signs what becomes of a message on its way."""

    def __init__(self, signer: QuickSigner, change: Callable[[Any], Any]) -> None:
        self.incarnation, self.run_id = signer.incarnation, signer.run_id
        self._signer, self._change = signer, change

    def sign(self, message: Any) -> Signed:
        return self._signer.sign(self._change(message))


def another(proposed: SealedRecord, head: SealedRecord, layout: Layout) -> SealedRecord:
    """A record that members could sign as well as this one: it leaves an update out."""
    record = proposed.record
    seats = [Seat(entry.peer_id, entry.incarnation, entry.subsets) for entry in record.roster]
    findings = Findings(record.state_root, record.held_out_loss, record.train_loss)
    updates, speeds = record.updates[:-1], [0.0 for _ in seats]
    first, opened_at = record.candidates[0], record.opened_at
    return next_record(head, updates, findings, seats, speeds, layout, first, opened_at).seal()


class TwoFaced(SimulatedNode):
    """Proposes two records, each to every second member."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.num_lies = 0
        self._num_proposals = 0
        self.signer = _Tongue(self.signer, self._other_face)  # type: ignore[assignment,arg-type]

    def _other_face(self, message: Any) -> Any:
        if not isinstance(message, Proposal) or message.term > 0:
            return message
        self._num_proposals += 1
        sealed = SealedRecord.from_bytes(message.record)
        if self._num_proposals % 2 or not sealed.record.updates:
            return message
        self.num_lies += 1
        return replace(message, record=another(sealed, self.head, self.layout).content)


class Wilful(Volunteer):
    """Elected, it proposes something else than what the votes for it bind it to."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.num_lies = 0
        self.signer = _Tongue(self.signer, self._own_way)  # type: ignore[assignment,arg-type]

    def _own_way(self, message: Any) -> Any:
        if not isinstance(message, Proposal) or message.term == 0:
            return message
        sealed = SealedRecord.from_bytes(message.record)
        if not sealed.record.updates:
            return message
        self.num_lies += 1
        return replace(message, record=another(sealed, self.head, self.layout).content)


def forged_record(head: SealedRecord, signer: Any, roster: Sequence[RosterEntry], tokens: int) -> CertifiedRecord:
    """A record that nobody but its signer has seen, with an update of so many tokens."""
    me = signer.peer_id
    blob = invented("forged", head.hash)
    contributors = (Contributor(me, tokens, 1.0, 1.0),)
    updates = (Update(next_block(head), blob, 1000, contributors, ()),) if tokens else ()
    record = replace(
        head.record,
        round=head.round + 1,
        previous_hash=head.hash,
        updates=updates,
        tokens=tokens,
        roster=tuple(roster),
        candidates=(me,),
        reducers=(),
        genesis=(),
        opened_at=head.record.deadline_at,
        deadline_at=head.record.deadline_at + 1.0,
    )
    sealed = record.seal()
    return CertifiedRecord(sealed.content, 0, (signer.sign(RecordSignature(sealed.round, 0, sealed.hash)),))


def next_block(head: SealedRecord) -> Any:
    """A block that exists."""
    return head.record.updates[0].block if head.record.updates else "shared/0000"


class Forger(Volunteer):
    """Shows who asks a long and heavy chain of its own behind the run's newest record."""

    NUM_RECORDS = 50
    TOKENS = 10**9

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.num_asked = 0
        self._forged: list[CertifiedRecord] = []
        self.standing = self._forged_standing
        self._maker = self.world.signer_of(machine.name, machine.disk.num_starts + 1_000_000)

    def _chain(self) -> list[CertifiedRecord]:
        head = self.chain.record(self.chain.certified_round).sealed
        if not self._forged or self._forged[0].sealed.record.previous_hash != head.hash:
            me = RosterEntry(self.peer_id, 1, (0,), (), 1)
            self._forged = []
            for _ in range(self.NUM_RECORDS):
                self._forged.append(forged_record(head, _Named(self._maker, self.peer_id), (me,), self.TOKENS))
                head = self._forged[-1].sealed
        return self._forged

    def _forged_standing(self) -> Standing:
        last = self._chain()[-1].sealed
        return Standing(last.round, last.hash, self.chain.certified_round, 0, True)

    def records_from(self, round: int) -> list[CertifiedRecord]:
        self.num_asked += 1
        chain = [self.chain.record(number) for number in range(self.chain.certified_round + 1)] + self._chain()
        return chain[round:]


class _Named:
    def __init__(self, signer: QuickSigner, peer_id: str) -> None:
        self.peer_id = peer_id
        self.sign = signer.sign
