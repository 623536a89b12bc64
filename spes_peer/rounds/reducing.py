"""From contributions to updates: who averages which offers, when a result counts, and when it may be listed.

Reducing is a deterministic function of the offers, so reducers that disagree do not differ in opinion: one is wrong,
and a further one decides. The rules, each a function below:

- a block with one offer needs no reducer: the offer is the update;
- a result counts once more than half of the reducers that answered, or still can, found it;
- a reducer that is gone, or silent for its patience, is not waited for;
- when no result can count, the next peer in the block's rendezvous order is asked;
- who cannot get an offer agrees with nobody, and a further one is asked;
- what more than half of the reducers cannot get is left out once its maker is gone, or two thirds of the time are over:
  the block is averaged anew without it, or one that dies or withholds would void it for all;
- offers that the agreeing reducers rejected are not in the update, and what only their makers offered is dropped;
- an update may be listed once two others than its maker, or all there are, hold it.

What a rejected peer offered of *other* blocks stays if those blocks' reducers found it sound: dropping it too would
mean to average those blocks again.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

from spes_peer.blobs import BlobName, check_name
from spes_peer.errors import BadMessage
from spes_peer.identity import PeerId
from spes_peer.rounds.assignment import reducer_order
from spes_peer.rounds.contributions import Contributions, clips_by_group, weights
from spes_peer.rounds.messages import Offer, ReduceInput, ReduceTask, UpdateReport
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Sync
from spes_peer.run.norms import Norms, group_of
from spes_peer.run.records import BlockId, Contributor, Update


@dataclass(frozen=True)
class Reduction:
    """The way of one block to its update."""

    task: ReduceTask
    """Without reducers for an only offer."""
    tokens: Mapping[PeerId, int]
    """What those were trained on whose offers it averages."""
    asked_at: float
    """When the newest reducers were asked."""
    overdue: frozenset[PeerId] = frozenset()
    """Reducers whose time was over when a further one was asked; their word still counts if it comes."""
    reports: Mapping[PeerId, UpdateReport] = field(default_factory=dict)
    missing: Mapping[PeerId, frozenset[PeerId]] = field(default_factory=dict)
    """Whose offers each reducer could not get, in its last word."""
    update: Update | None = None
    gave_up: bool = False
    """No update of this block in this round."""

    @property
    def is_settled(self) -> bool:
        return self.update is not None or self.gave_up

    @cached_property
    def rejected(self) -> frozenset[PeerId]:
        """Whose offers the reducers that agreed left out."""
        if self.update is None:
            return frozenset()
        counted = {part.peer_id for part in self.update.contributors}
        return frozenset(part.peer_id for part in self.task.inputs if part.peer_id not in counted)


def reductions_of(
    contributions: Contributions, layout: Layout, round: int, now: float, past: Norms
) -> dict[BlockId, Reduction]:
    """One reduction for each block that anybody offers, in block order; `contributions` are all from present peers, and
    `past` is what the records so far have had."""
    clips = clips_by_group(contributions, layout, past)
    offers: dict[BlockId, dict[PeerId, Offer]] = {}
    for peer in sorted(contributions):
        for offer in contributions[peer].offers:
            offers.setdefault(offer.block, {})[peer] = offer
    sync = layout.manifest.sync
    reductions = {}
    for block in layout.blocks:
        if block.id not in offers:
            continue
        tokens = {peer: contributions[peer].tokens for peer in offers[block.id]}
        inputs = tuple(
            ReduceInput(peer, offer.blob, offer.size_bytes, offer.norm, tokens[peer], clips[group_of(block.id), peer])
            for peer, offer in offers[block.id].items()
        )
        order = reducer_order(round, block.id, contributions)
        reductions[block.id] = _begun(block.id, inputs, tokens, order, sync, now)
    return reductions


def _begun(
    block: BlockId,
    inputs: Iterable[ReduceInput],
    tokens: Mapping[PeerId, int],
    order: Sequence[PeerId],
    sync: Sync,
    now: float,
) -> Reduction:
    """The first of `order` average the inputs, by weights that follow from `tokens`."""
    weight = weights(tokens, sync.most_weight)
    inputs = tuple(replace(part, tokens=weight[part.peer_id]) for part in inputs)
    if len(inputs) > 1:
        return Reduction(ReduceTask(block, tuple(order[: sync.reducers_per_block]), inputs), tokens, now)
    only = inputs[0]
    update = Update(block, only.blob, only.size_bytes, (_contributor(only, tokens),), ())
    return Reduction(ReduceTask(block, (), inputs), tokens, now, update=update)


def _contributor(part: ReduceInput, tokens: Mapping[PeerId, int]) -> Contributor:
    return Contributor(part.peer_id, tokens[part.peer_id], part.clip, part.norm)


def fault_in_report(report: UpdateReport, sender: PeerId, reduction: Reduction | None, layout: Layout) -> str | None:
    """Why this cannot be a result of a reducer's work; None if it can."""
    if reduction is None or sender not in reduction.task.reducers:
        return f"{report.block} is not the sender's to reduce"
    inputs = {part.peer_id for part in reduction.task.inputs}
    if not inputs.issuperset(report.rejected):
        return f"it rejects an offer of {report.block} that nobody made"
    if not report.blob:
        return None
    try:
        check_name(report.blob)
    except BadMessage as error:
        return str(error)
    if report.size_bytes != (size := layout.mean_bytes(layout.by_id[report.block])):
        return f"its update of {report.block} has {report.size_bytes} bytes instead of {size}"
    if inputs == set(report.rejected):
        return f"it has an update of {report.block} although it rejects all offers"
    return None


_Result = tuple[str, frozenset[PeerId]]


def _result(report: UpdateReport) -> _Result:
    return report.blob, frozenset(report.rejected)


def reported(reduction: Reduction, sender: PeerId, report: UpdateReport) -> Reduction:
    """The newest word of a reducer counts."""
    missing = {peer: makers for peer, makers in reduction.missing.items() if peer != sender}
    return replace(reduction, reports={**reduction.reports, sender: report}, missing=missing)


def missed(reduction: Reduction, sender: PeerId, makers: Collection[PeerId]) -> Reduction:
    """With a reducer's word that it cannot get the offers of `makers`; of others than it was given it says nothing."""
    given = frozenset(part.peer_id for part in reduction.task.inputs)
    return replace(reduction, missing={**reduction.missing, sender: given.intersection(makers)})


def to_leave_out(
    reduction: Reduction, present: Collection[PeerId], able: Collection[PeerId], is_late: bool
) -> frozenset[PeerId]:
    """Whose offers nobody will average: those that more than half of the other reducers cannot get, where the maker is
    gone or it is late. While it is there, one word against it is not enough where a second could be had."""
    if reduction.update is not None:
        return frozenset()
    reducers = [peer for peer in reduction.task.reducers if peer in present]
    out = set()
    for maker in frozenset().union(*reduction.missing.values()):
        others = [peer for peer in reducers if peer != maker]
        num_missing = sum(maker in reduction.missing.get(peer, ()) for peer in others)
        is_gone = maker not in present
        least = 1 if is_gone else min(2, sum(peer != maker for peer in able))
        if (is_gone or is_late) and 2 * num_missing > len(others) >= least:
            out.add(maker)
    return frozenset(out)


def begun_anew(
    reduction: Reduction, without: Collection[PeerId], layout: Layout, round: int, able: Collection[PeerId], now: float
) -> Reduction:
    """The reduction of what others offered, by others."""
    tokens = {peer: count for peer, count in reduction.tokens.items() if peer not in without}
    if not tokens:
        return replace(reduction, gave_up=True)
    block = reduction.task.block
    inputs = (part for part in reduction.task.inputs if part.peer_id in tokens)
    order = reducer_order(round, block, [peer for peer in able if peer not in without])
    return _begun(block, inputs, tokens, order, layout.manifest.sync, now)


def settle(
    reduction: Reduction,
    layout: Layout,
    round: int,
    present: Collection[PeerId],
    able: Collection[PeerId],
    now: float,
    patience_seconds: float,
) -> Reduction:
    """What becomes of a block: its update, a further reducer, nothing at all, or the same as before.

    `present` are members that attend, `able` those of them that contributed and so can be asked to reduce.
    """
    if reduction.is_settled:
        return reduction
    task = reduction.task
    waited_for = still_working(reduction, present, now, patience_seconds)
    by_result: dict[_Result, list[PeerId]] = {}
    for peer in task.reducers:
        report = reduction.reports.get(peer)
        if report is not None and report.blob:
            by_result.setdefault(_result(report), []).append(peer)
    num_votes = sum(len(peers) for peers in by_result.values()) + len(_lacking(reduction, present))
    for (blob, rejected), peers in by_result.items():
        if 2 * len(peers) > num_votes + len(waited_for):
            return replace(reduction, update=_agreed(reduction, blob, rejected, peers, layout))
    if waited_for:
        return reduction
    order = reducer_order(round, task.block, able)
    further = next((peer for peer in order if peer not in task.reducers), None)
    if further is None or len(task.reducers) > 2 * layout.manifest.sync.reducers_per_block:
        return replace(reduction, gave_up=True)
    return replace(
        reduction,
        task=replace(task, reducers=(*task.reducers, further)),
        asked_at=now,
        overdue=frozenset(task.reducers) - reduction.reports.keys(),
    )


def still_working(
    reduction: Reduction, present: Collection[PeerId], now: float, patience_seconds: float
) -> tuple[PeerId, ...]:
    """Reducers that are there, lack nothing, have not reported, and still have time."""
    if reduction.is_settled or now >= reduction.asked_at + patience_seconds:
        return ()
    absent = reduction.overdue | reduction.reports.keys() | _lacking(reduction, present)
    return tuple(peer for peer in reduction.task.reducers if peer in present and peer not in absent)


def _lacking(reduction: Reduction, present: Collection[PeerId]) -> frozenset[PeerId]:
    """Reducers that are there and cannot get an offer."""
    return frozenset(peer for peer, makers in reduction.missing.items() if makers and peer in present)


def _agreed(
    reduction: Reduction, blob: str, rejected: frozenset[PeerId], reducers: Sequence[PeerId], layout: Layout
) -> Update:
    task, tokens = reduction.task, reduction.tokens
    contributors = tuple(_contributor(part, tokens) for part in task.inputs if part.peer_id not in rejected)
    size_bytes = layout.mean_bytes(layout.by_id[task.block])
    return Update(task.block, BlobName(blob), size_bytes, contributors, tuple(reducers))


def makers_of(update: Update) -> tuple[PeerId, ...]:
    """Who had the blob first: the reducers that got it, or who made the only offer."""
    return update.reducers or (update.contributors[0].peer_id,)


def dropped(reductions: Iterable[Reduction]) -> dict[PeerId, BlockId]:
    """Peers with a rejected offer, each with the first block of which it was."""
    peers: dict[PeerId, BlockId] = {}
    for reduction in reductions:
        for peer in reduction.rejected:
            peers.setdefault(peer, reduction.task.block)
    return peers


def is_dropped(update: Update, peers: Collection[PeerId]) -> bool:
    """Whether this is an only offer of a peer of which another offer was rejected."""
    return not update.reducers and update.contributors[0].peer_id in peers


def missing_holders(update: Update, holders: AbstractSet[PeerId], present: AbstractSet[PeerId]) -> AbstractSet[PeerId]:
    """Who should still fetch the update before it may be listed; nobody if two others than its maker hold it."""
    return frozenset() if _is_held(update, holders, present) else present - {makers_of(update)[0]} - holders


def _is_held(update: Update, holders: AbstractSet[PeerId], present: AbstractSet[PeerId]) -> bool:
    """Whether enough have it; asked for every block with every message, so it looks no further than it must."""
    maker = makers_of(update)[0]
    needed = min(2, len(present) - (maker in present))
    held = (peer for peer in holders if peer in present and peer != maker)
    return sum(1 for _ in itertools.islice(held, needed)) == needed


def is_lost(holders: AbstractSet[PeerId], present: AbstractSet[PeerId]) -> bool:
    """Whether nobody who is there has it: then nobody can fetch it, and nobody waits for it."""
    return holders.isdisjoint(present)


def is_listable(update: Update, holders: AbstractSet[PeerId], present: AbstractSet[PeerId]) -> bool:
    return not is_lost(holders, present) and _is_held(update, holders, present)
