"""At which relays a peer that nobody can dial keeps a place.

Any bootstrap node relays, and any peer that offers it and can be dialled. Several at once, so that the end of one costs
nothing but a new circuit; which ones follows from a hash, so that the peers of a run spread over all that there are.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence

from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import parse_address
from spes_peer.identity import PeerId
from spes_peer.run.peers import PeerEntry, Role

MAX_RELAYS = 3
_ADDRESSES_EACH = 2
_PATIENCE_SECONDS = 20.0  # for a relay to give a place, before another is asked
_FORGIVEN_SECONDS = 600.0  # after which one that gave none is asked again


def relay_addresses(entry: PeerEntry) -> tuple[str, ...]:
    """Where it relays; none if it does not."""
    if entry.role != Role.BOOTSTRAP and not entry.is_relay:
        return ()
    usable = []
    for text in entry.libp2p_addresses:
        try:
            usable.append(parse_address(text).text())  # not as it came: it must suit the libp2p node to the letter
        except BadConfiguration:  # through a relay itself, or nonsense
            continue
    return tuple(usable[:_ADDRESSES_EACH])


class RelayChoice:
    """Of one peer; remembers which relays gave it no place."""

    def __init__(self, own: PeerId, now: Callable[[], float] = time.monotonic) -> None:
        self._own = own
        self._now = now
        self._asked_at: dict[PeerId, float] = {}
        self._failed_at: dict[PeerId, float] = {}
        self._chosen: tuple[str, ...] = ()

    def choose(self, entries: Iterable[PeerEntry], standing: Sequence[str], most: int = MAX_RELAYS) -> tuple[str, ...]:
        """Addresses to keep places at, given who is there and at which addresses there is a place now. As before while
        nobody is known who relays."""
        entries = tuple(entries)
        offers = {one.peer_id: found for one in entries if one.peer_id != self._own and (found := relay_addresses(one))}
        bootstraps = {one.peer_id for one in entries if one.role == Role.BOOTSTRAP}
        self._note_failures(offers, set(standing))
        ranked = sorted(offers, key=lambda relay: (relay in self._failed_at, self._rank(relay)))
        first = next((relay for relay in ranked if relay in bootstraps and relay not in self._failed_at), None)
        order = sorted(ranked, key=lambda relay: relay != first)[:most]
        self._asked_at = {relay: self._asked_at.get(relay, self._now()) for relay in order}
        if order:
            self._chosen = tuple(address for relay in order for address in offers[relay])
        return self._chosen

    def _note_failures(self, offers: dict[PeerId, tuple[str, ...]], standing: set[str]) -> None:
        now = self._now()
        for relay, asked_at in self._asked_at.items():
            if standing & set(offers.get(relay, ())):
                self._asked_at[relay] = now
                self._failed_at.pop(relay, None)
            elif now - asked_at >= _PATIENCE_SECONDS:
                self._failed_at.setdefault(relay, now)
        self._failed_at = {relay: at for relay, at in self._failed_at.items() if now - at < _FORGIVEN_SECONDS}

    def _rank(self, relay: PeerId) -> bytes:
        return hashlib.sha256(f"{self._own} {relay}".encode()).digest()
