"""Every bound of the exchange, with its reason; and the slots that keep one caller from taking all of a server."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from spes_peer.errors import Unreachable
from spes_peer.identity import PeerId

MAX_MESSAGE_BYTES = 8 << 20  # a record of a large run is a few megabytes
CHUNK_BYTES = 256 << 10  # of a piece per message: small enough that a slow line shows progress, large enough to be fast
PIECES_PER_REQUEST = 4  # what a fetch asks one source for at a time: a slow source holds up little
MAX_PIECES_PER_REQUEST = 64  # what a server sends for one request
MAX_BLOB_BYTES = 64 << 30  # the digests of 65,536 pieces are 2 MiB: one message
MAX_RECORDS_PER_CALL = 1_000

MAX_CALLS = 1_024  # of a server, of all kinds
MAX_FETCHES = 128  # of all callers together: each holds a piece in memory
MAX_FETCHES_PER_CALLER = 16
FETCHES_PER_SOURCE = 4  # what we ask one source for at a time; far below what it allows
SOURCES_PER_BLOB = 4

DIAL_SECONDS = 4.0  # per direct address: one that cannot be reached costs no more than this
MAX_DIALLED_ADDRESSES = 4  # of a peer: an entry may name many that lead nowhere
TUNNEL_SECONDS = 20.0  # a stream through a relay takes several round trips
SHORT_CALL_SECONDS = 10.0  # for an answer that needs no work
SEND_STALL_SECONDS = 60.0  # a caller that takes nothing of what it asked for; above every manifest's fetch stall in use
MAX_BACKOFF_SECONDS = 30.0


class Busy(Unreachable):
    """A node serves as many as it can: ask another, or later."""


class Slots:
    """Counts what is being served, per caller and over all."""

    def __init__(self, total: int = MAX_FETCHES, per_caller: int = MAX_FETCHES_PER_CALLER) -> None:
        self._total = total
        self._per_caller = per_caller
        self._taken: Counter[PeerId] = Counter()

    @contextlib.contextmanager
    def hold(self, caller: PeerId) -> Iterator[None]:
        """A slot for as long as the block runs, or `Busy`."""
        if self._taken[caller] >= self._per_caller or self._taken.total() >= self._total:
            raise Busy("too many fetches at once; ask again later")
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            self._taken += Counter()  # forgets callers at zero
