"""A py-libp2p host as this project needs it: one transport, one cipher, and connections that end when their peer does.

The rule: nothing here waits for ever on a peer, and no cancelled task spoils a connection that others share.
py-libp2p 0.8.1 keeps neither; each workaround names what it works around, and can go when that is mended.
"""

import logging
import struct
from typing import Any, cast

import trio
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.rcmgr import ResourceLimits, ResourceManager
from libp2p.rcmgr.connection_limits import ConnectionLimits
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer import muxer_multistream
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux import yamux

# Peers, and circuits to peers, at once. py-libp2p allows its root task 1000 children, of which a connection takes two.
MAX_CONNECTIONS = 448
MAX_STREAMS = 4096
# What a frame of 64 KiB may take: a link that is slower than this is of no use.
FRAME_SECONDS = 30.0
# Liveness. An answer may wait behind seconds of bulk data in the buffers of a slow link, hence the long time-out.
PING_SECONDS = 10.0
PONG_SECONDS = 20.0
# What may be under way in one stream and hop: enough for a relay whose turns come late (1 MiB made it 3 times slower on
# a busy machine). The 16 MiB of py-libp2p let gRPC's keep-alive wait behind many seconds of data on a slow link.
WINDOW_BYTES = 4 << 20
# Payload of one yamux frame, such that frame, cipher and the same once more around a circuit stay within the 65519
# bytes of one noise message. py-libp2p's own frames are 17 bytes longer, so each becomes two messages.
FRAME_BYTES = (64 << 10) - 64

logger = logging.getLogger(__name__)
_HEADER = struct.Struct(yamux.YAMUX_HEADER_FORMAT)


class Stream(yamux.YamuxStream):
    """A stream whose writer wakes when the window opens, and whose sender keeps to the window.

    Works around: the original writer looks every 10 ms whether it may go on, which makes it slow, and fails for good
    after 5 s, which bulk data in the buffers of a slow link can take; and what is sent beyond the window is kept.
    """

    def __init__(self, stream_id: int, conn: yamux.Yamux, is_initiator: bool) -> None:
        self._window_opened = trio.Event()
        super().__init__(stream_id, conn, is_initiator)

    @property  # type: ignore[override]
    def send_window(self) -> int:
        return self._send_window

    @send_window.setter
    def send_window(self, window: int) -> None:
        self._send_window = window
        self._window_opened.set()

    @property  # type: ignore[override]
    def recv_window(self) -> int:
        return self._recv_window

    @recv_window.setter
    def recv_window(self, window: int) -> None:
        self._recv_window = window
        if window < 0:
            logger.warning("gave up a connection peer=%s reason=it sends beyond its window", self.conn.peer_id)
            cast(Connection, self.conn).give_up()

    async def write(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            await self._wait_for_window()
            chunk = data[sent : sent + min(self.send_window, FRAME_BYTES)]
            self.send_window -= len(chunk)
            sent += len(chunk)
            await self.conn._write_frame(_HEADER.pack(0, yamux.TYPE_DATA, 0, self.stream_id, len(chunk)) + chunk)

    async def _wait_for_window(self) -> None:
        deadline = trio.current_time() + FRAME_SECONDS
        while self.send_window <= 0 and not (self.send_closed or self.closed):
            if trio.current_time() > deadline:
                raise MuxedStreamError(f"nothing was read in {FRAME_SECONDS:.0f} s")
            self._window_opened = trio.Event()
            with trio.move_on_after(1.0):  # closing does not set the event
                await self._window_opened.wait()
        if self.send_closed or self.closed:
            raise MuxedStreamError("the stream is closed")


class Connection(yamux.Yamux):
    """A multiplexed connection that notices a dead peer, and survives tasks that are cancelled while they write."""

    async def _write_frame(self, data: bytes) -> None:
        """Send a frame whole, or give the connection up.

        Works around: a writer that is cancelled within a frame leaves half of it on the connection that all streams
        share; and a write to a frozen peer never ends.
        """
        whole = False
        async with self._write_lock:
            try:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + FRAME_SECONDS):
                    await self.secured_conn.write(data)
                    whole = True
            finally:
                if not whole:
                    self.give_up()
        if not whole:
            raise MuxedStreamError(f"a frame was not taken in {FRAME_SECONDS:.0f} s")

    async def _measure_rtt_loop(self) -> None:
        """Ping. Works around: the original measures, but keeps a connection whose peer does not answer."""
        while not self.event_shutting_down.is_set():
            self._ping_id = (self._ping_id + 1) % (1 << 32)
            self._ping_event = trio.Event()
            self._ping_sent_time = trio.current_time()
            await self._write_frame(_HEADER.pack(0, yamux.TYPE_PING, yamux.FLAG_SYN, 0, self._ping_id))
            with trio.move_on_after(PONG_SECONDS) as scope:
                await self._ping_event.wait()
            if scope.cancelled_caught:
                self.give_up()
            with trio.move_on_after(PING_SECONDS):
                await self.event_shutting_down.wait()

    async def start(self) -> None:
        """Works around: an error in the tasks of one connection would end the host."""
        try:
            await super().start()
        except Exception as error:
            logger.info("an error ended a connection peer=%s error=%r", self.peer_id, error)
        finally:
            if not self.event_closed.is_set():
                with trio.CancelScope(shield=True):
                    await self._cleanup_on_error()

    def give_up(self) -> None:
        """End the connection as if the peer had: the reader stops, and `start` tells everybody."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _finalize_stream_locked(self, stream: yamux.YamuxStream, *, fully_closed: bool) -> None:
        """Works around: a reader that waits while its own side resets the stream is never woken."""
        event = self.stream_events.get(stream.stream_id)
        super()._finalize_stream_locked(stream, fully_closed=fully_closed)
        if fully_closed and event is not None:
            event.set()


# py-libp2p has no other way to say of which classes its connections and streams are; it ignores `muxer_opt` for yamux.
yamux.YamuxStream = Stream  # type: ignore[misc]
muxer_multistream.Yamux = Connection  # type: ignore[misc]
yamux.MAX_WINDOW_SIZE = WINDOW_BYTES


def create_host(seed: bytes) -> IHost:
    """A host that is not running yet; its peer id follows from the seed of the Ed25519 key."""
    key_pair = create_new_key_pair(seed)
    host = new_host(
        key_pair=key_pair,
        # The defaults also offer plaintext, in which anybody can claim any peer id.
        sec_opt={NOISE: NoiseTransport(key_pair, create_new_noise_key_pair().private_key)},
        muxer_opt={TProtocol(yamux.PROTOCOL_ID): Connection},
        connection_config=ConnectionConfig(
            max_connections=MAX_CONNECTIONS, high_watermark=MAX_CONNECTIONS, low_watermark=0, min_connections=0
        ),
        # The default manager refuses everybody for a minute after five errors, whosesoever they were.
        resource_manager=ResourceManager(
            limits=ResourceLimits(max_connections=2 * MAX_CONNECTIONS, max_streams=MAX_STREAMS),
            connection_limits=ConnectionLimits(max_established_total=MAX_CONNECTIONS),
            enable_circuit_breaker=False,
            enable_graceful_degradation=False,
            enable_memory_limits=False,
            enable_metrics=False,
        ),
        disable_identify_address_discovery=True,
    )
    network = host.get_network()
    handle = network.common_stream_handler

    async def guarded(stream: Any) -> None:
        """Works around: an error in the handler of one stream would end the host."""
        try:
            await handle(stream)
        except Exception as error:
            logger.info("an error ended a stream peer=%s error=%r", stream.muxed_conn.peer_id, error)
            await stream.reset()

    network.set_stream_handler(guarded)
    network.auto_connector.maybe_connect = _dial_nobody
    return host


async def _dial_nobody() -> None:
    """Works around: the original dials whoever it has heard of, and no setting turns that off."""
