"""The bootstrap node of a run: first node of the DHT, libp2p relay, keeper of the records and of the state, seeder of
shards and genesis blocks, and coordinator of first choice. It trains nothing and never loads a model; the run goes on
without it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.keeper import Keeper
from spes_peer.collection import Shards
from spes_peer.collector import Collector
from spes_peer.errors import BadConfiguration, PeerError, SpesError, UserError, first_in
from spes_peer.exchange.addresses import Endpoint, NodeAddress
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.exchange.relays import OF_BOOTSTRAP, RelayLimits
from spes_peer.files import write_whole
from spes_peer.folder import StateFolder
from spes_peer.following.arrival import Arrival
from spes_peer.following.follower import Follower
from spes_peer.node import Node, NodeSettings
from spes_peer.organize import read_manifest
from spes_peer.ports import address_towards, choose_ports, is_on_the_internet, is_wildcard
from spes_peer.process import on_signals, use_all_descriptors
from spes_peer.rounds.messages import Beat, UpdateNotice
from spes_peer.run.peers import Head, PeerState, Role

logger = logging.getLogger(__name__)

# Any address outside: only the route to it is looked up, nothing is sent there.
_SOMEWHERE = "192.0.2.1"
_ADDRESS_FILE = "address"
_GOODBYE_SECONDS = 0.3  # for members to hear that they need another coordinator
_FIRST_LOOK_SECONDS = 5.0  # for somebody who was here before
_CROWD_SECONDS = 2.0  # between looks into the DHT while newcomers gather


@dataclass(frozen=True)
class BootstrapSettings:
    """What an organizer may choose."""

    folder: Path
    host: str = ""
    announce: tuple[Endpoint, ...] = ()
    port: int = 0
    finish_after: int = 0
    """Close the run after this round; 0 goes on to its end."""
    relay: RelayLimits = OF_BOOTSTRAP
    """What it relays for peers that nobody can dial."""
    max_upload: int = 0
    """Bytes a second, like `max_download`; 0 sets no limit."""
    max_download: int = 0
    max_disk: int = 0
    """Bytes that the folder takes at most; 0 sets no limit."""


async def run_bootstrap(settings: BootstrapSettings) -> int:
    """Serve until a signal comes; 0 then. `UserError` when it cannot start."""
    signed = read_manifest(settings.folder)
    folder = StateFolder(settings.folder)
    stopped = asyncio.Event()
    on_signals(stopped.set)
    use_all_descriptors()
    with folder.locked():
        own = address_towards(_SOMEWHERE, 9)
        host = settings.host or own
        announce = settings.announce or (Endpoint(own if is_wildcard(host) else host, 0),)
        node = Node(
            folder,
            signed,
            NodeSettings(
                role=Role.BOOTSTRAP,
                name="bootstrap",
                host=host,
                announce=announce,
                ports=choose_ports(host, settings.port),
                inbound=True,
                is_public=any(one.ip_version is None or is_on_the_internet(one.host) for one in announce),
                relay=settings.relay,
                max_upload=settings.max_upload,
                max_download=settings.max_download,
            ),
        )
        if node.chain.head is None:
            raise BadConfiguration(f"{settings.folder} has no record 0; make the run again with: spes-peer run create")
        node.state = PeerState.ONLINE
        known = KnownNodes(folder.known_nodes, signed.run_id)
        introduction = await _introduced_soon(folder, known)
        if introduction is not None:
            node.take_time(introduction.clock.time())
        async with node.running([introduction.entry] if introduction is not None else ()):
            address = ",".join(_addresses(node))
            write_whole(folder.path / _ADDRESS_FILE, f"{address}\n".encode())
            print(f"join this run with: spes-peer join --bootstrap {address}", flush=True)
            await _serve(node, known, settings, stopped)
        (folder.path / _ADDRESS_FILE).unlink(missing_ok=True)
    return 0


async def _introduced_soon(folder: StateFolder, known: KnownNodes) -> Introduction | None:
    """After a restart whoever was here before knows what time it is in the run, and where the others are."""
    arrival = Arrival(
        (),
        known=lambda: known.addresses,
        accept=lambda introduction: folder.bind(introduction.signed_manifest),
        say=lambda _why, _until_at: None,
    )
    try:
        return await arrival.ask(_FIRST_LOOK_SECONDS)
    except UserError as error:
        if known.addresses:
            logger.warning("nobody of the run is here, going on from our own folder reason=%s", error)
        return None


def _addresses(node: Node) -> list[str]:
    """At which volunteers can join."""
    return [NodeAddress(one.host, one.port, node.peer_id).text() for one in node.reach.endpoints("grpc")]


async def _serve(node: Node, known: KnownNodes, settings: BootstrapSettings, stopped: asyncio.Event) -> None:
    keeper = Keeper(node)
    data = node.manifest.data
    everything = Shards(frozenset(shard.blob for shard in (data.held_out, *data.shards)))  # nobody else must have it
    collector = Collector(node, keeper.store, lambda _record, _ahead_bytes: everything, settings.max_disk)
    node.list_snapshots = lambda: keeper.snapshots
    try:
        async with asyncio.TaskGroup() as tasks:
            follower = Follower(node, _spawning(tasks), settings.finish_after or None)
            follower.on_message = lambda _sender, message: _take(keeper, message)
            node.on_chain.append(lambda switch: keeper.rewind(switch.first_round) if switch is not None else None)
            for loop in (follower.run(), keeper.run(), _beat(follower), _announce(node, known), node.upkeep()):
                tasks.create_task(loop)
            tasks.create_task(collector.run())
            await stopped.wait()
            follower.coordinating.resign()
            await asyncio.sleep(_GOODBYE_SECONDS)
            raise _Stopped
    except* _Stopped:
        pass
    except* SpesError as failures:
        raise first_in(failures) from None
    except* OSError as failures:
        raise SpesError(f"cannot go on: {first_in(failures)}; mend this and start again") from None


def _take(keeper: Keeper, message: Any) -> None:
    if isinstance(message, UpdateNotice):
        keeper.on_notice(message)


async def _beat(follower: Follower) -> None:
    """Tell the coordinator every heartbeat that this node is there: it may hand over."""
    while True:
        follower.send(Beat(follower.head.round, "following", 0))
        await asyncio.sleep(follower.node.manifest.timing.heartbeat_seconds)


class _Stopped(Exception):
    """The node ends as asked."""


def _spawning(tasks: asyncio.TaskGroup) -> Callable[[Coroutine[Any, Any, None]], object]:
    """Runs work beside; a fault of a peer in it is logged and ends it alone."""

    async def guarded(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PeerError as error:
            logger.warning("gave up reason=%s", error)

    return lambda work: tasks.create_task(guarded(work))


async def _announce(node: Node, known: KnownNodes) -> None:
    """Keep this node's entry and head in the DHT, and know who else is there, also after a restart."""
    assert node.directory is not None
    while True:
        node.announce_soon.clear()
        try:
            await node.announce()
            await node.directory.publish_head(Head(node.head_round, node.head_hash))
        except SpesError as error:
            logger.warning("the DHT does not answer reason=%s", error)
        known.note(node.entries.values())
        with contextlib.suppress(TimeoutError):
            seconds = node.manifest.timing.dht_beat_seconds if node.head_round else _CROWD_SECONDS
            async with asyncio.timeout(seconds):
                await node.announce_soon.wait()
