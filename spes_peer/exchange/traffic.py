"""How many bytes went to and came from whom, over which transport: serialized messages of every call, no framing."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from spes_peer.identity import PeerId

Transport = Literal["grpc", "libp2p"]

MAX_PEERS = 4_096
"""That are counted each by itself."""
OTHERS = PeerId("others")


@dataclass(frozen=True)
class Flow:
    """Bytes to and from one peer over one transport."""

    peer: PeerId
    transport: Transport
    sent_bytes: int
    received_bytes: int


class Traffic:
    """Counters that only rise; copies of them are compared to see what one round moved."""

    def __init__(self, own: PeerId | None = None) -> None:
        """What a node says to itself, `own`, is no traffic."""
        self._own = own
        self._sent: Counter[tuple[PeerId, Transport]] = Counter()
        self._received: Counter[tuple[PeerId, Transport]] = Counter()

    def _named(self, peer: PeerId, transport: Transport, counter: Counter[tuple[PeerId, Transport]]) -> PeerId:
        """`peer`, or nobody in particular: anybody can make keys without end."""
        return peer if (peer, transport) in counter or len(counter) < MAX_PEERS else OTHERS

    def sent(self, peer: PeerId, transport: Transport, num_bytes: int) -> None:
        if peer != self._own:
            self._sent[self._named(peer, transport, self._sent), transport] += num_bytes

    def received(self, peer: PeerId, transport: Transport, num_bytes: int) -> None:
        if peer != self._own:
            self._received[self._named(peer, transport, self._received), transport] += num_bytes

    def snapshot(self) -> "Traffic":
        """A copy that stands still."""
        return self.since(Traffic())

    def since(self, earlier: "Traffic") -> "Traffic":
        """What was moved after the snapshot `earlier`."""
        difference = Traffic()
        difference._sent = self._sent - earlier._sent
        difference._received = self._received - earlier._received
        return difference

    def flows(self) -> tuple[Flow, ...]:
        """One for each peer and transport that moved anything, in order."""
        keys = sorted({*self._sent, *self._received})
        return tuple(Flow(*key, self._sent[key], self._received[key]) for key in keys)

    @property
    def sent_bytes(self) -> int:
        return self._sent.total()

    @property
    def received_bytes(self) -> int:
        return self._received.total()
