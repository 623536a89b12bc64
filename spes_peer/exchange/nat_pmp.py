"""NAT-PMP (RFC 6886): asks the default gateway to open ports, a few datagrams for each question.

On Linux, where the system says which machine that is; elsewhere UPnP has to do. Whoever has the gateway's address can
answer anything: only what fits the question counts.
"""

import contextlib
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import psutil
from natpmp import NATPMP

_ROUTES = Path("/proc/net/route")
_UP_WITH_GATEWAY = 0x0003  # RTF_UP, RTF_GATEWAY
_TRIES = 3  # that wait 0.25, 0.5 and 1 s
_LEAST_LEASE_SECONDS = 60  # who is to be asked again all the time is of no use


def default_gateway(routes: str, devices: Collection[str]) -> str:
    """Of the table as Linux writes it, the nearest one behind one of the network devices; empty for none."""
    found = []
    for line in routes.splitlines()[1:]:
        device, target, gateway, flags, _, _, metric, mask, *_ = line.split()
        is_default = not int(target, 16) and not int(mask, 16)
        if is_default and device in devices and int(flags, 16) & _UP_WITH_GATEWAY == _UP_WITH_GATEWAY:
            address = struct.pack("=I", int(gateway, 16))  # in the machine's order of bytes
            found.append((int(metric), ".".join(map(str, address))))
    return min(found, default=(0, ""))[1]


def gateway_of(host: str) -> str:
    """The router on the network of our address `host`; `LookupError` where none is known."""
    if not _ROUTES.exists():
        raise LookupError("only Linux says which machine the default gateway is")
    networks = psutil.net_if_addrs().items()
    devices = [name for name, addresses in networks if host in (one.address for one in addresses)]
    gateway = default_gateway(_ROUTES.read_text(), devices)
    if not gateway:
        raise LookupError("no default gateway on this network")
    return gateway


def map_ports(host: str, lease_seconds: int, doors: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Open all, or none, from `inside` to the port `outside` or another, for as long as the router grants."""
    gateway = gateway_of(host)
    external = _ask(gateway, NATPMP.PublicAddressRequest(), NATPMP.PublicAddressResponse).ip
    opened = []
    try:
        for inside, outside in doors:
            opened.append(_map_one(gateway, inside, outside, lease_seconds))
        lease_seconds = min(one.lifetime for one in opened)
        if lease_seconds < _LEAST_LEASE_SECONDS:
            raise LookupError(f"the gateway opens ports for {lease_seconds} s only")
    except Exception:
        _unmap(gateway, doors)
        raise
    return {"ports": [one.public_port for one in opened], "lease_seconds": lease_seconds, "external": external}


def unmap_ports(host: str, doors: Sequence[tuple[int, int]]) -> None:
    _unmap(gateway_of(host), doors)


def _map_one(gateway: str, inside: int, outside: int, lease_seconds: int) -> Any:
    request = NATPMP.PortMapRequest(NATPMP.NATPMP_PROTOCOL_TCP, inside, outside, lease_seconds)
    answer = _ask(gateway, request, NATPMP.PortMapResponse)
    if answer.private_port != inside or (lease_seconds and not answer.public_port):
        raise LookupError("the gateway answers another question")
    return answer


def _unmap(gateway: str, doors: Sequence[tuple[int, int]]) -> None:
    with contextlib.suppress(LookupError, OSError):  # one that does not answer is not asked for the others
        for inside, _ in doors:
            _map_one(gateway, inside, 0, 0)


def _ask(gateway: str, request: Any, answer_class: Any) -> Any:
    """Its answer; `LookupError` for none, one that does not fit, or a refusal."""
    try:
        answer = NATPMP.send_request_with_retry(gateway, request, answer_class, retry=_TRIES)
    except (NATPMP.NATPMPUnsupportedError, OSError):
        raise LookupError("the gateway does not answer") from None
    except struct.error:
        raise LookupError("the gateway answers too little") from None
    if (answer.version, answer.opcode) != (0, 128 + request.opcode):
        raise LookupError("the gateway answers another question")
    if answer.result:
        raise LookupError(NATPMP.error_str(answer.result))
    return answer
