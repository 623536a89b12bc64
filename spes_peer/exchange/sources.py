"""Which pieces of a blob to ask which source for: decisions over what is known of all of them, without any I/O.

The rarest come first, in an order of this transfer's own, so that those who fetch the same blob ask its origin for
different pieces and then each other. Fast sources are asked for more at a time. When nothing else is left, what a slow
one holds up is asked of a faster one too.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from spes_peer.blobs import PIECE_BYTES
from spes_peer.exchange.holdings import Have
from spes_peer.exchange.limits import SLOW_BYTES_PER_SECOND
from spes_peer.identity import PeerId

REQUEST_SECONDS = 1.0  # that one request may take, by the source's speed so far
MOST_PIECES = 16
FAST_SECONDS = 0.25  # for a piece: such a source is asked anew before it has answered, or it would wait for us
FEW_SOURCES = 2  # so few are asked ahead too, though slow: there is nobody else who could use their time
_CONSIDERED = 256  # of the pieces that are missing
_LEAST_HELD_UP_SECONDS = 3.0
_PREPARING_SECONDS = 1.5  # for a source to be dialled and to say what it has, before another is asked too


class Patience:
    """How long more is waited for. What comes buys time by its bytes, but never more than there was at first; and it
    does not end while we are busy with what has come."""

    def __init__(self, now: float, seconds: float, bytes_per_second: float) -> None:
        self.until = now + seconds
        self._seconds = self._left_seconds = seconds
        self._bytes_per_second = bytes_per_second

    def pause(self, num_bytes: int, now: float) -> None:
        """So much has come."""
        self._left_seconds = min(self.until - now + num_bytes / self._bytes_per_second, self._seconds)
        self.until = math.inf

    def go_on(self, now: float) -> None:
        self.until = now + self._left_seconds


@dataclass
class Request:
    """One call for pieces. Moments are by the loop's clock."""

    began_at: float
    pieces: list[int]
    """Those that have not arrived yet, in the order in which they come."""
    patience: Patience
    """Until others are asked too."""
    num_bytes: int = 0
    """Received so far."""
    num_bytes_of_piece: int = 0
    """Of the piece that is coming."""

    def seconds_left(self, piece: int, now: float) -> float:
        """Until `piece`, at the speed so far."""
        elapsed_seconds, num_pieces = now - self.began_at, self.pieces.index(piece) + 1
        if not self.num_bytes:
            return num_pieces * elapsed_seconds
        return (num_pieces * PIECE_BYTES - self.num_bytes_of_piece) * elapsed_seconds / self.num_bytes

    @classmethod
    def begun(cls, now: float, pieces: list[int], stall_seconds: float) -> "Request":
        return cls(now, pieces, Patience(now, stall_seconds / 3, SLOW_BYTES_PER_SECOND))

    def is_slow(self, now: float, stall_seconds: float) -> bool:
        """Silent for long, or as good as that, or not done for very long."""
        return now > self.patience.until or now - self.began_at > 2 * stall_seconds


@dataclass
class Source:
    """One peer as a source of this blob. Moments are by the loop's clock."""

    peer_id: PeerId
    have: Have | None = None
    """What it said that it has; None before it was asked."""
    have_at: float = -math.inf
    promised: Counter[int] = field(default_factory=Counter)
    """How many others have each piece from it, or will."""
    requests: list[Request] = field(default_factory=list)
    num_tasks: int = 0
    preparing_since: float = 0.0
    """While it has tasks and no requests: since when it is dialled, say, or others take its turns."""
    retry_at: float = 0.0
    num_failures: int = 0
    """Since it last sent a piece."""
    has_served: bool = False
    is_done_with: bool = False
    why: str = "not asked yet"
    is_stranger: bool = False
    """Whether the newest record does not name it."""

    @property
    def is_changing(self) -> bool:
        """Whether it soon has more pieces, or gives them to others: what it said last is old at once."""
        return bool(self.promised) or self.have is None or not self.have.is_whole

    @property
    def takes_part(self) -> bool:
        """Whether it was asked for pieces, or may soon be."""
        return bool(self.requests) or (self.have is None and not self.is_done_with and not self.num_failures)

    def is_slow(self, now: float, stall_seconds: float) -> bool:
        """Whether another is to be asked in its place meanwhile."""
        if self.num_tasks and not self.requests:
            return now - self.preparing_since > _PREPARING_SECONDS
        return self.is_late(now, stall_seconds)

    def is_late(self, now: float, stall_seconds: float) -> bool:
        """Whether what it was asked for does not come."""
        return any(request.is_slow(now, stall_seconds) for request in self.requests)

    def asked(self) -> Iterable[int]:
        return (piece for request in self.requests for piece in request.pieces)


class Wanted:
    """The missing pieces of one transfer, in its own order."""

    def __init__(self, num_pieces: int, chance: random.Random | None = None) -> None:
        self._order = list(range(num_pieces))
        (chance or random.Random()).shuffle(self._order)

    def fresh(self, source: Source, sources: Collection[Source], held: Collection[int]) -> list[int]:
        """What `source` has and nobody was asked for, the rarest first; not all where there is much."""
        if source.have is None:
            return []
        self._order = [piece for piece in self._order if piece not in held]
        asked = {piece for one in sources for piece in one.asked()}
        has = source.have.pieces
        usable = islice((piece for piece in self._order if piece in has and piece not in asked), _CONSIDERED)

        def num_copies(piece: int) -> int:
            return sum((one.have is not None and piece in one.have.pieces) + one.promised[piece] for one in sources)

        return nsmallest(_CONSIDERED, usable, key=num_copies)

    def held_up(
        self,
        source: Source,
        sources: Collection[Source],
        held: Collection[int],
        now: float,
        stall_seconds: float,
        piece_seconds: float | None,
    ) -> list[int]:
        """What others were asked for and `source`, which takes `piece_seconds` for one, likely brings sooner; the one
        that would be waited for longest. At most two are waited for; who has long been slow is not counted, or two
        of them would hold a piece for ever."""
        waits: Counter[int] = Counter()
        seconds: dict[int, float] = {}
        coming: set[int] = set()
        for request in (request for one in sources for request in one.requests):
            is_slow = request.is_slow(now, stall_seconds)
            is_counted = not request.is_slow(now - stall_seconds / 3, stall_seconds)
            for piece in request.pieces:
                waits[piece] += is_counted
                left_seconds = request.seconds_left(piece, now)
                is_sooner = piece_seconds is not None and left_seconds > max(_LEAST_HELD_UP_SECONDS, 4 * piece_seconds)
                if is_sooner or is_slow:
                    seconds[piece] = left_seconds
                else:
                    coming.add(piece)
        has = source.have.pieces.difference(source.asked(), held, coming) if source.have else frozenset()
        usable = [piece for piece in seconds if piece in has and waits[piece] <= 1]
        return [max(usable, key=seconds.__getitem__)] if usable else []


def request_size(piece_seconds: float | None, num_fresh: int, num_sources: int) -> int:
    """How many pieces to ask a source for that takes so long for one, of those that so many sources share."""
    if piece_seconds is None:
        return 1
    by_speed = int(REQUEST_SECONDS / max(piece_seconds, 1e-6))
    return max(1, min(MOST_PIECES, by_speed, num_fresh // max(1, num_sources)))


def num_at_once(source: Source, piece_seconds: float | None, num_sources: int) -> int:
    """How many requests a source may have at a time."""
    if source.have is None or piece_seconds is None:
        return 1
    return 2 if piece_seconds < FAST_SECONDS or num_sources <= FEW_SOURCES else 1
