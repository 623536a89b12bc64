"""Two peers in one home reach each other at their private addresses, and not through a relay or a hole in the router.

Nobody announces a private address in a run on the internet. A peer tells its own through a tunnel, which is secured
end to end, to one that says to be seen from outside where it is seen itself. The rule for the one that is told: it
dials nothing but a private address of the network that it is in itself, where the peer's own certificate must be shown.
So whoever lies has us greet one port of that network, once a minute all liars together, and learns nothing from it.
"""

import ipaddress
import math
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import Endpoint, parse_endpoint
from spes_peer.exchange.dial_back import Allowance, ask_dial_back
from spes_peer.exchange.link import Link
from spes_peer.exchange.reach import Reach
from spes_peer.identity import PeerId
from spes_peer.ports import is_on_the_internet

_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 10.0, 900.0  # between questions to one peer; twice as long each time
_BURST, _SECONDS_EACH = 4, 60.0  # of addresses that are dialled
_LOWEST_PORT = 1024  # below are a system's own services, and printers
_MAX_REMEMBERED = 1_024


def own_networks(own_host: str) -> list[str]:
    """Those in which this machine has the address, as ADDRESS/NETMASK."""
    addresses = (one for found in psutil.net_if_addrs().values() for one in found)
    return [f"{one.address}/{one.netmask}" for one in addresses if one.address == own_host and one.netmask]


def is_near(endpoint: Endpoint, networks: Iterable[str]) -> bool:
    """Whether it is a private IPv4 address in one of these networks, and no port of a system's own."""
    if endpoint.ip_version != 4 or is_on_the_internet(endpoint.host) or endpoint.port < _LOWEST_PORT:
        return False
    address = ipaddress.ip_address(endpoint.host)
    is_usable = not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)
    return is_usable and any(address in ipaddress.ip_network(network, strict=False) for network in networks)


class HomeNetwork:
    """What one node tells and asks of those that may be in the same home."""

    def __init__(
        self,
        reach: Reach,
        networks: Callable[[str], Sequence[str]] = own_networks,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reach = reach
        self._networks = networks
        self._now = now
        self._pauses: dict[PeerId, tuple[float, float]] = {}
        """Until when each peer is not asked again, and how long that pause is."""
        self._dials = Allowance(_BURST, _SECONDS_EACH, now)

    @property
    def _own(self) -> Endpoint | None:
        """Where this node is in its home; None where it is in none, or takes no connections."""
        host = self._reach.own_host
        is_at_home = self._reach.is_public and self._reach.has_inbound and not is_on_the_internet(host)
        return Endpoint(host, self._reach.ports.grpc) if is_at_home and self._reach.seen_at else None

    def address_for(self, callers: Iterable[str]) -> str:
        """What a peer is told that calls through a tunnel, and says to be at one of these addresses; empty unless it is
        at ours."""
        if self._own is None:
            return ""
        for text in callers:
            try:
                host = parse_endpoint(text).host
            except BadConfiguration:
                continue
            if host == self._reach.seen_at:
                return str(self._own)
        return ""

    def may_be_asked(self, peer: PeerId) -> bool:
        """Whether `peer` may be in the same home, and was not asked lately."""
        paused_until, _ = self._pauses.get(peer, (-math.inf, 0.0))
        return self._own is not None and self._now() >= paused_until

    async def address_of(self, link: Link) -> Endpoint | None:
        """Where the peer at the other end of a tunnel is in our own home; None if it is not. `PeerError` where it says
        nothing."""
        self._pause(link.peer_id)
        found = await ask_dial_back(link, "", [str(Endpoint(self._reach.seen_at, self._reach.ports.grpc))])
        try:
            endpoint = parse_endpoint(found.home_address)
        except BadConfiguration:
            return None
        is_fair = is_near(endpoint, self._networks(self._reach.own_host))
        return endpoint if is_fair and self._dials.take("home") else None

    def _pause(self, peer: PeerId) -> None:
        _, before = self._pauses.pop(peer, (0.0, _FIRST_PAUSE_SECONDS / 2))
        seconds = min(2 * before, _LAST_PAUSE_SECONDS)
        self._pauses[peer] = self._now() + seconds, seconds
        if len(self._pauses) > _MAX_REMEMBERED:
            self._pauses.pop(next(iter(self._pauses)))
