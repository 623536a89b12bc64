"""What a relay gives to others. Needs nothing, so that the command line can name it."""

from dataclasses import dataclass

_LEAST_BYTES_PER_SECOND = 8 << 10  # of a circuit, which counts as broken where half a window takes 30 s


@dataclass(frozen=True)
class RelayLimits:
    """What a relay gives to others; whom it gives no circuit asks another relay."""

    max_circuits: int
    """At once. A circuit carries all calls between two peers."""
    max_circuits_per_peer: int
    """That one peer has asked for."""
    bytes_per_second: int
    """Of all circuits, both directions together; 0 sets no limit."""

    def within(self, max_upload: int, max_download: int) -> "RelayLimits":
        """For a node that sends and takes so many bytes a second at most (0: no limit): half of that is its own. And no
        more circuits than can be carried without seeming to stand still."""
        rates = (self.bytes_per_second, (max_upload + 1) // 2, (max_download + 1) // 2)
        rate = min(filter(None, rates), default=0)
        num_circuits = max(1, rate // _LEAST_BYTES_PER_SECOND) if rate else self.max_circuits
        return RelayLimits(min(self.max_circuits, num_circuits), self.max_circuits_per_peer, rate)


OF_BOOTSTRAP = RelayLimits(max_circuits=512, max_circuits_per_peer=64, bytes_per_second=0)
OF_VOLUNTEER = RelayLimits(max_circuits=64, max_circuits_per_peer=16, bytes_per_second=1_000_000)
