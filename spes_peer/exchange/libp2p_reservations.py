"""Keeps a place at each relay, so that others reach a peer that cannot be dialled.

The rule: what is advertised is what stands. A lost relay takes its address away at once and brings it back after the
relay has agreed again; tried for ever, with back-off.
"""

import logging
from collections.abc import Awaitable, Callable

import trio
from libp2p.abc import IHost

from spes_peer.exchange import libp2p_relay
from spes_peer.exchange.libp2p_dial import DIAL_SECONDS, Route, connect, connected, disconnect

logger = logging.getLogger(__name__)

# Well below the life of a reservation (libp2p_relay.LIMITS), so that several renewals may fail.
RENEW_SECONDS = 60.0
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 15.0
WATCH_SECONDS = 0.5


class Reservations:
    """Reservations at the relays in use. `on_change` gets the relayed addresses whenever they change."""

    def __init__(self, host: IHost, nursery: trio.Nursery, on_change: Callable[[list[str]], Awaitable[None]]) -> None:
        """`nursery` holds the work until the process ends."""
        self._host = host
        self._nursery = nursery
        self._on_change = on_change
        self._kept: dict[str, trio.CancelScope] = {}
        """By address, in the order in which others try them."""
        self._standing: set[str] = set()

    async def use(self, relays: dict[str, Route]) -> None:
        """Keep places at these from now on, and at no others."""
        for address in [one for one in self._kept if one not in relays]:
            self._kept.pop(address).cancel()
            await self._set(address, False)
        for address, route in relays.items():
            if address not in self._kept:
                self._kept[address] = trio.CancelScope()
                self._nursery.start_soon(self._keep_one, address, route, self._kept[address])

    async def _keep_one(self, address: str, relay: Route, scope: trio.CancelScope) -> None:
        with scope:
            await self._keep(address, relay)

    async def _keep(self, address: str, relay: Route) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                await self._reserve(relay)
            except Exception as error:  # py-libp2p raises many kinds, often without words
                logger.warning("no reservation relay=%s reason=%s", address, error or type(error).__name__)
                await self._set(address, False)
                await disconnect(self._host, relay.peer)
                await trio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, LAST_RETRY_SECONDS)
                continue
            retry_seconds = FIRST_RETRY_SECONDS
            await self._set(address, True)
            if not await self._lasts(relay):
                logger.warning("lost the connection to a relay relay=%s", address)
                await self._set(address, False)

    async def _reserve(self, relay: Route) -> None:
        if not connected(self._host, relay.peer):
            with trio.fail_after(DIAL_SECONDS):
                await connect(self._host, relay)
        await libp2p_relay.reserve(self._host, relay.peer)

    async def _lasts(self, relay: Route) -> bool:
        """Whether the connections stand until it is time to renew. A new one would be without reservation."""
        standing = connected(self._host, relay.peer)
        renew_at = trio.current_time() + RENEW_SECONDS
        while trio.current_time() < renew_at:
            await trio.sleep(WATCH_SECONDS)
            if not set(standing) & set(connected(self._host, relay.peer)):
                return False
        return True

    async def _set(self, address: str, stands: bool) -> None:
        if stands and address not in self._kept:
            return  # given up meanwhile
        before = len(self._standing)
        (self._standing.add if stands else self._standing.discard)(address)
        if len(self._standing) != before:
            own = self._host.get_id()
            await self._on_change([f"{relay}/p2p-circuit/p2p/{own}" for relay in self._kept if relay in self._standing])
