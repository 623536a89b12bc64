"""How the phases of a round end and what begins then. Each function is one phase's `Coordinator → Step`.

Nobody waits for the dead: who no longer attends ends the wait for it at once; the deadline ends it for the silent.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Crowd, Seat, depart_all
from spes_peer.rounds.assignment import bootstraps_of, rendezvous
from spes_peer.rounds.contributions import Contributions, Findings, copied, findings_in, majority_root
from spes_peer.rounds.election import UNREACHABLE_PART
from spes_peer.rounds.footings import said_root, witnesses
from spes_peer.rounds.mandates import has_votes, is_stalled, leads, renewed, seek_mandate
from spes_peer.rounds.messages import Footing, Proposal, ReduceOrder, ReduceTask, Refusal, UpdateNotice, Verdict
from spes_peer.rounds.ownership import seats_after
from spes_peer.rounds.phases import (
    Admitting,
    Closing,
    Coordinator,
    Finished,
    Outgoing,
    Phase,
    Reducing,
    Resting,
    Step,
    Training,
)
from spes_peer.rounds.proposal import next_record, untrained_findings
from spes_peer.rounds.reducing import (
    Reduction,
    begun_anew,
    dropped,
    is_dropped,
    is_listable,
    is_lost,
    makers_of,
    reductions_of,
    settle,
    to_leave_out,
)
from spes_peer.rounds.verdicts import (
    COORDINATOR_PART,
    digests_in,
    experts_owned_by_one,
    is_marked,
    is_objected,
    who_tests,
)
from spes_peer.run.certificates import is_carried_by, is_certified_by, is_more_than_half, may_sign
from spes_peer.run.invitations import InvitationProof, fault_in_newcomer, fault_in_proof
from spes_peer.run.records import CertifiedRecord, Record, SealedRecord, Update
from spes_peer.run.rules import open_amendment, rules_of
from spes_peer.run.signed import Signed

_LATE_PART = 2 / 3
"""Of the grace; the rest is for averaging what is there, and to spread it."""


def advance(state: Coordinator, now: float) -> Step:
    """Go on for as long as a phase can end. At most one record takes effect in a call."""
    outgoing: tuple[Outgoing, ...] = ()
    certified: CertifiedRecord | None = None
    while certified is None:
        step = _advance_once(state, now)
        if step.state == state:
            break
        state, certified = step.state, step.certified
        outgoing += step.outgoing
    return Step(state, outgoing, certified)


def _advance_once(state: Coordinator, now: float) -> Step:
    sought = seek_mandate(state, now)
    if sought.state.term > state.term:
        elected = begun_to_lead(sought.state, now)
        return Step(elected, (*ask_to_sign(elected), *order_again(elected)))
    if sought.state != state:
        return sought
    if not leads(state, now):
        return Step(state)
    match state.phase:
        case Admitting():
            return _advance_admitting(state, now)
        case Resting() as phase:
            return _advance_resting(state, phase, now)
        case Training() as phase:
            return _advance_training(state, phase, now)
        case Reducing() as phase:
            return _advance_reducing(state, phase, now)
        case Closing() as phase:
            return _advance_closing(state, phase, now)
        case Finished():
            return Step(state)


def opened_by(record: Record, now: float) -> Phase:
    """The phase in which a record's round begins."""
    if record.is_final:
        return Finished(now)
    if not record.roster:
        return Admitting(now)
    return Training(now) if record.trains else Resting(now)


def needed_applicants(state: Coordinator) -> int:
    """The manifest's number opens round 1, or the quorum of an organizer; later, when all have gone, whoever comes goes
    on, for with too few members a round rests."""
    first = state.next_rules.quorum or state.fixed.manifest.run.min_peers
    return first if state.head.round == 0 else 1


def _advance_admitting(state: Coordinator, now: float) -> Step:
    if len(admissible(state, now).applying()) < needed_applicants(state):
        return Step(state)
    return _propose(state, (), untrained_findings(state.head.record), now)


def _advance_resting(state: Coordinator, phase: Resting, now: float) -> Step:
    """Nothing is lost by ending such a round at any moment: it ends when there is something to do."""
    rules, record = state.next_rules, state.head.record
    has_work = state.amendment is not None or not rules.rests(len(seats(state, now)))
    if not has_work and now < record.deadline_at:
        return Step(state)
    if not is_more_than_half(len(state.present), of=len(record.roster)) and not is_stalled(state, now):
        return Step(state)
    findings = untrained_findings(record)
    if not findings.state_root:  # the record has changed the state, and nobody has contributed, which says what to
        findings = replace(findings, state_root=said_root(phase.footings, record))
    return _propose(state, (), findings, now, footings=phase.footings)


def usable(state: Coordinator, phase: Training) -> Contributions:
    """Contributions whose makers still attend, for nobody could fetch the others' offers; and who are to stay."""
    present = state.present.difference(state.next_rules.banned)
    return {peer: contribution for peer, contribution in phase.contributions.items() if peer in present}


def train_until(state: Coordinator, phase: Training) -> float:
    """Unix seconds until which the round waits for those who attend. Where too few have contributed and this node began
    late to coordinate, others began late to train, and may do so for a whole round."""
    record = state.head.record
    if is_more_than_half(len(usable(state, phase)), of=len(record.roster)):
        return record.deadline_at
    return max(record.deadline_at, max(phase.since_at, state.mandate.asked_at) + state.rules.round_seconds)


def awaited_members(state: Coordinator, phase: Training) -> frozenset[PeerId]:
    """Who attends, has not contributed, and has not said that it cannot."""
    return state.present - phase.contributions.keys() - phase.excused


def has_quorum(state: Coordinator, phase: Training) -> bool:
    """Whether more than half of the roster attends and is not awaited, and somebody has contributed: if all are excused
    the round stays open, or rounds would pass in which nobody trains."""
    num_answers = len(state.present) - len(awaited_members(state, phase))
    return bool(usable(state, phase)) and is_more_than_half(num_answers, of=len(state.head.record.roster))


def _advance_training(state: Coordinator, phase: Training, now: float) -> Step:
    contributions = usable(state, phase)
    if not has_quorum(state, phase) and not is_stalled(state, now):
        return Step(state)
    if awaited_members(state, phase) and now < train_until(state, phase):
        return Step(state)
    if not contributions:  # the whole roster has gone, and others have come
        return _propose(state, (), untrained_findings(state.head.record), now) if seats(state, now) else Step(state)
    return _begin_reducing(state, phase, contributions, now)


def _begin_reducing(state: Coordinator, training: Training, contributions: Contributions, now: float) -> Step:
    """Close contributions. Those on another root than most are deltas to something else and count for nothing; nor do
    those that repeat another's."""
    root, round = majority_root(contributions), state.head.round
    why = {
        peer: f"it stands on state root {part.state_root[:12]}, and most tokens on {root[:12]}; repair your state"
        for peer, part in contributions.items()
        if part.state_root != root
    }
    standing = {peer: part for peer, part in contributions.items() if peer not in why}
    why |= dict.fromkeys(copied(standing), "its shared parameters are a copy of another's")
    counting = {peer: part for peer, part in standing.items() if peer not in why}
    refusals = tuple(Outgoing(peer, Refusal(f"contribution to round {round}: {why[peer]}")) for peer in sorted(why))
    reductions = reductions_of(counting, state.fixed.layout, round, now, state.past.norms)
    orders = orders_of(round, [one.task for one in reductions.values()])
    phase = Reducing(now, counting, reductions, verdicts=training.verdicts, footings=training.footings)
    only_offers = tuple(one.update for one in reductions.values() if one.update is not None)
    for update in only_offers:
        phase = holding(phase, update)
    notices = tuple(notice_of(phase, round, update) for update in only_offers)
    return Step(replace(state, phase=phase), (*refusals, *orders, *notices))


def orders_of(
    round: int, tasks: Iterable[ReduceTask], only_to: Collection[PeerId] | None = None
) -> tuple[Outgoing, ...]:
    """To every reducer its own tasks: a task names all who offer, so to tell everybody would cost the square."""
    by_reducer: dict[PeerId, list[ReduceTask]] = {}
    for task in tasks:
        for peer in task.reducers:
            if only_to is None or peer in only_to:
                by_reducer.setdefault(peer, []).append(task)
    return tuple(Outgoing(peer, ReduceOrder(round, tuple(by_reducer[peer]))) for peer in sorted(by_reducer))


def holding(phase: Reducing, update: Update) -> Reducing:
    """Those who made an update have it."""
    holders = phase.holders_of(update.blob) | set(makers_of(update))
    return replace(phase, holders={**phase.holders, update.blob: holders})


def notice_of(phase: Reducing, round: int, update: Update) -> Outgoing:
    holders = tuple(sorted(phase.holders_of(update.blob)))
    return Outgoing(None, UpdateNotice(round, update.block, update.blob, update.size_bytes, holders))


def reduce_until(state: Coordinator, phase: Reducing) -> float:
    """Unix seconds at which the reduce ends with what is there."""
    return phase.since_at + state.fixed.manifest.timing.round_grace_seconds


def patience_seconds(state: Coordinator) -> float:
    """How long a reducer may be silent: half of the grace, so that the rest remains to fetch what others made."""
    return state.fixed.manifest.timing.round_grace_seconds / 2


def _advance_reducing(state: Coordinator, phase: Reducing, now: float) -> Step:
    phase, outgoing = _settle_all(state, phase, now)
    state = replace(state, phase=phase)
    present = state.present
    if now < reduce_until(state, phase) and any(awaited_blocks(phase, present)):
        return Step(state, outgoing)
    if now < test_until(state, phase) and any(awaited_verdicts(state, phase)):
        return Step(state, outgoing)
    out = dropped(phase.reductions.values())
    listed = [
        update
        for one in phase.reductions.values()
        if (update := one.update) is not None
        and not is_dropped(update, out)
        and is_listable(update, phase.holders_of(update.blob), present)
    ]
    said = applicable_verdicts(state, phase)
    testers = who_tests(state.head.record, state.fixed.layout)
    harmful = {
        expert
        for expert, verdicts in said.items()
        if is_objected((verdict for _, verdict in verdicts.values()), len(testers[expert]))
    }
    by_id = state.fixed.layout.by_id
    outgoing += _refusals_of_harm(phase, harmful, state)
    incomplete = testers.keys() - digests_in(listed, state.fixed.layout).keys()  # nobody could test those
    step = _propose(
        state,
        tuple(update for update in listed if by_id[update.block].expert not in harmful | incomplete),
        findings_in(phase.contributions.values()),
        now,
        _told(said),
        _makers_of_harm(phase, said, state),
        phase.footings,
    )
    return replace(step, outgoing=outgoing + step.outgoing)


def test_until(state: Coordinator, phase: Reducing) -> float:
    """Unix seconds until which the round waits for verdicts."""
    return phase.since_at + state.fixed.manifest.timing.round_grace_seconds * COORDINATOR_PART


Verdicts = Mapping[int, Mapping[PeerId, tuple[Signed, Verdict]]]
"""By expert and member."""


def applicable_verdicts(state: Coordinator, phase: Reducing) -> Verdicts:
    """What has been said of the updates that each expert has now, or that they were not tested."""
    layout = state.fixed.layout
    if not layout.manifest.sync.most_harm:
        return {}
    updates = (one.update for one in phase.reductions.values() if one.update is not None)
    said: dict[int, dict[PeerId, tuple[Signed, Verdict]]] = {
        expert: {
            peer: phase.verdicts[expert, peer]
            for peer in who_tests(state.head.record, layout).get(expert, ())
            if (expert, peer) in phase.verdicts and phase.verdicts[expert, peer][1].updates in (digest, b"")
        }
        for expert, digest in digests_in(updates, layout).items()
    }
    return said


def awaited_verdicts(state: Coordinator, phase: Reducing) -> Iterator[tuple[int, PeerId]]:
    """Experts whose updates are there, and members that have still to say what they do."""
    said, present = applicable_verdicts(state, phase), state.present
    testers = who_tests(state.head.record, state.fixed.layout)
    return (
        (expert, peer)
        for expert, verdicts in said.items()
        for peer in testers.get(expert, ())
        if peer in present and peer not in verdicts
    )


def _told(said: Verdicts) -> tuple[Signed, ...]:
    """What goes along with a proposal: all that was said of experts to which somebody objects."""
    return tuple(
        signed
        for expert in sorted(said)
        if any(verdict.objects for _, verdict in said[expert].values())
        for signed, verdict in said[expert].values()
        if verdict.is_tested
    )


def _makers_of_harm(phase: Reducing, said: Verdicts, state: Coordinator) -> frozenset[PeerId]:
    """Who alone owns experts of which nearly all that tested them say that they do harm."""
    by_id, testers = state.fixed.layout.by_id, who_tests(state.head.record, state.fixed.layout)
    alone = experts_owned_by_one(state.head.record, state.fixed.layout)
    marked = {
        expert
        for expert, verdicts in said.items()
        if expert in alone and is_marked((verdict for _, verdict in verdicts.values()), len(testers[expert]))
    }
    return frozenset(
        part.peer_id
        for one in phase.reductions.values()
        if by_id[one.task.block].expert in marked
        for part in one.task.inputs
    )


def _refusals_of_harm(phase: Reducing, harmful: Collection[int], state: Coordinator) -> tuple[Outgoing, ...]:
    """To the owners of experts that are left out."""
    by_id, round = state.fixed.layout.by_id, state.head.round
    makers = {
        (part.peer_id, expert)
        for one in phase.reductions.values()
        if (expert := by_id[one.task.block].expert) in harmful
        for part in one.task.inputs
    }
    return tuple(
        Outgoing(
            peer,
            Refusal(
                f"contribution to round {round}: peers found that your expert {expert} makes the run's model worse on"
                " held-out text; it is left out"
            ),
        )
        for peer, expert in sorted(makers)
    )


def _settle_all(state: Coordinator, phase: Reducing, now: float) -> tuple[Reducing, tuple[Outgoing, ...]]:
    present, round = state.present, state.head.round
    able = present & phase.contributions.keys()
    known_bad = dropped(phase.reductions.values())
    is_late = now >= phase.since_at + _LATE_PART * state.fixed.manifest.timing.round_grace_seconds
    outgoing: list[Outgoing] = []
    for block, before in phase.reductions.items():
        if before.is_settled:
            continue
        after = before
        if not (out := to_leave_out(before, present, able, is_late)):
            after = settle(before, state.fixed.layout, round, present, able, now, patience_seconds(state))
            out = to_leave_out(after, present, able, is_late=True) if after.gave_up else frozenset()
        if out:
            after = begun_anew(after, out, state.fixed.layout, round, able, now)
            why = f"contribution to round {round}: nobody could fetch your offer of {block} in time"
            outgoing += [Outgoing(peer, Refusal(why)) for peer in sorted(out)]
        if after == before:
            continue
        phase = replace(phase, reductions={**phase.reductions, block: after})
        if after.update is not None:
            phase = holding(phase, after.update)
            outgoing.append(notice_of(phase, round, after.update))
        elif not after.gave_up:
            has_them = after.task.inputs == before.task.inputs
            asked = frozenset(after.task.reducers).difference(before.task.reducers if has_them else ())
            outgoing += orders_of(round, [after.task], asked)
    for peer, block in dropped(phase.reductions.values()).items():
        if peer not in known_bad:
            why = f"contribution to round {round}: reducers found that your offer of {block} is not what it claims"
            outgoing.append(Outgoing(peer, Refusal(why)))
    return phase, tuple(outgoing)


def awaited_blocks(phase: Reducing, present: frozenset[PeerId]) -> Iterator[Reduction]:
    """Blocks for which waiting can still bring an update into the record."""
    out = dropped(phase.reductions.values())
    return (one for one in phase.reductions.values() if _is_awaited(one, phase, present, out))


def _is_awaited(one: Reduction, phase: Reducing, present: frozenset[PeerId], out: Collection[PeerId]) -> bool:
    if one.update is None:
        return not one.gave_up
    holders = phase.holders_of(one.update.blob)
    if is_dropped(one.update, out) or is_lost(holders, present):
        return False
    return not is_listable(one.update, holders, present)


def _propose(
    state: Coordinator,
    updates: tuple[Update, ...],
    findings: Findings,
    now: float,
    verdicts: tuple[Signed, ...] = (),
    harmful: Collection[PeerId] = (),
    footings: Mapping[PeerId, tuple[Signed, Footing]] = MappingProxyType({}),
) -> Step:
    chosen = seats(state, now)
    if not chosen and first_candidate(state, chosen) is None:
        return Step(state)  # without anybody there to go on, the round stays open for the next start
    speeds = [state.crowd.speeds.get(seat.peer_id, 0.0) for seat in chosen]
    record = next_record(
        state.head,
        updates,
        findings,
        chosen,
        speeds,
        state.fixed.layout,
        first_candidate(state, chosen),
        now,
        harmful,
        state.amendment,
    )
    phase = Closing(
        now,
        record.seal(),
        proposed_term(state),
        now,
        verdicts=verdicts,
        footings=witnesses(footings, record),
        proofs=_proofs(state, chosen),
    )
    state = replace(state, phase=phase)
    return Step(state, ask_to_sign(state))


def seats(state: Coordinator, now: float) -> tuple[Seat, ...]:
    """The next roster."""
    return seats_after(state.head.record, admissible(state, now), state.past, state.fixed.manifest, now)


def admissible(state: Coordinator, now: float) -> Crowd:
    """The crowd without those whom the next record's rules keep out. An invitation that was good when somebody came
    with it may end while the round does."""
    rules, crowd = state.next_rules, state.crowd
    came_at = now - rules.round_seconds
    uninvited = {peer for peer, one in crowd.applicants.items() if fault_in_place(state, peer, one.proof, came_at)}
    return depart_all(crowd, uninvited.union(rules.banned)) if uninvited or rules.banned else crowd


def fault_in_place(state: Coordinator, peer: PeerId, proof: InvitationProof | None, now: float) -> str | None:
    """Why `peer` may have no place in the next roster; None if it may."""
    rules = state.next_rules
    if peer in state.past.leases.by_peer and peer not in rules.banned:
        return None
    return fault_in_newcomer(peer, proof, rules, state.fixed.manifest, state.head.record.run_id, now)


def proof_to_keep(
    state: Coordinator, peer: PeerId, proof: InvitationProof | None, now: float
) -> InvitationProof | None:
    """`proof`, where members will want to see it and it is good: another may be megabytes of nothing."""
    is_wanted = state.fixed.manifest.admission.mode == "invitation" and peer not in state.past.leases.by_peer
    if not is_wanted or proof is None or proof.peer_id != peer:
        return None
    return None if fault_in_proof(proof, state.next_rules, state.head.record.run_id, now) else proof


def _proofs(state: Coordinator, seats: Iterable[Seat]) -> tuple[InvitationProof, ...]:
    """That those have been invited who get a place for the first time, where the run asks for it."""
    if state.fixed.manifest.admission.mode != "invitation":
        return ()
    new = [seat.peer_id for seat in seats if seat.peer_id not in state.past.leases.by_peer]
    proofs = (state.crowd.applicants[peer].proof for peer in new if peer in state.crowd.applicants)
    return tuple(proof for proof in proofs if proof is not None)


def first_candidate(state: Coordinator, seats: Sequence[Seat]) -> PeerId | None:
    """Who coordinates the next round: a bootstrap node that attends, for those train nothing and are reached by all;
    else this node, or when it leaves, another that is there. None if nobody is.

    While the chain has an uncertified end, those that can have it certified go first."""
    bootstraps = [peer for peer in bootstraps_of(state.head.record) if peer not in state.next_rules.banned]
    members = [seat.peer_id for seat in seats]
    here = [peer for peer in bootstraps if peer == state.me or peer in state.crowd.links]
    order = [*here, *rendezvous(f"coordinate {state.head.round + 1}", members)]
    able = state.past.certifiers or frozenset(order)
    return min(order, key=lambda peer: (peer not in able, peer not in here, peer != state.me), default=None)


def ask_to_sign(state: Coordinator) -> tuple[Outgoing, ...]:
    """The proposal, to those whose signature can help and is missing."""
    phase = state.phase
    if not isinstance(phase, Closing):
        return ()
    votes = tuple(state.mandate.votes[peer] for peer in sorted(state.mandate.votes)) if phase.term == state.term else ()
    proposal = Proposal(phase.term, phase.proposal.content, votes, phase.verdicts, phase.footings, phase.proofs)
    asked = may_sign(phase.proposal.record, state.head.record)
    return tuple(Outgoing(peer, proposal) for peer in sorted(asked) if peer not in phase.signatures)


def proposed_term(state: Coordinator) -> int:
    """The mandate's; without one, in a stalled round, the newest in which members have appealed."""
    return state.term if has_votes(state) else max(state.mandate.appeals.values(), default=0)


def _advance_closing(state: Coordinator, phase: Closing, now: float) -> Step:
    record, previous = phase.proposal.record, state.head.record
    voted = phase.signatures.keys() - phase.carried
    grace_seconds = state.fixed.manifest.timing.round_grace_seconds
    if not is_certified_by(voted, record, previous) and not _goes_on_uncertified(state, phase, now):
        if now < phase.asked_at + grace_seconds:
            return Step(state)
        if not previous.roster and has_votes(state):  # who was to be the first may be gone, and others may have come
            mandate = replace(state.mandate, term=state.term + len(previous.candidates))
            return Step(replace(state, mandate=mandate, phase=Admitting(now)))
        if _is_abandoned(state, phase, now):
            return Step(_begun_anew(state, now))
        return Step(replace(state, phase=replace(phase, asked_at=now)), ask_to_sign(state))
    signatures = tuple(phase.signatures[peer] for peer in sorted(phase.signatures))
    certified = CertifiedRecord(phase.proposal.content, phase.term, signatures)
    state = follow(state, phase.proposal, now)
    return Step(state, (Outgoing(None, certified),), certified)


def _is_abandoned(state: Coordinator, phase: Closing, now: float) -> bool:
    """Whether all who could sign have been gone for long, and others ask this node to go on."""
    here = state.crowd.links.keys()
    record = phase.proposal.record
    is_lost = not state.present and not is_more_than_half(len(record.members & here), of=len(record.roster))
    return is_lost and is_stalled(state, now) and max(state.mandate.appeals.values(), default=0) > state.term


def _begun_anew(state: Coordinator, now: float) -> Coordinator:
    """In the term for which they ask, since in one term there is one proposal; without votes it is not certified."""
    term = max(state.mandate.appeals.values())
    mandate = replace(state.mandate, term=term, asked_term=term, votes={})
    return replace(state, mandate=mandate, phase=opened_by(state.head.record, now))


def _goes_on_uncertified(state: Coordinator, phase: Closing, now: float) -> bool:
    """Whether the round has waited for long enough and all who are there agree, or have had time to.

    Without votes it always waits for those who still look for a coordinator: were they more than half of the roster,
    they would vote, and the record be certified.
    """
    if not is_stalled(state, now) or not is_carried_by(phase.signatures, phase.proposal.record, state.head.record):
        return False
    asked = may_sign(phase.proposal.record, state.head.record) & state.crowd.links.keys()
    if has_votes(state) and asked <= phase.signatures.keys():
        return True
    return now >= phase.since_at + state.fixed.manifest.timing.coordinator_timeout_seconds


def follow(state: Coordinator, head: SealedRecord, now: float) -> Coordinator:
    """The round that `head` opens begins; whoever made the record."""
    banned = rules_of(head.record, state.fixed.first_rules).banned
    state = replace(
        state,
        head=head,
        phase=opened_by(head.record, now),
        crowd=state.crowd.settled(head.record).without(banned),
        amendment=still_to_carry(state, head.record),
        heard_term=None,
        past=state.past.after(head.record, state.fixed.layout),
    )
    return renewed(state)


def still_to_carry(state: Coordinator, record: Record) -> Signed | None:
    """The amendment that waits, if a record behind `record` may carry it."""
    return state.amendment if state.amendment and not fault_in_waiting(state, state.amendment, record) else None


def fault_in_waiting(state: Coordinator, amendment: Signed, record: Record) -> str | None:
    """Why no record behind `record` may carry this amendment; None if one may."""
    try:
        open_amendment(amendment, record, state.fixed.first_rules, state.fixed.manifest.timing)
    except PeerError as error:
        return str(error)
    return None


def begun_to_lead(state: Coordinator, now: float) -> Coordinator:
    """Members have to find a new coordinator first: they are waited for as long as it takes to see that one is gone."""
    timeout_seconds = state.fixed.manifest.timing.coordinator_timeout_seconds
    heard_at = now - timeout_seconds * (1 - UNREACHABLE_PART)
    return replace(state, crowd=state.crowd.expecting(state.head.record, heard_at))


def order_again(state: Coordinator) -> tuple[Outgoing, ...]:
    """What a phase that goes on in a new term has asked for."""
    if not isinstance(state.phase, Reducing):
        return ()
    phase, round = state.phase, state.head.round
    orders = orders_of(round, [one.task for one in phase.reductions.values()])
    notices = [notice_of(phase, round, one.update) for one in phase.reductions.values() if one.update]
    return (*orders, *notices)
