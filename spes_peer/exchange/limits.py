"""Every bound of the exchange, with its reason; and the slots that keep one caller from taking all of a server."""

import contextlib
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator

from spes_peer.errors import Unreachable
from spes_peer.identity import PeerId
from spes_peer.run.signed import Signed, is_packed

MAX_MESSAGE_BYTES = 8 << 20  # a record of a large run is a few megabytes
CHUNK_BYTES = 256 << 10  # of a piece per message: small enough that a slow line shows progress, large enough to be fast
MAX_PIECES_PER_REQUEST = 64  # what a server sends for one request
MAX_BLOB_BYTES = 64 << 30  # the digests of 65,536 pieces are 2 MiB: one message
MAX_RECORDS_PER_CALL = 1_000

MAX_CALLS = 4_096  # of a server, of all kinds: every peer of a large run attends its coordinator, and asks besides
MAX_CALLS_PER_CALLER = 48  # what a peer asks of one other: its fetches, and a few short calls
MAX_CALLS_OF_STRANGERS = 3_072  # of all together whom the newest record does not name: before round 1 that is all
REQUEST_SECONDS = 10.0  # from a call to its request, which is small
ATTENDED_SILENCE_SECONDS = 300.0  # who attends sends a beat every few seconds
MESSAGES_PER_SECOND = 500.0  # of one that attends; who sends more is read no faster
MESSAGE_BURST = 5_000.0  # a report for each block of a large run
COMPRESSED_MESSAGES = 250.0  # for how many one counts that is compressed: it may take a tenth of a second to unpack
BYTES_OF_MESSAGE = 32 << 10  # for each so many of it one that is not compressed counts once more; honest ones are small
BAD_MESSAGES = 250.0  # for how many one counts that is not what it should be: 20 are borne, then two a second
MAX_PACES = 4_096  # peers of which is remembered how fast they talk
MAX_FETCHES = 128  # of all callers together: each holds a piece in memory
MAX_FETCHES_PER_CALLER = 16
FETCHES_PER_SOURCE = 4  # what we ask one source for at a time; far below what it allows
SOURCES_PER_BLOB = 8  # at a time, and one more for each that is slow
MAX_SOURCES = 64  # of one blob at a time, and those that sources tell of: they may tell of many
SLOW_BYTES_PER_SECOND = 8 << 10  # of a request: others are asked too, and who is as slow is asked last
LEAST_BYTES_PER_SECOND = 512  # of a request: as good as nothing, whatever the line

HANDSHAKE_SECONDS = 20  # for TLS, also through a relay; who has not shaken hands by then is hung up on
_MOST_CONNECTIONS = 4_096

DIAL_SECONDS = 4.0  # per direct address: one that cannot be reached costs no more than this
MAX_DIALLED_ADDRESSES = 4  # of a peer: an entry may name many that lead nowhere
TUNNEL_SECONDS = 20.0  # a stream through a relay takes several round trips
SHORT_CALL_SECONDS = 10.0  # for an answer that needs no work
SEND_STALL_SECONDS = 60.0  # a caller that takes nothing of what it asked for; above every manifest's fetch stall in use
MAX_BACKOFF_SECONDS = 30.0


def max_connections() -> int:
    """That a server takes: half of the descriptors that this process may have, so that files can still be opened."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, soft // 2)


class Busy(Unreachable):
    """A node serves as many as it can: ask another, or later."""


class Slots:
    """Counts what is being served, per caller, for strangers together, and over all."""

    def __init__(self, total: int, per_caller: int, of_strangers: int | None = None) -> None:
        self._total = total
        self._per_caller = per_caller
        self._of_strangers = total if of_strangers is None else of_strangers
        self._taken: Counter[PeerId] = Counter()
        self._num_strangers = 0

    @classmethod
    def for_fetches(cls, total: int = MAX_FETCHES) -> "Slots":
        """What an honest peer asks for at once is less than one caller may have, and nobody may have all."""
        per_caller = max(FETCHES_PER_SOURCE, min(MAX_FETCHES_PER_CALLER, total // 4))
        return cls(total, max(1, min(per_caller, total - 1)), max(1, total * 3 // 4))

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    @contextlib.contextmanager
    def hold(self, caller: PeerId, is_stranger: bool = False) -> Iterator[None]:
        """A slot for as long as the block runs, or `Busy`."""
        is_full = self._taken.total() >= self._total or (is_stranger and self._num_strangers >= self._of_strangers)
        if is_full or self._taken[caller] >= self._per_caller:
            raise Busy("too many calls at once; ask again later")
        self._taken[caller] += 1
        self._num_strangers += is_stranger
        try:
            yield
        finally:
            self._num_strangers -= is_stranger
            self._taken[caller] -= 1
            self._taken += Counter()  # forgets callers at zero


class MessagePace:
    """Lets one talker through at a rate, after a burst: how long to wait before the next message is read."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left = MESSAGE_BURST
        self._at = now()

    def pause_seconds(self, messages: float) -> float:
        """After so many messages, and those before."""
        now = self._now()
        self._left = min(MESSAGE_BURST, self._left + (now - self._at) * MESSAGES_PER_SECOND) - messages
        self._at = now
        return max(0.0, -self._left / MESSAGES_PER_SECOND)


class Paces:
    """The pace of each peer, whichever connection its messages come by: who hangs up and comes back goes on where it
    was. Forgets who has said nothing for longest, for anybody can make keys without end."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now or time.monotonic
        self._paces: dict[PeerId, MessagePace] = {}

    def pause_seconds(self, peer: PeerId, messages: float) -> float:
        """How long to wait after so many messages of this peer."""
        pace = self._paces.pop(peer, None) or MessagePace(self._now)
        self._paces[peer] = pace  # to the end
        if len(self._paces) > MAX_PACES:
            del self._paces[next(iter(self._paces))]
        return pace.pause_seconds(messages)

    def debt_seconds(self, peer: PeerId) -> float:
        """How long this peer has to wait for what it has said."""
        return self._paces[peer].pause_seconds(0.0) if peer in self._paces else 0.0


def cost(signed: Signed) -> float:
    """For how many messages one counts, by what it takes to read it."""
    return COMPRESSED_MESSAGES if is_packed(signed.body) else 1.0 + len(signed.body) / BYTES_OF_MESSAGE
