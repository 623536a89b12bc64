"""The coordinator's core: a pure function of its state, one event and `now` (Unix seconds).

The daemon or bootstrap node that plays the role feeds it what happens, sends what comes out, and keeps each certified
record on disk before anything else leaves. No message of a peer raises: a bad one is answered with a `Refusal` that
says why, and changes nothing.

    state = start(Fixed(layout), head, me, now=time.time())
    step = on_message(state, signed, message, now=time.time())   # `message` came from `open_any(signed, …)`
"""

from dataclasses import replace
from typing import Any

from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Crowd, Link, admit, depart, fault_in_request
from spes_peer.rounds.contributions import fault_in_contribution
from spes_peer.rounds.election import Mandate, is_first_without_voters
from spes_peer.rounds.mandates import has_votes, take_appeal, take_signed_before, take_vote
from spes_peer.rounds.mandates import leads as leads
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Appeal,
    Beat,
    Contribution,
    Departure,
    Excuse,
    Footing,
    Holding,
    MissingOffers,
    PendingAmendment,
    Proposal,
    RecordSignature,
    Refusal,
    SignedBefore,
    UpdateReport,
    Verdict,
    Vote,
)
from spes_peer.rounds.ownership import Past
from spes_peer.rounds.phases import (
    Admitting,
    Closing,
    Coordinator,
    Finished,
    Fixed,
    Outgoing,
    Reducing,
    Resting,
    Step,
    Training,
)
from spes_peer.rounds.reducing import fault_in_report, missed, reported
from spes_peer.rounds.transitions import (
    advance,
    ask_to_sign,
    begun_to_lead,
    fault_in_place,
    fault_in_waiting,
    follow,
    opened_by,
    order_again,
    proof_to_keep,
)
from spes_peer.rounds.verdicts import fault_in_verdict
from spes_peer.rounds.waiting import waiting as waiting
from spes_peer.run.certificates import check_signature, may_sign
from spes_peer.run.marks import MOST_MARKS
from spes_peer.run.records import RosterEntry, SealedRecord
from spes_peer.run.rules import supersedes
from spes_peer.run.signed import Signed

_BANNED = "an organizer has banned this peer from the run"
_ROOT_CHARACTERS = 64


def start(
    fixed: Fixed,
    head: SealedRecord,
    me: PeerId,
    now: float,
    past: Past | None = None,
    proposal: Proposal | None = None,
) -> Coordinator:
    """A coordinator, or one that may become it, of the round that `head` opened.

    Members of its roster count as present until they have been silent for the coordinator time-out: they may just not
    have come back yet. `proposal` is what an earlier start of this node proposed last: in one term it makes one.
    """
    links = {entry.peer_id: Link(entry.incarnation, now) for entry in head.record.roster}
    state = Coordinator(fixed, Crowd(links), head, me, opened_by(head.record, now), past=past or Past())
    if proposal is None:
        return state
    sealed = SealedRecord.from_bytes(proposal.record)
    if sealed.record.previous_hash != head.hash:
        return state
    votes = {signed.peer_id: signed for signed in proposal.votes}
    has_mandate = votes or is_first_without_voters(proposal.term, head.record)
    mandate = Mandate(proposal.term if has_mandate else 0, asked_term=proposal.term, asked_at=now, votes=votes)
    return replace(
        state,
        mandate=mandate,
        phase=Closing(
            now,
            sealed,
            proposal.term,
            now,
            verdicts=proposal.verdicts,
            footings=proposal.footings,
            proofs=proposal.proofs,
        ),
    )


def on_head(state: Coordinator, head: SealedRecord, past: Past, now: float) -> Coordinator:
    """The chain has another newest record, whoever made it, or another certificate of one."""
    if head.hash == state.head.hash:
        return replace(state, past=past)
    return begun_to_lead(replace(follow(state, head, now), past=past), now)


def on_heard(state: Coordinator, term: int | None) -> Coordinator:
    """As a member this node hears another coordinate in this term; None: it hears nobody."""
    return replace(state, heard_term=term)


def on_resigned(state: Coordinator, peer: PeerId) -> Coordinator:
    """As a member this node hears that who coordinated leaves the run: whoever is next need not wait for it."""
    return replace(state, crowd=depart(state.crowd, peer).without({peer}))


def on_time(state: Coordinator, now: float) -> Step:
    """Time has passed: the silent count as gone, deadlines end waits. Call it about every heartbeat."""
    silent = state.crowd.silent(now, state.fixed.manifest.timing.coordinator_timeout_seconds)
    return advance(replace(state, crowd=state.crowd.without(silent)), now)


def on_connected(state: Coordinator, peer: PeerId, now: float) -> Step:
    """A node attends; it is told again what the round wants of it. Which start it is, its first message says."""
    if peer in state.rules.banned:
        return _refuse(state, peer, _BANNED)
    link, entry = state.crowd.links.get(peer), state.head.record.entry_of(peer)
    incarnation = link.incarnation if link else entry.incarnation if entry else 0
    state = replace(state, crowd=state.crowd.heard(peer, incarnation, now))
    step = advance(state, now)
    return replace(step, outgoing=step.outgoing + _reminders(step.state, peer))


def on_gone(state: Coordinator, peer: PeerId, now: float) -> Step:
    """Its stream has ended. Nobody waits for it from now on; it may come back."""
    return advance(replace(state, crowd=state.crowd.forgetting(peer, state.head.record)), now)


def on_message(state: Coordinator, signed: Signed, message: Any, now: float) -> Step:
    """A member's message: `signed` as it was verified and accepted, `message` what is in it."""
    sender, link = signed.peer_id, state.crowd.links.get(signed.peer_id)
    if sender in state.rules.banned:
        return _refuse(state, sender, f"{signed.kind}: {_BANNED}")
    if link is not None and signed.incarnation < link.incarnation:
        return _refuse(state, sender, f"{signed.kind}: it is of an earlier start of yours")
    state = replace(state, crowd=state.crowd.heard(sender, signed.incarnation, now))
    if isinstance(message, Beat) and link is not None and link.incarnation == signed.incarnation:
        return Step(state)  # nothing new: most messages are these
    taken = _take(state, signed, message, now)
    if isinstance(taken, str):
        return _refuse(state, sender, taken)
    if isinstance(taken, Coordinator):
        taken = Step(taken)
    if _can_wait(state, sender, message):
        return taken
    step = advance(taken.state, now)
    return replace(step, outgoing=(*taken.outgoing, *step.outgoing))


def _can_wait(state: Coordinator, sender: PeerId, message: Any) -> bool:
    """Whether the next beat of the clock is early enough to see what follows: who wants a place in a later round, which
    anybody may say as often as he likes, does not move this one."""
    is_about_a_place = isinstance(message, AdmissionRequest | Departure)
    return is_about_a_place and not isinstance(state.phase, Admitting) and sender not in state.head.record.members


def _refuse(state: Coordinator, sender: PeerId, why: str) -> Step:
    return Step(state, (Outgoing(sender, Refusal(why)),))


def _reminders(state: Coordinator, peer: PeerId) -> tuple[Outgoing, ...]:
    """What `peer` may have missed of the phase."""
    if not has_votes(state):
        return ()
    reminders = tuple(out for out in ask_to_sign(state) if out.to == peer)
    if isinstance(state.phase, Reducing) and state.head.record.entry_of(peer) is not None:
        reminders += tuple(replace(out, to=peer) for out in order_again(state) if out.to in (None, peer))
    return reminders


def _take(state: Coordinator, signed: Signed, message: Any, now: float) -> Coordinator | Step | str:
    """The state with the message in it, with an answer if there is one, or why it is refused."""
    match message:
        case Beat():
            return state
        case AdmissionRequest():
            return _take_request(state, signed, message, now)
        case Departure():
            return replace(state, crowd=depart(state.crowd, signed.peer_id))
        case Contribution():
            return _take_contribution(state, signed, message)
        case Excuse():
            return _take_excuse(state, signed, message)
        case Footing():
            return _take_footing(state, signed, message)
        case UpdateReport():
            return _take_report(state, signed, message)
        case MissingOffers():
            return _take_missing(state, signed, message)
        case Holding():
            return _take_holding(state, signed, message)
        case Verdict():
            return _take_verdict(state, signed, message)
        case RecordSignature():
            return _take_signature(state, signed, message)
        case PendingAmendment():
            return _take_amendment(state, message.amendment)
        case Appeal():
            return take_appeal(state, signed, message)
        case Vote():
            return take_vote(state, signed, message)
        case SignedBefore():
            return _take_signed_before(state, message, now)
        case _:
            return f"{signed.kind}: a coordinator takes no such message"


def _take_amendment(state: Coordinator, amendment: Signed) -> Coordinator | str:
    """The next record carries it. One that the chain has already is late, not wrong."""
    if amendment in (state.amendment, state.head.record.amendment):
        return state
    if fault := fault_in_waiting(state, amendment, state.head.record):
        return f"amendment: {fault}"
    if state.amendment is not None and not supersedes(amendment, state.amendment):
        return state
    return replace(state, amendment=amendment)


def _take_request(
    state: Coordinator, signed: Signed, request: AdmissionRequest, now: float
) -> Coordinator | Step | str:
    if isinstance(state.phase, Finished):
        return f"admission: the run has ended with record {state.head.round}"
    if fault := fault_in_request(request, state.fixed.manifest):
        return f"admission: {fault}"
    if fault := fault_in_place(state, signed.peer_id, request.proof, now):
        return f"admission: {fault}"
    proof = proof_to_keep(state, signed.peer_id, request.proof, now)
    admitted = replace(state, crowd=admit(state.crowd, signed.peer_id, signed.incarnation, request, proof))
    until = state.past.marks.barred_until(signed.peer_id, state.head.round)
    why = f"admission: your experts did harm {MOST_MARKS} times of late; a place is yours again with record {until}"
    return Step(admitted, (Outgoing(signed.peer_id, Refusal(why)),)) if until else admitted


def _member(state: Coordinator, signed: Signed) -> RosterEntry | str:
    """The sender's place in the open round, or why it has none."""
    entry = state.head.record.entry_of(signed.peer_id)
    if entry is None:
        return f"the sender is not on the roster of round {state.head.round}"
    if signed.incarnation < entry.incarnation:
        return f"the roster of round {state.head.round} has a later start of the sender"
    return entry


def _take_contribution(state: Coordinator, signed: Signed, contribution: Contribution) -> Coordinator | str:
    prefix = f"contribution to round {contribution.round}"
    entry = _member(state, signed)
    if isinstance(entry, str):
        return f"{prefix}: {entry}"
    if fault := fault_in_contribution(contribution, entry, state.head.record, state.fixed.layout):
        return f"{prefix}: {fault}"
    phase, sender = state.phase, signed.peer_id
    if isinstance(phase, Training | Reducing) and phase.contributions.get(sender) == contribution:
        return state  # said again on a new stream
    if not isinstance(phase, Training):
        return f"{prefix}: contributions are closed"
    if phase.made_by.get(sender, -1) >= signed.incarnation:
        return f"{prefix}: the sender has made another one before"
    phase = replace(
        phase,
        contributions={**phase.contributions, sender: contribution},
        made_by={**phase.made_by, sender: signed.incarnation},
    )
    crowd = replace(state.crowd, speeds={**state.crowd.speeds, sender: contribution.tokens_per_second})
    return replace(state, crowd=crowd, phase=phase)


def _take_excuse(state: Coordinator, signed: Signed, excuse: Excuse) -> Coordinator | str:
    """One that comes when contributions are closed is late, not wrong."""
    entry, phase = _member(state, signed), state.phase
    if isinstance(entry, str):
        return f"excuse from round {excuse.round}: {entry}"
    if excuse.round != state.head.round or not isinstance(phase, Training):
        return state
    return replace(state, phase=replace(phase, excused=phase.excused | {signed.peer_id}))


def _take_footing(state: Coordinator, signed: Signed, footing: Footing) -> Coordinator | str:
    """One that comes when the record is proposed is late, not wrong."""
    entry, phase = _member(state, signed), state.phase
    if isinstance(entry, str):
        return f"footing in round {footing.round}: {entry}"
    if len(footing.state_root) != _ROOT_CHARACTERS:
        return f"footing in round {footing.round}: it names no state root"
    if footing.round != state.head.round or not isinstance(phase, Training | Reducing | Resting):
        return state
    return replace(state, phase=replace(phase, footings={**phase.footings, signed.peer_id: (signed, footing)}))


def _take_report(state: Coordinator, signed: Signed, report: UpdateReport) -> Coordinator | str:
    prefix = f"update of {report.block} in round {report.round}"
    entry = _member(state, signed)
    if isinstance(entry, str):
        return f"{prefix}: {entry}"
    phase = state.phase
    if report.round != state.head.round or not isinstance(phase, Reducing):
        return f"{prefix}: nothing is being averaged in it"
    reduction = phase.reductions.get(report.block)
    if fault := fault_in_report(report, signed.peer_id, reduction, state.fixed.layout):
        return f"{prefix}: {fault}"
    assert reduction is not None  # fault_in_report has refused it
    if report.inputs != reduction.task.digest:  # what it was given before the block was begun anew
        return state
    reductions = {**phase.reductions, report.block: reported(reduction, signed.peer_id, report)}
    phase = replace(phase, reductions=reductions)
    update = reduction.update
    if update is not None and update.blob == report.blob:  # late, but it has the agreed update
        holders = phase.holders_of(update.blob) | {signed.peer_id}
        phase = replace(phase, holders={**phase.holders, update.blob: holders})
    return replace(state, phase=phase)


def _take_missing(state: Coordinator, signed: Signed, missing: MissingOffers) -> Coordinator | str:
    """A word about a round or a block that is over already is late, not wrong."""
    prefix = f"missing offers of {missing.block} in round {missing.round}"
    entry, phase = _member(state, signed), state.phase
    if isinstance(entry, str):
        return f"{prefix}: {entry}"
    if missing.round != state.head.round or not isinstance(phase, Reducing):
        return state
    reduction = phase.reductions.get(missing.block)
    if reduction is None or signed.peer_id not in reduction.task.reducers:
        return f"{prefix}: the block is not the sender's to reduce"
    reductions = {**phase.reductions, missing.block: missed(reduction, signed.peer_id, missing.makers)}
    return replace(state, phase=replace(phase, reductions=reductions))


def _take_holding(state: Coordinator, signed: Signed, holding: Holding) -> Coordinator | str:
    """Note who has what. A word about a round that is over already is late, not wrong."""
    if holding.round > state.head.round:
        return f"holdings of round {holding.round}: round {state.head.round} is open"
    phase = state.phase
    if holding.round < state.head.round or not isinstance(phase, Reducing):
        return state
    entry = _member(state, signed)
    if isinstance(entry, str):
        return f"holdings of round {holding.round}: {entry}"
    wanted = {one.update.blob for one in phase.reductions.values() if one.update is not None}
    said = {blob: phase.holders_of(blob) | {signed.peer_id} for blob in holding.blobs if blob in wanted}
    return replace(state, phase=replace(phase, holders={**phase.holders, **said}))


def _take_verdict(state: Coordinator, signed: Signed, verdict: Verdict) -> Coordinator | str:
    """One that comes when the record is proposed is late, not wrong."""
    prefix, phase = f"verdict on expert {verdict.expert} in round {verdict.round}", state.phase
    if verdict.round < state.head.round:
        return state
    if fault := fault_in_verdict(verdict, signed.peer_id, state.head.record, state.fixed.layout):
        return f"{prefix}: {fault}"
    entry = _member(state, signed)
    if isinstance(entry, str):
        return f"{prefix}: {entry}"
    if not isinstance(phase, Training | Reducing):
        return state
    verdicts = {**phase.verdicts, (verdict.expert, signed.peer_id): (signed, verdict)}
    return replace(state, phase=replace(phase, verdicts=verdicts))


def _take_signature(state: Coordinator, signed: Signed, signature: RecordSignature) -> Coordinator | str:
    """A signature that comes when the record has taken effect already is late, not wrong."""
    if signature.round <= state.head.round:
        return state
    phase, prefix = state.phase, f"signature under record {signature.round}"
    if not isinstance(phase, Closing):
        return f"{prefix}: no record is proposed"
    record = phase.proposal.record
    try:
        check_signature(signed, phase.proposal, phase.term, may_sign(record, state.head.record))
    except PeerError as error:
        return f"{prefix}: {error}"
    carried = phase.carried | {signed.peer_id} if signature.uncertified else phase.carried - {signed.peer_id}
    return replace(
        state, phase=replace(phase, signatures={**phase.signatures, signed.peer_id: signed}, carried=carried)
    )


def _take_signed_before(state: Coordinator, message: SignedBefore, now: float) -> Coordinator | str:
    try:
        return take_signed_before(state, message, SealedRecord.from_bytes(message.record), now)
    except PeerError as error:
        return f"a record signed before: {error}"
