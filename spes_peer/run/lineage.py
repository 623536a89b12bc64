"""Which of two chains everybody follows: the state of a chain as a frozen value, without the records before its end.

More certified records win; behind an uncertified record nothing counts as certified until late signatures certify it
too. Of equals, at the first uncertified record: one that an organizer's key signed; then the one with more tokens, by
signers that the last certified roster assigned them to; then the lower hash. What follows an uncertified record is
compared by the same rules, so a chain always ranks above a shorter part of itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spes_peer.run.certificates import Checked, Checks, check_record
from spes_peer.run.records import CertifiedRecord, Record, SealedRecord, tokens_by_peer


@dataclass(frozen=True, order=True)
class Stretch:
    """An uncertified record and the records behind it that their own rosters certify; fields rank in this order."""

    has_organizer: bool
    tokens: int
    lowness: int
    """Minus the record's hash."""
    num_followers: int = 0


@dataclass(frozen=True, order=True)
class Rank:
    """The higher of two ranks is the chain to follow."""

    certified_round: int
    stretches: tuple[Stretch, ...] = ()


@dataclass(frozen=True)
class Link:
    """What a record behind the certified ones counts."""

    hash: bytes
    is_certified: bool
    has_organizer: bool
    tokens: int

    @property
    def weight(self) -> tuple[bool, bool, int]:
        """Of two certificates of one record the one with more is better."""
        return self.is_certified, self.has_organizer, self.tokens


@dataclass(frozen=True)
class Lineage:
    """A chain up to `head`: all records to `certified_round` count as certified, `tail` is what lies behind."""

    checks: Checks
    head: SealedRecord
    certified_round: int
    tail: tuple[Link, ...] = ()

    @classmethod
    def begun(cls, certified: CertifiedRecord, checks: Checks) -> "Lineage":
        """With record 0; raises like `check_record`."""
        return cls(checks, check_record(certified, None, checks).sealed, 0)

    def followed_by(self, certified: CertifiedRecord) -> "Lineage":
        """With the next record; raises like `check_record`."""
        checked = check_record(certified, self.head, self.checks)
        if checked.is_certified and not self.tail:  # as nearly always; what it weighs beside others does not matter
            return replace(self, head=checked.sealed, certified_round=checked.sealed.round)
        tail = (*self.tail, _link(checked, self.head.record, self.checks))
        return replace(self, head=checked.sealed, tail=tail)._counted()

    def improved(self, certified: CertifiedRecord, previous: SealedRecord) -> "Lineage":
        """With a better certificate of a record in the tail, behind `previous`; the same if it is not better."""
        place = certified.sealed.round - self.certified_round - 1
        if place < 0:
            return self  # it counts as certified already
        link = _link(check_record(certified, previous, self.checks), previous.record, self.checks)
        if place >= len(self.tail) or self.tail[place].hash != link.hash or link.weight <= self.tail[place].weight:
            return self
        return replace(self, tail=(*self.tail[:place], link, *self.tail[place + 1 :]))._counted()

    @property
    def rank(self) -> Rank:
        stretches: list[Stretch] = []
        for link in self.tail:
            if link.is_certified and stretches:
                stretches[-1] = replace(stretches[-1], num_followers=stretches[-1].num_followers + 1)
            else:
                stretches.append(Stretch(link.has_organizer, link.tokens, -int.from_bytes(link.hash)))
        return Rank(self.certified_round, tuple(stretches))

    def _counted(self) -> "Lineage":
        """Records at the beginning of the tail that are certified now leave it."""
        count = next((i for i, link in enumerate(self.tail) if not link.is_certified), len(self.tail))
        return replace(self, certified_round=self.certified_round + count, tail=self.tail[count:])


def branch_of(base: SealedRecord, records: Iterable[CertifiedRecord], checks: Checks) -> Lineage:
    """The chain that `records` make behind a record that counts as certified; raises like `check_record`."""
    lineage = Lineage(checks, base, base.round)
    for certified in records:
        lineage = lineage.followed_by(certified)
    return lineage


def _link(checked: Checked, previous: Record, checks: Checks) -> Link:
    tokens = _signed_tokens(checked, previous, checks.sequence_length)
    return Link(checked.sealed.hash, checked.is_certified, checked.has_organizer, tokens)


def _signed_tokens(checked: Checked, previous: Record, sequence_length: int) -> int:
    """Tokens in the record that their trainers signed for, within what the previous roster assigned to them.

    One that makes a chain alone cannot count others' work, nor more of its own than it was given.
    """
    total = 0
    for peer, tokens in tokens_by_peer(checked.sealed.record.updates).items():
        entry = previous.entry_of(peer)
        if entry is not None and peer in checked.signers:
            total += min(tokens, sequence_length * sum(part.num_sequences for part in entry.ranges))
    return total
