"""What the records tell of how a state came about: tokens, who gave them, and the loss on the way. No torch."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from spes_peer.identity import PeerId
from spes_peer.run.records import Record


@dataclass(frozen=True)
class LossPoint:
    """A state on the way and how well it predicted held-out text."""

    round: int
    """The record behind which it stood."""
    tokens: int
    """Trained by then."""
    loss: float
    """Mean cross-entropy, nats per token."""


@dataclass(frozen=True)
class History:
    """Of the state after record `round`."""

    round: int
    tokens: int
    steps: int
    given: dict[PeerId, int]
    """Tokens by whoever trained them, most first."""
    losses: tuple[LossPoint, ...]

    @classmethod
    def of(cls, records: Iterable[Record], round: int) -> "History":
        """`records` are in order, from record 0; those behind `round` count for the loss of the state alone: a record
        says how good the state was on which its round was trained."""
        given: Counter[PeerId] = Counter()
        losses, tokens, steps = [], 0, 0
        for record in records:
            if record.round > 0 and record.held_out_loss >= 0:
                losses.append(LossPoint(record.round - 1, tokens, record.held_out_loss))
            if record.round > round:
                break
            tokens, steps = tokens + record.tokens, record.step
            given.update(record.trained)
        return cls(round, tokens, steps, dict(given.most_common()), tuple(losses))


def key_points(losses: tuple[LossPoint, ...], most: int = 9) -> tuple[LossPoint, ...]:
    """So many of them, first and last among them, by equal factors of tokens: a loss falls along a logarithm."""
    if len(losses) <= most:
        return losses
    first, last = max(1, losses[1].tokens), max(2, losses[-1].tokens)
    wanted = [0.0, *(first * (last / first) ** (place / (most - 2)) for place in range(most - 1))]
    picked = [min(losses, key=lambda point: abs(point.tokens - tokens)) for tokens in wanted]
    return tuple(dict.fromkeys((*picked[:-1], losses[-1])))
