"""The DHT node, its p2pd and the libp2p node, killed at any instant, several times in a row: each comes back, and
nothing is left behind. Real processes."""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
from exchange_nodes import eventually

from spes_peer.exchange.tunnels import Libp2pNode
from spes_peer.identity import Identity
from spes_peer.membership.directory import Directory, socket_folder
from spes_peer.ports import choose_ports
from spes_peer.run.manifest import Timing
from spes_peer.run.peers import Head

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
DHT, LIBP2P = "spes_peer.membership.dht_node", "spes_peer.exchange.libp2p_node"
INSTANTS_SECONDS = (0.0, 0.4, 1.2, 2.5)
"""After a process was seen: before it can run, while it imports, while it starts what it needs, when it runs."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spes-") as name:
        yield Path(name)


@dataclass
class Services:
    directory: Directory
    libp2p: Libp2pNode


@contextlib.asynccontextmanager
async def services(folder: Path) -> AsyncIterator[Services]:
    """Both, as a daemon has them."""
    identity, ports = Identity.generate(), choose_ports(HOST, 0)
    timing = Timing(dht_beat_seconds=3, dht_ttl_seconds=30)
    directory = asyncio.create_task(Directory.start(identity, b"r" * 32, HOST, ports.dht, (), timing, folder))
    libp2p = asyncio.create_task(Libp2pNode.start(identity, HOST, ports.libp2p, None, (), folder / "peer.sock", folder))
    both = Services(await directory, await libp2p)
    try:
        yield both
    finally:
        await asyncio.gather(both.directory.close(), both.libp2p.close())


def alive(module: str) -> list[psutil.Process]:
    """This test's processes of one module."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and module in child.cmdline():
                found.append(child)
    return found


def daemons_of(folder: Path) -> list[psutil.Process]:
    """Every p2pd with a socket of this folder, whoever its parent is by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "p2pd" and str(socket_folder(folder)) in " ".join(process.cmdline()):
                found.append(process)
    return found


async def kill_again_and_again(find: Callable[[], list[psutil.Process]]) -> None:
    """Returns when a process is there that is not killed: then its service knows of those that were."""
    killed: set[int] = set()

    def is_new_there() -> bool:
        return any(process.pid not in killed for process in find())

    for seconds in INSTANTS_SECONDS:
        await eventually(is_new_there, 90)
        await asyncio.sleep(seconds)
        for process in find():
            killed.add(process.pid)
            process.kill()
        await eventually(lambda: not any(process.pid in killed for process in find()))
    await eventually(is_new_there, 90)


async def test_killed_processes_come_back_without_orphans_and_do_what_they_did(folder: Path) -> None:
    async with services(folder) as both:
        peer = Identity.generate().peer_id
        await both.directory.publish_head(Head(1, b"h" * 32))
        await both.libp2p.open_tunnel(peer, ())
        await asyncio.gather(*(kill_again_and_again(partial(alive, module)) for module in (DHT, LIBP2P)))
        for service in (both.directory.service, both.libp2p.service):
            await eventually(lambda service=service: service.state == "running", 120)  # type: ignore[misc]
        assert len(alive(DHT)) == len(daemons_of(folder)) == len(alive(LIBP2P)) == 1
        await eventually(lambda: both.directory.addresses != ())
        assert await both.directory.publish_head(Head(2, b"h" * 32)) is False  # there is no other node
        assert [head.round for head in (await both.directory.read_heads()).values()] == [2]
        assert (await both.libp2p.open_tunnel(peer, ())).exists()
    await eventually(lambda: not daemons_of(folder))


async def test_a_dht_node_whose_daemon_is_killed_ends_and_another_comes_with_a_daemon_of_its_own(folder: Path) -> None:
    async with services(folder) as both:
        (first,) = alive(DHT)
        await kill_again_and_again(lambda: daemons_of(folder))
        await eventually(lambda: both.directory.service.state == "running", 120)
        assert len(alive(DHT)) == len(daemons_of(folder)) == 1
        assert daemons_of(folder)[0].parent() == alive(DHT)[0] != first
        assert await both.directory.publish_head(Head(2, b"h" * 32)) is False  # there is no other node


async def test_processes_killed_at_the_daemons_start_are_started_again(folder: Path) -> None:
    async def kill_the_first(module: str) -> None:
        await eventually(lambda: bool(alive(module)), 60)
        os.kill(alive(module)[0].pid, signal.SIGKILL)

    killing = asyncio.gather(*map(kill_the_first, (DHT, LIBP2P)))
    async with services(folder) as both:
        await killing
        for service, module in ((both.directory.service, DHT), (both.libp2p.service, LIBP2P)):
            await eventually(lambda s=service, m=module: s.state == "running" and len(alive(m)) == 1, 120)  # type: ignore[misc]
    await eventually(lambda: not daemons_of(folder))
