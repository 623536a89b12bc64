"""Ports and addresses of this machine: which to listen on, and whether they are free.

Checked before anything is started, because p2pd and py-libp2p share a busy port in silence (SO_REUSEPORT) instead of
failing.
"""

import contextlib
import errno
import ipaddress
import random
import socket
import sys
from dataclasses import dataclass

from spes_peer.errors import BadConfiguration

MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""Of the path of a Unix socket: what the system has room for, less the zero at its end."""
# Below what systems give to outgoing connections (from 32768 or 49152 on), so that none of those takes a port between
# the moment it is chosen and the moment it is listened on.
_FREE_PORTS = range(20_000, 32_000)
_TRIES = 100


@dataclass(frozen=True)
class Ports:
    """Of the three listeners of a node."""

    grpc: int
    libp2p: int
    dht: int


def choose_ports(host: str, base: int, flag: str = "--port") -> Ports:
    """`base` and the two above it, or three free ones for 0; `BadConfiguration` names a port that is taken, and the
    `flag` by which another can be chosen."""
    if base:
        for number in range(base, base + 3):
            check_port_free(host, number, f"choose another first port with {flag}")
        return Ports(base, base + 1, base + 2)
    free: list[int] = []
    for number in random.sample(_FREE_PORTS, _TRIES):
        if len(free) == 3:
            break
        with contextlib.suppress(BadConfiguration):
            check_port_free(host, number)
            free.append(number)
    if len(free) < 3:
        check_port_free(host, 0)  # says what is wrong with the address, if it is that
        raise BadConfiguration(f"no free ports on {host}; name three in a row that are, with {flag}")
    return Ports(*free)


def check_port_free(host: str, port: int, advice: str = "choose another port") -> None:
    """`BadConfiguration`, ending with `advice`, if nobody could listen on the TCP port now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a former start may linger
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadConfiguration(f"cannot listen on {host} port {port}: {reason}; {advice}") from None


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to `host`; no packet is sent."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def has_address(address: str) -> bool:
    """Whether this machine has the IP address now; no packet is sent."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a machine."""
    return host in ("0.0.0.0", "::")


def wildcard_for(address: str) -> str:
    """All addresses of a machine, of the family of `address`."""
    return "::" if ":" in address else "0.0.0.0"


def is_loopback(address: str) -> bool:
    """Whether it is an IP address of a machine for itself alone; a name is none."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_on_the_internet(address: str) -> bool:
    """Whether it is an IP address that everybody can dial, if nothing is in between; a name is none."""
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False
