"""Connections to peers: dialled by their signed entries, kept, dropped when they fail, dialled again with back-off.

A peer's gRPC addresses are tried first, in order, each with a small head start and for a few seconds; then a libp2p
tunnel, which is a Unix socket to which the same gRPC channel is pointed. Either way the server must show the
certificate in the peer's entry.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from spes_peer.errors import BadConfiguration, BadMessage, SpesError, Unreachable
from spes_peer.exchange import grpc_options
from spes_peer.exchange.addresses import Endpoint, parse_endpoint
from spes_peer.exchange.dialling import LOOK_UP_SECONDS, MAX_IP_ADDRESSES, NoneAnswers, first_that_answers, look_up
from spes_peer.exchange.limits import DIAL_SECONDS, MAX_BACKOFF_SECONDS, MAX_DIALLED_ADDRESSES, TUNNEL_SECONDS
from spes_peer.exchange.link import Link
from spes_peer.exchange.traffic import Traffic, Transport
from spes_peer.identity import PeerId
from spes_peer.run.peers import PeerEntry
from spes_peer.run.signed import Signer

logger = logging.getLogger(__name__)

OpenTunnel = Callable[[PeerId, tuple[str, ...]], Awaitable[Path]]
"""From a peer and its libp2p addresses to a Unix socket whose connections end at that peer's gRPC server."""

RelayOf = Callable[[PeerId], PeerId | None]
"""The relay that carries the newest tunnel to a peer; None where none does."""

_NO_ADDRESS = "it announces none: no address of it has answered a dial back, or its owner wants no connections"


class Neighbours(Protocol):
    """Finds peers in the same home, which announce no address there."""

    def may_be_asked(self, peer: PeerId) -> bool: ...

    async def address_of(self, link: Link) -> Endpoint | None:
        """Where the other end of a tunnel is in our home."""


IMPROVE_SECONDS = 60.0
"""From a link that is not the best there could be to the first look for a better one; twice as long each time."""
_MAX_IMPROVE_SECONDS = 900.0
_FIRST_BACKOFF_SECONDS = 0.5


@dataclass(frozen=True)
class Way:
    """How calls get to a peer."""

    transport: Transport | None
    """None without a link."""
    relay: PeerId | None
    """That carries them; None where none does."""
    why: str
    """In words, why it is not a better one, or that there is none."""


@dataclass
class _Peer:
    entry: PeerEntry | None = None
    link: Link | None = None
    num_failures: int = 0
    retry_at: float = 0.0
    """By the loop's clock."""
    why: str = ""
    no_direct_why: str = ""
    """Why gRPC's addresses did not do, when it was last dialled."""
    relay: PeerId | None = None
    """That carries the link."""
    improve_at: float = 0.0
    """When a better way is looked for, by the loop's clock."""
    improve_seconds: float = IMPROVE_SECONDS
    dialling: asyncio.Lock = field(default_factory=asyncio.Lock)


class Connections:
    """One link per peer, over whichever transport reaches it."""

    def __init__(
        self,
        signer: Signer,
        traffic: Traffic,
        open_tunnel: OpenTunnel | None = None,
        own_socket: Path | None = None,
        now: Callable[[], float] = time.time,
        relay_of: RelayOf = lambda _peer: None,
        may_dial: Callable[[str], bool] = lambda _ip_address: True,
    ) -> None:
        """`own_socket` is where this node itself serves: it is called like any other. Calls show tokens of `now`."""
        self._signer = signer
        self._traffic = traffic
        self._open_tunnel = open_tunnel
        self._own_socket = own_socket
        self._now = now
        self._relay_of = relay_of
        self._may_dial = may_dial
        self.neighbours: Neighbours | None = None
        self._peers: dict[PeerId, _Peer] = {}
        self._retired: list[grpc.aio.Channel] = []
        self._dead: list[grpc.aio.Channel] = []
        """Those of `_retired` whose peer is no longer where it was: nobody would say so for long."""

    @property
    def peer_id(self) -> PeerId:
        """This peer's own."""
        return self._signer.identity.peer_id

    def entry_of(self, peer_id: PeerId) -> PeerEntry | None:
        return self._peers[peer_id].entry if peer_id in self._peers else None

    def way_to(self, peer_id: PeerId) -> Way:
        """How calls get to `peer_id` now, and why so."""
        peer = self._peers.get(peer_id)
        if peer is None or peer.entry is None:
            return Way(None, None, "")
        if peer.link is None:
            return Way(None, None, peer.why if peer.num_failures else "")
        if peer.link.transport == "grpc":
            why = "its address answers" if peer.entry.grpc_addresses else "it answers in the same home network"
            return Way("grpc", None, why)
        silent = f"its address does not answer here: {peer.no_direct_why}"
        return Way("libp2p", peer.relay, silent if peer.entry.grpc_addresses else _NO_ADDRESS)

    def round_trip_seconds(self, peer_id: PeerId) -> float:
        """Of the last call that it answered on the link in use; 0 without one."""
        peer = self._peers.get(peer_id)
        return peer.link.round_trip_seconds if peer is not None and peer.link is not None else 0.0

    def update_entry(self, entry: PeerEntry) -> None:
        """Take a verified entry, unless a newer one is known. New addresses end a back-off, and a link unless it goes
        by libp2p as the entry still says; calls on it go on, unless the peer has gone from where it was dialled."""
        peer = self._peers.setdefault(entry.peer_id, _Peer())
        old = peer.entry
        if old is not None and (entry.incarnation, entry.written_at) < (old.incarnation, old.written_at):
            return
        peer.entry = entry
        if old is not None and _reached_by(old) == _reached_by(entry):
            return
        peer.num_failures, peer.retry_at = 0, 0.0
        peer.improve_at, peer.improve_seconds = 0.0, IMPROVE_SECONDS
        if old is None or _called_at(old) != _called_at(entry) or not self._still_leads_there(peer, entry):
            if peer.link is not None and _has_left(peer.link.target, entry):
                self._dead.append(peer.link.channel)
            self.drop(entry.peer_id)

    async def to(self, peer_id: PeerId) -> Link:
        """A link that was ready when it was last used; `Unreachable` says what was tried."""
        peer = self._peers.get(peer_id)
        if peer is None or peer.entry is None:
            raise Unreachable(f"no address of {peer_id} is known")
        async with peer.dialling:
            if peer.link is not None and peer.link.channel.get_state() is not grpc.ChannelConnectivity.READY:
                self.drop(peer_id)  # lost, or closed because nobody called for long
            if peer.link is None:
                link = await self._dial_with_backoff(peer, peer.entry)
                if self._peers.get(peer_id) is not peer:
                    await link.channel.close(None)
                    raise Unreachable(f"{peer_id} was forgotten while it was dialled")
                self._use(peer, link)
            assert peer.link is not None
            return peer.link

    def _still_leads_there(self, peer: _Peer, entry: PeerEntry) -> bool:
        """Whether a link by libp2p goes a way that is in the entry."""
        if peer.link is None or peer.link.transport == "grpc":
            return True
        if peer.relay is None:
            return True  # the connection stands, whoever began it
        return any(f"/p2p/{peer.relay}/p2p-circuit" in address for address in entry.libp2p_addresses)

    def _use(self, peer: _Peer, link: Link) -> None:
        peer.link = link
        peer.relay = self._relay_of(link.peer_id) if link.transport == "libp2p" else None
        peer.improve_at = asyncio.get_running_loop().time() + peer.improve_seconds

    async def improve(self) -> None:
        """Look for a better way to those whose calls do not go directly over gRPC, where their entries have one and it
        was not tried lately. Calls on the old link go on."""
        await self._close_dead_channels()
        now = asyncio.get_running_loop().time()
        due = [one for one in self._peers.values() if self._is_better_way_due(one, now)]
        await asyncio.gather(*(self._improve(peer) for peer in due))

    def _is_better_way_due(self, peer: _Peer, now: float) -> bool:
        if peer.link is None or peer.entry is None or peer.link.transport == "grpc":
            return False
        if self._needs_no_relay_now(peer) or self._may_be_at_home(peer, peer.entry):
            return True
        has_direct = peer.relay is not None and any(map(_is_direct, peer.entry.libp2p_addresses))
        return now >= peer.improve_at and (has_direct or bool(peer.entry.grpc_addresses))

    def _may_be_at_home(self, peer: _Peer, entry: PeerEntry) -> bool:
        is_tunnelled = peer.link is not None and peer.link.transport == "libp2p"
        return is_tunnelled and self.neighbours is not None and self.neighbours.may_be_asked(entry.peer_id)

    def _needs_no_relay_now(self, peer: _Peer) -> bool:
        """Whether a hole was punched since the link was made."""
        return peer.relay is not None and peer.link is not None and self._relay_of(peer.link.peer_id) is None

    async def _improve(self, peer: _Peer) -> None:
        old, entry = peer.link, peer.entry
        assert entry is not None
        peer.improve_seconds = min(2 * peer.improve_seconds, _MAX_IMPROVE_SECONDS)
        peer.improve_at = asyncio.get_running_loop().time() + peer.improve_seconds
        better: Link | None = None
        try:
            if entry.grpc_addresses:
                better = await self._dial_directly(entry)
        except Unreachable as error:
            peer.no_direct_why = str(error)
        try:
            if better is None and old is not None and self._may_be_at_home(peer, entry):
                better = await self._dial_at_home(entry, old)
            if better is None and peer.relay is not None:
                better = await self._dial_tunnel(entry)
                if self._relay_of(entry.peer_id) is not None:  # a relay again
                    await better.channel.close(None)
                    return
        except SpesError:
            return
        if better is None:
            return
        if peer.link is not old:  # lost, or replaced, meanwhile
            await better.channel.close(None)
            return
        self.drop(entry.peer_id)
        self._use(peer, better)
        logger.info("a better way to a peer transport=%s peer=%s", better.transport, entry.peer_id[-8:])

    def drop(self, peer_id: PeerId) -> None:
        """Hand out this link no more. Calls on it that still run go on."""
        peer = self._peers.get(peer_id)
        if peer is not None and peer.link is not None:
            self._retired.append(peer.link.channel)
            peer.link = None

    def forget(self, peer_id: PeerId) -> None:
        """Drop the link to a peer and how to reach it."""
        self.drop(peer_id)
        self._peers.pop(peer_id, None)

    async def close(self) -> None:
        """Close every link; calls that still run end, and new ones dial again at once."""
        for peer_id, peer in self._peers.items():
            self.drop(peer_id)
            peer.num_failures, peer.retry_at = 0, 0.0
        retired, self._retired = self._retired, []
        self._dead.clear()
        for channel in retired:
            await channel.close(None)

    def _lost(self, link: Link) -> None:
        peer = self._peers.get(link.peer_id)
        if peer is not None and peer.link is link:
            self.drop(link.peer_id)

    async def _dial_with_backoff(self, peer: _Peer, entry: PeerEntry) -> Link:
        now = asyncio.get_running_loop().time
        if now() < peer.retry_at:
            raise Unreachable(f"{peer.why} (tried again in {peer.retry_at - now():.0f} s)")
        await self._close_dead_channels()
        try:
            link = await self._dial(peer, entry)
        except Unreachable as error:
            pause_seconds = min(_FIRST_BACKOFF_SECONDS * 2**peer.num_failures, MAX_BACKOFF_SECONDS)
            peer.num_failures, peer.retry_at, peer.why = peer.num_failures + 1, now() + pause_seconds, str(error)
            raise
        peer.num_failures = 0
        return link

    async def _dial(self, peer: _Peer, entry: PeerEntry) -> Link:
        if entry.peer_id == self.peer_id and self._own_socket is not None:
            return await self._open(entry, "grpc", f"unix:{self._own_socket}", DIAL_SECONDS)
        failures = []
        if entry.grpc_addresses:
            try:
                return await self._dial_directly(entry)
            except Unreachable as error:
                failures.append(str(error))
                peer.no_direct_why = str(error)
        if entry.libp2p_addresses and self._open_tunnel is not None:
            try:
                return await self._dial_tunnel(entry)
            except SpesError as error:
                failures.append(f"no libp2p tunnel: {error}")
        raise Unreachable(f"cannot reach {entry.peer_id}: {'; '.join(failures) or 'its entry has no address for us'}")

    async def _dial_directly(self, entry: PeerEntry) -> Link:
        """By gRPC, at whichever of its addresses answers first."""
        looked_up = await asyncio.gather(
            *map(self._targets_at, entry.grpc_addresses[:MAX_DIALLED_ADDRESSES]), return_exceptions=True
        )
        targets = [target for found in looked_up if not isinstance(found, BaseException) for target in found]
        failures = [str(error) for error in looked_up if isinstance(error, BaseException)]

        def attempt(target: str) -> Callable[[], Awaitable[Link]]:
            return lambda: self._open(entry, "grpc", target, DIAL_SECONDS)

        try:
            return await first_that_answers(
                [attempt(target) for target in targets[:MAX_DIALLED_ADDRESSES]], lambda link: link.channel.close(None)
            )
        except NoneAnswers as error:
            raise Unreachable("; ".join([*failures, *map(str, error.failures)])) from None

    async def _targets_at(self, address: str) -> list[str]:
        """As gRPC dials what an entry names."""
        found = await _resolved(parse_endpoint(address))
        fair = [endpoint.target for endpoint in found if self._may_dial(endpoint.host)]
        if not fair:
            raise Unreachable(f"{address} is a private address, which nobody of a run on the internet has")
        return fair

    async def _dial_at_home(self, entry: PeerEntry, tunnel: Link) -> Link | None:
        """Where a peer says through a tunnel to be in our own home; None if it does not, or nobody answers there."""
        assert self.neighbours is not None
        with contextlib.suppress(SpesError):
            endpoint = await self.neighbours.address_of(tunnel)
            if endpoint is not None:
                return await self._open(entry, "grpc", endpoint.target, DIAL_SECONDS)
        return None

    async def _dial_tunnel(self, entry: PeerEntry) -> Link:
        """By libp2p, however that gets there."""
        assert self._open_tunnel is not None
        try:
            async with asyncio.timeout(TUNNEL_SECONDS):
                path = await self._open_tunnel(entry.peer_id, tuple(filter(self._is_fair, entry.libp2p_addresses)))
        except TimeoutError:
            raise Unreachable(f"none opened in {TUNNEL_SECONDS:.0f} s") from None
        return await self._open(entry, "libp2p", f"unix:{path}", TUNNEL_SECONDS)

    def _is_fair(self, libp2p_address: str) -> bool:
        _, kind, host, *_ = *libp2p_address.split("/"), "", ""
        return kind not in ("ip4", "ip6") or self._may_dial(host)

    async def _open(self, entry: PeerEntry, transport: Transport, target: str, timeout_seconds: float) -> Link:
        channel = await open_channel(target, _pem(entry), timeout_seconds)
        return Link(entry.peer_id, transport, channel, self._signer, self._traffic, self._lost, self._now, target)

    async def _close_dead_channels(self) -> None:
        """Closing a channel cancels its calls, so only channels without a connection are closed before the end."""
        dead = [c for c in self._retired if c in self._dead or c.get_state() is not grpc.ChannelConnectivity.READY]
        self._retired = [c for c in self._retired if c not in dead]
        self._dead.clear()
        for channel in dead:
            await channel.close(None)


async def _resolved(endpoint: Endpoint) -> list[Endpoint]:
    """With IP addresses in place of a name: gRPC would try those of one name for longer than we wait for all."""
    if endpoint.ip_version is not None:
        return [endpoint]
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            found = await look_up(endpoint.host, endpoint.port)
    except TimeoutError:
        found = []
    if not found:
        raise Unreachable(f"the name {endpoint.host!r} cannot be resolved")
    return [Endpoint(host, endpoint.port) for host in found[:MAX_IP_ADDRESSES]]


async def open_channel(target: str, certificate_pem: bytes, timeout_seconds: float) -> grpc.aio.Channel:
    """A channel that is connected to a server with that very certificate, or `Unreachable`."""
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate_pem)
    channel = grpc.aio.secure_channel(target, credentials, options=grpc_options.CHANNEL)
    is_connected = False
    try:
        async with asyncio.timeout(timeout_seconds):
            await _connected(channel, target)
        is_connected = True
    except TimeoutError:
        raise Unreachable(f"{target} does not answer in {timeout_seconds:.0f} s") from None
    finally:
        if not is_connected:
            await channel.close(None)
    return channel


async def _connected(channel: grpc.aio.Channel, target: str) -> None:
    # channel_ready() would go on trying until the time-out; a refusal is known at once.
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise Unreachable(f"{target} refuses, or is not the node it should be")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def pem_of(certificate_der: bytes) -> bytes:
    """As gRPC takes a certificate; `BadMessage` for bytes that are none."""
    try:
        return x509.load_der_x509_certificate(certificate_der).public_bytes(Encoding.PEM)
    except (ValueError, x509.InvalidVersion):  # the latter is no ValueError
        raise BadMessage("bytes that are not a certificate") from None


def _pem(entry: PeerEntry) -> bytes:
    try:
        return pem_of(entry.certificate)
    except BadMessage as error:
        raise Unreachable(f"cannot reach {entry.peer_id}: its entry holds {error}") from None


def _reached_by(entry: PeerEntry) -> tuple[object, ...]:
    return *_called_at(entry), entry.libp2p_addresses


def _called_at(entry: PeerEntry) -> tuple[object, ...]:
    return entry.grpc_addresses, entry.certificate


def _has_left(target: str, entry: PeerEntry) -> bool:
    """Whether a peer names IP addresses, and not the one at which it was dialled."""
    named = []
    for text in entry.grpc_addresses:
        with contextlib.suppress(BadConfiguration):
            named.append(parse_endpoint(text))
    was_at = target.partition(":")[2].rpartition(":")[0].strip("[]")
    is_told = bool(named) and all(endpoint.ip_version for endpoint in named)
    return is_told and target.startswith("ip") and was_at not in [endpoint.host for endpoint in named]


def _is_direct(libp2p_address: str) -> bool:
    return "/p2p-circuit" not in libp2p_address
