"""What a round waits for: for whom, until when and why, in the words that every dashboard shows."""

from spes_peer.identity import PeerId
from spes_peer.rounds.mandates import leads, stall_ends_at, supporters
from spes_peer.rounds.messages import CoordinatorBeat
from spes_peer.rounds.phases import Admitting, Closing, Coordinator, Finished, Reducing, Resting, Training
from spes_peer.rounds.reducing import missing_holders, still_working
from spes_peer.rounds.transitions import (
    admissible,
    awaited_blocks,
    awaited_members,
    awaited_verdicts,
    has_quorum,
    needed_applicants,
    patience_seconds,
    proposed_term,
    reduce_until,
    test_until,
    train_until,
    usable,
)
from spes_peer.run.certificates import is_more_than_half

_MOST_NAMED = 16  # everybody is told, every heartbeat: to name all would cost the square


def waiting(state: Coordinator, now: float) -> CoordinatorBeat:
    """The coordinator's beat. `until_at` is 0 when only people can end the wait."""
    waiting_for, until_at, why = _wait(state, now)
    phase, name = state.phase, state.phase.name if leads(state, now) else "electing"
    named = waiting_for[:_MOST_NAMED]
    return CoordinatorBeat(
        proposed_term(state), state.head.round, name, phase.since_at, named, until_at, why, sent_at=now
    )


def _wait(state: Coordinator, now: float) -> tuple[tuple[PeerId, ...], float, str]:
    if not leads(state, now):
        return _wait_electing(state)
    match state.phase:
        case Admitting():
            here, needed = len(admissible(state, now).applying()), needed_applicants(state)
            return (), 0.0, f"{here} of the {needed} volunteers that it takes to open round {state.head.round + 1}"
        case Resting():
            return _wait_resting(state)
        case Training() as phase:
            return _wait_training(state, phase, now)
        case Reducing() as phase:
            return _wait_reducing(state, phase, now)
        case Closing() as phase:
            voters = state.voters
            unsigned = tuple(peer for peer in voters if peer not in phase.signatures)
            needed = len(voters) // 2 + 1
            why = (
                f"{len(phase.signatures)} of {len(voters)} have signed record {phase.proposal.round}, it takes {needed}"
            )
            if not is_more_than_half(len(state.present), of=len(state.head.record.roster)):
                return unsigned, stall_ends_at(state), f"{why}; without them it goes on uncertified"
            return unsigned, 0.0, why
        case Finished():
            return (), 0.0, f"the run has ended with record {state.head.round}"


def _wait_resting(state: Coordinator) -> tuple[tuple[PeerId, ...], float, str]:
    rules, record = state.rules, state.head.record
    if rules.is_paused:
        return (), 0.0, "the organizer has paused the run"
    return (), 0.0, f"{len(record.roster)} of the {rules.quorum} members that a round takes"


def _wait_training(state: Coordinator, phase: Training, now: float) -> tuple[tuple[PeerId, ...], float, str]:
    record, contributions, present = state.head.record, usable(state, phase), state.present
    missing = tuple(entry.peer_id for entry in record.roster if entry.peer_id not in contributions)
    due = awaited_members(state, phase)
    awaited = tuple(peer for peer in missing if peer in due)
    count = f"{len(contributions)} of {len(record.roster)} have contributed to round {record.round}"
    if num_excused := len((phase.excused & present) - contributions.keys()):
        count += f", {num_excused} cannot"
    until_at = train_until(state, phase)
    if has_quorum(state, phase) or (now < until_at and awaited):
        return awaited, until_at, count
    return missing, stall_ends_at(state), f"{count}, and it takes more than half; without them it goes on uncertified"


def _wait_electing(state: Coordinator) -> tuple[tuple[PeerId, ...], float, str]:
    mandate, roster = state.mandate, state.head.record.roster
    needed = len(roster) // 2 + 1
    if mandate.asked_term > mandate.term:
        missing = tuple(entry.peer_id for entry in roster if entry.peer_id not in mandate.votes)
        return missing, 0.0, f"{len(mandate.votes)} of {len(roster)} have voted for us, it takes {needed}"
    asking = supporters(state)
    missing = tuple(entry.peer_id for entry in roster if entry.peer_id not in asking)
    why = f"{len(asking)} of {len(roster)} have lost the coordinator, it takes {needed} to elect another"
    if not is_more_than_half(len(state.present), of=len(roster)):
        why += "; without them it goes on uncertified"
    return missing, stall_ends_at(state), why


def _wait_reducing(state: Coordinator, phase: Reducing, now: float) -> tuple[tuple[PeerId, ...], float, str]:
    present, until_at = state.present, reduce_until(state, phase)
    awaited = list(awaited_blocks(phase, present))
    unmade = [one for one in awaited if one.update is None]
    if unmade:
        reducers = {peer for one in unmade for peer in still_working(one, present, now, patience_seconds(state))}
        why = f"{len(unmade)} of {len(phase.reductions)} blocks are still being averaged"
        return tuple(sorted(reducers)), until_at, why
    if not awaited and (unsaid := list(awaited_verdicts(state, phase))):
        experts = {expert for expert, _ in unsaid}
        why = f"{len(experts)} experts are being tested on held-out text"
        return tuple(sorted({peer for _, peer in unsaid})), test_until(state, phase), why
    updates = [one.update for one in awaited if one.update is not None]
    fetchers = {peer for update in updates for peer in missing_holders(update, phase.holders_of(update.blob), present)}
    return tuple(sorted(fetchers)), until_at, f"{len(updates)} updates are on their way to enough peers"
