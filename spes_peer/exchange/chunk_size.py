"""How much of a piece goes into one message."""

from spes_peer.exchange.limits import CHUNK_BYTES

_LEAST_CHUNK_BYTES = 16 << 10
_QUICK_SECONDS = 0.05
_LONG_SECONDS = 0.5


class ChunkSize:
    """How much one call gets in one message: what its line takes in a moment, so that its receiver sees progress also
    where a whole chunk would take longer than a source may be silent."""

    def __init__(self) -> None:
        self.num_bytes = _LEAST_CHUNK_BYTES

    def note(self, seconds: float) -> None:
        """The line has taken a chunk in so long."""
        if seconds < _QUICK_SECONDS:
            self.num_bytes = min(2 * self.num_bytes, CHUNK_BYTES)
        elif seconds > _LONG_SECONDS:
            self.num_bytes = max(self.num_bytes // 2, _LEAST_CHUNK_BYTES)
