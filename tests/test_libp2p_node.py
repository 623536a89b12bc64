"""Libp2p nodes as real processes on loopback, with real gRPC over TLS through them.

Nothing here imports libp2p: it cannot live in one process with hivemind, which other tests import.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from spes_peer.errors import BadConfiguration, ChildFailed
from spes_peer.exchange.relay_limits import OF_BOOTSTRAP, RelayLimits
from spes_peer.exchange.tunnels import Libp2pNode
from spes_peer.identity import TLS_SERVER_NAME, Identity, TlsIdentity

HOST = "127.0.0.1"
CHUNK = os.urandom(256 << 10)
NUM_CHUNKS = 64
BULK_SHA256 = hashlib.sha256(CHUNK * NUM_CHUNKS).hexdigest()
TLS = TlsIdentity.generate()
OPTIONS = [("grpc.ssl_target_name_override", TLS_SERVER_NAME), ("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, whatever pytest's own folders are called: socket paths are limited."""
    with tempfile.TemporaryDirectory(prefix="spes-") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def node(
    folder: Path,
    name: str,
    *,
    is_relay: bool = False,
    limits: RelayLimits = OF_BOOTSTRAP,
    relays: tuple[str, ...] = (),
    port: int = 0,
    identity: Identity | None = None,
    on_relayed: Callable[[int], None] = lambda _num_bytes: None,
) -> AsyncIterator[Libp2pNode]:
    """A running node whose daemon's gRPC server is `folder`/`name`.sock."""
    started = await Libp2pNode.start(
        identity=identity or Identity.generate(),
        host=HOST,
        port=port or free_port(),
        relay=limits if is_relay else None,
        relays=relays,
        inbound_socket=folder / f"{name}.sock",
        folder=folder / name,
        on_relayed=on_relayed,
    )
    try:
        yield started
    finally:
        await started.close()


@contextlib.asynccontextmanager
async def daemon(folder: Path, name: str) -> AsyncIterator[None]:
    """The gRPC server behind a node."""
    server = grpc.aio.server()
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
        "Up": grpc.stream_unary_rpc_method_handler(_up),
        "Down": grpc.unary_stream_rpc_method_handler(_down),
        "Repeat": grpc.stream_stream_rpc_method_handler(_repeat),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    credentials = grpc.ssl_server_credentials([(TLS.key_pem, TLS.certificate_pem)])
    server.add_secure_port(f"unix:{folder / name}.sock", credentials)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def _echo(request: bytes, _context: object) -> bytes:
    return request


async def _up(requests: AsyncIterator[bytes], _context: object) -> bytes:
    digest = hashlib.sha256()
    async for request in requests:
        digest.update(request)
    return digest.hexdigest().encode()


async def _down(_request: bytes, _context: object) -> AsyncIterator[bytes]:
    for _ in range(NUM_CHUNKS):
        yield CHUNK


async def _repeat(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def channel_to(path: Path) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(f"unix:{path}", grpc.ssl_channel_credentials(TLS.certificate_pem), options=OPTIONS)


async def echo(path: Path, timeout_seconds: float = 30.0) -> bytes:
    """One call over a fresh channel."""
    async with channel_to(path) as channel:
        return await channel.unary_unary("/Test/Echo")(b"hello", timeout=timeout_seconds)


async def answers(path: Path) -> bool:
    with contextlib.suppress(grpc.aio.AioRpcError):
        return await echo(path, 20.0) == b"hello"
    return False


async def bulk_both_ways(path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(NUM_CHUNKS):
            yield CHUNK

    async with channel_to(path) as channel:
        started_at = time.monotonic()
        uploaded = await channel.stream_unary("/Test/Up")(chunks(), timeout=100)
        turned_at = time.monotonic()
        digest = hashlib.sha256()
        async for chunk in channel.unary_stream("/Test/Down")(b"", timeout=100):
            digest.update(chunk)
        megabytes = len(CHUNK) * NUM_CHUNKS / 1e6
        print(
            f"up {megabytes / (turned_at - started_at):.0f}, down {megabytes / (time.monotonic() - turned_at):.0f} MB/s"
        )
    assert uploaded.decode() == digest.hexdigest() == BULK_SHA256


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll until a condition of real processes holds."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result if isinstance(result, bool) else await result:
            return
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.05)


async def relayed(reached: Libp2pNode) -> tuple[str, ...]:
    """A node's addresses through relays, as soon as there are any."""
    await until(lambda: bool(through_relays(reached)))
    return through_relays(reached)


def through_relays(reached: Libp2pNode) -> tuple[str, ...]:
    return tuple(address for address in reached.addresses if "/p2p-circuit/" in address)


def peer_id_of(node: Libp2pNode) -> str:
    return node.addresses[0].rpartition("/")[2]


def processes() -> list[psutil.Process]:
    """Those of libp2p nodes that this process has started, in the order of their start."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "spes_peer.exchange.libp2p_node" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


async def test_a_node_has_the_peer_id_of_its_identity(folder: Path) -> None:
    identity, port = Identity.generate(), free_port()
    async with node(folder, "n", identity=identity, port=port) as started:
        assert started.addresses == (f"/ip4/{HOST}/tcp/{port}/p2p/{identity.peer_id}",)


async def test_calls_and_bulk_reach_a_peer_through_a_relay(folder: Path) -> None:
    async with (
        daemon(folder, "n"),
        node(folder, "r", is_relay=True) as relay,
        node(folder, "n", relays=relay.addresses) as reached,
        node(folder, "d") as dialler,
    ):
        addresses = await relayed(reached)
        assert addresses == (f"{relay.addresses[0]}/p2p-circuit/p2p/{peer_id_of(reached)}",)
        path = await dialler.open_tunnel(peer_id_of(reached), addresses)
        assert await echo(path) == b"hello"
        await bulk_both_ways(path)


async def test_calls_and_bulk_reach_a_peer_directly(folder: Path) -> None:
    async with daemon(folder, "n"), node(folder, "n") as reached, node(folder, "d") as dialler:
        path = await dialler.open_tunnel(peer_id_of(reached), reached.addresses)
        assert await echo(path) == b"hello"
        await bulk_both_ways(path)


async def test_a_peer_that_hears_of_a_relay_later_is_reached_through_it(folder: Path) -> None:
    async with (
        daemon(folder, "n"),
        node(folder, "r", is_relay=True) as relay,
        node(folder, "n") as reached,
        node(folder, "d") as dialler,
    ):
        await reached.use_relays(relay.addresses)
        addresses = await relayed(reached)
        assert reached.standing_relays == relay.addresses
        assert await echo(await dialler.open_tunnel(peer_id_of(reached), addresses)) == b"hello"
        child = reached._child
        await reached.use_relays((*relay.addresses, "/ip4/127.0.0.1/tcp/9/p2p/" + peer_id_of(dialler)))
        assert through_relays(reached) == addresses  # a place that stands is not touched
        await reached.use_relays(())
        await until(lambda: not through_relays(reached))
        await reached.use_relays(relay.addresses)
        assert await relayed(reached) == addresses
        assert reached._child is child


async def test_what_carries_a_tunnel_is_told_and_a_direct_way_is_taken_once_there_is_one(folder: Path) -> None:
    async with (
        daemon(folder, "n"),
        node(folder, "r", is_relay=True) as relay,
        node(folder, "n", relays=relay.addresses) as reached,
        node(folder, "d") as dialler,
    ):
        peer_id, circuits = peer_id_of(reached), await relayed(reached)
        path = await dialler.open_tunnel(peer_id, circuits)
        assert await echo(path) == b"hello"
        assert dialler.relay_of(peer_id) == peer_id_of(relay)
        await dialler.open_tunnel(peer_id, (*reached.addresses, *circuits))
        assert await echo(path) == b"hello"
        assert dialler.relay_of(peer_id) == ""


async def test_a_dead_route_costs_a_moment(folder: Path) -> None:
    async with daemon(folder, "n"), node(folder, "n") as reached, node(folder, "d") as dialler:
        peer_id = peer_id_of(reached)
        with socket.create_server((HOST, 0)) as silent:  # shakes no hands
            dead = f"/ip4/{HOST}/tcp/{silent.getsockname()[1]}/p2p/{peer_id}"
            path = await dialler.open_tunnel(peer_id, (dead, *reached.addresses))
            started = time.monotonic()
            assert await echo(path) == b"hello"
            assert time.monotonic() - started < 9.5  # the dead one is given 10 s


async def test_after_a_relay_restarts_its_peers_are_reached_again(folder: Path) -> None:
    identity, port = Identity.generate(), free_port()
    async with daemon(folder, "n"), contextlib.AsyncExitStack() as stack:
        async with node(folder, "r", is_relay=True, identity=identity, port=port) as relay:
            reached = await stack.enter_async_context(node(folder, "n", relays=relay.addresses))
            dialler = await stack.enter_async_context(node(folder, "d"))
            path = await dialler.open_tunnel(peer_id_of(reached), await relayed(reached))
            assert await echo(path) == b"hello"
            processes()[0].kill()
            await relay.close()  # or it is back before anybody has noticed
            await until(lambda: not through_relays(reached))
        async with node(folder, "r", is_relay=True, identity=identity, port=port):
            await relayed(reached)
            await until(lambda: answers(path))


async def test_the_end_of_one_circuit_leaves_the_others_alone(folder: Path) -> None:
    async with (
        daemon(folder, "n"),
        node(folder, "r", is_relay=True) as relay,
        node(folder, "n", relays=relay.addresses) as reached,
        node(folder, "d") as dialler,
    ):
        addresses = await relayed(reached)
        path = await dialler.open_tunnel(peer_id_of(reached), addresses)
        async with channel_to(path) as channel:
            call = channel.stream_stream("/Test/Repeat")(timeout=100)
            await call.write(b"before")
            assert await call.read() == b"before"
            async with node(folder, "e") as other:
                assert await echo(await other.open_tunnel(peer_id_of(reached), addresses)) == b"hello"
            for message in (b"one", b"two", b"three"):
                await asyncio.sleep(0.3)
                await call.write(message)
                assert await call.read() == message
            call.cancel()


@pytest.mark.slow
async def test_who_asks_a_relay_for_too_many_circuits_takes_another_relay_and_is_in_nobodys_way(folder: Path) -> None:
    identity = Identity.generate()
    async with (
        daemon(folder, "a"),
        daemon(folder, "b"),
        node(folder, "r", is_relay=True, limits=RelayLimits(8, 1, 0)) as small,
        node(folder, "s", is_relay=True) as large,
        node(folder, "a", relays=(*small.addresses, *large.addresses)) as a,
        node(folder, "b", relays=(*small.addresses, *large.addresses)) as b,
    ):
        for one in (a, b):
            await until(lambda one=one: len(through_relays(one)) == 2)

        def by(relay: Libp2pNode, reached: Libp2pNode) -> tuple[str, ...]:
            return tuple(one for one in through_relays(reached) if f"/{peer_id_of(relay)}/" in one)

        async def reaches(caller: Libp2pNode, reached: Libp2pNode, *addresses: str) -> None:
            tunnel = await caller.open_tunnel(peer_id_of(reached), addresses)
            await until(lambda: answers(tunnel), 60.0)

        async with node(folder, "d", identity=identity) as dialler:
            await reaches(dialler, a, *by(small, a))
            tunnel = await dialler.open_tunnel(peer_id_of(b), by(small, b))
            assert not await answers(tunnel)
            log = folder / "d" / "logs" / "libp2p.log"
            await until(lambda: "the relay carries as much as it will" in log.read_text())
            await reaches(dialler, b, *by(small, b), *by(large, b))
            await until(lambda: dialler.relay_of(peer_id_of(b)) == peer_id_of(large))
            await reaches(a, b, *by(small, b))
        async with node(folder, "d", identity=identity) as again:  # what it had is free when it has gone
            await reaches(again, b, *by(small, b))


@pytest.mark.slow
async def test_a_relay_passes_on_no_more_than_its_owner_gives_and_keeps_nothing_in_memory(folder: Path) -> None:
    num_relayed: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield CHUNK

    async with (
        daemon(folder, "n"),
        node(folder, "r", is_relay=True, limits=RelayLimits(8, 8, 1_000_000), on_relayed=num_relayed.append) as relay,
        node(folder, "n", relays=relay.addresses) as reached,
        node(folder, "d") as dialler,
    ):
        process = processes()[0]
        path = await dialler.open_tunnel(peer_id_of(reached), await relayed(reached))
        assert await echo(path) == b"hello"
        before, started_at = process.memory_info().rss, time.monotonic()
        async with channel_to(path) as channel:
            call = channel.stream_unary("/Test/Up")(endless(), timeout=90)
            await until(lambda: sum(num_relayed) > 500_000, 60.0)
            assert sum(num_relayed) <= 1.1 * 1_000_000 * (time.monotonic() - started_at) + 100_000
            assert process.memory_info().rss - before < 24 << 20
            call.cancel()


async def test_a_tunnel_opened_again_is_the_same_socket_and_takes_the_new_addresses(folder: Path) -> None:
    async with daemon(folder, "n"), node(folder, "n") as reached, node(folder, "d") as dialler:
        peer_id = peer_id_of(reached)
        nowhere = f"/ip4/{HOST}/tcp/{free_port()}/p2p/{peer_id}"
        path = await dialler.open_tunnel(peer_id, ("not an address", nowhere))
        assert not await answers(path)
        assert await dialler.open_tunnel(peer_id, reached.addresses) == path
        assert await answers(path)  # the failed dial before does not block the peer
        assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_whoever_answers_at_a_peers_address_with_another_key_gets_nothing(folder: Path) -> None:
    async with daemon(folder, "n"), node(folder, "n") as reached, node(folder, "d") as dialler:
        expected = Identity.generate().peer_id
        address = reached.addresses[0].replace(peer_id_of(reached), expected)
        assert not await answers(await dialler.open_tunnel(expected, (address,)))


@pytest.mark.parametrize(
    "content",
    [
        b"little, so that gRPC can close at once",
        # more than all buffers hold: gRPC never closes, and it is the libp2p node that misses its peer
        pytest.param(CHUNK * 12, marks=pytest.mark.slow),
    ],
    ids=["little", "much"],
)
async def test_a_call_to_a_frozen_peer_leaves_nothing_open(folder: Path, content: bytes) -> None:
    async with daemon(folder, "n"), node(folder, "n") as reached, node(folder, "d") as dialler:
        frozen, dialling = processes()
        path = await dialler.open_tunnel(peer_id_of(reached), reached.addresses)
        idle = len(dialling.net_connections("unix"))
        async with channel_to(path) as channel:
            call = channel.stream_stream("/Test/Repeat")(timeout=20)
            await call.write(b"hello")
            assert await call.read() == b"hello"
            frozen.send_signal(signal.SIGSTOP)
            try:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.write(content)
                call.cancel()
                del call  # gRPC keeps a connection for as long as somebody holds a call of it
                await channel.close()
                await until(lambda: len(dialling.net_connections("unix")) == idle, 90.0)
            finally:
                frozen.send_signal(signal.SIGCONT)
        await until(lambda: answers(path))


@pytest.mark.slow
async def test_a_frozen_relay_is_noticed_and_its_addresses_withdrawn(folder: Path) -> None:
    async with (
        node(folder, "r", is_relay=True) as relay,
        node(folder, "n", relays=relay.addresses) as reached,
    ):
        await relayed(reached)
        frozen = processes()[0]
        frozen.send_signal(signal.SIGSTOP)
        try:
            await until(lambda: not through_relays(reached), 90.0)
        finally:
            frozen.send_signal(signal.SIGCONT)
        await relayed(reached)


async def test_strangers_bytes_do_not_end_a_node(folder: Path) -> None:
    port = free_port()
    async with daemon(folder, "n"), node(folder, "n", port=port) as reached, node(folder, "d") as dialler:
        for garbage in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x13/multistream/1.0.0\n" + os.urandom(4096),
            b"\xff" * 70000,
        ):
            _reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()
        assert await answers(await dialler.open_tunnel(peer_id_of(reached), reached.addresses))
        assert len(processes()) == 2


async def test_a_node_that_dies_is_started_again_and_its_tunnels_with_it(folder: Path) -> None:
    async with daemon(folder, "n"), node(folder, "n") as reached, node(folder, "d") as dialler:
        peer_id, addresses, own = peer_id_of(reached), reached.addresses, dialler.addresses
        path = await dialler.open_tunnel(peer_id, addresses)
        assert await answers(path)
        processes()[1].kill()
        await until(lambda: not dialler.addresses)
        with pytest.raises(ChildFailed, match="started again"):
            await dialler.open_tunnel(peer_id, addresses)
        await until(lambda: dialler.addresses == own)
        assert await dialler.open_tunnel(peer_id, addresses) == path
        assert await answers(path)


async def test_a_port_in_use_is_named_and_nothing_stays_behind(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadConfiguration, match=f"port {port}: Address already in use"):
            async with node(folder, "n", port=port):
                pass
    assert processes() == []


async def test_two_nodes_do_not_share_a_port(folder: Path) -> None:
    port = free_port()
    async with node(folder, "a", port=port):
        with pytest.raises(BadConfiguration, match=f"port {port}"):
            async with node(folder, "b", port=port):
                pass


async def test_a_closed_node_has_ended_by_itself_and_left_no_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.process.STOP_SECONDS", 60.0)
    port = free_port()
    async with node(folder, "n", port=port) as started:
        path = await started.open_tunnel(Identity.generate().peer_id, ())
        assert path.is_socket()
        child = started._child
    assert child is not None
    assert child.process.returncode == 0
    assert processes() == []
    assert not path.exists()
    with socket.socket() as probe:
        probe.bind((HOST, port))


async def test_a_socket_path_that_is_too_long_is_refused_before_anything_starts(folder: Path) -> None:
    with pytest.raises(BadConfiguration, match="too long"):
        async with node(folder / ("x" * 100), "n"):
            pass


async def test_a_relay_address_that_is_none_costs_no_other_relay(folder: Path) -> None:
    """They come from entries, in which anybody may write what he likes."""
    nonsense = (f"/ip4/{HOST}/tcp/4001", "", f"/dns4/a_b/tcp/1/p2p/{Identity.generate().peer_id}")
    async with (
        node(folder, "r", is_relay=True) as relay,
        node(folder, "n", relays=nonsense) as reached,
    ):
        await reached.use_relays((*nonsense, *relay.addresses))
        assert await relayed(reached)
