"""The next record, from what a round brought. What a member can compute it computes too, with these functions."""

from collections.abc import Collection, Sequence

from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Seat
from spes_peer.rounds.assignment import (
    assign_data,
    assign_reducers,
    candidates_after,
    most_shares,
    share_within,
)
from spes_peer.rounds.contributions import Findings
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import RECORD_VERSION, Record, RosterEntry, SealedRecord, Update, tokens_by_peer
from spes_peer.run.rules import Rules, rules_in
from spes_peer.run.signed import Signed


def step_after(record: Record, manifest: Manifest) -> int:
    """Local steps of the run when the round that `record` opened is over; one in which nobody trains has none."""
    return record.step + (manifest.training.steps_per_round_at(record.step) if record.trains else 0)


def is_last(record: Record, step: int, rules: Rules, manifest: Manifest) -> bool:
    """Whether the record behind `record`, at this step and with these rules, is the last of the run."""
    return step >= manifest.training.total_steps or rules.finishes(record.round)


def merge_alpha(record: Record, manifest: Manifest) -> float:
    """Strength of the expert merge that ends the round of `record`: α0 (1 − t / T_w) at steps t that are due.

    SPES §1.4: due when t is a multiple of the merge interval and below the length T_w of the warm-up.
    """
    sync, step = manifest.sync, step_after(record, manifest)
    if not record.trains or step % sync.merge_interval_steps or step >= sync.merge_warmup_steps:
        return 0.0
    return sync.merge_alpha * (1 - step / sync.merge_warmup_steps)


def untrained_findings(record: Record) -> Findings:
    """Behind a round that nobody trained: the root is known only if `record` changed nothing."""
    changed = record.updates or record.merge_alpha
    return Findings("" if changed else record.state_root, -1.0, -1.0)


def next_record(
    head: SealedRecord,
    updates: Sequence[Update],
    findings: Findings,
    seats: Sequence[Seat],
    speeds: Sequence[float],
    layout: Layout,
    first: PeerId | None,
    now: float,
    harmful: Collection[PeerId] = (),
    amendment: Signed | None = None,
) -> Record:
    """Close the round that `head` opened with `updates` (in block order) and open the next for `seats`.

    `speeds` are tokens per second, one a seat, 0 when unknown. `first` shall coordinate the next round. `harmful` are
    those whose experts nearly all testers object to. `amendment` changes the rules with this record; without one it
    carries on what `head` has.
    """
    manifest, record = layout.manifest, head.record
    training, step = manifest.training, step_after(record, manifest)
    amendment = amendment or record.amendment
    rules = Rules.of(manifest) if amendment is None else rules_in(amendment)
    is_final = is_last(record, step, rules, manifest)
    is_idle = is_final or rules.rests(len(seats))
    speed_of = dict(zip((seat.peer_id for seat in seats), speeds, strict=True))
    batch = training.batch_sequences_at(step)
    shares = share_within(speed_of, batch, most_shares(record, updates, speed_of, batch))
    per_step = {seat.peer_id: 0 if is_idle else shares[seat.peer_id] for seat in seats}
    data, pool = assign_data(record, updates, step, per_step, manifest)
    roster = tuple(
        RosterEntry(seat.peer_id, seat.incarnation, seat.subsets, **vars(data[seat.peer_id])) for seat in seats
    )
    return Record(
        version=RECORD_VERSION,
        run_id=record.run_id,
        round=record.round + 1,
        previous_hash=head.hash,
        state_root=findings.state_root,
        held_out_loss=findings.held_out_loss,
        train_loss=findings.train_loss,
        tokens=sum(tokens_by_peer(updates).values()),
        step=step,
        updates=tuple(updates),
        merge_alpha=merge_alpha(record, manifest),
        roster=roster,
        reducers=assign_reducers(record.round + 1, () if is_idle else roster, layout),
        candidates=candidates_after(record, record.round + 1, roster, first, rules.banned),
        next_position=pool.next_position,
        returned=pool.returned,
        opened_at=now,
        deadline_at=now + rules.round_seconds,
        is_final=is_final,
        harmful=tuple(sorted(harmful)),
        amendment=amendment,
    )
