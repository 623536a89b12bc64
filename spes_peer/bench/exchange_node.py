"""A node of `spes-peer bench exchange`: a process that serves blobs and fetches them with the code that peers run.

It obeys JSON lines on its standard input, answers each with one, and ends with it. Beside its service it has the plain
tool: a gRPC stream of the same bytes in the same chunks over the same TLS, which neither reads, hashes nor keeps them.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from spes_peer import __version__
from spes_peer.blobs import PIECE_BYTES, BlobStore
from spes_peer.errors import SpesError
from spes_peer.exchange import grpc_options
from spes_peer.exchange.connections import Connections, open_channel, pem_of
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.introduction import Description
from spes_peer.exchange.limits import CHUNK_BYTES
from spes_peer.exchange.relay_limits import OF_BOOTSTRAP
from spes_peer.exchange.server import PeerServer
from spes_peer.exchange.tokens import CallToken
from spes_peer.exchange.traffic import Traffic
from spes_peer.exchange.tunnels import Libp2pNode
from spes_peer.identity import Identity, PeerId, TlsIdentity
from spes_peer.run.manifest import PROTOCOL_VERSION
from spes_peer.run.peers import PeerEntry, PeerState, Role, Standing
from spes_peer.run.pending import AmendReply
from spes_peer.run.records import CertifiedRecord, Snapshot
from spes_peer.run.signed import Signed, Signer
from spes_peer.wire import convert

RUN_ID = b"a bench, which is no run at all."
PLAIN_METHOD = "/spes_peer.bench/Stream"
STALL_SECONDS = 15.0
_DIAL_SECONDS = 10.0
_RELAYED_SECONDS = 30.0
_BEAT_SECONDS = 0.2


class Node:
    """One peer, and the host of its service."""

    def __init__(self, folder: Path, host: str) -> None:
        self.run_id = RUN_ID
        self.identity = Identity.generate()
        self.tls = TlsIdentity.generate()
        self.traffic = Traffic()
        self.store = BlobStore(folder / "blobs")
        self.holdings = Holdings(self.store)
        self._signer = Signer(self.identity, RUN_ID, 1)
        self.connections = Connections(self._signer, self.traffic, self._open_tunnel)
        self.fetcher = Fetcher(self.holdings, self.connections, STALL_SECONDS)
        self._folder = folder
        self._host = host
        self._server: PeerServer | None = None
        self._plain_server: grpc.aio.Server | None = None
        self._libp2p: Libp2pNode | None = None

    # ---- what the service asks of its host ----

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    def now(self) -> float:
        return time.time()

    def hears_time(self, peer: PeerId, their_time: float) -> None:
        pass

    def names(self, peer: PeerId) -> bool:
        return True

    def description(self) -> Description:
        raise AssertionError("nobody joins a bench")

    def standing(self) -> Standing:
        return Standing(0, b"", 0)

    def records_from(self, round: int) -> Iterable[CertifiedRecord]:
        return ()

    def amend(self, brought: Signed | None) -> AmendReply:
        return AmendReply("no organizer's node", None, None)

    def snapshots(self) -> Sequence[Snapshot]:
        return ()

    async def attend(self, caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        """An echo, by which beats are timed."""
        async for message in incoming:
            send(message)

    # ---- what it is told to do ----

    async def serve(self) -> dict[str, Any]:
        """Serve at a port of its own."""
        self._server = await PeerServer.start(
            self, self.holdings, self.tls, f"{self._host}:0", self._folder / "peer.sock", self.traffic
        )
        return {"peer": self.peer_id, "entry": self._entry((f"{self._host}:{self._server.port}",))}

    async def serve_plainly(self) -> dict[str, Any]:
        """The plain tool, at another."""
        server = grpc.aio.server(options=grpc_options.SERVER)
        handler = grpc.unary_stream_rpc_method_handler(_stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("spes_peer.bench", {"Stream": handler}),))
        credentials = grpc.ssl_server_credentials([(self.tls.key_pem, self.tls.certificate_pem)])
        port = server.add_secure_port(f"{self._host}:0", credentials)
        await server.start()
        self._plain_server = server
        return {"target": f"{self._host}:{port}", "certificate": self.tls.certificate_der.hex()}

    async def serve_by_libp2p(self, port: int, relays: list[str], is_relay: bool) -> dict[str, Any]:
        """Be a relay, or reached by circuits through `relays` and in no other way."""
        found = asyncio.Event()
        self._libp2p = await Libp2pNode.start(
            self.identity,
            self._host,
            port,
            OF_BOOTSTRAP if is_relay else None,
            relays,
            self._folder / "peer.sock",
            self._folder,
            lambda addresses: found.set() if any("p2p-circuit" in one for one in addresses) else None,
        )
        if relays:
            async with asyncio.timeout(_RELAYED_SECONDS):
                await found.wait()
        addresses = self._libp2p.addresses
        if relays:
            addresses = tuple(address for address in addresses if "p2p-circuit" in address)
        return {"addresses": addresses, "entry": self._entry((), addresses)}

    async def know(self, entries: list[str]) -> dict[str, Any]:
        """Peers, by what `serve` and `serve_by_libp2p` gave."""
        for entry in entries:
            self.connections.update_entry(convert.decode(PeerEntry, bytes.fromhex(entry)))
        return {}

    async def make(self, num_bytes: int) -> dict[str, Any]:
        """A blob of random bytes."""
        blob = await asyncio.to_thread(lambda: self.store.put(os.urandom(num_bytes)))
        return {"name": blob.name, "size_bytes": blob.size_bytes}

    async def fetch(self, name: str, size_bytes: int, sources: list[PeerId]) -> dict[str, Any]:
        """With the connections that stand, or new ones."""
        began_at, before = time.monotonic(), self.traffic.snapshot()
        await self.fetcher.fetch(name, size_bytes, sources)
        seconds = time.monotonic() - began_at
        flows = self.traffic.since(before).flows()
        return {"seconds": seconds, "received_bytes": {flow.peer: flow.received_bytes for flow in flows}}

    async def fetch_and_attend(self, name: str, size_bytes: int, sources: list[PeerId], attended: PeerId) -> Any:
        """How long beats to `attended` and back take while it fetches."""
        fetching = asyncio.create_task(self.fetch(name, size_bytes, sources))
        delays = await self._beats_until(attended, fetching)
        return {**await fetching, "delays": delays}

    async def beat(self, attended: PeerId, seconds: float) -> dict[str, Any]:
        """How long beats to `attended` and back take."""
        return {"delays": await self._beats_until(attended, asyncio.create_task(asyncio.sleep(seconds)))}

    async def _beats_until(self, attended: PeerId, over: "asyncio.Task[Any]") -> list[float]:
        link, delays = await self.connections.to(attended), []
        call = link.stub.Attend(metadata=link.metadata())
        while not over.done():
            began_at = time.monotonic()
            await call.write(convert.to_message(self._signer.sign(CallToken(attended, time.time()))))
            await call.read()
            delays.append(time.monotonic() - began_at)
            await asyncio.sleep(_BEAT_SECONDS)
        call.cancel()
        return delays

    async def drop(self, name: str) -> dict[str, Any]:
        self.store.remove(name)
        return {}

    async def stream(self, target: str, certificate: str, num_bytes: int) -> dict[str, Any]:
        """The plain tool's fetch."""
        channel = await open_channel(target, pem_of(bytes.fromhex(certificate)), _DIAL_SECONDS)
        began_at, num_received = time.monotonic(), 0
        async for chunk in channel.unary_stream(PLAIN_METHOD, None, None)(str(num_bytes).encode()):
            num_received += len(chunk)
        seconds = time.monotonic() - began_at
        await channel.close(None)
        assert num_received == num_bytes
        return {"seconds": seconds}

    async def sent(self) -> dict[str, Any]:
        """Bytes that it has sent so far."""
        return {"sent_bytes": self.traffic.sent_bytes}

    async def close(self) -> None:
        await self.connections.close()
        for server in (self._server, self._plain_server):
            if server is not None:
                await server.stop(0)
        if self._libp2p is not None:
            await self._libp2p.close()

    async def _open_tunnel(self, peer_id: PeerId, addresses: tuple[str, ...]) -> Path:
        assert self._libp2p is not None
        return await self._libp2p.open_tunnel(peer_id, addresses)

    def _entry(self, grpc_addresses: tuple[str, ...], libp2p_addresses: tuple[str, ...] = ()) -> str:
        entry = PeerEntry(
            peer_id=self.peer_id,
            name="bench",
            version=__version__,
            protocol=PROTOCOL_VERSION,
            role=Role.VOLUNTEER,
            state=PeerState.ONLINE,
            incarnation=1,
            grpc_addresses=grpc_addresses,
            certificate=self.tls.certificate_der,
            libp2p_addresses=libp2p_addresses,
            dht_addresses=(),
            max_subsets=1,
            written_at=time.time(),
        )
        return convert.encode(entry).hex()


async def _stream(request: bytes, _context: object) -> AsyncIterator[bytes]:
    num_bytes, chunk = int(request), bytes(CHUNK_BYTES)
    for start in range(0, num_bytes, CHUNK_BYTES):
        yield chunk[: num_bytes - start]


async def main(folder: Path, host: str) -> None:
    """Until standard input ends."""
    node = Node(folder, host)
    commands: dict[str, Any] = {
        method.__name__: method
        for method in (
            node.serve,
            node.serve_plainly,
            node.serve_by_libp2p,
            node.know,
            node.make,
            node.fetch,
            node.fetch_and_attend,
            node.beat,
            node.drop,
            node.stream,
            node.sent,
        )
    }
    lines = asyncio.StreamReader(limit=PIECE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        arguments = json.loads(line)
        try:
            answer = await commands[arguments.pop("do")](**arguments)
        except (SpesError, TimeoutError, grpc.RpcError) as error:
            answer = {"failed": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)
    await node.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
