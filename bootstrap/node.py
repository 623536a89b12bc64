"""The bootstrap node of a run: first node of the DHT, libp2p relay, keeper of the records, seeder of shards and
genesis blocks, and coordinator of first choice. It trains nothing and never loads a model."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

from spes_peer.coordinating import Coordinating
from spes_peer.errors import BadConfiguration, SpesError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.files import write_whole
from spes_peer.folder import StateFolder
from spes_peer.node import Node, NodeSettings
from spes_peer.organize import read_manifest
from spes_peer.ports import address_towards, choose_ports
from spes_peer.process import on_signals
from spes_peer.run.peers import Head, PeerState, Role

logger = logging.getLogger(__name__)

# Any address outside: only the route to it is looked up, nothing is sent there.
_SOMEWHERE = "192.0.2.1"
_ADDRESS_FILE = "address"
_CROWD_SECONDS = 2.0  # between looks into the DHT while newcomers gather


@dataclass(frozen=True)
class BootstrapSettings:
    """What an organizer may choose."""

    folder: Path
    host: str = ""
    announce: str = ""
    port: int = 0
    finish_after: int = 0
    """Close the run after this round; 0 goes on to its end."""


async def run_bootstrap(settings: BootstrapSettings) -> int:
    """Serve until a signal comes; 0 then. `UserError` when it cannot start."""
    signed = read_manifest(settings.folder)
    folder = StateFolder(settings.folder)
    stopped = asyncio.Event()
    on_signals(stopped.set)
    with folder.locked():
        host = settings.host or address_towards(_SOMEWHERE, 9)
        node = Node(
            folder,
            signed,
            NodeSettings(
                role=Role.BOOTSTRAP,
                name="bootstrap",
                host=host,
                announce=settings.announce,
                ports=choose_ports(host, settings.port),
                inbound=True,
            ),
        )
        if node.chain.head is None:
            raise BadConfiguration(f"{settings.folder} has no record 0; make the run again with: spes-peer run create")
        coordinating = Coordinating(node, settings.finish_after or None)
        node.on_attend = coordinating.attend
        node.state = PeerState.ONLINE
        async with node.running(known=()):
            address = _address(node)
            write_whole(folder.path / _ADDRESS_FILE, f"{address}\n".encode())
            print(f"join this run with: spes-peer join --bootstrap {address}", flush=True)
            await _serve(node, coordinating, stopped)
        (folder.path / _ADDRESS_FILE).unlink(missing_ok=True)
    return 0


def _address(node: Node) -> str:
    settings = node.settings
    return NodeAddress(settings.announce or settings.host, settings.ports.grpc, node.peer_id).text()


async def _serve(node: Node, coordinating: Coordinating, stopped: asyncio.Event) -> None:
    loops = [asyncio.create_task(loop) for loop in (coordinating.run(), _announce(node))]
    ending = asyncio.create_task(stopped.wait())
    try:
        done, _ = await asyncio.wait({*loops, ending}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except OSError as error:
        raise SpesError(f"cannot go on: {error}; mend this and start again") from None
    finally:
        for task in (*loops, ending):
            task.cancel()
        await asyncio.gather(*loops, ending, return_exceptions=True)


async def _announce(node: Node) -> None:
    """Keep this node's entry and head in the DHT, and know who else is there."""
    assert node.directory is not None
    while True:
        node.announce_soon.clear()
        try:
            await node.announce()
            await node.directory.publish_head(Head(node.head_round, node.head_hash))
        except SpesError as error:
            logger.warning("the DHT does not answer reason=%s", error)
        with contextlib.suppress(TimeoutError):
            seconds = node.manifest.timing.dht_beat_seconds if node.head_round else _CROWD_SECONDS
            async with asyncio.timeout(seconds):
                await node.announce_soon.wait()
