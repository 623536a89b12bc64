"""Somebody on the way, a relay say, that changes what it carries: nobody takes it for the other's word."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from exchange_nodes import Node, running

from spes_peer.errors import SpesError, Unreachable
from spes_peer.exchange.holdings import Holdings

BLOB = bytes(range(256)) * 16_384  # four pieces


class Tamperer:
    """Carries bytes to a port, and changes one bit of each chunk once so many have gone back."""

    def __init__(self, port: int, after_bytes: int) -> None:
        self.port = port
        self.num_changed = 0
        self._target = port
        self._left = after_bytes

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(reader, there_writer, changes=False))
            both.create_task(self._pump(there_reader, writer, changes=True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changes: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := bytearray(await reader.read(1 << 16)):
                if changes:
                    self._left -= len(chunk)
                    if self._left < 0:
                        chunk[-1] ^= 1
                        self.num_changed += 1
                writer.write(chunk)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def tampering(node: Node, after_bytes: int) -> AsyncIterator[Tamperer]:
    """A way to `node` on which it happens."""
    assert node.server is not None
    assert node.server.port is not None
    tamperer = Tamperer(node.server.port, after_bytes)
    server = await asyncio.start_server(tamperer.carry, "127.0.0.1", 0)
    tamperer.port = server.sockets[0].getsockname()[1]
    try:
        yield tamperer
    finally:
        server.close()


@pytest.mark.parametrize("after_bytes", [0, 100, 5_000, 1 << 20], ids=["hello", "handshake", "first call", "a blob"])
async def test_changed_bytes_end_the_connection_and_are_nobodys_word(tmp_path: Path, after_bytes: int) -> None:
    async with running(tmp_path, Holdings, Holdings, Holdings) as (caller, callee, other):
        name = callee.store.put(BLOB).name
        async with tampering(callee, after_bytes) as tamperer:
            address = f"127.0.0.1:{tamperer.port}"
            caller.connections.update_entry(replace(callee.entry([address]), incarnation=2))
            with pytest.raises(Unreachable):
                await caller.fetcher.fetch(name, len(BLOB), [callee.peer_id])
            assert tamperer.num_changed > 0
            assert not caller.store.has(name)
            assert not caller.fetcher.bad_sources  # it is not the callee's fault, and nothing of it was read

            # who has another way to it, or another source, has the blob
            other.store.put(BLOB)
            await caller.fetcher.fetch(name, len(BLOB), [callee.peer_id, other.peer_id])
            assert caller.store.read(name) == BLOB


async def test_calls_of_others_go_on_while_somebody_tampers(tmp_path: Path) -> None:
    async with running(tmp_path, Holdings, Holdings, Holdings) as (victim, callee, other):
        name = callee.store.put(BLOB).name
        async with tampering(callee, 5_000) as tamperer:
            entry = replace(callee.entry([f"127.0.0.1:{tamperer.port}"]), incarnation=2)
            victim.connections.update_entry(entry)

            async def fails() -> None:
                with contextlib.suppress(SpesError):
                    await victim.fetcher.fetch(name, len(BLOB), [callee.peer_id])

            async with asyncio.TaskGroup() as both:
                both.create_task(fails())
                both.create_task(other.fetcher.fetch(name, len(BLOB), [callee.peer_id]))
            assert tamperer.num_changed > 0
        assert other.store.read(name) == BLOB
        # The callee may have said in time that `other` has it too: then the victim has it from there, and whole.
        assert not victim.store.has(name) or victim.store.read(name) == BLOB
