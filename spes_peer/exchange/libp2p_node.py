"""The libp2p node: a child process (`python -m spes_peer.exchange.libp2p_node`) that pipes bytes and understands none.

gRPC is the only message layer. A stream that a peer opens is piped to the Unix socket of the daemon's gRPC server; a
connection to a tunnel's Unix socket is piped to a stream to that tunnel's peer. So calls, flow control, deadlines,
keep-alive and TLS are the same over libp2p as over gRPC, end to end, and a relay sees only ciphertext.

It is a process of its own because py-libp2p needs trio, cannot live beside hivemind, and does its work in Python. It
ends with its parent. Errors of a stream end that stream, never the node.
"""

import logging
import os
import socket
from pathlib import Path
from typing import Any

import trio
from google.protobuf.message import Message
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from spes_peer.errors import BadMessage, ChildFailed
from spes_peer.exchange.libp2p_dial import PROTOCOL, relay_of_stream, usable_routes
from spes_peer.exchange.libp2p_host import create_host
from spes_peer.exchange.libp2p_pipe import SocketEnd, StreamEnd, join
from spes_peer.exchange.libp2p_punching import HolePunching
from spes_peer.exchange.libp2p_relay import Relay
from spes_peer.exchange.libp2p_reservations import Reservations
from spes_peer.exchange.libp2p_tunnels import Tunnels
from spes_peer.logs import log_of_child
from spes_peer.ports import check_port_free
from spes_peer.process import socket_to_parent
from spes_peer.wire import frames
from spes_peer.wire.children_pb2 import (
    Done,
    Frame,
    Libp2pStarted,
    OpenTunnel,
    Relayed,
    RelayedAddresses,
    RouteTaken,
    StartLibp2p,
    TunnelOpened,
    UseRelays,
)

logger = logging.getLogger(__name__)

# Streams that peers may hold open to us at once; a descriptor each. gRPC opens one for each peer that calls.
MAX_INBOUND_STREAMS = 256
_READ_BYTES = 1 << 16
_RELAYED_SECONDS = 1.0  # between reports of what was relayed


class Node:
    """Answers the daemon. `nursery` holds all that runs until the process ends."""

    def __init__(self, end: socket.socket, nursery: trio.Nursery) -> None:
        end.setblocking(False)
        self._parent = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._sending = trio.Lock()
        self._nursery = nursery
        self._num_inbound = 0
        self._inbound_socket = ""
        self._tunnels: Tunnels | None = None
        self._reservations: Reservations | None = None
        self._punching: HolePunching | None = None

    async def serve(self) -> None:
        """Answer requests, in their order, until the parent is gone."""
        reader = frames.FrameReader()
        try:
            while content := await self._parent.receive_some(_READ_BYTES):
                for frame in reader.feed(bytes(content)):
                    await self._send(await self._answer(frame))
        except (trio.BrokenResourceError, BadMessage) as error:
            logger.warning("lost the parent reason=%r", error)
        finally:
            if self._tunnels is not None:
                self._tunnels.remove_sockets()

    async def _answer(self, frame: Frame) -> Frame:
        try:
            return frames.answer(frame, await self._do(frames.message_in(frame)))
        except Exception as error:  # py-libp2p raises many kinds; whichever it was, the parent hears of it
            logger.warning("could not serve a request kind=%s error=%r", frame.kind, error)
            return frames.failure(frame, str(error) or repr(error))

    async def _do(self, request: Message) -> Message:
        if isinstance(request, StartLibp2p):
            return await self._start(request)
        if isinstance(request, OpenTunnel):
            if self._tunnels is None:
                raise ChildFailed("the libp2p node has not started")
            path = await self._tunnels.open(request.peer_id, request.addresses)
            return TunnelOpened(socket_path=str(path))
        if isinstance(request, UseRelays):
            if self._reservations is None:
                raise ChildFailed("the libp2p node has not started")
            await self._reservations.use(usable_routes(request.relays))
            if self._punching is not None:
                self._punching.seen_at = request.seen_at
            return Done()
        raise BadMessage(f"{request.DESCRIPTOR.name} is not for the libp2p node")

    async def _start(self, request: StartLibp2p) -> Libp2pStarted:
        relays = usable_routes(request.relays)
        check_port_free(request.host, request.port)
        host = create_host(request.seed)
        self._inbound_socket = request.inbound_socket
        host.set_stream_handler(PROTOCOL, self._carry_inbound)
        address = Multiaddr(f"/{'ip6' if ':' in request.host else 'ip4'}/{request.host}/tcp/{request.port}")
        self._punching = HolePunching(host, request.port, self._tell_punched)
        relay = Relay(host, request.relay if request.HasField("relay") else None)
        await self._nursery.start(_run, host, address, relay, self._punching)
        if request.HasField("relay"):
            self._nursery.start_soon(self._tell_relayed_bytes, relay)
        if not host.get_addrs():  # py-libp2p reports no error
            raise ChildFailed(f"the libp2p node cannot listen at {request.host} port {request.port}")
        self._tunnels = Tunnels(host, Path(request.tunnel_folder), self._nursery, self._tell_route)
        self._reservations = Reservations(host, self._nursery, self._tell_relayed)
        await self._reservations.use(relays)
        return Libp2pStarted(addresses=[str(address) for address in host.get_addrs()])

    async def _carry_inbound(self, stream: INetStream) -> None:
        """Pipe a peer's stream to the daemon's gRPC server."""
        if self._num_inbound >= MAX_INBOUND_STREAMS:
            logger.warning("refused a stream peer=%s reason=too many", stream.muxed_conn.peer_id)
            await stream.reset()
            return
        self._num_inbound += 1
        self._punch_back(stream)
        try:
            connection = await trio.open_unix_socket(self._inbound_socket)
            await join(StreamEnd(stream), SocketEnd(connection))
        except OSError as error:
            logger.warning("the daemon takes no connection error=%r", error)
            await stream.reset()
        finally:
            self._num_inbound -= 1

    async def _tell_relayed(self, addresses: list[str]) -> None:
        await self._send(frames.event(RelayedAddresses(addresses=addresses)))

    async def _tell_route(self, peer_id: str, relay: str) -> None:
        await self._send(frames.event(RouteTaken(peer_id=peer_id, relay=relay)))
        if relay and self._punching is not None:
            self._nursery.start_soon(self._punching.towards, ID.from_base58(peer_id))

    def _punch_back(self, stream: INetStream) -> None:
        """Towards a peer that calls us through a circuit."""
        peer = stream.muxed_conn.peer_id
        if self._punching is not None and relay_of_stream(self._punching.host, stream, peer):
            self._nursery.start_soon(self._punching.towards, peer)

    async def _tell_punched(self, peer_id: str) -> None:
        await self._send(frames.event(RouteTaken(peer_id=peer_id, is_punched=True)))

    async def _tell_relayed_bytes(self, relay: Relay) -> None:
        told = told_circuits = 0
        while True:
            await trio.sleep(_RELAYED_SECONDS)
            num_bytes, num_circuits = relay.pace.num_bytes - told, relay.num_circuits
            if num_bytes or num_circuits != told_circuits:
                told, told_circuits = told + num_bytes, num_circuits
                await self._send(frames.event(Relayed(num_bytes=num_bytes, num_circuits=num_circuits)))

    async def _send(self, frame: Frame) -> None:
        async with self._sending:
            await self._parent.send_all(frames.pack(frame))


async def _run(
    host: IHost,
    address: Multiaddr,
    relay: Relay,
    punching: HolePunching,
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    try:
        async with host.run([address]), background_trio_service(relay), background_trio_service(punching):
            task_status.started()
            await trio.sleep_forever()
    except Exception:
        logger.exception("the libp2p host has ended")
        raise


async def main(end: socket.socket) -> None:
    """Serve until the parent is gone or the host has ended."""
    code = 1
    async with trio.open_nursery() as nursery:
        try:
            await Node(end, nursery).serve()
            code = 0
        finally:
            # py-libp2p takes seconds to shut down, or for ever; it holds nothing that outlives the process
            os._exit(code)


if __name__ == "__main__":
    log_of_child(logging.WARNING)
    # it calls every orderly end of a stream an error
    logging.getLogger("libp2p.relay.circuit_v2.protocol").setLevel(logging.CRITICAL)
    logging.getLogger("libp2p.relay.circuit_v2.dcutr").setLevel(logging.CRITICAL)
    trio.run(main, socket_to_parent())
