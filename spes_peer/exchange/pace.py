"""How fast blobs may go in one direction: what a volunteer lets a run take of its line.

All transfers of a node share a pace and wait in line, chunk by chunk, so that none starves another. Records, heartbeats
and other small messages do not wait.
"""

import asyncio

from aiolimiter import AsyncLimiter

from spes_peer.exchange.limits import CHUNK_BYTES, MAX_FETCHES

_BURST_SECONDS = 0.1
_CHUNK_SECONDS = 0.25  # of the whole pace: a receiver sees progress, although many take turns
_LEAST_CHUNK_BYTES = 1024
_LEAST_BYTES_PER_SECOND = 32 << 10  # for each of those that are served at once
_MOST_AT_ONCE = 32  # each waits for the others' chunks, and must not look stalled


class Pace:
    """`Pace(500_000)` lets half a megabyte a second pass, `Pace()` everything."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        """0 sets no limit."""
        self.bytes_per_second = bytes_per_second
        self._turn = asyncio.Lock()  # the limiter would let smaller parts overtake
        self._part_bytes = max(1, int(bytes_per_second * _BURST_SECONDS))
        self._limiter = (
            AsyncLimiter(self._part_bytes, self._part_bytes / bytes_per_second) if bytes_per_second else None
        )

    @property
    def chunk_bytes(self) -> int:
        """What is sent of a piece in one message."""
        if self._limiter is None:
            return CHUNK_BYTES
        return max(_LEAST_CHUNK_BYTES, min(CHUNK_BYTES, int(self.bytes_per_second * _CHUNK_SECONDS)))

    @property
    def num_at_once(self) -> int:
        """How many fetches are served at a time; the others are asked to come again."""
        if self._limiter is None:
            return MAX_FETCHES
        return max(2, min(_MOST_AT_ONCE, self.bytes_per_second // _LEAST_BYTES_PER_SECOND))

    async def take(self, num_bytes: int) -> None:
        """Wait until so many may pass."""
        if self._limiter is None:
            return
        async with self._turn:
            for start in range(0, num_bytes, self._part_bytes):
                await self._limiter.acquire(min(self._part_bytes, num_bytes - start))
