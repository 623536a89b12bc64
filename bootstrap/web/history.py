"""The chain of records as rows of figures, one for each record: what the curve and the tables are made of.

A record is large, a row is not: each is read from disk once. Where another chain takes the place of the end of ours,
the rows go back with it.
"""

from dataclasses import dataclass

from spes_peer.identity import PeerId
from spes_peer.rounds.election import owner_of
from spes_peer.run.chain import Chain
from spes_peer.run.records import CertifiedRecord, Record

ROOT_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Row:
    """What record `round` says: it closes the round before and opens `round`."""

    round: int
    opened_at: float
    """Unix seconds."""
    tokens: int
    """Trained in the round that it closes."""
    total_tokens: int
    """Trained in all rounds up to that."""
    step: int
    train_loss: float | None
    """Nats per token in the round that it closes; None when nobody trained."""
    held_out_loss: float | None
    """Of the state before its updates, nats per token; None when nobody measured it."""
    root: str
    """The first characters of that state's root."""
    num_contributors: int
    num_members: int
    """Who takes part in the round that it opens."""
    update_bytes: int
    coordinator: PeerId | None
    """Who proposed it; None for record 0."""
    is_final: bool


def row_of(certified: CertifiedRecord, before: Record | None, total_tokens: int) -> Row:
    """`total_tokens` of the records before."""
    record = certified.sealed.record
    return Row(
        round=record.round,
        opened_at=record.opened_at,
        tokens=record.tokens,
        total_tokens=total_tokens + record.tokens,
        step=record.step,
        train_loss=_loss(record.train_loss),
        held_out_loss=_loss(record.held_out_loss),
        root=record.state_root[:ROOT_CHARACTERS],
        num_contributors=len(record.trained),
        num_members=len(record.members),
        update_bytes=sum(update.size_bytes for update in record.updates),
        coordinator=owner_of(before, certified.term) if before is not None else None,
        is_final=record.is_final,
    )


def _loss(value: float) -> float | None:
    """Finite and not negative, or not known: records of volunteers say it, and a curve has no place for the rest."""
    return value if 0 <= value < 1e6 else None


class History:
    """Rows of all records; call `follow` until there are no more."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._last: Record | None = None

    def follow(self, chain: Chain) -> bool:
        """Read the next record; whether there was one. `BlobMissing` where the disk has lost it."""
        if len(self.rows) >= chain.num_records:
            return False
        certified = chain.record(len(self.rows))
        if self._last is None and self.rows:
            self._last = chain.record(len(self.rows) - 1).sealed.record
        self.rows.append(row_of(certified, self._last, self.rows[-1].total_tokens if self.rows else 0))
        self._last = certified.sealed.record
        return True

    def drop_from(self, round: int) -> None:
        """Records from this one on are others now."""
        del self.rows[max(round, 0) :]
        self._last = None
