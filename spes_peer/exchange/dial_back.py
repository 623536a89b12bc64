"""Dialling back: a node asks others which of its addresses lead to it from outside, and they try.

What it costs is bounded, and nobody is made to dial a third: only the IP address that the call itself comes from is
dialled, which the caller has proved to be its own by the connection, and names only where they lead there. A gRPC
address counts when the server there shows the caller's certificate, which is new at each start: it is this very node,
and not another behind the same router. Of other listeners a connection is enough, their own handshakes prove the rest.
"""

import asyncio
import contextlib
import ipaddress
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spes_peer.errors import BadConfiguration, BadMessage, PeerError
from spes_peer.exchange.addresses import Endpoint, parse_endpoint
from spes_peer.exchange.connections import open_channel, pem_of
from spes_peer.exchange.dialling import LOOK_UP_SECONDS, look_up
from spes_peer.exchange.limits import Busy
from spes_peer.exchange.link import Link
from spes_peer.identity import PeerId
from spes_peer.logs import plain
from spes_peer.wire.peer_pb2 import DialBackReply, DialBackRequest

MAX_ADDRESSES = 8
"""Of one request, of both kinds together."""
DIAL_SECONDS = 4.0
ANSWER_SECONDS = LOOK_UP_SECONDS + DIAL_SECONDS + 3.0
"""What the caller gives it."""
_MAX_CERTIFICATE_BYTES = 4_096
_AT_ONCE = 16  # requests of all callers together
_MAX_REASON_CHARACTERS = 200
_MAX_KEYS = 4_096


class Allowance:
    """So many at once for a key, and then one in so many seconds; the keys heard of last are remembered."""

    def __init__(self, burst: float, seconds_each: float, now: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._seconds_each = seconds_each
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> bool:
        """Whether one more is allowed now; it counts if so."""
        now = self._now()
        left, at = self._left.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) / self._seconds_each)
        is_allowed = left >= 1.0
        self._left[key] = (left - is_allowed, now)
        if len(self._left) > _MAX_KEYS:
            self._left.popitem(last=False)
        return is_allowed


class DialBack:
    """The side that dials."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        home_address: Callable[[Sequence[str]], str] = lambda _callers: "",
    ) -> None:
        self._home_address = home_address
        # keys cost nothing, so addresses have an allowance too; a house, or a test, may have many peers at one
        self._of_callers = Allowance(6, 10.0, now)
        self._of_addresses = Allowance(48, 1.0, now)
        self._under_way = 0

    async def answer(self, caller: PeerId, observed: str, request: DialBackRequest) -> DialBackReply:
        """Try what is asked for, or only say where the caller is seen. `Busy` for one who asks too often."""
        wanted = [*request.grpc_addresses, *request.other_addresses]
        if len(wanted) > MAX_ADDRESSES:
            raise BadMessage(f"{len(wanted)} addresses to dial; {MAX_ADDRESSES} are dialled")
        if len(request.certificate) > _MAX_CERTIFICATE_BYTES:
            raise BadMessage(f"a certificate of {len(request.certificate)} bytes")
        if not observed or not wanted:
            home = self._home_address(request.grpc_addresses) if not observed else ""
            failures = ["you call through a tunnel" for _ in wanted]
            return DialBackReply(observed=observed, failures=failures, home_address=home)
        if not (self._of_callers.take(caller) and self._of_addresses.take(observed)) or self._under_way >= _AT_ONCE:
            raise Busy("too many are dialled back; ask again later")
        certificate = pem_of(request.certificate) if request.grpc_addresses else b""
        self._under_way += 1
        try:
            grpc = [_grpc_failure(text, observed, certificate) for text in request.grpc_addresses]
            others = [_other_failure(text, observed) for text in request.other_addresses]
            failures = await asyncio.gather(*grpc, *others)
        finally:
            self._under_way -= 1
        return DialBackReply(observed=observed, failures=[failure[:_MAX_REASON_CHARACTERS] for failure in failures])


async def _grpc_failure(text: str, observed: str, certificate_pem: bytes) -> str:
    """Why it does not lead to the caller; empty if it does."""
    try:
        endpoint = await _allowed(text, observed)
        channel = await open_channel(endpoint.target, certificate_pem, DIAL_SECONDS)
    except (BadConfiguration, PeerError) as error:
        return str(error) or "it failed"
    await channel.close(None)
    return ""


async def _other_failure(text: str, observed: str) -> str:
    try:
        endpoint = await _allowed(text, observed)
        async with asyncio.timeout(DIAL_SECONDS):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except TimeoutError:
        return f"it does not answer in {DIAL_SECONDS:.0f} s"
    except (BadConfiguration, PeerError, OSError) as error:
        return str(error) or "it failed"
    writer.transport.abort()
    return ""


async def _allowed(text: str, observed: str) -> Endpoint:
    """Where to dial for an address, always at `observed`; `BadMessage` if the address is elsewhere."""
    if text.startswith(":"):
        return Endpoint(observed, parse_endpoint(f"{_bracketed(observed)}{text}").port)
    endpoint = parse_endpoint(text)
    if endpoint.ip_version is None:
        found: Sequence[str] = ()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_UP_SECONDS):
                found = await look_up(endpoint.host, endpoint.port)
    else:
        found = [endpoint.host]
    if observed not in map(plain_ip, found):
        raise BadMessage(f"{endpoint.host} does not lead to {observed}, from where you call")
    return Endpoint(observed, endpoint.port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def caller_ip(grpc_peer: str) -> str:
    """The IP address in what gRPC says of the other end ("ipv4:1.2.3.4:5", "ipv6:%5B::1%5D:5"); empty for a socket."""
    kind, _, rest = urllib.parse.unquote(grpc_peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]")
    return plain_ip(host) if kind in ("ipv4", "ipv6") else ""


def plain_ip(host: str) -> str:
    """An IP address in its shortest form, an IPv4 one that wears IPv6 as what it is; empty for what is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


# ---- the side that asks ----


@dataclass(frozen=True)
class DialledBack:
    """A witness's answer."""

    witness: str
    """The name of the node that dialled."""
    observed: str
    """Where it sees us; empty if it does not."""
    failures: tuple[str, ...]
    """For each address why it did not answer; empty where it did."""
    home_address: str = ""
    """Where it is in the home network in which we are too, by what it says through a tunnel; empty for nowhere."""


async def ask_dial_back(
    link: Link, witness: str, grpc: Sequence[str] = (), others: Sequence[str] = (), certificate: bytes = b""
) -> DialledBack:
    """Be dialled by the node at the other end of `link`; `PeerError` when it will not."""
    request = DialBackRequest(grpc_addresses=grpc, other_addresses=others, certificate=certificate)
    reply: DialBackReply = await link.call(link.stub.DialBack, request, ANSWER_SECONDS, needs_work=True)
    observed = plain_ip(reply.observed)
    if len(reply.failures) != len(grpc) + len(others) or (reply.observed and not observed):
        raise BadMessage(f"{link.peer_id}: it does not say what it found")
    failures = tuple(plain(failure, _MAX_REASON_CHARACTERS) for failure in reply.failures)
    return DialledBack(witness, observed, failures, reply.home_address if not observed else "")
