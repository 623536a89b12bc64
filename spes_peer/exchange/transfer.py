"""One blob on its way from several sources at once.

Every source is asked what it has, then for pieces, as many at a time as its speed allows (`sources` decides which). A
source of bad bytes is done with; one that fails is asked again a little later, a few times; one that has nothing we
miss is asked again for as long as the transfer makes progress, for it may be fetching the same blob.
"""

import asyncio
import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from spes_peer.blobs import PIECE_BYTES
from spes_peer.errors import BadMessage, BlobMissing, PeerError, Unreachable
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.holdings import Have, Holdings, PartialBlob
from spes_peer.exchange.limits import (
    FETCHES_PER_SOURCE,
    LEAST_BYTES_PER_SECOND,
    MAX_SOURCES,
    SHORT_CALL_SECONDS,
    SLOW_BYTES_PER_SECOND,
    SOURCES_PER_BLOB,
    Busy,
)
from spes_peer.exchange.link import Link, Stalled, blaming
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.sources import Patience, Request, Source, Wanted, num_at_once, request_size
from spes_peer.exchange.transfers import Move
from spes_peer.exchange.uploads import MAX_PEERS_PER_BLOB
from spes_peer.identity import PeerId
from spes_peer.wire.chunks import Chunk
from spes_peer.wire.peer_pb2 import FetchRequest, HaveReply, HaveRequest

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_ASK_AGAIN_SECONDS = 0.5
_CHANGING_SECONDS = 0.25  # for which what a source has said of itself is as good as new
_SETTLED_SECONDS = 2.0  # the same of one that has all, and of which nobody else fetches
_MAX_FAILURES = 3
_MOST_RETRY_SECONDS = 4.0
_SMOOTHING = 0.5
_SLOW_FACTOR = 4.0
_LEAST_TELLING_BYTES = 64 << 10


class Unsuitable(Unreachable):
    """A source that does not have what was announced."""


@dataclass
class Means:
    """What all transfers of one peer share."""

    holdings: Holdings
    connections: Connections
    stall_seconds: float
    download: Pace
    names: Callable[[PeerId], bool]
    """Whether the newest record does: strangers are asked after those."""
    bad_sources: Counter[PeerId] = field(default_factory=Counter)
    """How often a peer sent bytes that were not what they should be."""
    load: Counter[PeerId] = field(default_factory=Counter)
    """Calls to sources that are under way, over all transfers."""
    piece_seconds: dict[PeerId, float] = field(default_factory=dict)
    """How long sources take for a piece; the untried are not in it."""
    late: set[PeerId] = field(default_factory=set)
    """Those that have kept us waiting and have not sent a piece in good time since: they are asked last."""
    turns: defaultdict[PeerId, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(FETCHES_PER_SOURCE))
    )

    def is_slow(self, peer_id: PeerId) -> bool:
        """Compared with the fastest that we know."""
        seconds = self.piece_seconds.get(peer_id)
        return seconds is not None and seconds > _SLOW_FACTOR * min(self.piece_seconds.values())

    def note_piece(self, peer_id: PeerId, num_bytes: int, seconds: float) -> None:
        """A small one says nothing of the speed: it takes as long as a question and its answer."""
        if seconds < 1.0 + num_bytes / SLOW_BYTES_PER_SECOND:
            self.late.discard(peer_id)
        if num_bytes >= _LEAST_TELLING_BYTES:
            seconds *= PIECE_BYTES / num_bytes
            before = self.piece_seconds.get(peer_id, seconds)
            self.piece_seconds[peer_id] = before + _SMOOTHING * (seconds - before)


class Transfer:
    """Brings one partial blob to completion. `bad` holds peers that are not asked, and takes those found bad; `move`
    hears what comes."""

    def __init__(self, partial: PartialBlob, means: Means, bad: set[PeerId], move: Move) -> None:
        self.partial = partial
        self._move = move
        move.bytes_done = sum(map(partial.piece_bytes, partial.held))
        self._means = means
        self._bad = bad
        self._wanted = Wanted(partial.num_pieces)
        self._sources: dict[PeerId, Source] = {}
        self._tasks: dict[asyncio.Task[None], Source] = {}
        self._now = asyncio.get_running_loop().time
        self._progress_at = self._now()

    def add_sources(self, peer_ids: Iterable[PeerId]) -> None:
        for peer_id in peer_ids:
            if peer_id != self._means.connections.peer_id and peer_id not in self._bad:
                self._sources.setdefault(peer_id, Source(peer_id, is_stranger=not self._means.names(peer_id)))

    async def run(self) -> None:
        """Returns when all pieces are here; `Unreachable` names who was tried and why it did not do."""
        try:
            while not self.partial.is_complete:
                self._start_sources()
                if not self._is_busy() and self._is_hopeless():
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
            self._tasks.pop(task).num_tasks -= 1
            if not task.cancelled():
                task.result()  # a fault of our own, such as a full disk, ends the transfer

    # ---- whom to ask ----

    def _start_sources(self) -> None:
        now, sources, stall_seconds = self._now(), list(self._sources.values()), self._means.stall_seconds
        self._means.late.update(source.peer_id for source in sources if source.is_late(now, stall_seconds))
        num_slow = sum(source.is_slow(now, stall_seconds) for source in sources)
        num_missing = self.partial.num_pieces - len(self.partial.held)
        num_wanted = min(num_slow + min(SOURCES_PER_BLOB, num_missing), MAX_SOURCES)
        num_more = num_wanted - sum(source.num_tasks > 0 for source in sources)
        ready = [source for source in sources if not source.is_done_with and source.retry_at <= now]
        for source in sorted(ready, key=self._preference):
            if source.num_tasks:
                if source.num_tasks < self._num_at_once(source) and self._fresh(source):
                    self._start(source)
            elif num_more > 0:
                num_more -= 1
                self._start(source)

    def _start(self, source: Source) -> None:
        if not source.num_tasks:
            source.preparing_since = self._now()
        source.num_tasks += 1
        self._tasks[asyncio.create_task(self._use(source))] = source

    def _preference(self, source: Source) -> tuple[float, ...]:
        """Members first, then the idle, then those that do not fail, then the fast and the untried; else as they were
        named, which is who likely has the blob first. Whoever keeps us waiting is asked when all others have been."""
        means, peer_id = self._means, source.peer_id
        is_late = peer_id in means.late
        return is_late, source.is_stranger, means.load[peer_id], source.num_failures, means.is_slow(peer_id)

    def _num_at_once(self, source: Source) -> int:
        return num_at_once(source, self._means.piece_seconds.get(source.peer_id), self._num_used())

    def _num_used(self) -> int:
        """Sources among which the pieces are shared: those asked for some, and the untried."""
        return min(SOURCES_PER_BLOB, sum(source.takes_part for source in self._sources.values()))

    def _is_busy(self) -> bool:
        """Whether something is on its way, or a source has yet to say what it has."""
        return any(source.requests or (source.num_tasks and source.have is None) for source in self._sources.values())

    def _is_hopeless(self) -> bool:
        """Nobody left to ask, or nothing has arrived for so long."""
        if all(source.is_done_with for source in self._sources.values()):
            return True
        return self._now() - self._progress_at > self._means.stall_seconds

    def _reasons(self) -> str:
        reasons = "; ".join(f"{source.peer_id}: {source.why}" for source in self._sources.values())
        return reasons or ("all known sources sent bad bytes" if self._bad else "nobody is known to have it")

    # ---- one source ----

    async def _use(self, source: Source) -> None:
        """Ask one source once for what is due, and note why it has no more."""
        self._means.load[source.peer_id] += 1
        try:
            async with self._means.turns[source.peer_id]:
                link = await self._means.connections.to(source.peer_id)
                with blaming(source.peer_id):
                    await self._ask(link, source)
        except BadMessage as error:
            self._means.bad_sources[source.peer_id] += 1
            self._bad.add(source.peer_id)
            self._be_done_with(source, error)
            logger.warning("a source sent bad bytes peer=%s reason=%s", source.peer_id, error)
        except (BlobMissing, Busy) as error:
            source.have_at, source.why, source.retry_at = -math.inf, str(error), self._now() + _ASK_AGAIN_SECONDS
        except (Stalled, Unsuitable) as error:
            self._be_done_with(source, error)
        except PeerError as error:
            source.num_failures, source.why = source.num_failures + 1, str(error)
            source.retry_at = self._now() + min(_ASK_AGAIN_SECONDS * 2**source.num_failures, _MOST_RETRY_SECONDS)
            # who has served is waited for as long as a stall may be: its relay starts again, its address changes
            source.is_done_with = source.num_failures >= _MAX_FAILURES and not source.has_served
        finally:
            self._means.load[source.peer_id] -= 1

    async def _ask(self, link: Link, source: Source) -> None:
        if self._now() - source.have_at > (_CHANGING_SECONDS if source.is_changing else _SETTLED_SECONDS):
            await self._ask_what_it_has(link, source)
        if pieces := self._next_for(source):
            await self._fetch(link, source, pieces)
        else:
            source.why, source.retry_at = "has none of the missing pieces", self._now() + _ASK_AGAIN_SECONDS

    def _be_done_with(self, source: Source, why: PeerError) -> None:
        source.is_done_with, source.why = True, str(why)
        for task, other in self._tasks.items():
            if other is source and task is not asyncio.current_task():
                task.cancel()

    async def _ask_what_it_has(self, link: Link, source: Source) -> None:
        request = HaveRequest(name=self.partial.name)
        timeout_seconds = min(SHORT_CALL_SECONDS, self._means.stall_seconds)
        reply: HaveReply = await link.call(link.stub.Have, request, timeout_seconds)
        have = Have.from_bitmap(reply.size_bytes, reply.bitmap)
        if have.pieces and have.size_bytes != self.partial.size_bytes:
            raise Unsuitable(f"says that it has {have.size_bytes} bytes, not the {self.partial.size_bytes} announced")
        if len(reply.uploads) > MAX_PEERS_PER_BLOB:
            raise BadMessage(f"says that {len(reply.uploads)} others fetch from it; {MAX_PEERS_PER_BLOB} are told of")
        promised: Counter[int] = Counter()
        for upload in reply.uploads:
            promised.update(Have.from_bitmap(self.partial.size_bytes, upload.bitmap).pieces)
            self._hear_of(PeerId(upload.peer))
        source.have, source.have_at, source.promised = have, self._now(), promised

    def _hear_of(self, peer_id: PeerId) -> None:
        """Somebody else is said to have pieces: ask it too, if it is one of those that we know."""
        if len(self._sources) < MAX_SOURCES and self._means.connections.entry_of(peer_id) is not None:
            self.add_sources([peer_id])

    def _fresh(self, source: Source) -> list[int]:
        return self._wanted.fresh(source, self._sources.values(), self.partial.held)

    def _next_for(self, source: Source) -> list[int]:
        piece_seconds = self._means.piece_seconds.get(source.peer_id)
        if fresh := self._fresh(source):
            num_used = self._num_used() + (not source.requests)
            return fresh[: request_size(piece_seconds, len(fresh), num_used)]
        sources, stall_seconds = self._sources.values(), self._means.stall_seconds
        return self._wanted.held_up(source, sources, self.partial.held, self._now(), stall_seconds, piece_seconds)

    # ---- one request ----

    async def _fetch(self, link: Link, source: Source, pieces: list[int]) -> None:
        """Take exactly the pieces asked for, in order; keep each as soon as it is verified."""
        request = Request.begun(self._now(), pieces, self._means.stall_seconds)
        source.requests.append(request)
        keeper = _Keeper(self.partial, lambda piece: self._kept(source, request, piece))
        try:
            async with contextlib.aclosing(self._replies(link, request)) as replies:
                await self._receive(replies, link, request, keeper)
        finally:
            try:
                await keeper.finish()  # what has come is kept, whatever came of the rest
            finally:
                source.requests.remove(request)
                source.preparing_since = self._now()

    async def _replies(self, link: Link, request: Request) -> AsyncGenerator[Chunk, None]:
        """The pieces' chunks. The digests, where they are asked for, are taken first."""
        patience = Patience(self._now(), self._means.stall_seconds, LEAST_BYTES_PER_SECOND)
        awaits_digests = self.partial.digests is None
        message = FetchRequest(name=self.partial.name, with_digests=awaits_digests, pieces=request.pieces)
        async with contextlib.aclosing(link.fetch(message, self._means.stall_seconds)) as replies:
            async for reply in replies:
                now = self._now()
                if now > patience.until:
                    raise Stalled(f"{link.peer_id} sends less than {LEAST_BYTES_PER_SECOND} bytes a second")
                for one in (patience, request.patience):
                    one.pause(len(reply.digests) + len(reply.content), now)
                if awaits_digests:
                    await asyncio.to_thread(self.partial.accept_digests, reply.digests)
                    awaits_digests = False
                else:
                    yield reply  # and wait for the next when that is asked for
                for one in (patience, request.patience):
                    one.go_on(self._now())

    async def _receive(
        self, replies: AsyncGenerator[Chunk, None], link: Link, request: Request, keeper: "_Keeper"
    ) -> None:
        """All pieces, or as many as until another source has brought one of them sooner."""
        expected = iter(tuple(request.pieces))
        awaited, began_at = next(expected, None), self._now()
        async for reply in replies:
            if awaited is None or reply.piece != awaited:
                raise BadMessage(f"piece {reply.piece}, which was not asked for")
            content = reply.content
            await self._means.download.take(len(content), link.peer_id)
            request.num_bytes += len(content)
            self._move.add(len(content), link.peer_id, link.transport)
            if keeper.take(awaited, content):
                await keeper.keep(awaited)
                self._means.note_piece(link.peer_id, self.partial.piece_bytes(awaited), self._now() - began_at)
                awaited, began_at = next(expected, None), self._now()
            elif awaited in self.partial.held:
                return
            request.num_bytes_of_piece = keeper.num_bytes
        if awaited is not None:
            raise Unreachable(f"ended before piece {awaited}")

    def _kept(self, source: Source, request: Request, piece: int) -> None:
        self._progress_at, source.num_failures, source.has_served = self._now(), 0, True
        request.pieces.remove(piece)


class _Keeper:
    """Puts together one piece while the piece before it is verified and written."""

    def __init__(self, partial: PartialBlob, on_kept: Callable[[int], None]) -> None:
        self.num_bytes = 0
        """Of the piece that is coming."""
        self._partial = partial
        self._on_kept = on_kept
        self._piece_bytes = min(PIECE_BYTES, partial.size_bytes)
        self._coming, self._spare = bytearray(self._piece_bytes), bytearray()
        self._task: asyncio.Task[None] | None = None

    def take(self, piece: int, content: memoryview) -> bool:
        """Whether the piece is whole now."""
        size_bytes = self._partial.piece_bytes(piece)
        end = self.num_bytes + len(content)
        if end > size_bytes or (size_bytes and not content):
            raise BadMessage(f"chunks that are not those of piece {piece}")
        self._coming[self.num_bytes : end] = content
        self.num_bytes = end
        return end == size_bytes

    async def keep(self, piece: int) -> None:
        """Begin to, once the one before has been kept; errors of that one are raised here."""
        await self.finish()
        content = memoryview(self._coming)[: self.num_bytes]
        self._task = asyncio.create_task(self._keep(piece, content))
        self._coming, self._spare = self._spare or bytearray(self._piece_bytes), self._coming
        self.num_bytes = 0

    async def _keep(self, piece: int, content: memoryview) -> None:
        await asyncio.to_thread(self._partial.accept_piece, piece, content)
        self._on_kept(piece)

    async def finish(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            await task
