"""What an exchange moves, counted from the record's own tasks and updates, scales and headers included.

*Received*: every blob that a peer fetches because it did not make it: as a reducer, the others' offers for its blocks
(by each of `reducers_per_block`), and as everybody, every update of the round.
*Sent*: the first copy of every blob that a peer makes and others fetch: an offer for each reducer other than its
maker, a mean or an only offer once. Further copies are spread by whoever has one, so over all peers as many bytes are
served as are received.

Both are means over the peers. Records, signatures, piece lists and what transports add are not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from spes_peer.rounds.messages import ReduceTask
from spes_peer.rounds.reducing import makers_of
from spes_peer.run.encodings import BYTES_PER_VALUE
from spes_peer.run.layout import Layout
from spes_peer.run.records import Update


@dataclass(frozen=True)
class Traffic:
    """Bytes per peer; and as they would be if all values travelled in fp32."""

    sent: float = 0.0
    received: float = 0.0
    sent_fp32: float = 0.0
    received_fp32: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.sent + other.sent,
            self.received + other.received,
            self.sent_fp32 + other.sent_fp32,
            self.received_fp32 + other.received_fp32,
        )


def traffic_of(tasks: Iterable[ReduceTask], updates: Iterable[Update], num_peers: int, layout: Layout) -> Traffic:
    """Of one round of `num_peers` peers."""
    total = Traffic()
    for task in tasks:
        copies = sum(reducer != given.peer_id for reducer in task.reducers for given in task.inputs)
        block = layout.by_id[task.block]
        total += _copies(layout.offer_bytes(block), block.num_elements, copies, copies, num_peers)
    for update in updates:
        fetches = num_peers - len(makers_of(update))
        num_elements = layout.by_id[update.block].num_elements
        total += _copies(update.size_bytes, num_elements, min(1, fetches), fetches, num_peers)
    return total


def _copies(size_bytes: int, num_elements: int, sent: int, received: int, num_peers: int) -> Traffic:
    encoded, plain = size_bytes / num_peers, num_elements * BYTES_PER_VALUE["fp32"] / num_peers
    return Traffic(sent * encoded, received * encoded, sent * plain, received * plain)
