"""How a newcomer gets to know a run: it asks the node at a bootstrap address, of which it knows only the peer id.

The certificate that the server shows is taken first, then the call is made pinned to it, and the answer must hold an
entry, signed by the peer id of the address, that names this very certificate. So nobody in between can answer instead.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from spes_peer.clock import HeldClock
from spes_peer.errors import BadConfiguration, BadMessage, BadSignature, NoBootstrap, PeerError, TooNew, TooOld
from spes_peer.exchange.addresses import Endpoint, NodeAddress
from spes_peer.exchange.connections import open_channel, pem_of
from spes_peer.exchange.dialling import MAX_IP_ADDRESSES, NoneAnswers, first_that_answers, look_up
from spes_peer.exchange.link import blaming, parsed
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest, SignedManifest
from spes_peer.run.peers import PeerEntry
from spes_peer.run.signed import Signed
from spes_peer.wire import convert, peer_pb2, signed_pb2
from spes_peer.wire.peer_pb2_grpc import PeerStub

INTRODUCTION_SECONDS = 10.0
_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


class WrongNode(NoBootstrap):
    """Somebody answers who is not the node of the address, or does not say the truth: it does not help to ask again."""


@dataclass(frozen=True)
class Description:
    """What a node tells newcomers; see proto/peer.proto."""

    manifest: SignedManifest
    entry: Signed
    head_round: int
    now: float = 0.0


@dataclass(frozen=True)
class Introduction:
    """A description that was found good: the run, and how to reach one of its nodes."""

    signed_manifest: SignedManifest
    manifest: Manifest
    entry: PeerEntry
    """The answering node's."""
    head_round: int
    address: NodeAddress
    """Where it was asked."""
    endpoint: Endpoint
    """Where it answered: that address, with an IP address in place of a name."""
    clock: HeldClock = field(default_factory=HeldClock, compare=False)
    """What time it is for the answering node."""

    @property
    def run_id(self) -> bytes:
        return self.signed_manifest.run_id


async def describe(address: NodeAddress, timeout_seconds: float = INTRODUCTION_SECONDS) -> Introduction:
    """Ask the node at `address`. `NoBootstrap` tells a bad name, a dead port, a silent and a wrong node apart;
    `TooOld` when it speaks a newer protocol, `TooNew` an older one."""
    try:
        async with asyncio.timeout(timeout_seconds):
            ip_addresses = await _resolved(address)
            endpoint, certificate = await _first_shown(address, ip_addresses)
            answer = await _ask(endpoint, certificate, timeout_seconds)
    except TimeoutError:
        raise NoBootstrap(
            f"{address.endpoint} does not answer within {timeout_seconds:g} s; see whether the node there still runs,"
            " and whether a firewall is in between"
        ) from None
    try:
        with blaming(address.peer_id):
            return _checked(parsed(answer), address, endpoint, certificate)
    except PeerError as error:
        raise WrongNode(f"the node at {address.endpoint} cannot be trusted: {error}") from None


async def _resolved(address: NodeAddress) -> list[str]:
    """Some IP addresses of the host, at least one."""
    found = await look_up(address.host, address.port, _FAMILIES[address.name_kind])
    if not found:
        raise NoBootstrap(f"the name {address.host!r} cannot be resolved; check its spelling and this machine's DNS")
    return found[:MAX_IP_ADDRESSES]


async def _first_shown(address: NodeAddress, ip_addresses: list[str]) -> tuple[Endpoint, bytes]:
    """The first of the host's addresses that answers, and the certificate it shows."""

    def attempt(ip_address: str) -> Callable[[], Awaitable[tuple[Endpoint, bytes]]]:
        endpoint = Endpoint(ip_address, address.port)

        async def show() -> tuple[Endpoint, bytes]:
            return endpoint, await _shown_certificate(endpoint)

        return show

    try:
        return await first_that_answers([attempt(one) for one in ip_addresses])
    except NoneAnswers as error:
        raise error.failures[0] from None


async def _shown_certificate(endpoint: Endpoint) -> bytes:
    """DER of the certificate that the server shows to anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what it must be is checked by `_checked`
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    except ssl.SSLError:
        raise NoBootstrap(f"{endpoint} answers, but is no spes-peer node; check the port") from None
    except ConnectionRefusedError:
        raise NoBootstrap(f"nothing listens at {endpoint}; check the port, and whether the node runs") from None
    except OSError as error:
        raise NoBootstrap(f"cannot connect to {endpoint}: {error.strerror or 'it hung up'}") from None
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return bytes(certificate)


async def _ask(endpoint: Endpoint, certificate: bytes, timeout_seconds: float) -> peer_pb2.Description | None:
    try:
        channel = await open_channel(endpoint.target, pem_of(certificate), timeout_seconds)
    except PeerError as error:
        raise NoBootstrap(f"{endpoint} answers, but is no spes-peer node: {error}") from None
    try:
        stub: Any = PeerStub(channel)  # type: ignore[no-untyped-call]
        answer: peer_pb2.Description | None
        answer = await stub.Describe(peer_pb2.DescribeRequest(protocol=PROTOCOL_VERSION))
        return answer
    except grpc.aio.AioRpcError as error:
        raise NoBootstrap(f"the node at {endpoint} does not say what run it is in: {error.code().name}") from None
    finally:
        await channel.close(None)


def _checked(
    answer: peer_pb2.Description, address: NodeAddress, endpoint: Endpoint, certificate: bytes
) -> Introduction:
    run_id = convert.from_message(SignedManifest, answer.manifest).run_id
    signed = convert.from_message(Signed, answer.entry)
    if signed.peer_id != address.peer_id:
        raise WrongNode(
            f"another node than expected answers at {address.endpoint}: its peer id is {signed.peer_id[:64]!r},"
            f" the address says {address.peer_id}; ask the organizer for the address of today"
        )
    signed.check(run_id)
    _refuse_newer(signed)  # before anything is read strictly: a newer version has fields that we do not know
    description = convert.from_message(Description, answer)
    entry = _entry(signed, run_id)
    if entry.certificate != certificate:
        raise BadSignature("it shows another certificate than its entry names; somebody may be in between")
    try:
        manifest = description.manifest.open()
    except TooNew:
        raise
    except BadConfiguration as error:
        raise BadMessage(str(error)) from None
    clock = HeldClock()
    clock.tell(description.now)
    return Introduction(description.manifest, manifest, entry, description.head_round, address, endpoint, clock)


def _refuse_newer(signed: Signed) -> None:
    try:
        protocol = signed_pb2.PeerEntry.FromString(signed.body).protocol
    except DecodeError:
        raise BadMessage("it shows bytes that are no entry") from None
    if protocol > PROTOCOL_VERSION:
        raise TooOld(
            f"the run speaks protocol {protocol}, this program {PROTOCOL_VERSION}; "
            "install a newer one: pip install --upgrade spes-peer"
        )


def _entry(signed: Signed, run_id: bytes) -> PeerEntry:
    entry = signed.open(PeerEntry, run_id)
    if entry.peer_id != signed.peer_id:
        raise BadSignature(f"an entry of {entry.peer_id[:64]!r} signed by {signed.peer_id}")
    return entry
