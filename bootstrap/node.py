"""The bootstrap node of a run: node of the DHT, libp2p relay, keeper of the records and of the state, seeder of shards
and genesis blocks, and, if record 0 names it, coordinator of first choice. It trains nothing and never loads a model;
the run goes on without it."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.address import AddressFile, addresses
from bootstrap.ending import end_after
from bootstrap.figures import Parts, figures
from bootstrap.keeper import Keeper
from bootstrap.mirror import Mirror
from bootstrap.opening import Opened, check_openable, open_folder
from bootstrap.room import refuse_if_too_small
from bootstrap.web.serving import served as web_served
from spes_peer.collector import Collector
from spes_peer.daemon.progress_shown import shown
from spes_peer.errors import BadConfiguration, PeerError, SpesError, first_in
from spes_peer.exchange.addresses import Endpoint, NodeAddress
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.exchange.relay_limits import OF_BOOTSTRAP, RelayLimits
from spes_peer.folder import StateFolder
from spes_peer.following.follower import Follower
from spes_peer.following.records import first_record
from spes_peer.metrics import Address as MetricsAddress
from spes_peer.metrics import served as metrics_served
from spes_peer.node import Node, NodeSettings
from spes_peer.ports import Ports, address_towards, check_port_free, choose_ports, is_on_the_internet, is_wildcard
from spes_peer.process import on_signals, use_all_descriptors
from spes_peer.rounds.messages import Beat, UpdateNotice
from spes_peer.run.peers import Head, PeerState, Role

logger = logging.getLogger(__name__)

# Any address outside: only the route to it is looked up, nothing is sent there.
_SOMEWHERE = "192.0.2.1"
_GOODBYE_SECONDS = 0.3  # for members to hear that they need another coordinator
_CROWD_SECONDS = 2.0  # between looks into the DHT while newcomers gather


@dataclass(frozen=True)
class BootstrapSettings:
    """What an organizer may choose."""

    folder: Path
    join: tuple[NodeAddress, ...] = ()
    """Nodes of the run, for a folder that is to be made from the network."""
    host: str = ""
    port: int = 0
    announce: tuple[Endpoint, ...] = ()
    finish_after: int = 0
    """Amend the run's rules so that it ends with this round, with the organizer's key in the folder; 0 does not."""
    relay: RelayLimits = OF_BOOTSTRAP
    """What it relays for peers that nobody can dial."""
    max_upload: int = 0
    """Bytes a second, like `max_download`; 0 sets no limit."""
    max_download: int = 0
    max_disk: int = 0
    """Bytes that the folder takes at most; 0 sets no limit."""
    metrics: MetricsAddress | None = None
    """Where Prometheus may read."""
    web: tuple[str, int] | None = None
    """Host and port at which everybody can look at the run; where the node listens without a host."""


class _Stopped(Exception):
    """The node ends as asked."""


async def run_bootstrap(settings: BootstrapSettings) -> int:
    """Serve until a signal comes; 0 then. `UserError` when it cannot start."""
    check_openable(settings.folder, settings.join)
    folder = StateFolder(settings.folder)
    stopped = asyncio.Event()
    on_signals(stopped.set)
    use_all_descriptors()
    with folder.locked(), contextlib.suppress(_Stopped):
        host = settings.host or address_towards(_SOMEWHERE, 9)
        ports = choose_ports(host, settings.port, flag="--listen")  # before what may take long
        if settings.metrics is not None:
            check_port_free(*settings.metrics, "choose another with --metrics")
        if settings.web is not None and settings.web[1]:
            check_port_free(settings.web[0] or host, settings.web[1], "choose another with --web")
        opened = await _unless(stopped, open_folder(folder, settings.join))
        node = _make_node(opened, settings, host, ports)
        refuse_if_too_small(node, settings.max_disk)
        if settings.finish_after:
            end_after(node, settings.finish_after)
        async with node.running(opened.entries):
            await _unless(stopped, first_record(node, logger.info))
            await _serve(node, opened.known, settings, stopped)
    return 0


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` gives; `_Stopped` when a signal comes before that."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _Stopped
        return working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _make_node(opened: Opened, settings: BootstrapSettings, host: str, ports: Ports) -> Node:
    own = address_towards(_SOMEWHERE, 9)
    announce = settings.announce or (Endpoint(own if is_wildcard(host) else host, 0),)
    node = Node(
        opened.folder,
        opened.signed,
        NodeSettings(
            role=Role.BOOTSTRAP,
            name="bootstrap",
            host=host,
            announce=announce,
            ports=ports,
            inbound=True,
            is_public=any(one.ip_version is None or is_on_the_internet(one.host) for one in announce),
            relay=settings.relay,
            max_upload=settings.max_upload,
            max_download=settings.max_download,
        ),
    )
    if node.chain.head is None and not opened.entries:
        raise BadConfiguration(
            f"{settings.folder} has no record 0, and no node of the run is known that has it;"
            " name one with --join ADDRESS, or make the run again with: spes-peer run new"
        )
    node.state = PeerState.ONLINE
    if opened.introduction is not None:
        node.take_time(opened.introduction.clock.time())
    return node


async def _serve(node: Node, known: KnownNodes, settings: BootstrapSettings, stopped: asyncio.Event) -> None:
    keeper, address = Keeper(node), AddressFile(node, known)
    collector: Collector
    mirror = Mirror(node, lambda: collector.ahead_bytes)
    collector = Collector(node, keeper.store, mirror.wanted, settings.max_disk, most_ahead_bytes=math.inf)
    node.list_snapshots = lambda: keeper.snapshots
    try:
        async with contextlib.AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            follower = Follower(node, _spawning(tasks))
            follower.on_message = lambda _sender, message: _take(keeper, message)
            node.on_chain.append(lambda switch: keeper.rewind(switch.first_round) if switch is not None else None)
            if settings.metrics is not None:
                parts = Parts(node, follower, keeper, collector)
                stack.enter_context(metrics_served(settings.metrics, lambda: iter(figures(parts))))
            address.tell()
            if settings.web is not None:
                host, port = settings.web[0] or node.settings.host, settings.web[1]
                page = web_served(follower, host, port, lambda: addresses(node, known))
                await stack.enter_async_context(page)
            for loop in (follower.run(), keeper.run(), _beat(follower), node.upkeep(), collector.run(), mirror.run()):
                tasks.create_task(loop)
            tasks.create_task(_announce(node, known, address))
            await stack.enter_async_context(shown(lambda: mirror.progress, has_bar=True))
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
    finally:
        address.remove()


def _take(keeper: Keeper, message: Any) -> None:
    if isinstance(message, UpdateNotice):
        keeper.on_notice(message)


async def _beat(follower: Follower) -> None:
    """Tell the coordinator every heartbeat that this node is there: it may hand over."""
    while True:
        follower.send(Beat(follower.head.round, "following", 0))
        await asyncio.sleep(follower.node.manifest.timing.heartbeat_seconds)


def _spawning(tasks: asyncio.TaskGroup) -> Callable[[Coroutine[Any, Any, None]], object]:
    """Runs work beside; a fault of a peer in it is logged and ends it alone."""

    async def guarded(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PeerError as error:
            logger.warning("gave up reason=%s", error)

    return lambda work: tasks.create_task(guarded(work))


async def _announce(node: Node, known: KnownNodes, address: AddressFile) -> None:
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
        address.tell()
        with contextlib.suppress(TimeoutError):
            seconds = node.manifest.timing.dht_beat_seconds if node.head_round else _CROWD_SECONDS
            async with asyncio.timeout(seconds):
                await node.announce_soon.wait()
