"""Where `spes-peer bench exchange` measures: nodes as processes, in network namespaces or on loopback."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from spes_peer.chaos.network import Spot, Switched, ip
from spes_peer.errors import ChildFailed

COMMAND_SECONDS = 600.0
LOOPBACK = Spot("127.0.0.1")
_LIBP2P_PORT = 4511


class NodeProcess:
    """`exchange_node` at a spot."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.peer = ""
        self.entry = ""
        self._process = process
        self._log_path = log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, spot: Spot, folder: Path) -> "NodeProcess":
        command = [*spot.before, sys.executable, "-m", "spes_peer.bench.exchange_node", str(folder), spot.address]
        log_path = folder / "log"
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        node = cls(process, log_path)
        served = await node.do("serve")
        node.peer, node.entry = served["peer"], served["entry"]
        return node

    async def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """See `exchange_node`. `ChildFailed` says why it did not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write((json.dumps({"do": command, **arguments}) + "\n").encode())
        async with asyncio.timeout(COMMAND_SECONDS):
            line = await self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"failed": self._last_words()}
        if "failed" in answer:
            raise ChildFailed(f"a node of the bench cannot {command}: {answer['failed']}")
        return answer

    def _last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return f"it has ended: {lines[-1] if lines else 'without a word'}"

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10.0):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def nodes_at(spots: dict[str, Spot]) -> AsyncIterator[dict[str, NodeProcess]]:
    """A node at each spot; those of a network all know each other's addresses."""
    with tempfile.TemporaryDirectory(prefix="spes-bench-") as folder:
        nodes: dict[str, NodeProcess] = {}
        try:
            for name, spot in spots.items():
                os.mkdir(f"{folder}/{name}")
                nodes[name] = await NodeProcess.start(spot, Path(folder, name))
            await introduce(nodes)
            yield nodes
        finally:
            await asyncio.gather(*(node.stop() for node in nodes.values()))


async def introduce(nodes: dict[str, NodeProcess]) -> None:
    """All to all, by their newest entries."""
    entries = [node.entry for node in nodes.values()]
    await asyncio.gather(*(node.do("know", entries=entries) for node in nodes.values()))


@contextlib.contextmanager
def network() -> Iterator[Switched]:
    """A switch, into which spots are plugged; gone when the block ends."""
    switched = Switched()
    try:
        yield switched
    finally:
        switched.close()


@contextlib.contextmanager
def apart(one: Spot, other: Spot) -> Iterator[None]:
    """Nothing goes from one to the other but by way of somebody else."""
    routes = [(one.space, other.address), (other.space, one.address)]
    for space, address in routes:
        ip("-n", space, "route", "add", "blackhole", f"{address}/32")
    try:
        yield
    finally:
        for space, address in routes:
            ip("-n", space, "route", "delete", "blackhole", f"{address}/32")


async def hide_behind_relay(nodes: dict[str, NodeProcess], hidden: str, other: str) -> None:
    """From now on `hidden` is reached through the node "relay" only; `other` can dial it there, or be dialled."""
    made = await nodes["relay"].do("serve_by_libp2p", port=_LIBP2P_PORT, relays=[], is_relay=True)
    relays = [one for one in made["addresses"] if "127.0.0.1" not in one]
    for name, own in ((hidden, relays), (other, relays)):
        answer = await nodes[name].do("serve_by_libp2p", port=_LIBP2P_PORT, relays=own, is_relay=False)
        nodes[name].entry = answer["entry"]
