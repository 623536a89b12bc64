"""This machine's line, before it has joined: which of its ports are reached from outside, and how fast blobs come."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from spes_peer.blobs import num_pieces_of
from spes_peer.doctor.finding import Finding
from spes_peer.errors import BadConfiguration, BlobMissing, PeerError, UserError
from spes_peer.exchange.dial_back import DialledBack, ask_dial_back
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.limits import MAX_PIECES_PER_REQUEST
from spes_peer.exchange.link import Link, blaming
from spes_peer.exchange.newcomer import CALL_SECONDS, link_to
from spes_peer.identity import Identity
from spes_peer.logs import plain
from spes_peer.measures import amount, duration
from spes_peer.ports import Ports, address_towards, choose_ports
from spes_peer.run.data import NAME_BYTES, Data, Shard
from spes_peer.run.manifest import Manifest
from spes_peer.training.traffic import traffic_plan
from spes_peer.wire.peer_pb2 import FetchRequest

_MEASURE_SECONDS = 3.0
_MOST_PART = 0.25  # of a round's deadline, that its bytes may take without a word


async def look(introduction: Introduction, host: str, port: int, can_listen: bool = True) -> list[Finding]:
    """Dialled back by the node that introduced us, if this machine can listen, and fetching from it; with a key for
    this alone."""
    name = plain(introduction.entry.name, 40)
    try:
        async with link_to(introduction, Identity.generate()) as link:
            with blaming(link.peer_id):
                doors = await _doors(link, name, host, port) if can_listen else []
                return [*doors, *await _speed(link, name, introduction.manifest)]
    except (PeerError, UserError) as error:
        return [Finding("from outside", f"{name} cannot be asked: {error}", "ask again in a minute")]


async def _doors(link: Link, name: str, host: str, port: int) -> list[Finding]:
    try:
        ports = choose_ports(host, port)
        async with _listening(host, ports):
            numbers = (ports.grpc, ports.libp2p, ports.dht)
            found = await ask_dial_back(link, name, others=[f":{number}" for number in numbers])
    except BadConfiguration as error:  # of this machine, not of the node
        return [Finding("from outside", f"not tried: {error}", "name other ports with --port, or 0 for free ones")]
    return doors_found(found, ports, is_chosen=port > 0, own=address_towards(found.observed or "192.0.2.1", 9))


def doors_found(found: DialledBack, ports: Ports, is_chosen: bool, own: str) -> list[Finding]:
    """What a dial back says of the way in; `own` is this machine's address on the way to the witness."""
    if not found.observed:
        return [Finding("from outside", f"{found.witness} does not see where we call from", "ask another node")]
    numbers = (ports.grpc, ports.libp2p, ports.dht)
    is_behind = own != found.observed
    router = f"seen at {found.observed}, which is {'a router of this machine' if is_behind else 'its own address'}"
    failures = {number: why for number, why in zip(numbers, found.failures, strict=True) if why}
    which = f"TCP {', '.join(map(str, numbers))}"
    if not failures:
        return [Finding("router", router), Finding("from outside", f"{which}: all answer when {found.witness} dials")]
    number, why = next(iter(failures.items()))
    said = f"{len(failures)} of {which} do not answer when {found.witness} dials; {number}: {why}"
    first = ports.grpc if is_chosen else 4510
    three = f"TCP {first} to {first + 2}"
    where = f"forward {three} on the router to {own}, and let them in" if is_behind else f"let {three} in"
    advice = f"{where} at the firewall, and join with --port {first}; without, others come through relays, slower"
    return [Finding("router", router), Finding("from outside", said, advice)]


@contextlib.asynccontextmanager
async def _listening(host: str, ports: Ports) -> AsyncIterator[None]:
    """As a daemon would, but without a word to whoever comes; `BadConfiguration` where that cannot be."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with contextlib.AsyncExitStack() as stack:
        for number in (ports.grpc, ports.libp2p, ports.dht):
            try:
                server = await asyncio.start_server(hang_up, host, number)
            except OSError as error:
                reason = str(error.strerror).rpartition(": ")[2]  # behind asyncio's own words
                raise BadConfiguration(f"cannot listen on {host} port {number}: {reason}") from None
            await stack.enter_async_context(server)
        yield


async def _speed(link: Link, name: str, manifest: Manifest) -> list[Finding]:
    try:
        rate = await _bytes_per_second(link, manifest)
    except BlobMissing:
        return []
    traffic = traffic_plan(manifest, max(2, manifest.run.min_peers))
    seconds = traffic.received_bytes / rate
    said = (
        f"{rate / 1e6:.1f} MB/s from {name}; a round brings {amount(traffic.received_bytes)}, which takes"
        f" {duration(seconds)}, and sends as much"
    )
    if seconds > _MOST_PART * manifest.timing.round_seconds:
        return [
            Finding("line", said, f"slow for rounds of {duration(manifest.timing.round_seconds)}; others wait for it")
        ]
    return [Finding("line", said)]


async def _bytes_per_second(link: Link, manifest: Manifest) -> float:
    """Of one shard of data, for some seconds at most."""
    shard = await _first_shard(link, manifest.data)
    num_pieces = num_pieces_of(manifest.data.size_bytes(shard))
    request = FetchRequest(name=shard.blob, pieces=range(min(num_pieces, MAX_PIECES_PER_REQUEST)))
    began_at, num_bytes = time.monotonic(), 0
    async with contextlib.aclosing(link.fetch(request, CALL_SECONDS)) as chunks:
        async for chunk in chunks:
            num_bytes += len(chunk.content)
            if time.monotonic() - began_at > _MEASURE_SECONDS:
                break
    return max(num_bytes, 1) / max(time.monotonic() - began_at, 0.001)


async def _first_shard(link: Link, data: Data) -> Shard:
    """As the node says, whom nobody checks: it is asked for this shard again."""
    shards, content = data.sources[0].shards, b""
    request = FetchRequest(name=shards.index, pieces=[0])
    async with contextlib.aclosing(link.fetch(request, CALL_SECONDS)) as chunks:
        async for chunk in chunks:
            content += chunk.content
            if len(content) >= NAME_BYTES:
                return Shard(blob=content[:NAME_BYTES].hex(), num_tokens=shards.tokens_of(0))
    raise BlobMissing("the index of the data is not there")
