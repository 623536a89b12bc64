"""How much strangers may ask of the page: connections at a time and requests in a while, of one address and of all."""

import ipaddress
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """A browser has six connections and asks every four seconds; a thousand of them fit."""

    connections: int = 1000
    connections_of_one: int = 50
    """Many may share an address, behind a router."""
    requests: int = 6000
    """In `window_seconds`."""
    requests_of_one: int = 600
    window_seconds: float = 10.0
    connection_seconds: float = 20.0
    """However slow a request comes or an answer goes, a connection ends then."""
    request_bytes: int = 32 << 10
    """That one connection may send in all."""


def visitor(address: str) -> str:
    """Who counts as one: an IPv4 address, or the /64 that an IPv6 subscriber has. A proxy on this machine speaks for
    many, and is "": its visitors count only among all."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return "" if ip.is_loopback else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
        ip = ip.ipv4_mapped
    return "" if ip.is_loopback else str(ip)


class Visits:
    """Counts; `now` is given, in seconds of a monotonic clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._window = -1

    def come(self, who: str) -> bool:
        """Whether this connection may stay; if so, `leave` ends it."""
        if self._open.total() >= self._limits.connections:
            return False
        if who and self._open[who] >= self._limits.connections_of_one:
            return False
        self._open[who] += 1
        return True

    def leave(self, who: str) -> None:
        self._open[who] -= 1
        if self._open[who] <= 0:
            del self._open[who]

    def ask(self, who: str, now: float) -> bool:
        """Whether this request is answered."""
        window = int(now / self._limits.window_seconds)
        if window != self._window:
            self._window = window
            self._asked.clear()
        if self._asked.total() >= self._limits.requests:
            return False
        if who and self._asked[who] >= self._limits.requests_of_one:
            return False
        self._asked[who] += 1
        return True
