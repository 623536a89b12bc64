"""Asks the router to open ports: a process of its own for each request, `python -m spes_peer.exchange.router_request`.

A router on a strange network is as hostile as anybody, and a library that talks to it waits as long as it likes: this
process can be killed, and takes nobody with it. NAT-PMP is tried first, which answers at once or not at all, then UPnP.
A door is INSIDE:OUTSIDE, our port and the one that the router has, or would, in its place; all are opened, or none. One
line of JSON on the output says what came of it.

    map HOST LEASE_SECONDS DOOR…     {"by": "NAT-PMP", "ports": [outside ports, in order], "lease_seconds": until they
                                     close, "external": the router's own address} or {"error": "why"}
    unmap BY HOST DOOR…              {} whether or not they were open
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from spes_peer.exchange import nat_pmp, upnp

Doors = Sequence[tuple[int, int]]

_PROTOCOLS = {"NAT-PMP": nat_pmp, "UPnP": upnp}


def map_ports(host: str, lease_seconds: int, doors: Doors) -> dict[str, Any]:
    """By the first protocol that opens all; `LookupError` says why none does."""
    reasons = []
    for name, protocol in _PROTOCOLS.items():
        try:
            return {"by": name, **protocol.map_ports(host, lease_seconds, doors)}
        except Exception as error:  # libraries raise what they like
            reasons.append(f"{name}: {error}")
    raise LookupError("; ".join(reasons))


def main(arguments: Sequence[str]) -> None:
    answer: dict[str, Any] = {}
    try:
        if arguments[0] == "map":
            answer = map_ports(arguments[1], int(arguments[2]), _doors(arguments[3:]))
        else:
            _PROTOCOLS[arguments[1]].unmap_ports(arguments[2], _doors(arguments[3:]))
    except Exception as error:
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))


def _doors(texts: Sequence[str]) -> Doors:
    return [(int(inside), int(outside)) for inside, _, outside in (text.partition(":") for text in texts)]


if __name__ == "__main__":
    main(sys.argv[1:])
