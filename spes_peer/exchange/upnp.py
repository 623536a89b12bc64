"""UPnP IGD: finds the router that opens ports on our network, and asks it to; as long as the router likes."""

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import miniupnpc

_DISCOVER_MILLISECONDS = 1_500
_OTHER_PORTS = range(20_000, 60_000)
_TRIES = 4
_DESCRIPTION = "spes-peer"


def _gateway(host: str) -> Any:
    """The router on the network of our address `host`; `LookupError` where there is none that opens ports."""
    upnp = miniupnpc.UPnP(multicastif=host, discoverdelay=_DISCOVER_MILLISECONDS)
    try:
        num_devices = upnp.discover()
        upnp.selectigd()
    except Exception as error:  # its word for "none" is "Success"
        raise LookupError("no router that opens ports answers") from error
    if not num_devices:
        raise LookupError("nothing on this network answers that opens ports")
    return upnp


def map_ports(host: str, lease_seconds: int, doors: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Open all, or none, from `inside` to the port `outside`, or another where that is taken."""
    upnp, opened = _gateway(host), list[int]()
    try:
        for inside, outside in doors:
            opened.append(_map_one(upnp, host, lease_seconds, inside, outside))
    except Exception:
        _remove(upnp, opened)
        raise
    external = ""
    with contextlib.suppress(Exception):  # the library knows but one kind
        external = upnp.externalipaddress()
    return {"ports": opened, "lease_seconds": lease_seconds, "external": external}


def _map_one(upnp: Any, host: str, lease_seconds: int, inside: int, outside: int) -> int:
    failure = None
    for port in (outside, *random.sample(_OTHER_PORTS, _TRIES - 1)):
        for lease in (lease_seconds, 0):  # some routers know only mappings that last
            try:
                upnp.addportmapping(port, "TCP", host, inside, _DESCRIPTION, "", lease)
            except Exception as error:
                failure = error
            else:
                return port
    raise failure or RuntimeError("no port")


def unmap_ports(host: str, doors: Sequence[tuple[int, int]]) -> None:
    _remove(_gateway(host), [outside for _, outside in doors])


def _remove(upnp: Any, outside_ports: Sequence[int]) -> None:
    for port in outside_ports:
        with contextlib.suppress(Exception):  # it may have forgotten it itself
            upnp.deleteportmapping(port, "TCP")
