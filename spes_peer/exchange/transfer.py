"""One blob on its way from several sources at once.

Every source is asked what it has, then for a few pieces at a time, so that a fast one gets more of them. A source that
is slow holds up little: when nothing else is left to ask for, its pieces are asked of others too. A source of bad
bytes is done with; one that fails is asked again a little later, a few times; one that has nothing we miss is asked
again for as long as the transfer makes progress, for it may be fetching the same blob.
"""

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from spes_peer.errors import BadMessage, BlobMissing, PeerError, Unreachable
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.holdings import Have, Holdings, PartialBlob
from spes_peer.exchange.limits import (
    FETCHES_PER_SOURCE,
    PIECES_PER_REQUEST,
    SHORT_CALL_SECONDS,
    SOURCES_PER_BLOB,
    Busy,
)
from spes_peer.exchange.link import Link, Stalled
from spes_peer.exchange.pace import Pace
from spes_peer.identity import PeerId
from spes_peer.wire.peer_pb2 import FetchReply, FetchRequest, HaveReply, HaveRequest

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_ASK_AGAIN_SECONDS = 0.5
_MAX_FAILURES = 3


class Unsuitable(Unreachable):
    """A source that does not have what was announced."""


@dataclass
class Source:
    """One peer as a source of this blob. Moments are by the loop's clock."""

    peer_id: PeerId
    asked: set[int] = field(default_factory=set)
    """Pieces that it is sending, or should be."""
    request_at: float = 0.0
    heard_at: float = 0.0
    retry_at: float = 0.0
    num_failures: int = 0
    is_done_with: bool = False
    why: str = "not asked yet"

    def is_slow(self, now: float, stall_seconds: float) -> bool:
        return now - self.heard_at > stall_seconds / 3 or now - self.request_at > 2 * stall_seconds


class PieceOrder:
    """Which pieces to ask whom for: begins somewhere in the blob, so that fetchers of one blob can serve each other."""

    def __init__(self, num_pieces: int, first: int) -> None:
        self._order = [(first + index) % num_pieces for index in range(num_pieces)]

    def choose(self, held: set[int], asked_of_others: set[int], held_up: set[int], have: Have) -> list[int]:
        """The next pieces for a source that has `have`: those that nobody was asked for; else those held up."""
        useful = [piece for piece in self._order if piece in have.pieces and piece not in held]
        fresh = [piece for piece in useful if piece not in asked_of_others]
        return (fresh or [piece for piece in useful if piece in held_up])[:PIECES_PER_REQUEST]


@dataclass
class Means:
    """What all transfers of one peer share."""

    holdings: Holdings
    connections: Connections
    stall_seconds: float
    download: Pace = field(default_factory=Pace)
    bad_sources: Counter[PeerId] = field(default_factory=Counter)
    """How often a peer sent bytes that were not what they should be."""
    load: Counter[PeerId] = field(default_factory=Counter)
    """Sources in use, over all transfers."""
    turns: defaultdict[PeerId, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(FETCHES_PER_SOURCE))
    )

    @contextlib.contextmanager
    def loading(self, peer_id: PeerId) -> Iterator[None]:
        self.load[peer_id] += 1
        try:
            yield
        finally:
            self.load[peer_id] -= 1


class Transfer:
    """Brings one partial blob to completion. `bad` holds peers that are not asked, and takes those found bad."""

    def __init__(self, partial: PartialBlob, means: Means, bad: set[PeerId], first_piece: int = 0) -> None:
        self.partial = partial
        self._means = means
        self._bad = bad
        self._order = PieceOrder(partial.num_pieces, first_piece)
        self._sources: dict[PeerId, Source] = {}
        self._tasks: dict[asyncio.Task[None], Source] = {}
        self._now = asyncio.get_running_loop().time
        self._progress_at = self._now()

    def add_sources(self, peer_ids: Iterable[PeerId]) -> None:
        for peer_id in peer_ids:
            if peer_id != self._means.connections.peer_id and peer_id not in self._bad:
                self._sources.setdefault(peer_id, Source(peer_id))

    async def run(self) -> None:
        """Returns when all pieces are here; `Unreachable` names who was tried and why it did not do."""
        try:
            while not self.partial.is_complete:
                self._start_sources()
                if not self._tasks and self._is_hopeless():
                    raise Unreachable(f"no source for blob {self.partial.name}: {self._reasons()}")
                await self._wait_a_little()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_a_little(self) -> None:
        if not self._tasks:
            await asyncio.sleep(_TICK_SECONDS)
            return
        done, _ = await asyncio.wait(self._tasks, timeout=_TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._tasks[task]
            task.result()  # a fault of our own, such as a full disk, ends the transfer

    def _start_sources(self) -> None:
        slow = sum(source.is_slow(self._now(), self._means.stall_seconds) for source in self._tasks.values())
        missing = self.partial.num_pieces - len(self.partial.held)
        wanted = slow + min(SOURCES_PER_BLOB, -(-missing // PIECES_PER_REQUEST))
        idle = [source for source in self._sources.values() if self._is_idle(source)]
        idle.sort(key=lambda source: (self._means.load[source.peer_id], source.num_failures))
        for source in idle[: max(0, wanted - len(self._tasks))]:
            source.request_at = source.heard_at = self._now()
            self._tasks[asyncio.create_task(self._use(source))] = source

    def _is_idle(self, source: Source) -> bool:
        running = any(source is other for other in self._tasks.values())
        return not (running or source.is_done_with) and source.retry_at <= self._now()

    def _is_hopeless(self) -> bool:
        """Nobody left to ask, or nothing has arrived for so long."""
        if all(source.is_done_with for source in self._sources.values()):
            return True
        return self._now() - self._progress_at > self._means.stall_seconds

    def _reasons(self) -> str:
        reasons = "; ".join(f"{source.peer_id}: {source.why}" for source in self._sources.values())
        return reasons or ("all known sources sent bad bytes" if self._bad else "nobody is known to have it")

    async def _use(self, source: Source) -> None:
        """Fetch from one source until it has nothing more for us, and note why it ended."""
        try:
            with self._means.loading(source.peer_id):
                async with self._means.turns[source.peer_id]:
                    source.request_at = source.heard_at = self._now()
                    await self._fetch_from(source)
            source.why, source.retry_at = "has none of the missing pieces", self._now() + _ASK_AGAIN_SECONDS
        except BadMessage as error:
            self._means.bad_sources[source.peer_id] += 1
            self._bad.add(source.peer_id)
            source.is_done_with, source.why = True, str(error)
            logger.warning("a source sent bad bytes peer=%s reason=%s", source.peer_id, error)
        except (BlobMissing, Busy) as error:
            source.why, source.retry_at = str(error), self._now() + _ASK_AGAIN_SECONDS
        except (Stalled, Unsuitable) as error:
            source.is_done_with, source.why = True, str(error)
        except PeerError as error:
            source.num_failures += 1
            source.retry_at = self._now() + _ASK_AGAIN_SECONDS * 2**source.num_failures
            source.is_done_with, source.why = source.num_failures >= _MAX_FAILURES, str(error)
        finally:
            source.asked = set()

    async def _fetch_from(self, source: Source) -> None:
        link = await self._means.connections.to(source.peer_id)
        request = HaveRequest(name=self.partial.name)
        timeout_seconds = min(SHORT_CALL_SECONDS, self._means.stall_seconds)
        reply: HaveReply = await link.call(link.stub.Have, request, timeout_seconds)
        have = Have.from_bitmap(reply.size_bytes, reply.bitmap)
        if have.pieces and have.size_bytes != self.partial.size_bytes:
            raise Unsuitable(f"says that it has {have.size_bytes} bytes, not the {self.partial.size_bytes} announced")
        while pieces := self._next_for(source, have):
            source.asked = set(pieces)
            await self._receive(link, source, pieces)

    def _next_for(self, source: Source, have: Have) -> list[int]:
        now, stall_seconds = self._now(), self._means.stall_seconds
        others = [other for other in self._sources.values() if other is not source]
        asked = {piece for other in others for piece in other.asked}
        held_up = {piece for other in others if other.is_slow(now, stall_seconds) for piece in other.asked}
        return self._order.choose(self.partial.held, asked, held_up, have)

    async def _receive(self, link: Link, source: Source, pieces: list[int]) -> None:
        """Take exactly the pieces asked for, in order, each in chunks; keep each as soon as it is verified."""
        awaits_digests = self.partial.digests is None
        request = FetchRequest(name=self.partial.name, with_digests=awaits_digests, pieces=pieces)
        expected, chunks = iter(pieces), bytearray()
        source.request_at = source.heard_at = self._now()
        awaited: int | None = next(expected)
        async with contextlib.aclosing(link.stream(link.stub.Fetch, request, self._means.stall_seconds)) as replies:
            async for reply in replies:
                source.heard_at = self._now()
                if awaits_digests:
                    await asyncio.to_thread(self.partial.accept_digests, reply.digests)
                    awaits_digests = False
                    continue
                if awaited is None or reply.piece != awaited:
                    raise BadMessage(f"piece {reply.piece}, which was not asked for")
                await self._means.download.take(len(reply.content))
                source.heard_at = self._now()  # it did not make us wait
                chunks += reply.content
                if self._is_whole(awaited, chunks, reply):
                    await asyncio.to_thread(self.partial.accept_piece, awaited, bytes(chunks))
                    self._progress_at, source.num_failures = self._now(), 0
                    source.asked.discard(awaited)
                    awaited, chunks = next(expected, None), bytearray()
        if awaited is not None:
            raise Unreachable(f"ended before piece {awaited}")

    def _is_whole(self, index: int, chunks: bytearray, reply: FetchReply) -> bool:
        size_bytes = self.partial.piece_bytes(index)
        if len(chunks) > size_bytes or (size_bytes and not reply.content):
            raise BadMessage(f"chunks that are not those of piece {index}")
        return len(chunks) == size_bytes
