"""A member's accounts of its rounds: how long it was in each part of them, what it gave, and what records closed."""

from spes_peer.daemon.given import GIVEN_FILE, GivenKeeper
from spes_peer.daemon.history import Closed, RoundHistory
from spes_peer.daemon.parts import RoundParts
from spes_peer.node import Node
from spes_peer.rounds.election import owner_of
from spes_peer.run.records import SealedRecord
from spes_peer.training.work import HeldOut

NOT_MEASURED = HeldOut(0.0, 0)


class Accounts:
    """Of one start of one peer."""

    def __init__(self, node: Node) -> None:
        self.history = RoundHistory(node.traffic)
        self.parts = RoundParts()
        self.given = GivenKeeper(node.folder.path / GIVEN_FILE, lambda: node.traffic.sent_bytes)
        self._node = node
        self._applied: list[tuple[SealedRecord, str]] = []
        """Records since the last measurement, each with the state root after it."""

    def applied(self, record: SealedRecord, state_root: str) -> None:
        """This peer's state is the one after `record` now."""
        self._applied.append((record, state_root))

    def rewind(self, first_changed_round: int) -> None:
        """The chain has other records from this round on."""
        self.history.rewind(first_changed_round)
        self._applied = [one for one in self._applied if one[0].round < first_changed_round]

    def measured(self, round: int, held_out: HeldOut) -> None:
        """Note what the applied records closed; only the newest state, that after record `round`, was measured."""
        applied, self._applied = self._applied, []
        for sealed, root in applied:
            record = sealed.record
            self.history.held_out(record.round, record.held_out_loss)
            if record.updates:
                self.history.close(
                    record, self._closed(sealed, root, held_out if record.round == round else NOT_MEASURED)
                )
                self.given.keep()

    def _closed(self, closing: SealedRecord, root: str, held_out: HeldOut) -> Closed:
        chain = self._node.chain
        opening = chain.record(closing.round - 1).sealed.record
        return Closed(
            opening,
            self._node.clock.wall_at(opening.opened_at),
            owner_of(opening, chain.record(closing.round).term),
            root,
            held_out,
            self.parts.take(opening.round),
        )
