"""What every node of a run has, volunteer or bootstrap: identity, records, blobs, and the ways to reach others.

A node serves gRPC (directly, and through its libp2p node over a Unix socket), keeps its signed entry in the DHT, and
knows the entries of others. What it does with all that is its owner's matter (`daemon`, `bootstrap`).
"""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spes_peer import __version__
from spes_peer.blobs import BlobStore
from spes_peer.clock import ClockWatch, SwarmClock
from spes_peer.errors import SpesError, Unreachable, first_in
from spes_peer.exchange.addresses import Endpoint, NodeAddress
from spes_peer.exchange.blob_words import BlobWords
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.held_index import HeldIndex
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.home_network import HomeNetwork
from spes_peer.exchange.introduction import Description
from spes_peer.exchange.moving import AddressWatch
from spes_peer.exchange.pace import Pace
from spes_peer.exchange.port_mapping import keep_ports_mapped
from spes_peer.exchange.reach import FIRST_LOOK_SECONDS, SERVICES, Reach, doors_given
from spes_peer.exchange.relay_limits import RelayLimits
from spes_peer.exchange.relays import MAX_RELAYS, RelayChoice
from spes_peer.exchange.server import PeerServer
from spes_peer.exchange.traffic import Traffic
from spes_peer.exchange.transfers import Transfers
from spes_peer.exchange.tunnels import Libp2pNode
from spes_peer.files import remove_litter
from spes_peer.folder import INCARNATION_FILE, StateFolder
from spes_peer.identity import PeerId, TlsIdentity
from spes_peer.logs import keep_bounded
from spes_peer.membership.directory import Directory
from spes_peer.ports import Ports, address_towards, is_on_the_internet
from spes_peer.run.certificates import Checks, stalled_at
from spes_peer.run.chain import Chain, Switch
from spes_peer.run.layout import Layout
from spes_peer.run.lineage import branch_of
from spes_peer.run.manifest import PROTOCOL_VERSION, SignedManifest
from spes_peer.run.peers import MAX_NAME_CHARACTERS, PeerEntry, PeerState, Role, Standing
from spes_peer.run.pending import AmendReply, Pending
from spes_peer.run.records import CertifiedRecord, SealedRecord, Snapshot
from spes_peer.run.rules import Rules
from spes_peer.run.signed import Signed, Signer

logger = logging.getLogger(__name__)

OnAttend = Callable[[PeerId, AsyncIterator[Signed], Callable[[Signed], None]], Awaitable[None]]
_BETTER_WAYS_SECONDS = 10.0  # between looks whether one is due
_Closing = Callable[[], Awaitable[None]]


class _Moved(Exception):
    """This machine has another address."""


def usable_name(name: str) -> str:
    """A name that others can show: printable and short. Where none is chosen, this machine's up to the first dot:
    the whole one may be an address."""
    printable = "".join(
        character for character in name or socket.gethostname().partition(".")[0] if character.isprintable()
    )
    return printable[:MAX_NAME_CHARACTERS] or "volunteer"


@dataclass(frozen=True)
class NodeSettings:
    """How a node shows itself to others."""

    role: Role
    name: str
    host: str
    """Address to listen on."""
    announce: tuple[Endpoint, ...]
    """Addresses that others dial, as the owner gives them; none to find them out. Port 0: that of `ports`."""
    ports: Ports
    inbound: bool
    """Whether others may dial it; a node without inbound connections is reached through relays."""
    own_host: str = ""
    """This machine's address on the way to the others, where `host` is not one."""
    towards: str = ""
    """An IP address of the others, where `host` stands for all addresses of this machine: it may get another."""
    is_public: bool = False
    """Whether the run is on the internet: then private addresses are not announced."""
    relay: RelayLimits | None = None
    """What it relays for peers that nobody can dial, if anything."""
    maps_ports: bool = False
    """Whether the router is asked to open ports, where that can help."""
    max_upload: int = 0
    """Bytes of blobs that leave a second at most; 0: as many as the line takes."""
    max_download: int = 0


class Node:
    """Common parts of a node; build with `Node.open`, use inside `running`."""

    def __init__(self, folder: StateFolder, signed: SignedManifest, settings: NodeSettings) -> None:
        self.folder = folder
        self.signed_manifest = signed
        self.manifest = signed.open()
        self.layout = Layout(self.manifest)
        self.settings = settings
        self.identity = folder.identity()
        self.tls = TlsIdentity.generate()
        self.clock = SwarmClock()
        self.on_time: list[Callable[[float], None]] = []
        """Called with the seconds by which `now` was set; it does not step otherwise, whatever the wall clock does."""
        self.chain = Chain(folder.path, Checks.of(self.manifest, signed.run_id))
        # by the clock, so that a key copied to another machine rises there too; by disk, where the clock has gone back
        incarnation = folder.next_number(INCARNATION_FILE, at_least=time.time_ns())
        self.signer = Signer(self.identity, signed.run_id, incarnation, lambda: self.head_hash)
        self.blobs = BlobStore(folder.path / "blobs")
        self.traffic = Traffic(self.identity.peer_id)
        self.blob_words = BlobWords(self.manifest, lambda: self.shard_index.in_memory)
        self.transfers = Transfers(self.blob_words.of)
        self.holdings = Holdings(self.blobs)
        self.connections = Connections(
            self.signer,
            self.traffic,
            self._open_tunnel,
            folder.peer_socket,
            self.now,
            self._relay_of,
            may_dial=lambda address: not settings.is_public or is_on_the_internet(address),
        )
        self.reach = Reach(
            own_host=settings.own_host or settings.host,
            ports=settings.ports,
            certificate=self.tls.certificate_der,
            given=doors_given(settings.announce, settings.ports),
            is_public=settings.is_public,
            has_inbound=settings.inbound,
            needs_no_relay=settings.role == Role.BOOTSTRAP,
            on_change=lambda: self.announce_soon.set(),
        )
        self._home = self.connections.neighbours = HomeNetwork(self.reach)
        self._relay_choice = RelayChoice(self.peer_id)
        self._upload, self._download = Pace(settings.max_upload), Pace(settings.max_download)
        self.fetcher = Fetcher(
            self.holdings,
            self.connections,
            self.manifest.timing.fetch_stall_seconds,
            download=self._download,
            names=self.names,
            transfers=self.transfers,
        )
        self.shard_index = HeldIndex(self.manifest.data, self.blobs, self.fetcher, self.others)
        self._has_moved = asyncio.Event()
        self.announce_soon = asyncio.Event()
        """Set when others should know soon what this node says of itself."""
        self.state = PeerState.JOINING
        self.max_subsets = 0
        self.seen_incarnation = 0
        """The latest start of this peer that the DHT had an entry of: another's, if it is later than our own."""
        self.entries: dict[PeerId, PeerEntry] = {}
        self._listed_at: dict[PeerId, float] = {}
        """When the DHT last had the entry, by the monotonic clock."""
        self._written_at = 0.0
        self.amendments = Pending(folder.amendment, self.chain)
        self.on_attend: OnAttend | None = None
        """Set by what coordinates, or would."""
        self.on_chain: list[Callable[[Switch | None], None]] = []
        """Called after every change of the chain; with a switch where another chain took the place of ours."""
        self.standing: Callable[[], Standing] = lambda: Standing(
            self.head_round, self.head_hash, self.chain.certified_round
        )
        self.list_snapshots: Callable[[], Sequence[Snapshot]] = tuple
        self.libp2p: Libp2pNode | None = None
        self.directory: Directory | None = None
        self.server: PeerServer | None = None

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def head_hash(self) -> bytes:
        return self.chain.head.hash if self.chain.head else b""

    @property
    def head_round(self) -> int:
        """-1 before record 0 is here."""
        return self.chain.num_records - 1

    # ---- the time ----

    def now(self) -> float:
        """What time it is in the run, Unix seconds: rounds, leases, claims and call tokens go by it."""
        return self.clock.time()

    def hears_time(self, peer: PeerId, their_time: float) -> None:
        """It is `their_time` for `peer`, by its word. It counts if the newest record names the peer: anybody can
        call."""
        if peer != self.peer_id and self.names(peer):
            self.clock.note(peer, their_time)

    @property
    def rules(self) -> Rules:
        """What holds from the newest record on."""
        return self.amendments.rules

    def names(self, peer: PeerId) -> bool:
        """Whether the newest record does."""
        record = self.chain.head.record if self.chain.head else None
        return record is not None and (peer in record.members or peer in record.candidates)

    def take_time(self, now: float) -> None:
        """It is `now` for who introduces this node."""
        if seconds := self.clock.tell(now):
            self._time_was_set(seconds)

    def _time_was_set(self, seconds: float) -> None:
        logger.warning("going by the time of the others from now on, not by this machine's seconds=%+.0f", seconds)
        for listener in self.on_time:
            listener(seconds)
        if self.directory is not None:
            self.directory.look_again()

    # ---- the chain ----

    def take_record(self, certified: CertifiedRecord) -> None:
        """Append the next record, on disk when this returns; raises `PeerError` for one that does not belong there.

        An uncertified one behind a certified one is taken only when our own clock says that the run has stalled:
        anybody can make one.
        """
        head = self.chain.head
        is_free = head is None or self.chain.certified_round < head.round or self._has_stalled(head)
        self.chain.append(certified, may_be_uncertified=is_free)
        self.chain_changed(None)

    def take_branch(self, branch: Sequence[CertifiedRecord]) -> Switch | None:
        """Follow `branch`, which begins behind our newest certified record, if it ranks above our own chain."""
        base, rank = self.chain.record(self.chain.certified_round).sealed, self.chain.rank
        if self._is_early(base, branch[:1]):
            return None
        switch = self.chain.adopt(branch)
        if switch is not None:
            if switch.lost:
                logger.warning(
                    "another chain ranks above ours, ours is given up from round=%d records=%d tokens=%d",
                    switch.first_round,
                    len(switch.lost),
                    switch.lost_tokens,
                )
            self.chain_changed(switch)
        elif self.chain.rank != rank:  # it had better certificates of our own records
            self.chain_changed(None)
        return switch

    def improve_record(self, certified: CertifiedRecord) -> None:
        """Take a certificate for a record that is here uncertified; raises `PeerError` for a bad one."""
        if self.chain.improve(certified):
            logger.info("record certified late round=%d newest=%d", certified.sealed.round, self.chain.certified_round)
            self.chain_changed(None)

    def settle_late(self, certified: CertifiedRecord) -> None:
        """Take the certificate of the record behind the last certified one: ours, or one in whose place we went on."""
        if certified.sealed.hash == self.chain.record(certified.sealed.round).sealed.hash:
            self.improve_record(certified)
        else:
            self.take_branch([certified])

    def chain_changed(self, switch: Switch | None) -> None:
        self.amendments.forget_carried()
        for listener in self.on_chain:
            listener(switch)

    def _is_early(self, base: SealedRecord, branch: Sequence[CertifiedRecord]) -> bool:
        """Whether `branch` begins uncertified although the round behind `base` may still close well. It may not for who
        has gone on itself, whatever its clock shows now."""
        if not branch or self.chain.certified_round < self.head_round:
            return False
        if branch_of(base, branch, self.chain.checks).certified_round > base.round:
            return False
        return not self._has_stalled(base)

    def _has_stalled(self, head: SealedRecord) -> bool:
        return self.now() >= stalled_at(head.record, self.manifest.timing.stall_timeout_seconds)

    @contextlib.asynccontextmanager
    async def running(self, known: Iterable[PeerEntry]) -> AsyncIterator[None]:
        """Serve, listen and keep the DHT entry until the block ends; `known` are nodes to join through."""
        known = list(known)
        # who has introduced us, until a record says whom to ask
        first = [one for one in known if self.chain.head is None or self.names(one.peer_id)][:1]
        for entry in known:
            self.take_entry(entry)
        remove_litter(self.folder.path)
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            self.server = await PeerServer.start(
                host=self,
                holdings=self.holdings,
                tls=self.tls,
                listen=f"{_bracketed(settings.host)}:{settings.ports.grpc}" if settings.inbound else None,
                unix_path=self.folder.peer_socket,
                traffic=self.traffic,
                upload=self._upload,
                home_address=self._home.address_for,
                transfers=self.transfers,
            )
            stack.push_async_callback(self.server.stop, 1.0)
            stack.push_async_callback(self.connections.close)
            self.connections.update_entry(self.entry())  # a coordinator attends itself like any other member
            # hivemind and py-libp2p take seconds to import, and may take seconds to end: both at once
            closings: list[_Closing] = []
            stack.push_async_callback(_close_at_once, closings)
            try:
                async with asyncio.TaskGroup() as starting:
                    starting.create_task(self._first_look(first))
                    libp2p = starting.create_task(self._start_libp2p(known, closings))
                    directory = starting.create_task(self._start_directory(known, closings))
            except* SpesError as failures:
                raise first_in(failures) from None
            self.libp2p, self.directory = libp2p.result(), directory.result()
            if self.reach.is_confirmed:  # now the other two listen
                await self._look(first, SERVICES)
            yield

    async def _first_look(self, known: Sequence[PeerEntry]) -> None:
        """At whether gRPC can be dialled, while the children start."""
        if self.settings.inbound:
            await self._look(known, ("grpc",))

    async def _look(self, known: Sequence[PeerEntry], services: Sequence[str]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self.reach.measure(self.connections, {one.peer_id: one.name for one in known}, services)

    def _witnesses(self) -> dict[PeerId, str]:
        """Who can be asked to dial back: whoever the newest record names, is dialled directly, and is there. Anybody
        can have an entry, and lie."""
        named = [one for one in self.entries.values() if one.grpc_addresses and self.names(one.peer_id)]
        return {one.peer_id: one.name for one in named if self._is_present(one)}

    def _is_present(self, entry: PeerEntry) -> bool:
        is_listed = self.unlisted_seconds(entry.peer_id) <= self.manifest.timing.dht_ttl_seconds
        return is_listed and entry.state != PeerState.LEAVING

    async def _start_libp2p(self, known: Sequence[PeerEntry], closings: list[_Closing]) -> Libp2pNode:
        relays = self._relay_choice.choose(known, ()) if self.reach.needs_relay else ()
        limits = self.settings.relay
        node = await Libp2pNode.start(
            identity=self.identity,
            host=self.settings.host,
            port=self.settings.ports.libp2p,
            relay=limits and limits.within(self.settings.max_upload, self.settings.max_download),
            relays=relays,
            inbound_socket=self.folder.peer_socket,
            folder=self.folder.path,
            on_addresses=lambda _addresses: self.announce_soon.set(),
            on_relayed=self._has_relayed,
        )
        closings.append(node.close)
        return node

    def _has_relayed(self, num_bytes: int) -> None:
        """So many bytes came for others, and went: our own blobs wait for them."""
        self._upload.charge(num_bytes)
        self._download.charge(num_bytes)

    async def _start_directory(self, known: Sequence[PeerEntry], closings: list[_Closing]) -> Directory:
        directory = await Directory.start(
            identity=self.identity,
            run_id=self.signed_manifest.run_id,
            host=self.settings.host,
            port=self.settings.ports.dht,
            initial_peers=tuple(address for entry in known for address in entry.dht_addresses),
            timing=self.manifest.timing,
            folder=self.folder.path,
            clock=self.clock,
        )
        closings.append(directory.close)
        return directory

    async def use_relays(self) -> None:
        """Keep places at relays of the run until all who try get through otherwise."""
        if self.libp2p is None:
            return
        present = [one for one in self.entries.values() if self._is_present(one)]
        if self.reach.needs_relay:
            most = 1 if self.reach.is_confirmed else MAX_RELAYS  # one in case that those who got through lie
            relays = self._relay_choice.choose(present, self.libp2p.standing_relays, most)
            await self.libp2p.use_relays(relays, self.reach.seen_at)
        else:
            await self.libp2p.use_relays(())

    async def _open_tunnel(self, peer_id: PeerId, addresses: Sequence[str]) -> Path:
        if self.libp2p is None:
            raise Unreachable("the libp2p node is not running yet")
        return await self.libp2p.open_tunnel(peer_id, addresses)

    def _relay_of(self, peer_id: PeerId) -> PeerId | None:
        return PeerId(self.libp2p.relay_of(peer_id)) or None if self.libp2p is not None else None

    async def _look_for_better_ways(self) -> None:
        while True:
            await asyncio.sleep(_BETTER_WAYS_SECONDS)
            await self.connections.improve()

    async def upkeep(self) -> None:
        """Keep logs bounded, go by the others' time, and notice when our clock is set or this node did not run, for
        ever; while `running`."""
        assert self.directory is not None
        look_again = self.directory.look_again
        watch = ClockWatch(self.clock, lambda _seconds: look_again(), lambda _seconds: look_again(), self._time_was_set)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_bounded(self.folder.logs))
            tasks.create_task(watch.run())
            tasks.create_task(self.reach.keep(self.connections, self._witnesses))
            tasks.create_task(self._look_for_better_ways())
            if self.settings.maps_ports:
                tasks.create_task(self._keep_ports_mapped())
            if towards := self.settings.towards:
                addresses = AddressWatch(self.reach.own_host, lambda: address_towards(towards, 9), self._move)
                tasks.create_task(addresses.run())

    async def _keep_ports_mapped(self) -> None:
        """Anew at each address that this machine gets."""
        while True:
            self._has_moved.clear()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(keep_ports_mapped(self.reach))
                    await self._has_moved.wait()
                    raise _Moved
            except* _Moved:
                pass

    async def _move(self, own_host: str, is_cut: bool) -> None:
        """This machine has another address. Connections from one that is gone are dead, but would not say so for long:
        all are given up, and those of the child processes with them."""
        if is_cut:
            for child in (self.libp2p, self.directory):
                if child is not None:
                    child.restart()
            await self.connections.close()
        self.reach.move(own_host, is_cut)
        self._has_moved.set()

    # ---- what this node says of itself ----

    def entry(self) -> PeerEntry:
        """This node's entry as it is now. The moment is our wall clock's, so that others can tell us if that is wrong;
        but it rises, so that an entry is newer than the last one where that was set back."""
        self._written_at = max(self.clock.wall(), self._written_at + 0.001)
        settings, reach = self.settings, self.reach
        libp2p = self.libp2p.addresses if self.libp2p else ()
        dht = self.directory.addresses if self.directory else ()
        relayed = [address for address in libp2p if "/p2p-circuit" in address and reach.needs_relay]
        return PeerEntry(
            peer_id=self.peer_id,
            name=settings.name,
            version=__version__,
            protocol=PROTOCOL_VERSION,
            role=settings.role,
            state=self.state,
            incarnation=self.signer.incarnation,
            grpc_addresses=tuple(str(endpoint) for endpoint in reach.endpoints("grpc")),
            certificate=self.tls.certificate_der,
            libp2p_addresses=(*_multiaddrs(reach.endpoints("libp2p"), libp2p), *relayed),
            dht_addresses=_multiaddrs(reach.endpoints("dht"), dht),
            max_subsets=self.max_subsets,
            written_at=self._written_at,
            is_relay=settings.relay is not None and bool(reach.endpoints("libp2p")),
        )

    async def announce(self) -> None:
        """Put this node's entry into the DHT, and read the others'."""
        assert self.directory is not None
        await self.directory.publish_entry(self.entry())
        await self.refresh_entries()

    async def refresh_entries(self) -> None:
        """Take what the DHT has, and forget whom it has not had for a lease, unless the newest record needs it."""
        assert self.directory is not None
        entries = await self.directory.read_entries()
        if own := entries.get(self.peer_id):
            self.seen_incarnation = max(self.seen_incarnation, own.incarnation)
        for entry in entries.values():
            self.take_entry(entry)
        record = self.chain.head.record if self.chain.head else None
        needed = {*record.candidates, *(entry.peer_id for entry in record.roster)} if record else set(self.entries)
        for peer_id in [peer for peer in self.entries if peer not in needed]:
            if self.unlisted_seconds(peer_id) > self.manifest.timing.lease_seconds:
                del self.entries[peer_id], self._listed_at[peer_id]
                self.connections.forget(peer_id)

    def unlisted_seconds(self, peer_id: PeerId) -> float:
        """How long the DHT has not had the entry of a node in `entries`."""
        return time.monotonic() - self._listed_at[peer_id]

    def take_entry(self, entry: PeerEntry) -> None:
        """Remember how to reach a node; an older start of it is ignored."""
        held = self.entries.get(entry.peer_id)
        if entry.peer_id == self.peer_id or (held and _moment(held) > _moment(entry)):
            return
        self.entries[entry.peer_id] = entry
        self._listed_at[entry.peer_id] = time.monotonic()
        self.connections.update_entry(entry)

    @property
    def upload(self) -> Pace:
        """Of all blobs that leave this node, whatever way."""
        return self._upload

    def serve_blobs(self, does: bool) -> None:
        """Whether others can have blobs from here; at first they can."""
        self._upload.is_used_up = not does

    def others(self) -> tuple[PeerId, ...]:
        """Nodes that can be asked for blobs: volunteers first, so that bootstrap nodes keep their uplink, and else in
        an order of chance, so that not all ask the same."""
        present = [entry for entry in self.entries.values() if entry.state != PeerState.LEAVING]
        present.sort(key=lambda entry: (entry.role == Role.BOOTSTRAP, random.random()))
        return tuple(entry.peer_id for entry in present)

    def name_of(self, peer_id: PeerId) -> str:
        entry = self.entries.get(peer_id)
        return self.settings.name if peer_id == self.peer_id else entry.name if entry else peer_id[-8:]

    # ---- what the server asks its host (exchange.server.Host) ----

    @property
    def run_id(self) -> bytes:
        return self.signed_manifest.run_id

    def description(self) -> Description:
        return Description(self.signed_manifest, self.signer.sign(self.entry()), self.head_round, self.now())

    async def attend(self, caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        if self.on_attend is not None:
            await self.on_attend(caller, incoming, send)

    def records_from(self, round: int) -> Iterable[CertifiedRecord]:
        return self.chain.from_round(round)

    def snapshots(self) -> Sequence[Snapshot]:
        return self.list_snapshots()

    def amend(self, brought: Signed | None) -> AmendReply:
        return self.amendments.answer(brought)


def _moment(entry: PeerEntry) -> tuple[int, float]:
    return entry.incarnation, entry.written_at


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _multiaddrs(endpoints: Iterable[Endpoint], listening: Sequence[str]) -> tuple[str, ...]:
    """Of a listener that says of itself that it is at `listening`, whose peer id stands in these."""
    if not listening:
        return ()
    peer_id = PeerId(listening[0].rpartition("/p2p/")[2])
    return tuple(NodeAddress(endpoint.host, endpoint.port, peer_id).text() for endpoint in endpoints)


async def _close_at_once(closings: list[_Closing]) -> None:
    """All of them, whatever one of them raises."""
    await asyncio.gather(*(close() for close in closings))
