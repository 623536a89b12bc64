"""Notices that this machine's address has changed: from Wi-Fi to cable, to another network, by a new lease.

What listens does so on all addresses, so it is there at the new one by itself; what must be done is to tell others, and
to give up connections from an address that this machine has no more: nobody answers on them, and nobody says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from spes_peer.ports import has_address, is_loopback

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

OnMoved = Callable[[str, bool], Awaitable[None]]
"""Takes the new address, and whether one from which there may be connections is gone, or was for a while."""


class AddressWatch:
    """Looks now and then. An address beside the old one, through which the way to others leads from now on, is a move
    as well; but it cuts nothing."""

    def __init__(
        self, own: str, find: Callable[[], str], on_moved: OnMoved, has: Callable[[str], bool] = has_address
    ) -> None:
        """`find` gives this machine's address on the way to others now; a loopback one where no way leads out."""
        self._find = find
        self._on_moved = on_moved
        self._has = has
        self._own = own
        self._used = {own}
        self._is_cut = False

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        self._is_cut = self._is_cut or not all(map(self._has, self._used))
        found = self._find()
        if is_loopback(found) or not (self._is_cut or found != self._own):
            return
        logger.info("this machine's address has changed before=%s now=%s", self._own, found)
        is_cut, self._is_cut = self._is_cut, False
        self._used = {found} if is_cut else {*self._used, found}
        self._own = found
        await self._on_moved(found, is_cut)
