"""Simulated volunteers of `bench bootstrap`: each has a key, a TLS connection and a stream to the coordinator, as a
real one has; but they train nothing, check no signature, and sign every proposal.

What all are sent alike is read once.
"""

import asyncio
import functools
import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from spes_peer.errors import SpesError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.connections import open_channel, pem_of
from spes_peer.exchange.introduction import Introduction, describe
from spes_peer.exchange.link import Link
from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import Identity
from spes_peer.rounds.messages import AdmissionRequest, Beat, CoordinatorBeat, Proposal
from spes_peer.run.manifest import PROTOCOL_VERSION
from spes_peer.run.records import CertifiedRecord, RecordSignature, SealedRecord
from spes_peer.run.signed import Signer, unpack
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import FetchRequest, HaveRequest, RecordsRequest, SnapshotsRequest, StandingRequest

CONNECT_SECONDS = 120.0
CALL_SECONDS = 60.0
_AT_ONCE = 20  # that arrive
_AGAIN_SECONDS = 1.0
_KINDS: dict[str, Any] = {one.__name__: one for one in (CoordinatorBeat, Proposal, CertifiedRecord)}


@dataclass
class Figures:
    """What the clients saw."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By call, from its begin to its end."""
    failures: Counter[str] = field(default_factory=Counter)
    num_beats: int = 0
    """That clients sent."""
    bytes_fetched: int = 0

    async def timed(self, name: str, work: Awaitable[Any]) -> Any:
        """What `work` gives; None where it fails, which is counted."""
        began_at = time.perf_counter()
        try:
            found = await work
        except (SpesError, grpc.RpcError, OSError, TimeoutError) as error:
            self.failures[f"{name}: {str(error)[-80:]}"] += 1
            return None
        self.seconds[name].append(time.perf_counter() - began_at)
        return found


@functools.lru_cache(maxsize=16)
def _read(kind: str, body: bytes) -> Any:
    return convert.decode(_KINDS[kind], unpack(body))


@functools.lru_cache(maxsize=16)
def _hash_of(record: bytes) -> bytes:
    return hashlib.sha256(record).digest()


@functools.lru_cache(maxsize=16)
def _round_of(record: bytes) -> int:
    return SealedRecord.from_bytes(record).round


class Client:
    """One volunteer."""

    def __init__(self, introduction: Introduction, figures: Figures, subset: int) -> None:
        self.identity = Identity.generate()
        self.round, self.head_hash = 0, b""
        self._signer = Signer(self.identity, introduction.run_id, time.time_ns(), lambda: self.head_hash)
        self._introduction = introduction
        self._figures = figures
        self._subset = subset
        self._writing = asyncio.Lock()
        self.link: Link | None = None

    async def live(
        self, address: NodeAddress, turns: asyncio.Semaphore, heartbeat_seconds: float, on_admitted: Callable[[], None]
    ) -> None:
        """Arrive, when it is its turn, and attend for ever; who loses the stream begins again, and that is counted."""
        while True:
            async with turns:
                await self._figures.timed("introduce, while all come", describe(address, CONNECT_SECONDS))
                await self._figures.timed("connect, while all come", self._connect())
            if self.link is not None:
                await self._attend(self.link, heartbeat_seconds, on_admitted)
                await self.close()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _connect(self) -> None:
        entry, target = self._introduction.entry, self._introduction.endpoint.target
        channel = await open_channel(target, pem_of(entry.certificate), CONNECT_SECONDS)
        self.link = Link(entry.peer_id, "grpc", channel, self._signer, Traffic())

    async def close(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            await link.channel.close(None)

    async def _attend(self, link: Link, heartbeat_seconds: float, on_admitted: Callable[[], None]) -> None:
        call = link.stub.Attend(metadata=link.metadata())
        beating = asyncio.create_task(self._beat(call, heartbeat_seconds))
        try:
            await self._say(call, AdmissionRequest((self._subset,), 1_000.0, PROTOCOL_VERSION))
            while (received := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                await self._take(call, received, on_admitted)
            self._figures.failures["attend: the node ended the stream"] += 1
        except grpc.aio.AioRpcError as error:
            self._figures.failures[f"attend: {(error.details() or '')[-80:]}"] += 1
        except asyncio.InvalidStateError:
            self._figures.failures["attend: the stream was lost"] += 1
        finally:
            beating.cancel()
            call.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, call: Any, heartbeat_seconds: float) -> None:
        await asyncio.sleep(random.uniform(0.0, heartbeat_seconds))
        while True:
            await self._say(call, Beat(self.round, "training", 0))
            self._figures.num_beats += 1
            await asyncio.sleep(heartbeat_seconds)

    async def _say(self, call: Any, message: Any) -> None:
        async with self._writing:  # gRPC takes one write of a stream at a time
            await call.write(convert.to_message(self._signer.sign(message)))

    async def _take(self, call: Any, received: Any, on_admitted: Callable[[], None]) -> None:
        if received.kind not in _KINDS:
            return
        message = _read(received.kind, received.body)
        match message:
            case CoordinatorBeat():
                self._figures.seconds["beat heard"].append(max(0.0, time.time() - message.sent_at))
            case Proposal():
                word = RecordSignature(_round_of(message.record), message.term, _hash_of(message.record))
                await self._say(call, word)
            case CertifiedRecord():
                self.round, self.head_hash = message.sealed.round, message.sealed.hash
                if self.round == 1:
                    on_admitted()


@asynccontextmanager
async def attending(
    clients: list[Client], address: NodeAddress, heartbeat_seconds: float
) -> AsyncIterator[asyncio.Event]:
    """All come, some at a time, and attend; the event is set when the last of them has heard that round 1 is open."""
    left, all_in, turns = {client.identity.peer_id for client in clients}, asyncio.Event(), asyncio.Semaphore(_AT_ONCE)

    def admitted(client: Client) -> None:
        left.discard(client.identity.peer_id)
        if not left:
            all_in.set()

    tasks = [
        asyncio.create_task(client.live(address, turns, heartbeat_seconds, functools.partial(admitted, client)))
        for client in clients
    ]
    try:
        yield all_in
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in clients))


def calls_of(figures: Figures, address: NodeAddress, shard: tuple[str, int]) -> Mapping[str, Callable[[Link], Any]]:
    """What volunteers ask a bootstrap node for, by name; `shard` is a data shard, and how many pieces it has."""
    name, num_pieces = shard

    async def answers(call: Any) -> None:
        async for answer in call:
            figures.bytes_fetched += answer.ByteSize()

    def unary(method: str, request: Any) -> Callable[[Link], Any]:
        return lambda link: getattr(link.stub, method)(request, metadata=link.metadata(), timeout=CALL_SECONDS)

    def stream(method: str, request: Callable[[], Any]) -> Callable[[Link], Any]:
        return lambda link: answers(
            getattr(link.stub, method)(request(), metadata=link.metadata(), timeout=CALL_SECONDS)
        )

    return {
        "introduce": lambda _link: describe(address, CALL_SECONDS),
        "where it stands": unary("Stand", StandingRequest()),
        "records": stream("Records", lambda: RecordsRequest(from_round=0)),
        "snapshots": unary("ListSnapshots", SnapshotsRequest()),
        "which pieces": unary("Have", HaveRequest(name=name)),
        "a piece of 1 MiB": stream("Fetch", lambda: FetchRequest(name=name, pieces=[random.randrange(num_pieces)])),
    }
