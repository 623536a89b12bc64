"""Addresses that people type and peers announce, and nothing but addresses.

A bootstrap node is named by the multiaddr of its gRPC port and its peer id: `/ip4/203.0.113.7/tcp/4510/p2p/12D3Koo…`.
A peer entry lists plain `host:port`. Both become an `Endpoint` here and only here: gRPC takes targets of many schemes
(`unix:`, `vsock:`), and what a stranger writes must not make us dial a socket of our own machine.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from spes_peer.errors import BadConfiguration, BadSignature
from spes_peer.identity import PeerId, public_key_of

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?\Z")
_EXAMPLE = "/ip4/203.0.113.7/tcp/4510/p2p/12D3Koo…"

NameKind = Literal["dns", "dns4", "dns6"]


@dataclass(frozen=True)
class Endpoint:
    """A host (IP address or name) and a TCP port."""

    host: str
    port: int

    @property
    def ip_version(self) -> Literal[4, 6] | None:
        """None for a name."""
        try:
            return ipaddress.ip_address(self.host).version
        except ValueError:
            return None

    @property
    def target(self) -> str:
        """As gRPC dials it."""
        scheme = {4: "ipv4:", 6: "ipv6:", None: "dns:///"}[self.ip_version]
        return f"{scheme}{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.ip_version == 6 else f"{self.host}:{self.port}"


def parse_endpoint(text: str, lowest_port: int = 1) -> Endpoint:
    """`host:port` or `[v6]:port`; `BadConfiguration` says what is wrong. Port 0, where allowed, asks for a free one."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = _is_ip(host, 6)
    else:
        valid = _is_ip(host, 4) or _is_name(host)
    number = _port(port)
    if not separator or not valid or number is None or number < lowest_port:
        raise BadConfiguration(f"{text[:80]!r} is not host:port with a port from {lowest_port} to 65535")
    return Endpoint(host, number)


@dataclass(frozen=True)
class NodeAddress:
    """Where a node's gRPC server is, and who must answer there."""

    host: str
    port: int
    peer_id: PeerId
    name_kind: NameKind = "dns"
    """Which addresses of a host name count; means nothing for an IP address."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)

    def text(self) -> str:
        """The multiaddr; `parse_address` reads it back."""
        kind = {4: "ip4", 6: "ip6", None: self.name_kind}[self.endpoint.ip_version]
        return f"/{kind}/{self.host}/tcp/{self.port}/p2p/{self.peer_id}"


def parse_address(text: str) -> NodeAddress:
    """A bootstrap node's multiaddr; `BadConfiguration` says in one line what to write instead."""
    text = text.strip()
    if not text.startswith("/"):
        raise _wrong(text, _advice_for_host_and_port(text))
    parts = text.split("/")[1:]
    if text.count("/p2p/") > 1 or any(sign in text for sign in ",; \t\n"):
        raise _wrong(text, "these are several addresses in one; give each a --bootstrap of its own")
    if len(parts) == 4 and parts[2] == "tcp":
        raise _wrong(text, "it lacks the node's peer id; add /p2p/ and the id that the node prints when it starts")
    if len(parts) != 6 or parts[2] != "tcp" or parts[4] != "p2p":
        raise _wrong(text, f"write it like {_EXAMPLE}")
    kind, host, _, port, _, peer_id = parts
    return NodeAddress(
        _checked_host(text, kind, host), _checked_port(text, port), _checked_id(text, peer_id), _kind(kind)
    )


def _kind(kind: str) -> NameKind:
    return "dns4" if kind == "dns4" else "dns6" if kind == "dns6" else "dns"


def _checked_host(text: str, kind: str, host: str) -> str:
    if kind in ("ip4", "ip6"):
        if not _is_ip(host, int(kind[-1])):
            raise _wrong(text, f"{host!r} is not an IPv{kind[-1]} address")
        return host
    if kind not in ("dns", "dns4", "dns6"):
        raise _wrong(text, f"/{kind} is not supported; it begins with /ip4, /ip6, /dns, /dns4 or /dns6")
    if not _is_name(host):
        raise _wrong(text, f"{host!r} is not a host name; an IP address goes behind /ip4 or /ip6")
    return host


def _checked_port(text: str, port: str) -> int:
    number = _port(port)
    if not number:
        raise _wrong(text, f"{port!r} is not a port; use the one that the node prints, from 1 to 65535")
    return number


def _checked_id(text: str, peer_id: str) -> PeerId:
    try:
        public_key_of(peer_id)
    except BadSignature:
        raise _wrong(
            text, f"{peer_id!r} is not a peer id; copy the whole of what the node prints behind /p2p/"
        ) from None
    return PeerId(peer_id)


def _advice_for_host_and_port(text: str) -> str:
    try:
        endpoint = parse_endpoint(text)
    except BadConfiguration:
        return f"write it like {_EXAMPLE}, as the node prints it when it starts"
    start = NodeAddress(endpoint.host, endpoint.port, PeerId("")).text()
    return f"write {start}<peer id>, with the peer id that the node prints when it starts"


def _wrong(text: str, advice: str) -> BadConfiguration:
    shown = text if len(text) <= 120 else text[:120] + "…"
    return BadConfiguration(f"bootstrap address {shown!r} cannot be used: {advice}")


def _is_ip(host: str, version: int) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.version == version and "%" not in host


def _is_name(host: str) -> bool:
    # A name whose last label is a number would be read as an IPv4 address by some resolvers ("127.1").
    return _HOST_NAME.match(host) is not None and not host.rstrip(".").rpartition(".")[2].isdigit()


def _port(text: str) -> int | None:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        return None
    return int(text)
