"""How fast blobs may go in one direction: what a volunteer lets a run take of its line.

All transfers of a node share a pace and take turns, chunk by chunk and as many bytes for each peer, so that none
starves another and nobody gets more by asking for more at once. Records, heartbeats and other small messages do not
wait.
"""

import asyncio
import itertools
from heapq import heappop, heappush

from spes_peer.exchange.limits import CHUNK_BYTES, MAX_FETCHES
from spes_peer.identity import PeerId

_BURST_SECONDS = 0.1  # who comes late, because the machine is busy, catches up with so much
_CHUNK_SECONDS = 0.25  # of the whole pace: a receiver sees progress, although many take turns
_LEAST_CHUNK_BYTES = 1024
_SHARED_CHUNK_BYTES = 16 << 10  # the same where the line is shared by many, and nobody has said how fast it is
_WHOLE_CHUNKS = 8  # so many share a line in whole chunks
_LEAST_BYTES_PER_SECOND = 32 << 10  # for each of those that are served at once
_MOST_AT_ONCE = 32  # each waits for the others' chunks, and must not look stalled


class Pace:
    """`Pace(500_000)` lets half a megabyte a second pass, `Pace()` everything."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        """0 sets no limit."""
        self.bytes_per_second = bytes_per_second
        self.is_used_up = False
        """Nothing more may pass for now."""
        self._is_taken = False
        self._line: list[tuple[int, int, asyncio.Future[None]]] = []
        """Those who wait, as a heap: tag, number, and what is set when it is their turn."""
        self._numbers = itertools.count()
        self._tag = 0
        """Of the one whose turn it is."""
        self._next_tags: dict[PeerId, int] = {}
        self._paid_until = 0.0
        """By the loop's clock: when all that was let through has had its time."""

    def chunk_bytes(self, num_served: int = 1) -> int:
        """What is sent of a piece in one message, while so many fetches are served."""
        if not self.bytes_per_second:
            return max(_SHARED_CHUNK_BYTES, CHUNK_BYTES * _WHOLE_CHUNKS // max(num_served, _WHOLE_CHUNKS))
        return max(_LEAST_CHUNK_BYTES, min(CHUNK_BYTES, int(self.bytes_per_second * _CHUNK_SECONDS)))

    @property
    def num_at_once(self) -> int:
        """How many fetches are served at a time; the others are asked to come again."""
        if not self.bytes_per_second:
            return MAX_FETCHES
        return max(2, min(_MOST_AT_ONCE, self.bytes_per_second // _LEAST_BYTES_PER_SECOND))

    async def take(self, num_bytes: int, peer: PeerId) -> None:
        """Wait until so many may pass, to or from `peer`."""
        if not self.bytes_per_second:
            return
        await self._wait_for_turn(num_bytes, peer)
        try:
            self.charge(num_bytes)
            await asyncio.sleep(self._paid_until - asyncio.get_running_loop().time())
        finally:
            self._give_turn()

    def charge(self, num_bytes: int) -> None:
        """So many have passed that did not ask: others wait for them."""
        if self.bytes_per_second:
            now = asyncio.get_running_loop().time()
            self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + num_bytes / self.bytes_per_second

    async def _wait_for_turn(self, num_bytes: int, peer: PeerId) -> None:
        """Fair queueing by start tags (Goyal, Vin, Cheng 1996): one tag is a byte that each peer may have."""
        tag = max(self._tag, self._next_tags.get(peer, 0))
        self._next_tags[peer] = tag + num_bytes
        if not self._is_taken:
            self._is_taken, self._tag = True, tag
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._line, (tag, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given to us at this very moment
                self._give_turn()
            raise

    def _give_turn(self) -> None:
        """To the one of those who still wait whose peer has had least."""
        while self._line:
            self._tag, _, turn = heappop(self._line)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
        self._next_tags = {peer: tag for peer, tag in self._next_tags.items() if tag > self._tag}
