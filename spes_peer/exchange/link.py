"""A connection to one peer: its calls, each with a token, a time-out and our own errors.

Whoever calls does not know which transport carries the call. Whatever a peer answers costs no more than that call.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message

from spes_peer.errors import BadMessage, BadSignature, BlobMissing, PeerError, SpesError, Unreachable
from spes_peer.exchange.limits import Busy
from spes_peer.exchange.tokens import TOKEN_KEY, make_token
from spes_peer.exchange.traffic import Traffic, Transport
from spes_peer.identity import PeerId
from spes_peer.logs import plain
from spes_peer.run.signed import Signer
from spes_peer.wire.chunks import Chunk, unpack_chunk
from spes_peer.wire.peer_pb2 import DESCRIPTOR, FetchRequest
from spes_peer.wire.peer_pb2_grpc import PeerStub

logger = logging.getLogger(__name__)

_FETCH = f"/{DESCRIPTOR.services_by_name['Peer'].full_name}/Fetch"
_MAX_REASON_CHARACTERS = 200  # of a stranger's words
_END = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_ERRORS: dict[grpc.StatusCode, type[PeerError] | type[BlobMissing]] = {
    grpc.StatusCode.NOT_FOUND: BlobMissing,
    grpc.StatusCode.INVALID_ARGUMENT: BadMessage,
    grpc.StatusCode.UNAUTHENTICATED: BadSignature,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
}


class Stalled(Unreachable):
    """It is there and sends nothing."""


class Link:
    """`stub` has the calls of proto/peer.proto; `call` and `stream` make them with tokens, time-outs and our errors."""

    def __init__(
        self,
        peer_id: PeerId,
        transport: Transport,
        channel: grpc.aio.Channel,
        signer: Signer,
        traffic: Traffic,
        on_lost: Callable[["Link"], None] = lambda _link: None,
        now: Callable[[], float] = time.time,
        target: str = "",
    ) -> None:
        self.peer_id = peer_id
        self.transport = transport
        self.target = target
        """Where it was dialled, as gRPC writes that."""
        self.channel = channel
        self.round_trip_seconds = 0.0
        """Of the last call that was answered; 0 before any was."""
        self.stub: Any = PeerStub(channel)  # type: ignore[no-untyped-call]
        self._signer = signer
        self._traffic = traffic
        self._on_lost = on_lost
        self._now = now
        self._fetch = channel.unary_stream(
            _FETCH, request_serializer=FetchRequest.SerializeToString, response_deserializer=self._counted_chunk
        )

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """A fresh token; for calls made on `stub` directly."""
        return ((TOKEN_KEY, make_token(self._signer, self.peer_id, self._now())),)

    def count_sent(self, message: Message) -> None:
        """For messages of calls that are made on `stub` directly."""
        self._traffic.sent(self.peer_id, self.transport, message.ByteSize())

    def count_received(self, message: Message) -> None:
        self._traffic.received(self.peer_id, self.transport, message.ByteSize())

    async def call(self, method: Any, request: Any, timeout_seconds: float, needs_work: bool = False) -> Any:
        """The answer of a method of `stub` with one answer; `PeerError` or `BlobMissing` says why there is none. One
        that `needs_work` says nothing of the round trip."""
        with self.our_errors():
            self.count_sent(request)
            began_at = time.monotonic()
            answer = parsed(await method(request, metadata=self.metadata(), timeout=timeout_seconds))
            if not needs_work:
                self.round_trip_seconds = time.monotonic() - began_at
            self.count_received(answer)
            return answer

    async def stream(self, method: Any, request: Any, stall_seconds: float) -> AsyncGenerator[Any, None]:
        """The answers of a method of `stub` with many; `Stalled` when none comes for `stall_seconds`."""
        async with contextlib.aclosing(self._answers(method, request, stall_seconds)) as answers:
            async for answer in answers:
                self.count_received(answer)
                yield answer

    def fetch(self, request: FetchRequest, stall_seconds: float) -> AsyncGenerator[Chunk, None]:
        """The answers of `Fetch`, as `stream` gives them."""
        return self._answers(self._fetch, request, stall_seconds)

    def _counted_chunk(self, content: bytes) -> Chunk:
        self._traffic.received(self.peer_id, self.transport, len(content))
        return unpack_chunk(content)

    async def _answers(self, method: Any, request: Message, stall_seconds: float) -> AsyncGenerator[Any, None]:
        self.count_sent(request)
        with self.our_errors():
            call = method(request, metadata=self.metadata())
        try:
            while True:
                with self.our_errors():
                    async with asyncio.timeout(stall_seconds):
                        answer = await call.read()
                if answer is _END:
                    return
                yield parsed(answer)
        except TimeoutError:
            raise Stalled(f"{self.peer_id} sent nothing for {stall_seconds:g} s") from None
        finally:
            call.cancel()

    @contextlib.contextmanager
    def our_errors(self) -> Iterator[None]:
        """For calls that are made on `stub` directly: gRPC's errors become ours, and a lost connection is given up."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                self._on_lost(self)
            raise _ours(self.peer_id, error) from None
        except grpc.aio.UsageError:  # of a call that is begun on a closed channel
            raise Unreachable(f"the connection to {self.peer_id} was closed") from None
        except asyncio.CancelledError:
            # gRPC also raises this when the channel is closed under a call; that must not look like our task's end.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unreachable(f"the connection to {self.peer_id} was closed") from None


def parsed(answer: Any) -> Any:
    """What gRPC gives for an answer, or `BadMessage`: it gives None for bytes that it could not parse."""
    if answer is None:
        raise BadMessage("an answer of bytes that cannot be read")
    return answer


@contextlib.contextmanager
def blaming(peer_id: PeerId) -> Iterator[None]:
    """Around what is made of a peer's bytes: what nobody has foreseen is logged as a fault of ours, and ends as
    `BadMessage`, for it may cost us that peer, but not this node, whoever finds it."""
    try:
        yield
    except (SpesError, OSError):
        raise
    except Exception as error:
        logger.exception("what a peer said met a fault of ours peer=%s", peer_id[-8:])
        raise BadMessage(f"{peer_id} said what met a fault of ours: {type(error).__name__}") from None


def _ours(peer_id: PeerId, error: grpc.aio.AioRpcError) -> PeerError | BlobMissing:
    said = plain(error.details() or "", _MAX_REASON_CHARACTERS)
    kind = _ERRORS.get(error.code(), Unreachable)
    return kind(f"{peer_id}: {error.code().name}: {said}" if said else f"{peer_id}: {error.code().name}")
