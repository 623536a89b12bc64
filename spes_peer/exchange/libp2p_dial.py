"""From multiaddrs to a stream: which ways lead to a peer, and how to get there within a bounded time."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import trio
from libp2p.abc import IHost, INetConn, INetStream
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
    routes = []
    for text in addresses:
        try:
            route = Route.parse(text)
        except BadMessage as error:
            logger.info("ignored an address peer=%s reason=%s", peer, error)
            continue
        if route.peer == peer:
            routes.append(route)
    return tuple(routes[:MAX_ROUTES])


async def open_stream(host: IHost, peer: ID, routes: Iterable[Route]) -> INetStream:
    """A stream to `peer` over a connection that stands, or else by the first route that leads there."""
    if connected(host, peer):
        try:
            return await _new_stream(host, peer)
        except Exception as error:  # a connection that is dead without knowing it
            logger.info("gave up a connection peer=%s error=%r", peer, error)
            await disconnect(host, peer)
    reasons = []
    for route in routes:
        try:
            with trio.fail_after(DIAL_SECONDS):
                await connect(host, route)
            return await _new_stream(host, peer)
        except Exception as error:  # py-libp2p raises many kinds, often without words
            reasons.append(f"{route.address}: {error or type(error).__name__}")
    raise Unreachable(f"no way leads to {peer}: " + ("; ".join(reasons) or "it has no usable address"))


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


async def _new_stream(host: IHost, peer: ID) -> INetStream:
    with trio.fail_after(DIAL_SECONDS):
        return await host.new_stream(peer, [PROTOCOL])
