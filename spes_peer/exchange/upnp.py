"""Asks the router to open ports (UPnP IGD): a process of its own for each request, `python -m spes_peer.exchange.upnp`.

A router on a strange network is as hostile as anybody, and the library is C and waits as long as it likes: this process
can be killed, and takes nobody with it. One line of JSON on its output says what came of it.

    map HOST LEASE_SECONDS PORT…     {"ports": [outside ports, in order]} or {"error": "why"}
    unmap HOST PORT…                 {} whether or not they were open
"""

import contextlib
import json
import random
import sys
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


def map_ports(host: str, lease_seconds: int, ports: Sequence[int]) -> list[int]:
    """Open all, or none; the outside ports, which are the same where they are free."""
    upnp, opened = _gateway(host), list[int]()
    try:
        for port in ports:
            opened.append(_map_one(upnp, host, lease_seconds, port))
    except Exception:
        _remove(upnp, opened)
        raise
    return opened


def _map_one(upnp: Any, host: str, lease_seconds: int, port: int) -> int:
    failure = None
    for outside in (port, *random.sample(_OTHER_PORTS, _TRIES - 1)):
        for lease in (lease_seconds, 0):  # some routers know only mappings that last
            try:
                upnp.addportmapping(outside, "TCP", host, port, _DESCRIPTION, "", lease)
            except Exception as error:
                failure = error
            else:
                return outside
    raise failure or RuntimeError("no port")


def unmap_ports(host: str, ports: Sequence[int]) -> None:
    _remove(_gateway(host), ports)


def _remove(upnp: Any, outside_ports: Sequence[int]) -> None:
    for port in outside_ports:
        with contextlib.suppress(Exception):  # it may have forgotten it itself
            upnp.deleteportmapping(port, "TCP")


def main(arguments: Sequence[str]) -> None:
    command, host, *numbers = arguments
    try:
        if command == "map":
            lease_seconds, *ports = map(int, numbers)
            answer: dict[str, Any] = {"ports": map_ports(host, lease_seconds, ports)}
        else:
            unmap_ports(host, [int(number) for number in numbers])
            answer = {}
    except Exception as error:  # the library knows but one kind
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
