"""A node's stream to the coordinator: opened again whenever it breaks, signed both ways.

What is sent while there is no stream is dropped, because it may be stale by then; on every new stream the member says
again what still matters (`on_open`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from spes_peer.errors import BadSignature, PeerError, SpesError, Unreachable
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.limits import BAD_MESSAGES, Paces, cost
from spes_peer.exchange.link import Link, blaming, parsed
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import FROM_COORDINATOR
from spes_peer.run.records import CertifiedRecord
from spes_peer.run.signed import ReplayGuard, Signed, Signer, open_any
from spes_peer.wire import convert

logger = logging.getLogger(__name__)

_KINDS = {**FROM_COORDINATOR, "CertifiedRecord": CertifiedRecord}
_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 5.0
_OUTBOX_MESSAGES = 10_000


class Attendance:
    """Attends whom `target` names, for as long as `run` runs."""

    def __init__(
        self,
        connections: Connections,
        signer: Signer,
        target: Callable[[], PeerId | None],
        silence_seconds: float,
    ) -> None:
        self.on_message: Callable[[PeerId, Any], None] = lambda _sender, _message: None
        self.on_open: Callable[[], Iterable[Any]] = lambda: ()
        self.on_lost: Callable[[str], None] = lambda _why: None
        """Called with the reason whenever the target cannot be attended."""
        self.attended: PeerId | None = None
        """Who has said something on the stream that is open."""
        self._connections = connections
        self._signer = signer
        self._target = target
        self._silence_seconds = silence_seconds
        self._outbox: asyncio.Queue[Any] | None = None
        self._replays = ReplayGuard()
        self._paces = Paces()
        self._retargeted = asyncio.Event()

    def send(self, message: Any) -> None:
        """Sign and send `message`; dropped when there is no stream."""
        if self._outbox is not None and self._outbox.qsize() < _OUTBOX_MESSAGES:
            self._outbox.put_nowait(message)

    def look_again(self) -> None:
        """Attend another if `target` names another now."""
        self._retargeted.set()

    async def run(self) -> None:
        """Attend for ever; ends by cancellation."""
        retry_seconds = _FIRST_RETRY_SECONDS
        while True:
            target = self._target()
            self._retargeted.clear()
            why = "the record names nobody to coordinate"
            if target is not None:
                try:
                    await self._unless_retargeted(target)
                    why = f"{target} ended the stream"
                except SpesError as error:
                    why = str(error)
            if self.attended is not None:
                self.attended, retry_seconds = None, _FIRST_RETRY_SECONDS
            if target != self._target():
                continue
            self.on_lost(why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_seconds):
                    await self._retargeted.wait()
            retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)

    async def _unless_retargeted(self, target: PeerId) -> None:
        """Attend until that ends, or until another is to be attended."""
        attending = asyncio.create_task(self._attend(target))
        try:
            while not attending.done() and self._target() == target:
                self._retargeted.clear()
                again = asyncio.create_task(self._retargeted.wait())
                try:
                    await asyncio.wait((attending, again), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    again.cancel()
            if attending.done():
                attending.result()
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)

    async def _attend(self, target: PeerId) -> None:
        """Until `target` ends the stream. Raises `PeerError` when it cannot be reached, breaks off or falls silent."""
        link = await self._connections.to(target)
        with link.our_errors():
            call = link.stub.Attend(metadata=link.metadata())
            self._outbox = asyncio.Queue()
            for message in self.on_open():
                self._outbox.put_nowait(message)
            writing = asyncio.create_task(self._write(link, call, self._outbox))
            try:
                async for message in self._read(link, call):
                    self.attended = target
                    with blaming(target):
                        self.on_message(target, message)
            finally:
                self._outbox = None
                writing.cancel()
                call.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, link: Link, call: Any, outbox: "asyncio.Queue[Any]") -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader meets the same end and says so
            while True:
                message = convert.to_message(self._signer.sign(await outbox.get()))
                await call.write(message)
                link.count_sent(message)

    async def _read(self, link: Link, call: Any) -> AsyncIterator[Any]:
        """What the target says, read no faster than at its pace; a bad message is dropped, silence ends the stream."""
        while True:
            try:
                async with asyncio.timeout(self._silence_seconds):
                    received = await call.read()
            except TimeoutError:
                self._connections.drop(link.peer_id)  # whatever carries it may be dead without knowing
                raise Unreachable(f"the coordinator said nothing for {self._silence_seconds:g} s") from None
            if received is grpc.aio.EOF:  # type: ignore[attr-defined]
                return
            try:
                with blaming(link.peer_id):
                    link.count_received(parsed(received))
                    signed = convert.from_message(Signed, received)
                    message = open_any(signed, _KINDS, self._signer.run_id)
                    if signed.peer_id != link.peer_id:
                        raise BadSignature(f"a message of {signed.peer_id} from another peer")
                    self._replays.accept(signed)
            except PeerError as error:
                logger.warning("dropped a message of the coordinator reason=%s", error)
                messages = BAD_MESSAGES
            else:
                yield message
                messages = cost(signed)
            if pause_seconds := self._paces.pause_seconds(link.peer_id, messages):
                await asyncio.sleep(pause_seconds)
