"""How far records have moved each group of parameters: by this the next offers are measured.

A fold over the records, so that all who have the same records have the same numbers. What a group was moved by in a
record is the median of its contributors' norms there, each as it was clipped. What is *usual* for a group is the median
of its last eight; for an expert at least the median of what all experts were moved by last, so that one that was hardly
trained for a while is not held back. Who owns one expert can raise what is usual for it, four rounds at a time, by the
factor that limits it (`sync.most_growth`), and no faster.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spes_peer.identity import PeerId
from spes_peer.run.records import BlockId, Record, Update

_WINDOW = 8
SHARED = "shared"


def group_of(block: BlockId) -> str:
    """The group of which a block is a piece: "shared", "expert/03"."""
    return block.rpartition("/")[0]


def norms_by_peer(updates: Iterable[Update]) -> dict[str, dict[PeerId, float]]:
    """For each group the norms of its contributors over the blocks that are listed, as they were clipped."""
    parts: dict[str, dict[PeerId, list[float]]] = {}
    for update in updates:
        group = parts.setdefault(group_of(update.block), {})
        for part in update.contributors:
            group.setdefault(part.peer_id, []).append(part.clip * part.norm)
    return {group: {peer: math.hypot(*norms) for peer, norms in peers.items()} for group, peers in parts.items()}


@dataclass(frozen=True)
class Norms:
    """What the records so far say."""

    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Of each group by how much the last records moved it, the newest last."""

    def after(self, record: Record) -> "Norms":
        """… once `record`, the next one, is there too."""
        if not record.updates:
            return self
        recent = dict(self.recent)
        for group, norm in _moved_by(record).items():
            recent[group] = (*recent.get(group, ()), norm)[-_WINDOW:]
        return Norms(recent)

    def usual(self, group: str) -> float | None:
        """See the module; None while no record has moved this group, nor, if it is an expert, any other."""
        own = self.recent.get(group)
        if group == SHARED:
            return statistics.median(own) if own else None
        others = [norms[-1] for name, norms in self.recent.items() if name != SHARED]
        if not others:
            return None
        return max(statistics.median(others), statistics.median(own) if own else 0.0)


def _moved_by(record: Record) -> dict[str, float]:
    """Computed once a record: many chains may go through it in one process."""
    known: dict[str, float] | None = record.__dict__.get("_moved_by")
    if known is None:
        by_group = norms_by_peer(record.updates)
        positive = {group: [norm for norm in norms.values() if norm > 0] for group, norms in by_group.items()}
        known = {group: statistics.median(norms) for group, norms in positive.items() if norms}
        record.__dict__["_moved_by"] = known
    return known
