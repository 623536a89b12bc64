"""Joins two byte streams both ways, whatever they are: a libp2p stream, or a Unix socket.

The rule: each direction holds one chunk at most, and when one side ends or breaks both are closed, so nothing leaks
when a peer or a process vanishes. What was sent before an orderly end still arrives.
"""

import logging
import select
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from libp2p.abc import INetStream
from libp2p.network.stream.exceptions import StreamEOF

logger = logging.getLogger(__name__)

# More costs memory for each stream; less costs turns of the interpreter.
CHUNK_BYTES = 256 << 10
# When one side has ended in order, what was under way may still arrive.
LINGER_SECONDS = 5.0
# How often to look whether a side has gone whose bytes nobody takes: then no read tells.
WATCH_SECONDS = 1.0


Allow = Callable[[int], Awaitable[None]]
"""Waits until so many bytes may pass."""


class End(Protocol):
    """One side of a pipe. Any error means that it is broken."""

    async def read(self) -> bytes:
        """Some bytes; none when the other side will send no more."""

    async def write(self, content: bytes) -> None:
        """Take all of `content`."""

    async def finish(self) -> None:
        """Say that no more will be written."""

    async def abort(self) -> None:
        """Let go, in any state."""

    def is_gone(self) -> bool:
        """Whether the other side has let go, though bytes from it may be left to read."""


class StreamEnd:
    """A libp2p stream."""

    def __init__(self, stream: INetStream, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._stream = stream
        self._chunk_bytes = chunk_bytes

    async def read(self) -> bytes:
        try:
            return await self._stream.read(self._chunk_bytes)
        except StreamEOF:
            return b""

    async def write(self, content: bytes) -> None:
        await self._stream.write(content)

    async def finish(self) -> None:
        await self._stream.close_write()

    async def abort(self) -> None:
        await self._stream.reset()

    def is_gone(self) -> bool:
        return bool(self._stream.is_closed)


class SocketEnd:
    """A connected Unix socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        return bytes(await self._stream.receive_some(CHUNK_BYTES))

    async def write(self, content: bytes) -> None:
        await self._stream.send_all(content)

    async def finish(self) -> None:
        await self._stream.send_eof()

    async def abort(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), 0)  # a hang-up is reported all the same
        return bool(poll.poll(0))


async def at_once(_num_bytes: int) -> None:
    """Allow all."""


async def join(one: End, other: End, allow: Allow = at_once) -> None:
    """Copy both ways until both sides have ended, or one is broken; then let go of both. Raises nothing of theirs."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, one, other, nursery.cancel_scope)
            async with trio.open_nursery() as copying:
                copying.start_soon(_copy, one, other, nursery.cancel_scope, allow)
                copying.start_soon(_copy, other, one, nursery.cancel_scope, allow)
            nursery.cancel_scope.cancel()
    finally:
        for end in (one, other):
            with trio.move_on_after(LINGER_SECONDS, shield=True):
                await end.abort()


async def _copy(source: End, target: End, pipe: trio.CancelScope, allow: Allow) -> None:
    try:
        while content := await source.read():
            await allow(len(content))
            await target.write(content)
        await target.finish()
    except Exception as error:  # whatever the layers below raise: this pipe is broken, and no other
        logger.debug("a pipe broke error=%r", error)
        pipe.cancel()
    else:
        _linger(pipe)


async def _watch(one: End, other: End, pipe: trio.CancelScope) -> None:
    """End a pipe whose one side is gone while the other takes nothing, a frozen peer for instance."""
    while not (one.is_gone() or other.is_gone()):  # noqa: ASYNC110 - nobody tells
        await trio.sleep(WATCH_SECONDS)
    _linger(pipe)


def _linger(pipe: trio.CancelScope) -> None:
    pipe.deadline = min(pipe.deadline, trio.current_time() + LINGER_SECONDS)
