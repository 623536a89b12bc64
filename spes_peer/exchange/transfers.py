"""What this node fetches and serves at the moment, and what has just ended: for whoever watches. Nobody decides by it.

A blob that is fetched is one transfer, whoever sends it. A blob that is served is one for each who takes it; they ask
for a few pieces at a time, so it ends when nothing has been asked for a little while.
"""

import contextlib
import itertools
import time
from asyncio import Semaphore
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from spes_peer.exchange.traffic import Transport
from spes_peer.identity import PeerId

Direction = Literal["down", "up"]

_WINDOW_SECONDS = 5.0  # of which a rate is
_MARK_SECONDS = 1.0
_TELLING_SECONDS = 0.05  # what is sent in less lies in a buffer of this machine
_IDLE_SECONDS = 2.0  # after which who was served is not expected to ask for more
_MOST_ENDED = 32
_MOST_SERVED = 128  # at a time; of more, those that end next are said to have ended
_MOST_PEERS = 16  # that are named, of one transfer


@dataclass
class Move:
    """One blob on its way. Moments are by the clock that does not jump, but for `since_at`."""

    id: int
    name: str
    what: str
    direction: Direction
    num_bytes: int
    """Of the whole."""
    since_at: float
    """Unix seconds."""
    began: float
    bytes_done: int = 0
    peers: dict[PeerId, None] = field(default_factory=dict)
    """Whom it comes from or goes to, in the order in which they came."""
    transports: dict[Transport, None] = field(default_factory=dict)
    num_calls: int = 0
    """That are open, of one that is served."""
    moved: float = 0.0
    """When bytes moved last."""
    ended: float | None = None
    marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=int(_WINDOW_SECONDS) + 1))
    """Moments, a second or more from each other, and what was done before each."""

    def add(self, num_bytes: int, peer: PeerId, transport: Transport) -> None:
        """So many have come, or gone. What two sources send counts once at most."""
        now = self.moved = time.monotonic()
        if not self.marks or now - self.marks[-1][0] >= _MARK_SECONDS:
            self.marks.append((now, self.bytes_done))
        self.bytes_done = min(self.bytes_done + num_bytes, self.num_bytes)
        if len(self.peers) < _MOST_PEERS:
            self.peers[peer] = None
        self.transports[transport] = None

    def bytes_per_second(self, now: float) -> float:
        """Over the last few seconds; over all of its time once it has ended, 0 if that was too short to tell."""
        if self.ended is not None:
            seconds = self.ended - self.began
            return self.bytes_done / seconds if seconds >= _TELLING_SECONDS else 0.0
        since, before = next(((at, done) for at, done in self.marks if now - at <= _WINDOW_SECONDS), (now, 0))
        return (self.bytes_done - before) / max(now - since, _MARK_SECONDS) if since < now else 0.0


class Gathering:
    """How much of several blobs is here, for whoever waits for all of them."""

    def __init__(self, board: "Transfers") -> None:
        self.whole_bytes = 0
        self._done_bytes = 0
        self._missing: dict[str, int] = {}
        self._board = board

    def expect(self, name: str, size_bytes: int) -> None:
        """One more is wanted; expecting it twice changes nothing."""
        if name not in self._missing:
            self._missing[name] = size_bytes
            self.whole_bytes += size_bytes

    def have(self, name: str) -> None:
        """It is here."""
        self._done_bytes += self._missing.pop(name, 0)

    @property
    def done_bytes(self) -> int:
        """Of the blobs that are here, and the parts so far of those that are on their way."""
        return self._done_bytes + sum(move.bytes_done for move in self._board.fetched if move.name in self._missing)


class Transfers:
    """The board that fetches and serves write on: each costs an addition for what it moves."""

    def __init__(self, words: Callable[[str], str] = lambda name: name) -> None:
        """`words` says what a blob is."""
        self._words = words
        self._ids = itertools.count(1)
        self._down: dict[int, Move] = {}
        self._up: dict[tuple[str, PeerId], Move] = {}
        self._ended: deque[Move] = deque(maxlen=_MOST_ENDED)
        self.num_queued = 0
        """Blobs that wait for a place."""

    @contextlib.asynccontextmanager
    async def place(self, *turns: Semaphore) -> AsyncIterator[None]:
        """Hold a place of each of `turns`; who waits for one is counted."""
        async with contextlib.AsyncExitStack() as places:
            self.num_queued += 1
            try:
                for turn in turns:
                    await places.enter_async_context(turn)
            finally:
                self.num_queued -= 1
            yield

    @contextlib.contextmanager
    def fetching(self, name: str, num_bytes: int) -> Iterator[Move]:
        """While a blob is fetched."""
        move = self._begun(name, "down", num_bytes)
        self._down[move.id] = move
        try:
            yield move
        finally:
            del self._down[move.id]
            self._end(move)

    @contextlib.contextmanager
    def serving(self, name: str, num_bytes: int, peer: PeerId) -> Iterator[Move]:
        """While pieces of a blob are sent to `peer`."""
        move = self._up.get((name, peer))
        if move is None:
            move = self._up[name, peer] = self._begun(name, "up", num_bytes)
        move.num_calls += 1
        try:
            yield move
        finally:
            move.num_calls -= 1
            if not move.num_calls and move.bytes_done in (0, move.num_bytes):
                self._end_serving(name, peer)
            elif len(self._up) > _MOST_SERVED:
                self._end_idle()

    @property
    def fetched(self) -> Iterable[Move]:
        """Those that are being fetched."""
        return self._down.values()

    @property
    def in_flight(self) -> list[Move]:
        """Oldest first."""
        self._end_idle()
        served = (move for move in self._up.values() if move.peers)
        return sorted((*self._down.values(), *served), key=lambda move: move.id)

    @property
    def ended(self) -> list[Move]:
        """The newest few dozen, newest first."""
        self._end_idle()
        return list(reversed(self._ended))

    def _begun(self, name: str, direction: Direction, num_bytes: int) -> Move:
        now = time.monotonic()
        return Move(next(self._ids), name, self._words(name), direction, num_bytes, time.time(), now, moved=now)

    def _end(self, move: Move) -> None:
        move.ended = time.monotonic()
        if move.peers:  # or nothing of it was to be had, and anybody may ask for what is not there
            self._ended.append(move)

    def _end_serving(self, name: str, peer: PeerId) -> None:
        if (move := self._up.pop((name, peer), None)) is not None:
            self._end(move)
            move.ended = move.moved

    def _end_idle(self) -> None:
        """Those of whom nobody has asked for more; sooner where there are very many."""
        idle = sorted((move.moved, *key) for key, move in self._up.items() if not move.num_calls)
        num_too_many = len(self._up) - _MOST_SERVED
        since = time.monotonic() - _IDLE_SECONDS
        for number, (moved, name, peer) in enumerate(idle):
            if moved < since or number < num_too_many:
                self._end_serving(name, peer)
