"""The rounds that were closed, as this daemon lived them, for whoever watches."""

import collections
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import PeerId
from spes_peer.run.records import Record
from spes_peer.training.work import HeldOut
from spes_peer.wire.control_pb2 import ContributionStatus, RoundPart, RoundStatus
from spes_peer.wire.control_pb2 import Traffic as TrafficStatus

logger = logging.getLogger(__name__)

MAX_ROUNDS_SHOWN = 500
_MOST_ROUNDS_WITH_CONTRIBUTIONS = 32
_MOST_CONTRIBUTIONS = 400  # of all these rounds together, unless the newest alone has more
_MOST_ROUNDS_WITH_PARTS = 64


@dataclass(frozen=True)
class Closed:
    """What this daemon knows of a round beside the record that closed it."""

    opening: Record
    """That began it."""
    opened_at: float
    """Unix seconds by this machine's clock."""
    coordinator: PeerId | None
    state_root: str
    """After the record that closed it."""
    held_out: HeldOut
    """This peer's part of the held-out loss of that state."""
    parts: Sequence[RoundPart] = ()
    """How long this daemon was in each part of it."""


class RoundHistory:
    """Closed rounds as this daemon applied them, each once, also where a new trainer applies them again. The held-out
    loss of the run comes with the record after. Of older rounds less is kept: a status is sent several times a second.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.rounds: collections.deque[RoundStatus] = collections.deque(maxlen=MAX_ROUNDS_SHOWN)
        self.held_out_loss_start = -1.0
        self._traffic = traffic
        self._mark = traffic.snapshot()

    def close(self, closing: Record, closed: Closed) -> None:
        """Note the round that `closing` closed, once it is applied."""
        if self.rounds and closing.round - 1 <= self.rounds[-1].round:
            return
        contributors = closing.trained
        mark, self._mark = self._mark, self._traffic.snapshot()
        self.rounds.append(
            RoundStatus(
                round=closing.round - 1,
                state_root=closed.state_root,
                held_out_loss=-1.0,
                own_held_out_loss_sum=closed.held_out.loss_sum,
                own_held_out_tokens=closed.held_out.tokens,
                train_loss=closing.train_loss,
                tokens=closing.tokens,
                seconds=closing.opened_at - closed.opening.opened_at,
                traffic=by_transport(self._mark.since(mark)),
                num_contributors=len(contributors),
                contributions=contributions(closing, closed.opening),
                update_bytes=sum(update.size_bytes for update in closing.updates),
                num_updates=len(closing.updates),
                merge=merge_words(closing.merge_alpha),
                parts=closed.parts,
                opened_at=closed.opened_at,
                coordinator=closed.coordinator or "",
            )
        )
        self._thin_out()
        logger.info(
            "round closed round=%d tokens=%d train_loss=%.3f contributors=%d root=%s",
            closing.round - 1,
            closing.tokens,
            closing.train_loss,
            len(contributors),
            closed.state_root[:12],
        )

    def _thin_out(self) -> None:
        """Who contributed is kept for the newest rounds, in a large swarm for fewer; parts and coordinator for
        some more. Roots stay: others' are compared with them."""
        num_rows = 0
        for age, entry in enumerate(reversed(self.rounds)):
            num_rows += len(entry.contributions)
            if age and (age >= _MOST_ROUNDS_WITH_CONTRIBUTIONS or num_rows > _MOST_CONTRIBUTIONS):
                del entry.contributions[:]
            if age >= _MOST_ROUNDS_WITH_PARTS:
                del entry.parts[:]
                entry.ClearField("coordinator")
                return

    def this_round(self) -> list[TrafficStatus]:
        """Bytes of this daemon since the last round closed."""
        return by_transport(self._traffic.snapshot().since(self._mark))

    def rewind(self, first_changed_round: int) -> None:
        """The chain has other records from this round on: what the old ones closed never was."""
        while self.rounds and self.rounds[-1].round >= first_changed_round - 1:
            self.rounds.pop()

    def held_out(self, record_round: int, loss: float) -> None:
        """Record `record_round` says what the state after the record before it was worth."""
        if loss < 0:
            return
        if record_round == 2:
            self.held_out_loss_start = loss
        for entry in self.rounds:
            if entry.round == record_round - 2:
                entry.held_out_loss = loss


def contributions(closing: Record, opening: Record) -> Iterator[ContributionStatus]:
    """Everybody that had a place in the round that `opening` began, and what of it is in the record that closed it."""
    tokens = closing.trained
    num_updates = collections.Counter(part.peer_id for update in closing.updates for part in update.contributors)
    for entry in opening.roster:
        yield ContributionStatus(
            peer_id=entry.peer_id,
            tokens=tokens.get(entry.peer_id, 0),
            subsets=entry.subsets,
            num_updates=num_updates[entry.peer_id],
            is_missing=entry.peer_id not in tokens,
        )


def merge_words(alpha: float) -> str:
    """What a merge with this factor did; "" where none was due."""
    return f"every expert moved {alpha:.1%} towards those most like it" if alpha > 0 else ""


def by_transport(traffic: Traffic) -> list[TrafficStatus]:
    """Totals of both transports, also where nothing moved."""
    totals = {transport: [0, 0] for transport in ("grpc", "libp2p")}
    for flow in traffic.flows():
        totals[flow.transport][0] += flow.sent_bytes
        totals[flow.transport][1] += flow.received_bytes
    return [
        TrafficStatus(transport=transport, bytes_sent=sent, bytes_received=received)
        for transport, (sent, received) in totals.items()
    ]
