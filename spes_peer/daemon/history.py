"""The rounds that were closed, as this daemon lived them, for whoever watches."""

import collections
import logging

from spes_peer.exchange.traffic import Traffic
from spes_peer.run.records import Record
from spes_peer.training.work import HeldOut
from spes_peer.wire.control_pb2 import RoundStatus
from spes_peer.wire.control_pb2 import Traffic as TrafficStatus

logger = logging.getLogger(__name__)

MAX_ROUNDS_SHOWN = 500


class RoundHistory:
    """Closed rounds as this daemon applied them, each once, also where a new trainer applies them again. The held-out
    loss of the run comes with the record after."""

    def __init__(self, traffic: Traffic) -> None:
        self.rounds: collections.deque[RoundStatus] = collections.deque(maxlen=MAX_ROUNDS_SHOWN)
        self.held_out_loss_start = -1.0
        self._traffic = traffic
        self._mark = traffic.snapshot()

    def close(self, closing: Record, opened_at: float, state_root: str, held_out: HeldOut) -> None:
        """Note the round that `closing` closed, once it is applied: when that round began, and what this peer measured
        of the state after it."""
        if self.rounds and closing.round - 1 <= self.rounds[-1].round:
            return
        contributors = {one.peer_id for update in closing.updates for one in update.contributors}
        mark, self._mark = self._mark, self._traffic.snapshot()
        self.rounds.append(
            RoundStatus(
                round=closing.round - 1,
                state_root=state_root,
                held_out_loss=-1.0,
                own_held_out_loss_sum=held_out.loss_sum,
                own_held_out_tokens=held_out.tokens,
                train_loss=closing.train_loss,
                tokens=closing.tokens,
                seconds=closing.opened_at - opened_at,
                traffic=by_transport(self._mark.since(mark)),
                num_contributors=len(contributors),
            )
        )
        logger.info(
            "round closed round=%d tokens=%d train_loss=%.3f contributors=%d root=%s",
            closing.round - 1,
            closing.tokens,
            closing.train_loss,
            len(contributors),
            state_root[:12],
        )

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
