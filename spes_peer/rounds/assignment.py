"""Who does what in a round: order of peers, share of the batch, data ranges, reducers, candidates.

Everything here is a function of what stands in records, so members repeat it and object to a coordinator that
assigns otherwise.
"""

import hashlib
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spes_peer.identity import PeerId
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId, BlockReducers, DataRange, Record, RosterEntry, Update, tokens_by_peer


def rendezvous(key: str, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """`peers` in an order that depends on `key` and that losing a peer leaves as it is otherwise."""
    return tuple(sorted(peers, key=lambda peer: hashlib.sha256(f"{peer} {key}".encode()).digest()))


def most_shares(record: Record, updates: Iterable[Update], peers: Collection[PeerId], batch: int) -> dict[PeerId, int]:
    """How many sequences per step each of `peers` may get behind `record`, whose round `updates` close: an equal part
    of the batch, or twice what it had if its training counted. A speed is a claim: nobody gets far by it alone."""
    equal = -(-max(batch, len(peers)) // max(1, len(peers)))
    counted = tokens_by_peer(updates)
    had = {entry.peer_id: entry.sequences_per_step for entry in record.roster if entry.peer_id in counted}
    return {peer: max(equal, 2 * had.get(peer, 0)) for peer in peers}


def share_within(speeds: Mapping[PeerId, float], batch_sequences: int, most: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """`share_batch`, nobody with more than its `most`; what that leaves goes to the others. All of `most` together are
    at least the batch."""
    shares: dict[PeerId, int] = {}
    free, room = dict(speeds), batch_sequences
    while free:
        found = share_batch(free, room)
        full = {peer for peer, count in found.items() if count > most[peer]}
        if not full:
            shares |= found
            break
        shares |= {peer: most[peer] for peer in full}
        room -= sum(most[peer] for peer in full)
        free = {peer: speed for peer, speed in free.items() if peer not in full}
    return {peer: shares[peer] for peer in speeds}


def share_batch(speeds: Mapping[PeerId, float], batch_sequences: int) -> dict[PeerId, int]:
    """Sequences per step for each peer: by speed, largest remainder, at least one; together `batch_sequences`.

    A speed of 0 is unknown and counts as the median of the known ones. With more peers than sequences everybody gets
    one, and the batch is larger than asked for.
    """
    if len(speeds) >= batch_sequences:
        return dict.fromkeys(speeds, 1)
    known = [speed for speed in speeds.values() if speed > 0]
    median = statistics.median(known) if known else 1.0
    fastest = max(known, default=1.0)
    weights = {peer: (speed if speed > 0 else median) / fastest for peer, speed in speeds.items()}
    slow: set[PeerId] = set()  # whose quota is below the one sequence that it gets
    while True:
        total = math.fsum(weight for peer, weight in weights.items() if peer not in slow)
        room = batch_sequences - len(slow)
        quotas = {peer: room * weight / total for peer, weight in weights.items() if peer not in slow}
        slower = {peer for peer, quota in quotas.items() if quota < 1}
        if not slower:
            break
        slow |= slower
    shares = dict.fromkeys(slow, 1) | {peer: int(quota) for peer, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda peer: (shares[peer] - quotas[peer], peer))
    for peer in by_remainder[: batch_sequences - sum(shares.values())]:
        shares[peer] += 1
    return {peer: shares[peer] for peer in speeds}


@dataclass(frozen=True)
class Pool:
    """Positions of the global shuffle that nobody has trained: the returned ones and all from `next_position` on."""

    next_position: int
    returned: tuple[DataRange, ...]

    def take(self, num_sequences: int) -> tuple[tuple[DataRange, ...], "Pool"]:
        """Assign so many positions, returned ones first."""
        taken, returned = split(self.returned, num_sequences)
        missing = num_sequences - sum(part.num_sequences for part in taken)
        if not missing:
            return taken, Pool(self.next_position, returned)
        end = self.next_position + missing
        return joined((*taken, DataRange(self.next_position, end))), Pool(end, returned)


def split(ranges: Sequence[DataRange], num_sequences: int) -> tuple[tuple[DataRange, ...], tuple[DataRange, ...]]:
    """The first `num_sequences` positions of `ranges`, and the rest."""
    first: list[DataRange] = []
    rest: list[DataRange] = []
    for part in ranges:
        cut = min(part.end, part.start + num_sequences)
        if cut > part.start:
            first.append(DataRange(part.start, cut))
        if cut < part.end:
            rest.append(DataRange(cut, part.end))
        num_sequences -= cut - part.start
    return tuple(first), tuple(rest)


def joined(ranges: Iterable[DataRange]) -> tuple[DataRange, ...]:
    """`ranges`, which are disjoint, in order and with neighbours made one."""
    merged: list[DataRange] = []
    for part in sorted(ranges, key=lambda part: part.start):
        if merged and merged[-1].end == part.start:
            merged[-1] = DataRange(merged[-1].start, part.end)
        else:
            merged.append(part)
    return tuple(merged)


def pool_after(
    record: Record, updates: Iterable[Update], sequence_length: int, staying: Collection[PeerId] = ()
) -> Pool:
    """The pool when `updates` close the round that `record` opened.

    A peer trains its ranges in order, so what it has not trained is their end. What it was assigned ahead remains its
    own if it is `staying`.
    """
    tokens = tokens_by_peer(updates)
    returned = list(record.returned)
    for entry in record.roster:
        _, untrained = split(entry.ranges, tokens.get(entry.peer_id, 0) // sequence_length)
        returned += untrained
        if entry.peer_id not in staying:
            returned += entry.ahead
    return Pool(record.next_position, joined(returned))


@dataclass(frozen=True)
class DataShare:
    """What one member trains on in a round; the fields are those of a roster entry."""

    ranges: tuple[DataRange, ...] = ()
    sequences_per_step: int = 0
    carried_steps: int = 0
    carried_sequences_per_step: int = 0
    ahead: tuple[DataRange, ...] = ()


def assign_data(
    record: Record, updates: Iterable[Update], step: int, sequences_per_step: Mapping[PeerId, int], manifest: Manifest
) -> tuple[dict[PeerId, DataShare], Pool]:
    """The data of the round behind that of `record`, which `updates` close, and what is left of the pool.

    The round begins at `step` of the run. Members come in the order of `sequences_per_step`; none has any in the last
    record. With overlap a member has, beside the round's own, sequences of the first steps of the next round; those it
    keeps if it stays, at the batch it had then.
    """
    training, length = manifest.training, manifest.model.sequence_length
    num_steps = training.steps_per_round_at(step)
    num_ahead = manifest.sync.overlap_steps if step + num_steps < training.total_steps else 0
    staying = {peer for peer, count in sequences_per_step.items() if count}
    pool = pool_after(record, updates, length, staying)
    shares = {}
    for peer, count in sequences_per_step.items():
        share = DataShare()
        if count:
            entry = record.entry_of(peer)
            if entry is not None and entry.ahead:
                carried_steps = sum(part.num_sequences for part in entry.ahead) // entry.sequences_per_step
                share = DataShare(entry.ahead, 0, carried_steps, entry.sequences_per_step)
            own, pool = pool.take(count * (num_steps - share.carried_steps))
            ahead, pool = pool.take(count * num_ahead)
            share = replace(share, ranges=(*share.ranges, *own), sequences_per_step=count, ahead=ahead)
        shares[peer] = share
    return shares, pool


def reducer_order(round: int, block: BlockId, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Who reduces `block` in `round`, first choice first; changes every round, so that the work goes round."""
    return rendezvous(f"reduce {round} {block}", peers)


def assign_reducers(round: int, roster: Sequence[RosterEntry], layout: Layout) -> tuple[BlockReducers, ...]:
    """Reducers of every block that several members will offer."""
    peers = [entry.peer_id for entry in roster]
    num_owners = {
        subset: sum(subset in entry.subsets for entry in roster)
        for subset in range(layout.manifest.training.num_subsets)
    }
    per_block = layout.manifest.sync.reducers_per_block
    assigned = []
    for block in layout.blocks:
        subset = layout.subset_of(block)
        if (len(peers) if subset is None else num_owners[subset]) > 1:
            assigned.append(BlockReducers(block.id, reducer_order(round, block.id, peers)[:per_block]))
    return tuple(assigned)


def bootstraps_of(record: Record) -> tuple[PeerId, ...]:
    """Candidates that stand in no roster are bootstrap nodes: those train nothing."""
    members = {entry.peer_id for entry in record.roster}
    return tuple(peer for peer in record.candidates if peer not in members)


def candidates_after(
    record: Record,
    round: int,
    roster: Sequence[RosterEntry],
    first: PeerId | None = None,
    banned: Collection[PeerId] = (),
) -> tuple[PeerId, ...]:
    """Who may coordinate `round`: `first` if it is one of them, then the organizer's bootstrap nodes as record 0 names
    them, then the roster. If `first` is a peer, no bootstrap node was there, and they come last: who looks for another
    coordinator does not wait for them in vain. Who is `banned` loses the role, a bootstrap node for good."""
    bootstraps = tuple(peer for peer in bootstraps_of(record) if peer not in banned)
    peers = rendezvous(f"coordinate {round}", (entry.peer_id for entry in roster if entry.peer_id not in bootstraps))
    candidates = peers + bootstraps if first in peers else bootstraps + peers
    return tuple(sorted(candidates, key=lambda peer: peer != first))
