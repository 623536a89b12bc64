"""What is on its way to and from this node, for whoever watches."""

import time

from spes_peer.exchange.transfers import Move
from spes_peer.node import Node
from spes_peer.wire.control_pb2 import ExchangeStatus, Transfer

_MOST_SHOWN = 64


def exchange_status(node: Node) -> ExchangeStatus:
    """Transfers of this moment, those that wait, and those that ended last; where there are very many, the oldest."""
    board, now = node.transfers, time.monotonic()
    return ExchangeStatus(
        transfers=[_row(move, now) for move in board.in_flight[:_MOST_SHOWN]],
        num_queued=board.num_queued,
        ended=[_row(move, now) for move in board.ended],
        max_upload=node.settings.max_upload,
        max_download=node.settings.max_download,
    )


def _row(move: Move, now: float) -> Transfer:
    return Transfer(
        id=move.id,
        what=move.what,
        direction=move.direction,
        bytes_done=move.bytes_done,
        num_bytes=move.num_bytes,
        bytes_per_second=move.bytes_per_second(now),
        peers=list(move.peers),
        transports=list(move.transports),
        since_at=move.since_at,
    )
