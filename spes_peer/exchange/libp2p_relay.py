"""Circuit relay v2: the relay's side, and the two things its clients ask for: a reservation and a circuit.

A relay sees only ciphertext: the circuit is secured end to end by noise, and carries TLS inside. What it gives is
bounded by its owner (relays.RelayLimits). The protocol has words for a circuit's time and bytes alone, and an end after
so many bytes would break a transfer in the middle: so whoever asks for one circuit too many is refused, and bytes wait.
"""

import contextlib
import logging
from typing import cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, Status
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import CircuitV2Protocol
from libp2p.relay.circuit_v2.protocol_buffer import StatusCode
from libp2p.relay.circuit_v2.resources import RelayLimits
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from multiaddr import Multiaddr

from spes_peer import identity
from spes_peer.errors import Unreachable
from spes_peer.exchange.libp2p_pipe import StreamEnd, join
from spes_peer.exchange.limits import Busy, Slots
from spes_peer.exchange.relay_pace import RelayPace
from spes_peer.wire import children_pb2

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 15.0
# A circuit carries a peer's whole exchange, round after round: it ends once a day, only so that none is for ever.
_CIRCUIT_SECONDS = 24 * 3600
# A reservation is renewed every RENEW_SECONDS; the rest is how long a relay remembers a peer that vanished.
_RESERVATION_SECONDS = 300
# Peers without inbound connectivity that one relay serves; each holds a connection, of which a host has 448.
_MAX_RESERVATIONS = 256
_READ_SECONDS = 0.5  # for a refusal to be read, before the stream is gone
_WHY = {
    Status.RESOURCE_LIMIT_EXCEEDED: "the relay carries as much as it will",
    Status.NO_RESERVATION: "the peer has no place at the relay",
}


class Relay(CircuitV2Protocol):
    """The relay's side, if there are limits for it, and the far end of circuits to ourselves."""

    def __init__(self, host: IHost, limits: children_pb2.RelayLimits | None) -> None:
        num_circuits = limits.max_circuits if limits is not None else 0
        offered = RelayLimits(
            duration=_CIRCUIT_SECONDS,
            data=0,  # no limit
            max_circuit_conns=num_circuits,  # to one peer: everybody in a run may want to fetch from it at once
            max_reservations=min(num_circuits, _MAX_RESERVATIONS),
            reservation_ttl=_RESERVATION_SECONDS,
        )
        super().__init__(host, limits=offered, allow_hop=limits is not None)
        self.pace = RelayPace(limits.bytes_per_second if limits is not None else 0)
        self._slots = Slots(num_circuits, limits.max_circuits_per_peer if limits is not None else 0)

    @property
    def num_circuits(self) -> int:
        """That are open now."""
        return self._slots.num_taken

    async def handle_incoming_connection(self, stream: INetStream, remote_peer_id: bytes) -> None:
        """Works around: the original notes ourselves as the relay of circuits to us."""
        await super().handle_incoming_connection(stream, remote_peer_id)
        own, peer = self.host.get_id(), ID(remote_peer_id)
        right = Multiaddr(f"/p2p/{stream.muxed_conn.peer_id}/p2p-circuit/p2p/{peer}")
        for connection in self.host.get_network().get_connections(peer):
            if str(connection.get_transport_addresses()[:1]).find(f"/p2p/{own}/p2p-circuit") >= 0:
                cast(SwarmConn, connection).set_transport_info([right], ConnectionType.RELAYED)

    async def _handle_reserve(self, stream: INetStream, msg: HopMessage) -> None:
        """Works around: the original lets anybody reserve in the name of others."""
        msg.ClearField("peer")
        await super()._handle_reserve(stream, msg)

    async def _handle_connect(self, stream: INetStream, msg: HopMessage) -> None:
        """A circuit for who asks, until its end, or a refusal: the original counts those to one peer alone."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._slots.hold(identity.PeerId(str(stream.muxed_conn.peer_id))))
            except Busy as error:
                logger.info("refused a circuit peer=%s reason=%s", stream.muxed_conn.peer_id, error)
                await self._send_status(stream, StatusCode.RESOURCE_LIMIT_EXCEEDED, str(error))
                await trio.sleep(_READ_SECONDS)
                await stream.reset()
                return
            await super()._handle_connect(stream, msg)

    async def _relay_data(
        self,
        src_stream: INetStream,
        dst_stream: INetStream,
        peer_id: ID,
        deadline: float | None = None,
        circuit_data_limit: list[int] | None = None,
    ) -> None:
        """Pipe a circuit both ways. Called once for each direction; the first does all.

        Works around: the original keeps circuits by peer, so that of two circuits of one peer the end of one closes
        the other, and leaves its own far end open.
        """
        if src_stream.get_protocol() == HOP:
            client, size = str(src_stream.muxed_conn.peer_id), self.pace.chunk_bytes
            with trio.move_on_after(self.limits.duration):
                ends = StreamEnd(src_stream, size), StreamEnd(dst_stream, size)
                await join(*ends, lambda num_bytes: self.pace.take(num_bytes, client))
            self._active_relays.clear()  # only the original reads it


async def reserve(host: IHost, relay: ID) -> None:
    """Make or renew our reservation at a relay that we are connected to; `Unreachable` if it will not."""
    stream = await _ask(host, relay, HopMessage(type=HopMessage.RESERVE))
    await stream.close()


async def open_circuit(host: IHost, relay: ID, peer: ID) -> None:
    """Connect to `peer` through a relay that we are connected to; `Unreachable` if the relay does not reach it.

    Not with py-libp2p's `CircuitV2Transport`: that tries whatever addresses it has heard of first, reserves a place
    for the caller at every dial, and waits without a time-out.
    """
    stream = await _ask(host, relay, HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=peer.to_bytes())))
    address = Multiaddr(f"/p2p/{relay}/p2p-circuit/p2p/{peer}")
    await host.upgrade_outbound_connection(RawConnection(stream, True, ConnectionType.RELAYED, [address]), peer)


async def _ask(host: IHost, relay: ID, question: HopMessage) -> INetStream:
    """The stream on which the relay has agreed to `question`."""
    stream = None
    try:
        with trio.fail_after(ANSWER_SECONDS):
            stream = await host.new_stream(relay, [HOP])
            await write_delimited_msg(stream, question)
            answer = await read_delimited_msg(stream, HopMessage)
        if answer.status != Status.OK:
            raise Unreachable(_WHY.get(answer.status) or f"the relay answered {Status.Name(answer.status)}")
    except BaseException:
        if stream is not None:
            with trio.move_on_after(1.0, shield=True):
                await stream.reset()
        raise
    return stream
