"""How fast a relay passes on what others send each other: what its owner gives of the line, in equal shares.

All circuits that one peer has asked for share one place in the line, so that nobody gets more by opening many.
"""

from weakref import WeakValueDictionary

import trio

_BURST_SECONDS = 0.1  # who comes late, because the machine is busy, catches up with so much
_CHUNK_SECONDS = 0.02  # of the whole pace: many take turns
_LEAST_CHUNK_BYTES, _MOST_CHUNK_BYTES = 4 << 10, 256 << 10  # less costs turns of the interpreter, more memory


class RelayPace:
    """`RelayPace(500_000)` lets half a megabyte a second pass, in both directions together, `RelayPace(0)` all."""

    def __init__(self, bytes_per_second: int) -> None:
        self.num_bytes = 0
        """That have passed so far."""
        self._bytes_per_second = bytes_per_second
        self._line = trio.Lock()  # who waits has it in the order of coming
        self._places: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._paid_until = 0.0
        """By trio's clock: when all that was let through has had its time."""

    @property
    def chunk_bytes(self) -> int:
        """What passes of a circuit in one turn, at most."""
        wanted = int(self._bytes_per_second * _CHUNK_SECONDS) or _MOST_CHUNK_BYTES
        return max(_LEAST_CHUNK_BYTES, min(_MOST_CHUNK_BYTES, wanted))

    async def take(self, num_bytes: int, client: str) -> None:
        """Wait until so many may pass on a circuit that `client` has asked for."""
        if self._bytes_per_second:
            place = self._places.setdefault(client, trio.Lock())
            async with place, self._line:
                earliest = trio.current_time() - _BURST_SECONDS
                self._paid_until = max(self._paid_until, earliest) + num_bytes / self._bytes_per_second
                await trio.sleep_until(self._paid_until)
        self.num_bytes += num_bytes
