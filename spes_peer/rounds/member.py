"""What a member checks before it signs a record: everything that it can compute or has seen itself.

A chain of small rules, the first objection counts. What is left to the coordinator's judgement is who is on the
roster, which updates are listed, and the losses; a listed update that this member does not hold yet is fine.

The clip factors follow from all offers, and a member knows its own and those that it averaged. Of the others it sees
that none counts by a larger norm than the records before allow, so a coordinator cannot lift that bound.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from spes_peer.identity import PeerId
from spes_peer.rounds.assignment import assign_data, assign_reducers, candidates_after, most_shares, pool_after
from spes_peer.rounds.ballot import Ballot as Ballot
from spes_peer.rounds.contributions import weights
from spes_peer.rounds.messages import Contribution, ReduceInput, Verdict
from spes_peer.rounds.proposal import is_last, merge_alpha, step_after, untrained_findings
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.norms import Norms, norms_by_peer
from spes_peer.run.records import RECORD_VERSION, BlockId, DataRange, Record, SealedRecord, Update, tokens_by_peer
from spes_peer.run.rules import Rules, fault_in_amendment, rules_of

_SECONDS_OFF = 1.0  # rounding of a deadline
_ROUNDING = 1e-9  # of norms, relative


@dataclass(frozen=True)
class Own:
    """What this member knows itself of the round that the proposal closes."""

    peer_id: PeerId
    contribution: Contribution | None = None
    reports: Mapping[BlockId, str] = field(default_factory=dict)
    """Blobs of the updates that it reported as a reducer."""
    incarnation: int = 0
    """Of this start of the member."""
    inputs: Mapping[BlockId, tuple[ReduceInput, ...]] = field(default_factory=dict)
    """Of the averages that it reported, the offers that it was given."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    """What it has said of experts' updates."""
    is_excused: bool = False
    """It has said that nobody need wait for it."""
    state_root: str = ""
    """After the record that opened the round; empty while that is not applied."""

    def objections(self) -> dict[int, tuple[PeerId, Verdict]]:
        return {expert: (self.peer_id, one) for expert, one in self.verdicts.items() if one.objects}


@dataclass(frozen=True)
class _Case:
    """A proposal and all it is judged by."""

    record: Record
    head: SealedRecord
    own: Own
    layout: Layout
    past: Norms | None
    """What the records up to `head` have had; None where that is not known."""

    @cached_property
    def tokens(self) -> dict[PeerId, int]:
        return tokens_by_peer(self.record.updates)

    @property
    def previous(self) -> Record:
        return self.head.record

    @property
    def manifest(self) -> Manifest:
        return self.layout.manifest

    @cached_property
    def first_rules(self) -> Rules:
        return Rules.of(self.manifest)

    @cached_property
    def rules(self) -> Rules:
        """What holds from the record on; `_amendment` has found that good."""
        return rules_of(self.record, self.first_rules)


def objections(
    proposal: SealedRecord, head: SealedRecord, own: Own, layout: Layout, past: Norms | None = None
) -> str | None:
    """Why this member should not sign what is proposed behind `head`, up to which the records have had `past`; None if
    it should. Whether its sender may propose at all is `election.fault_in_mandate`'s to say."""
    case = _Case(proposal.record, head, own, layout, past)
    return next((reason for rule in _RULES if (reason := rule(case)) is not None), None)


def _place(case: _Case) -> str | None:
    record, previous = case.record, case.previous
    if record.version != RECORD_VERSION:
        return f"the record has version {record.version}, and this program makes {RECORD_VERSION}"
    if record.run_id != previous.run_id:
        return "the record is of another run"
    if previous.is_final:
        return f"the run has ended with record {previous.round}"
    if record.round != previous.round + 1:
        return f"record {record.round} does not follow record {previous.round}"
    if record.previous_hash != case.head.hash:
        return f"the record follows another record {previous.round} than ours"
    if record.genesis:
        return "only record 0 names genesis blocks"
    return None


def _amendment(case: _Case) -> str | None:
    return fault_in_amendment(case.record, case.previous, case.first_rules, case.manifest.timing)


def _counters(case: _Case) -> str | None:
    record, manifest = case.record, case.manifest
    if record.step != (step := step_after(case.previous, manifest)):
        return f"the step counter is {record.step} and should be {step}"
    if record.step >= manifest.training.total_steps and not record.is_final:
        return f"the run has {manifest.training.total_steps} steps, and the record goes on"
    if case.rules.finishes(case.previous.round) and not record.is_final:
        return f"an organizer has ended the run with round {case.rules.finish_after_round}, and the record goes on"
    if record.is_final and not is_last(case.previous, step, case.rules, manifest):
        return f"the record ends the run at step {step} of {manifest.training.total_steps}, and no organizer has"
    if record.merge_alpha != (alpha := merge_alpha(case.previous, manifest)):
        return f"merge α is {record.merge_alpha} and should be {alpha}"
    if abs(record.deadline_at - record.opened_at - case.rules.round_seconds) > _SECONDS_OFF:
        return f"the round does not last {case.rules.round_seconds:g} s"
    if not case.previous.roster and record.state_root != untrained_findings(case.previous).state_root:
        return "nobody was there, and the record says on which state root"
    return None


def _roster(case: _Case) -> str | None:
    record, training = case.record, case.manifest.training
    peers = [entry.peer_id for entry in record.roster]
    if peers != sorted(set(peers)):
        return "the roster is not in peer-id order or names a peer twice"
    is_idle = record.is_final or case.rules.rests(len(peers))
    for entry in record.roster:
        subsets = entry.subsets
        if not subsets or list(subsets) != sorted(set(subsets)):
            return f"the subsets of {entry.peer_id} are none, or not in order, or one is there twice"
        if subsets[0] < 0 or subsets[-1] >= training.num_subsets:
            return f"{entry.peer_id} has a subset that does not exist"
        if (entry.sequences_per_step == 0) != is_idle:
            return f"{entry.peer_id} trains {entry.sequences_per_step} sequences per step"
    shared = sum(entry.sequences_per_step for entry in record.roster)
    batch = 0 if is_idle or not peers else max(training.batch_sequences_at(record.step), len(peers))
    if shared != batch:
        return f"the members share a batch of {shared} sequences instead of {batch}"
    most = most_shares(case.previous, record.updates, peers, batch)
    for entry in record.roster:
        if entry.sequences_per_step > (limit := most[entry.peer_id]):
            return f"{entry.peer_id} has {entry.sequences_per_step} sequences per step, and {limit} is the most"
    return None


def _ranges(case: _Case) -> str | None:
    record, previous = case.record, case.previous
    assigned = {entry.peer_id: (*entry.ranges, *entry.ahead) for entry in record.roster}
    if (overlapping := _overlap([part for parts in assigned.values() for part in parts])) is not None:
        return f"two members have position {overlapping} of the data"
    per_step = {entry.peer_id: entry.sequences_per_step for entry in record.roster}
    staying = assigned if record.trains else ()
    pool = pool_after(previous, record.updates, case.manifest.model.sequence_length, staying)
    for peer, parts in assigned.items():
        before = previous.entry_of(peer)
        free = (*pool.returned, _all_from(pool.next_position), *(before.ahead if before else ()))
        if trained := [part for part in parts if not _is_in(part, free)]:
            return f"positions [{trained[0].start}, {trained[0].end}) have been assigned before"
    shares, rest = assign_data(previous, record.updates, record.step, per_step, case.manifest)
    for entry in record.roster:
        if any(getattr(entry, name) != value for name, value in vars(shares[entry.peer_id]).items()):
            return f"the ranges of {entry.peer_id} are not the next ones of the data"
    if (record.next_position, record.returned) != (rest.next_position, rest.returned):
        return "the positions that remain are not those that nobody has"
    return None


def _all_from(position: int) -> DataRange:
    return DataRange(position, 2**64)


def _overlap(ranges: list[DataRange]) -> int | None:
    ordered = sorted(ranges, key=lambda part: part.start)
    for one, following in itertools.pairwise(ordered):
        if following.start < one.end:
            return following.start
    return None


def _is_in(part: DataRange, free: tuple[DataRange, ...]) -> bool:
    """Whether all of `part` is free; free ranges that touch are one."""
    position = part.start
    for one in sorted(free, key=lambda one: one.start):
        if one.start <= position < one.end:
            position = one.end
    return position >= part.end


def _roles(case: _Case) -> str | None:
    record = case.record
    if record.reducers != assign_reducers(record.round, record.roster if record.trains else (), case.layout):
        return "the reducers are not those of the rendezvous order"
    if record.candidates != candidates_after(
        case.previous, record.round, record.roster, next(iter(record.candidates), None), case.rules.banned
    ):
        return "the candidates are not in the order that the first of them leads to"
    return None


def _updates(case: _Case) -> str | None:
    record, layout = case.record, case.layout
    listed = [update.block for update in record.updates]
    if unknown := [block for block in listed if block not in layout.by_id]:
        return f"there is no block {unknown[0]}"
    if listed != [block.id for block in layout.blocks if block.id in set(listed)]:
        return "the updates are not in block order, or one block is there twice"
    for update in record.updates:
        if reason := _fault_in_update(update, case):
            return f"the update of {update.block}: {reason}"
    if list(record.harmful) != sorted(case.previous.members & set(record.harmful)):
        return "those it marks are not members, or not in peer-id order, or one is there twice"
    if record.tokens != (tokens := sum(case.tokens.values())):
        return f"the record counts {record.tokens} tokens, and its updates hold {tokens}"
    return None


def _fault_in_update(update: Update, case: _Case) -> str | None:
    layout, previous = case.layout, case.previous
    if update.size_bytes != layout.update_bytes(update):
        return f"it has {update.size_bytes} bytes instead of {layout.update_bytes(update)}"
    peers = [part.peer_id for part in update.contributors]
    if peers != sorted(set(peers)):
        return "its contributors are not in peer-id order, or one is there twice"
    subset = layout.subset_of(layout.by_id[update.block])
    for part in update.contributors:
        entry = previous.entry_of(part.peer_id)
        if entry is None:
            return f"{part.peer_id} contributed and is not on the roster"
        if subset is not None and subset not in entry.subsets:
            return f"{part.peer_id} contributed and does not own the expert"
        assigned = sum(one.num_sequences for one in entry.ranges) * layout.manifest.model.sequence_length
        if part.tokens > assigned:
            return f"{part.peer_id} counts {part.tokens} tokens and was assigned {assigned}"
        if part.tokens != case.tokens[part.peer_id]:
            return f"{part.peer_id} counts different tokens in different updates"
    if len(set(update.reducers)) != len(update.reducers) or any(
        previous.entry_of(peer) is None for peer in update.reducers
    ):
        return "its reducers are not members, or one is there twice"
    return "several contributed and nobody reduced" if not update.reducers and len(peers) > 1 else None


def _lengths(case: _Case) -> str | None:
    """Nothing counts by more than `sync.most_growth` times what was usual; while nothing was, there is no bound."""
    if case.past is None:
        return None
    growth = case.manifest.sync.most_growth
    for group, norms in norms_by_peer(case.record.updates).items():
        usual = case.past.usual(group)
        if usual is None:
            continue
        most = growth * usual
        for peer, norm in norms.items():
            if norm > most * (1 + _ROUNDING):
                return f"{group} counts an offer of {peer} by a norm of {norm:g}, and {most:g} is the most"
    return None


def _own_work(case: _Case) -> str | None:
    """What this member did itself stands in the record as it was, or not at all.

    A start that is newer than the roster's cannot judge this: an earlier start may have done other work in this round.
    """
    own, entry = case.own, case.previous.entry_of(case.own.peer_id)
    if entry is not None and entry.incarnation < own.incarnation:
        return None
    offers = () if own.contribution is None else own.contribution.offers
    blobs = {offer.block: offer.blob for offer in offers}
    for update in case.record.updates:
        part = next((part for part in update.contributors if part.peer_id == own.peer_id), None)
        if part is not None and (own.contribution is None or part.tokens != own.contribution.tokens):
            return f"the update of {update.block} counts tokens of ours that we did not contribute"
        if part is not None and part.norm != next(
            (offer.norm for offer in offers if offer.block == update.block), None
        ):
            return f"the update of {update.block} has another norm of our offer than we said"
        if part is not None and not update.reducers and update.blob != blobs.get(update.block):
            return f"the update of {update.block} is not the offer that we made"
        if reason := _fault_in_average(update, case):
            return f"the update of {update.block} {reason}"
    return None


def _fault_in_average(update: Update, case: _Case) -> str | None:
    """What a reducer knows of it. That the record names others as its reducers is no reason to believe them: of the
    same offers there is one average."""
    own = case.own
    is_ours, inputs = own.peer_id in update.reducers, own.inputs.get(update.block)
    are_its = inputs is not None and _are_of(update, inputs, case.manifest.sync.most_weight)
    are_all = inputs is not None and len(inputs) == len(update.contributors)
    is_known = is_ours or (bool(update.reducers) and are_its and are_all)
    if is_known and update.blob != own.reports.get(update.block):
        return "is not what we found as its reducer"
    return "counts its offers otherwise than we averaged them" if is_ours and inputs and not are_its else None


def _are_of(update: Update, inputs: tuple[ReduceInput, ...], most_weight: float) -> bool:
    """Whether all who contributed are among the inputs, with these norms and clip factors; and, if none of the inputs
    was rejected, with the weights that follow from their tokens."""
    given = {part.peer_id: (part.clip, part.norm) for part in inputs}
    if any(given.get(part.peer_id) != (part.clip, part.norm) for part in update.contributors):
        return False
    if len(update.contributors) < len(inputs):
        return True
    weight = weights({part.peer_id: part.tokens for part in update.contributors}, most_weight)
    return all(weight[part.peer_id] == part.tokens for part in inputs)


_RULES: tuple[Callable[[_Case], str | None], ...] = (
    _place,
    _amendment,
    _counters,
    _roster,
    _updates,
    _lengths,
    _ranges,
    _roles,
    _own_work,
)
