"""A visit to a run: from an address to a folder with its records, its newest whole state, and the updates since.

The chain is the best of several nodes', every record of it verified; the state is one that the chain vouches for, and
every block is checked against its name as it arrives. The visitor asks as any newcomer may, of volunteers before
bootstrap nodes, which serve strangers after their own; it has no part in the run.
"""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spes_peer.collector import state_bytes
from spes_peer.errors import BadConfiguration, NoBootstrap, PeerError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.fetch import Wanted
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.transfers import Gathering
from spes_peer.exporting import cache
from spes_peer.exporting.bar import bytes_shown, say
from spes_peer.exporting.others import follow_the_best, meet_others
from spes_peer.folder import StateFolder
from spes_peer.following.arrival import Arrival
from spes_peer.logs import plain
from spes_peer.node import Node, NodeSettings
from spes_peer.ports import Ports, is_on_the_internet
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import Role
from spes_peer.run.records import Snapshot
from spes_peer.snapshots import SnapshotStore
from spes_peer.training.replaying import has_room


@dataclass(frozen=True)
class Wish:
    """What to bring, and where to."""

    addresses: tuple[NodeAddress, ...]
    root: Path
    """Under which the folder of the run is made."""
    round: int | None = None
    """The state after this record or an older one; None for the newest."""
    max_download: int = 0
    """Bytes a second; 0 sets no limit."""
    refuse: Callable[[Manifest], None] = lambda _manifest: None
    """Raises `BadConfiguration` for a run that is of no use, before anything is fetched of it."""


async def visit(wish: Wish, use: contextlib.ExitStack) -> Path:
    """Bring a run's state; the folder in which it lies, held for this process until the end of `use`: another visit
    would change it. `UserError` says why that cannot be."""
    introduction = await _introduced(wish.addresses)
    wish.refuse(introduction.manifest)
    run = introduction.manifest.run
    say(f"run {plain(run.name)} {introduction.run_id.hex()[:12]}, round {introduction.head_round}")
    folder = use.enter_context(cache.held(wish.root, introduction.signed_manifest))
    with cache.visiting(folder):
        async with _visitor(folder, introduction, wish.max_download) as node:
            await _bring(node, introduction, wish.round)
    return folder.path


async def _introduced(addresses: Sequence[NodeAddress]) -> Introduction:
    return await Arrival(addresses, lambda: (), lambda _one: None, lambda _why, _until: None).ask()


@contextlib.asynccontextmanager
async def _visitor(folder: StateFolder, introduction: Introduction, max_download: int) -> AsyncIterator[Node]:
    """A node that calls others and is not called itself."""
    host = introduction.endpoint.host
    settings = NodeSettings(
        role=Role.VOLUNTEER,
        name="visitor",
        host=host,
        announce=(),
        ports=Ports(0, 0, 0),
        inbound=False,
        is_public=is_on_the_internet(host),
        max_download=max_download,
    )
    node = Node(folder, introduction.signed_manifest, settings)
    node.take_time(introduction.clock.time())
    node.take_entry(introduction.entry)
    try:
        yield node
    finally:
        await node.connections.close()


async def _bring(node: Node, introduction: Introduction, round: int | None) -> None:
    say("looking for other nodes of the run, for half a minute at most")
    await meet_others(node, introduction.endpoint.host)
    num_asked = await follow_the_best(node)
    if node.chain.head is None:
        raise NoBootstrap("no node of the run gives its records; try again, or give the address of another node")
    nodes = "a node of the run" if num_asked == 1 else f"{num_asked} nodes of the run"
    say(f"the best chain of {nodes} has {node.head_round + 1} records, all verified")
    store = SnapshotStore(node)
    snapshot = _chosen(store.vouched_for(await store.offered_by_others()), round)
    _refuse_if_no_room(node, snapshot)
    await _fetch(node, store, snapshot, round)


def _chosen(found: Sequence[Snapshot], round: int | None) -> Snapshot:
    for snapshot in found:
        if round is None or snapshot.round <= round:
            return snapshot
    raise BadConfiguration(f"nobody keeps the state after record {round}; there is that after {found[-1].round}")


async def _fetch(node: Node, store: SnapshotStore, snapshot: Snapshot, round: int | None) -> None:
    gathering = Gathering(node.transfers)
    shown = f"fetching the state after record {snapshot.round}"
    async with bytes_shown(shown, lambda: gathering.done_bytes, lambda: gathering.whole_bytes):
        try:
            await store.fetch(snapshot, gathering)
            await node.fetcher.fetch_all(_tokenizer(node), gathering=gathering)
        except PeerError as error:
            raise NoBootstrap(
                f"the state after record {snapshot.round} cannot be had now ({plain(str(error))}); what has come is"
                " kept: try again"
            ) from None
    say(f"{shown}: {gathering.whole_bytes / 1e6:.1f} MB")
    store.keep(snapshot)
    last = node.head_round if round is None else min(round, node.head_round)
    if last > snapshot.round and has_room(node.layout):
        await _fetch_updates(node, store, snapshot.round + 1, last)


async def _fetch_updates(node: Node, store: SnapshotStore, first: int, last: int) -> None:
    """As far as they can be had: whoever writes the model says how far that was."""
    done = 0
    sizes = {number: _update_bytes(node, number) for number in range(first, last + 1)}
    async with bytes_shown("fetching the updates since", lambda: done, lambda: sum(sizes.values())):
        for number in range(first, last + 1):
            try:
                await store.fetch_updates(node.chain.record(number).sealed)
            except PeerError as error:
                say(f"the updates of record {number} cannot be had: {plain(str(error))}")
                return
            done += sizes[number]


def _update_bytes(node: Node, round: int) -> int:
    return sum(update.size_bytes for update in node.chain.record(round).sealed.record.updates)


def _tokenizer(node: Node) -> list[Wanted]:
    tokenizer = node.manifest.data.tokenizer
    return [(tokenizer.blob, tokenizer.size_bytes, node.others())] if tokenizer.blob else []


def _refuse_if_no_room(node: Node, snapshot: Snapshot) -> None:
    """`BadConfiguration` where the cache's disk has not room for what is missing."""
    missing = sum(block.size_bytes for block in snapshot.blocks if not node.blobs.has(block.blob))
    free = shutil.disk_usage(node.folder.path).free
    if missing > free:
        raise BadConfiguration(
            f"{node.folder.path} has {free / 1e9:.1f} GB of free disk, and the state takes"
            f" {state_bytes(node.layout) / 1e9:.1f} GB; choose another folder with --cache"
        )
