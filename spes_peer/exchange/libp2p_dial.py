"""From multiaddrs to a stream: which ways lead to a peer, and how to get there within a bounded time."""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import trio
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from spes_peer.errors import BadMessage, Unreachable
from spes_peer.exchange import libp2p_relay
from spes_peer.identity import public_key_of

logger = logging.getLogger(__name__)

PROTOCOL = TProtocol("/spes-peer/1")
# One way to a peer; several round trips of handshakes, and twice that for a circuit.
DIAL_SECONDS = 10.0
# Of a route before the next is tried beside it: a dead relay costs this, and not the whole time-out.
HEAD_START_SECONDS = 1.5
# Between attempts to reach a peer directly with whom there is a circuit.
MOVE_UP_SECONDS = 60.0
# A peer's entry is its own claim: more addresses than an honest one has are not tried.
MAX_ROUTES = 8


@dataclass(frozen=True)
class Route:
    """A way to `peer`: straight, or by a circuit through `relay`; `address` is where the first of them listens."""

    peer: ID
    address: Multiaddr
    relay: ID | None

    @classmethod
    def parse(cls, text: str) -> "Route":
        """From `…/p2p/<peer>` or `…/p2p/<relay>/p2p-circuit/p2p/<peer>`; `BadMessage` if it is neither."""
        near, circuit, far = text.partition("/p2p-circuit")
        try:
            address = Multiaddr(near)
            first = _peer_of(near)
            return cls(_peer_of(far), address, first) if circuit else cls(first, address, None)
        except Exception:  # multiaddr raises many kinds
            raise BadMessage(f"{text[:200]!r} is not the multiaddr of a peer") from None


def _peer_of(address: str) -> ID:
    _, found, peer_id = address.rpartition("/p2p/")
    public_key_of(peer_id)
    if not found:
        raise ValueError(address)
    return ID.from_base58(peer_id)


def routes_to(peer: ID, addresses: Iterable[str]) -> tuple[Route, ...]:
    """The usable ones among `addresses`, in their order."""
    return tuple(route for route in usable_routes(addresses).values() if route.peer == peer)[:MAX_ROUTES]


def usable_routes(addresses: Iterable[str]) -> dict[str, Route]:
    """Of those of `addresses` that are some: they come from entries, and one that is none must cost no other."""
    routes = {}
    for text in addresses:
        try:
            routes[text] = Route.parse(text)
        except BadMessage as error:
            logger.info("ignored an address reason=%s", error)
    return routes


class Dialler:
    """Opens streams to peers, by the best way that leads there: a direct connection before a circuit."""

    def __init__(self, host: IHost) -> None:
        self._host = host
        self._tried_at: dict[ID, float] = {}
        """When a peer with whom there is a circuit was last dialled directly."""

    async def open_stream(self, peer: ID, routes: Sequence[Route]) -> INetStream:
        """A stream over a connection that stands, or else by the first route that leads there. `Unreachable` says what
        was tried."""
        direct = [route for route in routes if route.relay is None]
        if connected(self._host, peer) and direct and self._may_move_up(peer):
            with contextlib.suppress(Unreachable):
                await self._connect(peer, direct)
        if connected(self._host, peer):
            try:
                return await self._new_stream(peer)
            except Exception as error:  # a connection that is dead without knowing it
                logger.info("gave up a connection peer=%s error=%r", peer, error)
                await disconnect(self._host, peer)
        await self._connect(peer, routes)
        try:
            return await self._new_stream(peer)
        except Exception as error:
            raise Unreachable(f"{peer} opens no stream: {error or type(error).__name__}") from None

    def relay_of(self, stream: INetStream, peer: ID) -> str:
        """Peer id of the relay that carries a stream; empty if none does."""
        return relay_of_stream(self._host, stream, peer)

    def _may_move_up(self, peer: ID) -> bool:
        """Whether there are circuits alone, and no direct way was tried lately."""
        now = trio.current_time()
        if not all(map(is_relayed, connected(self._host, peer))):
            return False
        if now - self._tried_at.get(peer, -MOVE_UP_SECONDS) < MOVE_UP_SECONDS:
            return False
        self._tried_at = {one: at for one, at in self._tried_at.items() if now - at < MOVE_UP_SECONDS}
        self._tried_at[peer] = now
        return True

    async def _connect(self, peer: ID, routes: Sequence[Route]) -> None:
        """By the first route that answers; each has a head start before the next. `Unreachable` when none does."""
        reasons: list[str] = []
        async with trio.open_nursery() as nursery:

            async def attempt(route: Route, has_failed: trio.Event) -> None:
                try:
                    with trio.fail_after(DIAL_SECONDS):
                        await connect(self._host, route)
                except Exception as error:  # py-libp2p raises many kinds, often without words
                    reasons.append(f"{route.address}: {error or type(error).__name__}")
                    has_failed.set()
                else:
                    nursery.cancel_scope.cancel()

            for route in routes:
                has_failed = trio.Event()
                nursery.start_soon(attempt, route, has_failed)
                with trio.move_on_after(HEAD_START_SECONDS):
                    await has_failed.wait()
        if not connected(self._host, peer):
            raise Unreachable(f"no way leads to {peer}: " + ("; ".join(reasons) or "it has no usable address"))
        if reasons:
            logger.warning("another way was taken peer=%s reason=%s", peer, "; ".join(reasons))

    async def _new_stream(self, peer: ID) -> INetStream:
        with trio.fail_after(DIAL_SECONDS):
            return await self._host.new_stream(peer, [PROTOCOL])


def is_relayed(connection: INetConn) -> bool:
    """Whether it is a circuit."""
    return bool(relay_of(connection))


def relay_of_stream(host: IHost, stream: INetStream, peer: ID) -> str:
    """Peer id of the relay that carries a stream to or from `peer`; empty if none does."""
    carrying = (one for one in connected(host, peer) if one.muxed_conn is stream.muxed_conn)
    return next(map(relay_of, carrying), "")


def relay_of(connection: INetConn) -> str:
    """The relay that carries a connection: its peer id; empty if none does."""
    for address in connection.get_transport_addresses():
        near, circuit, _ = str(address).partition("/p2p-circuit")
        if circuit:
            return near.rpartition("/p2p/")[2]
    return "unknown" if connection.get_connection_type() is ConnectionType.RELAYED else ""


async def connect(host: IHost, route: Route) -> None:
    """Connect to the route's end. The network's own `dial_peer` blocks a peer for 60 s after a failure."""
    network = host.get_network()
    if route.relay is None:
        await network.dial_addr(route.address, route.peer)
        return
    if not connected(host, route.relay):
        await network.dial_addr(route.address, route.relay)
    await libp2p_relay.open_circuit(host, route.relay, route.peer)


def connected(host: IHost, peer: ID) -> list[INetConn]:
    """Live connections to `peer`."""
    return [connection for connection in host.get_network().get_connections(peer) if not connection.is_closed]


async def disconnect(host: IHost, peer: ID) -> None:
    """Close all connections to `peer`."""
    with trio.move_on_after(DIAL_SECONDS):
        await host.get_network().close_peer(peer)
