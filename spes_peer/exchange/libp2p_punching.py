"""Hole punching: two peers behind routers dial each other in one moment, as arranged through a relay (DCUtR).

Works where both routers give a port the same number outside and let in what they have sent to (a cone NAT); elsewhere
it costs some packets. py-libp2p does the punching; what is ours is whom, when, and where to: nobody is made to dial
more than one address, and none that is not on the internet.
"""

import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.dcutr import DCUtRProtocol
from multiaddr import Multiaddr

logger = logging.getLogger(__name__)

# Between attempts with one peer: each sends some SYNs to whatever address it names.
AGAIN_SECONDS = 600.0
# Peers with whom holes are punched at once.
MAX_AT_ONCE = 8
_MAX_REMEMBERED = 1_024


class HolePunching(DCUtRProtocol):
    """Answers whoever wants to punch, and punches towards peers to which a circuit leads."""

    def __init__(self, host: IHost, port: int, on_punched: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(host)
        self.seen_at = ""
        """IP address at which others see this machine; empty while it is not known: nothing is punched then."""
        self._port = port
        self._on_punched = on_punched
        self._tried_at: dict[ID, float] = {}
        self._punched: set[ID] = set()
        self._num_under_way = 0
        self._targets: dict[ID, frozenset[Multiaddr]] = {}
        """What each peer has named for this attempt."""

    async def towards(self, peer: ID) -> None:
        """Punch, unless that was tried lately, or is for the other side to begin: two attempts at once disturb each
        other, so the lower id does."""
        if str(self.host.get_id()) > str(peer) or not self.seen_at or not self._may_try(peer, trio.current_time()):
            return
        self._num_under_way += 1
        try:
            self._hole_punch_attempts.pop(peer, None)  # its own count is for ever
            if await self.initiate_hole_punch(peer):
                await self._on_punched(str(peer))
        finally:
            self._num_under_way -= 1

    def _may_try(self, peer: ID, now: float) -> bool:
        if self._num_under_way >= MAX_AT_ONCE or now - self._tried_at.get(peer, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        self._tried_at.pop(peer, None)
        self._tried_at[peer] = now
        if len(self._tried_at) > _MAX_REMEMBERED:
            self._tried_at.pop(next(iter(self._tried_at)))
        return True

    async def _handle_dcutr_stream(self, stream: INetStream) -> None:
        """The other side begins, no more often than we would."""
        peer = stream.muxed_conn.peer_id
        if not self.seen_at or not self._may_try(peer, trio.current_time()):
            await stream.reset()
            return
        self._num_under_way += 1
        try:
            await super()._handle_dcutr_stream(stream)
            if await self._verify_direct_connection(peer):
                await self._on_punched(str(peer))
        finally:
            self._num_under_way -= 1

    async def _get_observed_addrs(self) -> list[bytes]:
        family = "ip6" if ":" in self.seen_at else "ip4"
        return [Multiaddr(f"/{family}/{self.seen_at}/tcp/{self._port}").to_bytes()]

    def _decode_observed_addrs(self, addr_bytes: list[bytes]) -> list[Multiaddr]:
        return [address for address in super()._decode_observed_addrs(addr_bytes[:1]) if _is_fair(address)]

    async def _perform_hole_punch(self, peer_id: ID, addrs: list[Multiaddr], as_responder: bool = False) -> bool:
        self._targets[peer_id] = frozenset(addrs)
        try:
            return bool(await super()._perform_hole_punch(peer_id, addrs, as_responder))
        finally:
            self._targets.pop(peer_id, None)

    async def _dial_peer(
        self, peer_id: ID, addr: Multiaddr, source: tuple[str, int] | None = None, as_responder: bool = False
    ) -> None:
        """Not what else the peer has told of itself, hundreds of addresses perhaps, and ones in this house."""
        if addr in self._targets.get(peer_id, ()):
            await super()._dial_peer(peer_id, addr, source, as_responder)

    async def _spam_udp_for_hole_punch(self, addr: Multiaddr, stop: trio.Event) -> None:
        """Nobody here listens on UDP."""

    async def _try_unilateral_upgrade(self, peer_id: ID) -> bool:
        return False  # direct ways are in its entry, and tried before a circuit

    async def _auto_drive_loop(self) -> None:
        await trio.sleep_forever()  # `towards` drives

    def _schedule_relay_close(self, peer_id: ID) -> None:
        """Circuits end when nothing goes through them any more."""


def _is_fair(address: Multiaddr) -> bool:
    """Whether it is a TCP port of an IP address on the internet, and nothing else."""
    parts = str(address).split("/")
    try:
        return len(parts) == 5 and parts[1] in ("ip4", "ip6") and parts[3] == "tcp" and ip_address(parts[2]).is_global
    except ValueError:
        return False
