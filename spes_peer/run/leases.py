"""Leases: how long ownership stands without life. A fold over the records, so that all who have the same records have
the same leases; what is decided by them is in `rounds.ownership` and `membership.claims`.

A peer's lease is its newest place in a roster. It stands for `lease_seconds` behind the record that gave it, and
matters only to a peer that is missing from the newest roster: who has a place there owns what that place says.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from spes_peer.identity import PeerId
from spes_peer.run.records import Record, RosterEntry


@dataclass(frozen=True)
class Lease:
    """What a peer owns by the newest roster that it stands in."""

    since: Mapping[int, int] = field(default_factory=dict)
    """For each of its subsets the record that gave it."""
    seen_at: float = -math.inf
    """When the newest record with this peer in its roster was opened, Unix seconds."""
    moved_at: float = -math.inf
    """When a record was opened that took a subset away from it."""

    def stands(self, now: float, lease_seconds: float) -> bool:
        return now - self.seen_at <= lease_seconds

    def is_cooling(self, now: float, lease_seconds: float) -> bool:
        """Whether the peer has moved so lately that it may not wish to move again: who moved stays for a lease."""
        return now - self.moved_at < lease_seconds

    def renewed(self, entry: RosterEntry, record: Record) -> "Lease":
        if self.since.keys() == set(entry.subsets):
            return Lease(self.since, record.opened_at, self.moved_at)
        since = {subset: self.since.get(subset, record.round) for subset in entry.subsets}
        has_moved = not self.since.keys() <= since.keys()
        return Lease(since, record.opened_at, record.opened_at if has_moved else self.moved_at)


_NEVER_SEEN = Lease()


@dataclass(frozen=True)
class Leases:
    """Of everybody that ever stood in a roster, lapsed ones too."""

    by_peer: Mapping[PeerId, Lease] = field(default_factory=dict)

    def after(self, record: Record) -> "Leases":
        """… once `record`, the next one, is there too."""
        renewed = {entry.peer_id: self.of(entry.peer_id).renewed(entry, record) for entry in record.roster}
        return Leases({**self.by_peer, **renewed})

    def of(self, peer: PeerId) -> Lease:
        return self.by_peer.get(peer, _NEVER_SEEN)

    def standing(self, present: Collection[PeerId], now: float, lease_seconds: float) -> dict[int, frozenset[PeerId]]:
        """Subsets on which somebody who is not `present` has a lease that stands, and who."""
        holders: dict[int, frozenset[PeerId]] = {}
        for peer, lease in self.by_peer.items():
            if peer not in present and lease.stands(now, lease_seconds):
                for subset in lease.since:
                    holders[subset] = holders.get(subset, frozenset()) | {peer}
        return holders
