"""What this node serves to every other: records, blobs, and its coordinator's ear, on a TCP port and a Unix socket.

The Unix socket is where the libp2p node pipes inbound streams to, so one service answers both transports. Everything a
caller sends is bounded and checked here; what this node *is* (`Host`) is the daemon's to say.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from spes_peer.blobs import num_pieces_of
from spes_peer.errors import BadConfiguration, BadMessage, BadSignature, BlobMissing, SpesError, Unreachable
from spes_peer.exchange import grpc_options
from spes_peer.exchange.addresses import Endpoint, parse_endpoint
from spes_peer.exchange.chunk_size import ChunkSize
from spes_peer.exchange.dial_back import DialBack, caller_ip
from spes_peer.exchange.holdings import Have, Holdings
from spes_peer.exchange.introduction import Description
from spes_peer.exchange.limits import (
    ATTENDED_SILENCE_SECONDS,
    BAD_MESSAGES,
    MAX_CALLS,
    MAX_CALLS_OF_STRANGERS,
    MAX_CALLS_PER_CALLER,
    MAX_PIECES_PER_REQUEST,
    MAX_RECORDS_PER_CALL,
    REQUEST_SECONDS,
    SEND_STALL_SECONDS,
    Busy,
    Paces,
    Slots,
    cost,
)
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.tokens import TOKEN_KEY, open_token
from spes_peer.exchange.traffic import Traffic, Transport
from spes_peer.exchange.transfers import Move, Transfers
from spes_peer.exchange.uploads import Uploads
from spes_peer.identity import PeerId, TlsIdentity
from spes_peer.logs import plain
from spes_peer.ports import MAX_SOCKET_PATH_BYTES
from spes_peer.run.peers import Standing
from spes_peer.run.pending import AmendReply
from spes_peer.run.records import CertifiedRecord, Snapshot
from spes_peer.run.signed import Signed
from spes_peer.wire import convert, peer_pb2, signed_pb2
from spes_peer.wire.chunks import pack_chunk
from spes_peer.wire.peer_pb2 import (
    AmendRequest,
    DialBackReply,
    DialBackRequest,
    FetchReply,
    FetchRequest,
    HaveReply,
    HaveRequest,
    RecordsRequest,
    Snapshots,
    SnapshotsRequest,
    StandingRequest,
    Upload,
)

M = TypeVar("M", bound=Message)
logger = logging.getLogger(__name__)

_SAID_TO_MANY = 16  # messages that are still being written to some
_OUTBOX_MESSAGES = 1_000  # a member that is so far behind does not read
_MAX_REASON_CHARACTERS = 400  # of what a caller said, some is in it
Context = Any  # grpc.aio.ServicerContext


class Host(Protocol):
    """The node behind the service."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def run_id(self) -> bytes: ...

    def now(self) -> float:
        """Unix seconds, by which call tokens are judged."""

    def hears_time(self, peer: PeerId, their_time: float) -> None:
        """It is `their_time` for a peer that calls; it is not answered if that is too far from `now`."""

    def names(self, peer: PeerId) -> bool:
        """Whether the newest record does: others are strangers, who may not take all that there is."""

    def description(self) -> Description:
        """For newcomers; the only answer that needs no token."""

    def standing(self) -> Standing:
        """The chain it holds and whom it follows."""

    def records_from(self, round: int) -> Iterable[CertifiedRecord]:
        """Oldest first."""

    def snapshots(self) -> Sequence[Snapshot]:
        """Newest first."""

    def amend(self, brought: Signed | None) -> AmendReply:
        """Take an amendment of an organizer, whoever brings it; its signature is the host's to check."""

    async def attend(self, caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        """Talk with a member until `incoming` ends; cancelled when the connection breaks. The messages' signatures
        are the host's to check. `send` never waits; after a member has stopped reading, its call ends. A host that
        is no coordinator returns at once, which closes the call."""


class PeerServer:
    """The running service."""

    def __init__(self, server: grpc.aio.Server, port: int | None, unix_path: Path) -> None:
        self.port = port
        """None when it listens for nobody outside."""
        self._server = server
        self._unix_path = unix_path

    @classmethod
    async def start(
        cls,
        host: Host,
        holdings: Holdings,
        tls: TlsIdentity,
        listen: str | None,
        unix_path: Path,
        traffic: Traffic,
        upload: Pace | None = None,
        home_address: Callable[[Sequence[str]], str] = lambda _callers: "",
        transfers: Transfers | None = None,
    ) -> "PeerServer":
        """Listen on `unix_path` and on `listen` ("127.0.0.1:4510"; port 0 for any; None for no inbound connections).
        Blobs leave at the pace of `upload`; `home_address` is what callers through a tunnel are told that say to be at
        these addresses. What is served is shown on `transfers`. `BadConfiguration` when that cannot be."""
        endpoint = parse_endpoint(listen, lowest_port=0) if listen is not None else None
        _make_way(unix_path)
        server = grpc.aio.server(options=grpc_options.SERVER, maximum_concurrent_rpcs=MAX_CALLS)
        dial_back = DialBack(home_address=home_address)
        service = _Service(host, holdings, traffic, upload or Pace(), dial_back, transfers or Transfers())
        server.add_generic_rpc_handlers((_handlers(service),))
        credentials = grpc.ssl_server_credentials([(tls.key_pem, tls.certificate_pem)])
        try:
            port = server.add_secure_port(str(endpoint), credentials) if endpoint is not None else None
        except RuntimeError:
            raise BadConfiguration(_why_not_bound(endpoint)) from None
        server.add_secure_port(f"unix:{unix_path}", credentials)
        await server.start()
        return cls(server, port, unix_path)

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more calls; end those that still run after `grace_seconds`."""
        await self._server.stop(grace_seconds)
        self._unix_path.unlink(missing_ok=True)


def _make_way(unix_path: Path) -> None:
    if len(os.fsencode(unix_path)) > MAX_SOCKET_PATH_BYTES:
        raise BadConfiguration(f"the path {unix_path} is too long for a socket; choose a shorter state folder")
    unix_path.unlink(missing_ok=True)  # of an earlier start that was killed


def _why_not_bound(endpoint: Endpoint | None) -> str:
    # gRPC does not say why: try it ourselves.
    assert endpoint is not None
    family = socket.AF_INET6 if endpoint.ip_version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((endpoint.host, endpoint.port))
    except OSError as error:
        reason = error.strerror or str(error)
        if "in use" in reason:
            return (
                f"port {endpoint.port} on {endpoint.host} is in use; stop what uses it, or choose another with --listen"
            )
        return f"cannot listen on {endpoint}: {reason}; choose another address with --listen"
    return f"port {endpoint.port} on {endpoint.host} was in use a moment ago; try again"


_CODES: list[tuple[type[SpesError], grpc.StatusCode]] = [
    (BadSignature, grpc.StatusCode.UNAUTHENTICATED),
    (BadMessage, grpc.StatusCode.INVALID_ARGUMENT),
    (BlobMissing, grpc.StatusCode.NOT_FOUND),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (SpesError, grpc.StatusCode.ABORTED),
]


def _handlers(service: "_Service") -> "grpc.GenericRpcHandler[Any, Any]":
    """The calls of proto/peer.proto. On the wire they are as the generated code has them; but here each is taken by
    its token before anything of it is read, and what is read must come in time."""
    described = peer_pb2.DESCRIPTOR.services_by_name["Peer"]
    return grpc.method_handlers_generic_handler(
        described.full_name, {method.name: _handler(service, method) for method in described.methods}
    )


def _handler(service: "_Service", described: MethodDescriptor) -> "grpc.RpcMethodHandler[Any, Any]":
    method = getattr(service, described.name)
    request_class = GetMessageClass(described.input_type)

    async def answer(incoming: AsyncIterator[bytes], context: Context) -> Any:
        try:
            if described.name == "Describe":  # the only call without a token; its request says nothing that counts
                return await method(None, None)
            with service.line(context) as line:
                if described.client_streaming:
                    return await method(incoming, line)
                return await method(await _request(incoming, request_class, line), line)
        except SpesError as error:
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            await context.abort(code, str(error)[:_MAX_REASON_CHARACTERS])
        except (grpc.aio.AbortError, grpc.RpcError):
            raise
        except Exception:
            logger.exception("a call failed method=%s", described.name)
            await context.abort(grpc.StatusCode.INTERNAL, "failed")

    make = grpc.stream_stream_rpc_method_handler if described.server_streaming else grpc.stream_unary_rpc_method_handler
    return make(answer, response_serializer=_serialized)


def _serialized(answer: Message | bytes) -> bytes:
    """What is written to a stream is counted, and has been serialized for that."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


async def _request(incoming: AsyncIterator[bytes], request_class: type[Message], line: "_Line") -> Message:
    """The one message of a call; `BadMessage` for one that does not come, or is none."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            content = await anext(incoming, None)
    except TimeoutError:
        raise BadMessage(f"a call whose request does not come in {REQUEST_SECONDS:g} s") from None
    if content is None:
        raise BadMessage("a call without a request")
    request = _parsed(request_class, content)
    if len(UnknownFieldSet(request)):
        raise BadMessage(f"a {request.DESCRIPTOR.name} with fields that this version does not know")
    line.count_received(request)
    return request


def _parsed(message_class: type[M], content: bytes) -> M:
    try:
        return message_class.FromString(content)
    except DecodeError:
        raise BadMessage(f"bytes that are not a {message_class.DESCRIPTOR.name}") from None


class _Service:
    """The calls of proto/peer.proto."""

    def __init__(
        self,
        host: Host,
        holdings: Holdings,
        traffic: Traffic,
        upload: Pace,
        dial_back: DialBack,
        transfers: Transfers,
    ) -> None:
        self._host = host
        self._holdings = holdings
        self._traffic = traffic
        self._upload = upload
        self._slots = Slots.for_fetches(upload.num_at_once)
        self._calls = Slots(MAX_CALLS, MAX_CALLS_PER_CALLER, MAX_CALLS_OF_STRANGERS)
        self._uploads = Uploads()
        self._attending: dict[PeerId, asyncio.Event] = {}
        """Set when the caller attends by a newer call."""
        self._dial_back = dial_back
        self._transfers = transfers
        self._said, self._faults = Paces(), Paces()
        """How fast callers talk that attend, and send what is no request."""

    async def Describe(self, _request: None, _line: None) -> Any:
        return convert.to_message(self._host.description())

    async def Stand(self, request: StandingRequest, line: "_Line") -> Any:
        return line.counted(convert.to_message(self._host.standing()))

    async def Records(self, request: RecordsRequest, line: "_Line") -> None:
        for record in islice(self._host.records_from(request.from_round), MAX_RECORDS_PER_CALL):
            await line.write(convert.to_message(record))

    async def ListSnapshots(self, request: SnapshotsRequest, line: "_Line") -> Snapshots:
        reply = Snapshots()
        for snapshot in self._host.snapshots():
            reply.snapshots.append(convert.to_message(snapshot))  # type: ignore[arg-type]
        return line.counted(reply)

    async def Have(self, request: HaveRequest, line: "_Line") -> HaveReply:
        have = self._holdings.have(request.name)
        reply = HaveReply(size_bytes=have.size_bytes, bitmap=have.bitmap())
        num_pieces = num_pieces_of(have.size_bytes)
        for peer, pieces in self._uploads.to_others(request.name, line.caller).items():
            # they may have been asked for before it was known here how many there are
            known = Have(have.size_bytes, frozenset(piece for piece in pieces if piece < num_pieces))
            reply.uploads.append(Upload(peer=peer, bitmap=known.bitmap()))
        return line.counted(reply)

    async def Fetch(self, request: FetchRequest, line: "_Line") -> None:
        have = self._holdings.have(request.name)
        if self._upload.is_used_up:
            raise Busy("what may be sent from here today is used up; ask others")
        if len(request.pieces) > MAX_PIECES_PER_REQUEST:
            raise BadMessage(f"{len(request.pieces)} pieces at once; {MAX_PIECES_PER_REQUEST} are served")
        if (have.pieces or have.size_bytes) and max(request.pieces, default=0) >= num_pieces_of(have.size_bytes):
            raise BadMessage(f"piece {max(request.pieces)} of a blob of {have.size_bytes} bytes")
        with (
            self._slots.hold(line.caller, line.is_stranger),
            self._holdings.serving(request.name),
            self._uploads.noting(request.name, line.caller, request.pieces) as unsent,
            self._transfers.serving(request.name, have.size_bytes, line.caller) as move,
        ):
            if request.with_digests:
                await line.write(FetchReply(digests=self._holdings.digests(request.name)))
            chunk_size = ChunkSize()
            async with contextlib.aclosing(self._pieces(request)) as pieces:
                async for index, piece in pieces:
                    await self._send_piece(line, index, memoryview(piece), chunk_size, move)
                    unsent.discard(index)
                    self._holdings.note_served(request.name)

    async def _pieces(self, request: FetchRequest) -> AsyncGenerator[tuple[int, bytes], None]:
        """Each is read while the one before it is sent."""
        coming: asyncio.Task[bytes] | None = None
        try:
            for index, next_index in zip_longest(request.pieces, request.pieces[1:]):
                piece = await (coming or self._read_piece(request.name, index))
                coming = None if next_index is None else asyncio.create_task(self._read_piece(request.name, next_index))
                yield index, piece
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _read_piece(self, name: str, index: int) -> bytes:
        return await asyncio.to_thread(self._holdings.read_piece, name, index)

    async def _send_piece(
        self, line: "_Line", index: int, piece: memoryview, chunk_size: ChunkSize, move: Move
    ) -> None:
        now, start = asyncio.get_running_loop().time, 0
        while start < max(len(piece), 1):
            num_bytes = min(chunk_size.num_bytes, self._upload.chunk_bytes(self._slots.num_taken))
            chunk = piece[start : start + num_bytes]
            await self._upload.take(len(chunk), line.caller)
            began_at = now()
            await line.write_packed(pack_chunk(index, chunk))
            chunk_size.note(now() - began_at)
            move.add(len(chunk), line.caller, line.transport)
            start += num_bytes

    async def DialBack(self, request: DialBackRequest, line: "_Line") -> DialBackReply:
        return line.counted(await self._dial_back.answer(line.caller, caller_ip(line.context.peer()), request))

    async def Amend(self, request: AmendRequest, line: "_Line") -> Any:
        brought = convert.from_message(Signed, request.amendment) if request.HasField("amendment") else None
        return line.counted(convert.to_message(self._host.amend(brought)))

    async def Attend(self, request_iterator: AsyncIterator[bytes], line: "_Line") -> None:
        if (older := self._attending.get(line.caller)) is not None:
            older.set()
        replaced = self._attending[line.caller] = asyncio.Event()
        outbox: asyncio.Queue[Signed] = asyncio.Queue(_OUTBOX_MESSAGES)
        writing = asyncio.create_task(_write_all(line, outbox))
        incoming = _signed(request_iterator, line, self._said)
        talking = asyncio.create_task(self._host.attend(line.caller, incoming, _sender(outbox, writing)))
        waiting = asyncio.create_task(replaced.wait())
        try:
            await asyncio.wait((writing, talking, waiting), return_when=asyncio.FIRST_COMPLETED)
            if replaced.is_set():
                raise Unreachable("you attend by a newer call")
            if not talking.done():
                raise Unreachable("you do not read what you are sent")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # let the last words out
                    await outbox.join()
            talking.result()
        finally:
            if self._attending.get(line.caller) is replaced:
                del self._attending[line.caller]
            for task in (writing, talking, waiting):
                task.cancel()
            await asyncio.gather(writing, talking, waiting, return_exceptions=True)

    @contextlib.contextmanager
    def line(self, context: Context) -> Iterator["_Line"]:
        """The call, once its token is found good, and unless its caller, or strangers together, have too many."""
        tokens = [value for key, value in context.invocation_metadata() or () if key == TOKEN_KEY]
        try:
            token = open_token(tokens[0] if tokens else None, self._host.run_id, self._host.peer_id)
        except BadSignature as error:  # shown once a minute for an address, as `logs.RepeatFilter` has it
            ip_address = caller_ip(context.peer()) or "tunnel"
            logger.warning("refused a call peer=%s reason=%s", ip_address, plain(str(error), _MAX_REASON_CHARACTERS))
            raise
        self._host.hears_time(token.caller, token.made_at)
        token.check_time(self._host.now())
        if seconds := self._faults.debt_seconds(token.caller):
            raise Busy(f"too much of what you sent was no request; ask again in {seconds:.1f} s")
        transport: Transport = "libp2p" if context.peer().startswith("unix") else "grpc"
        is_stranger = not self._host.names(token.caller)
        with self._calls.hold(token.caller, is_stranger):
            try:
                yield _Line(token.caller, is_stranger, transport, context, self._traffic)
            except BadMessage:
                self._faults.pause_seconds(token.caller, BAD_MESSAGES)
                raise


@dataclass(frozen=True)
class _Line:
    """One call: who is at the other end, over what, and how many bytes it took."""

    caller: PeerId
    is_stranger: bool
    transport: Transport
    context: Context
    traffic: Traffic

    def count_received(self, message: Message) -> None:
        self.traffic.received(self.caller, self.transport, message.ByteSize())

    def counted(self, reply: M) -> M:
        self.traffic.sent(self.caller, self.transport, reply.ByteSize())
        return reply

    async def write(self, message: Message) -> None:
        """Send one message; a caller that takes nothing for long loses its call."""
        await self.write_packed(message.SerializeToString())

    async def write_packed(self, content: bytes) -> None:
        self.traffic.sent(self.caller, self.transport, len(content))
        try:
            async with asyncio.timeout(SEND_STALL_SECONDS):
                await self.context.write(content)
        except TimeoutError:
            raise Unreachable("you do not read what you are sent") from None


async def _signed(messages: AsyncIterator[bytes], line: _Line, paces: Paces) -> AsyncIterator[Signed]:
    """What one that attends says, read no faster than at its pace."""
    while True:
        try:
            async with asyncio.timeout(ATTENDED_SILENCE_SECONDS):
                content = await anext(messages, None)
        except TimeoutError:
            raise Unreachable(f"you have said nothing for {ATTENDED_SILENCE_SECONDS:g} s") from None
        if content is None:
            return
        message = _parsed(signed_pb2.Signed, content)
        line.count_received(message)
        signed = convert.from_message(Signed, message)
        yield signed
        if pause_seconds := paces.pause_seconds(line.caller, cost(signed)):
            await asyncio.sleep(pause_seconds)


def _sender(outbox: "asyncio.Queue[Signed]", writing: "asyncio.Task[None]") -> Callable[[Signed], None]:
    def send(message: Signed) -> None:
        try:
            outbox.put_nowait(message)
        except asyncio.QueueFull:
            writing.cancel()

    return send


async def _write_all(line: _Line, outbox: "asyncio.Queue[Signed]") -> None:
    while True:
        await line.write_packed(_packed(await outbox.get()))
        outbox.task_done()


@lru_cache(maxsize=_SAID_TO_MANY)
def _packed(message: Signed) -> bytes:
    """As it goes on the wire. A coordinator says the same to all: it is encoded for the first of them."""
    return convert.to_message(message).SerializeToString()
