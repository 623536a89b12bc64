"""From what a node knows to what strangers may see: where peer ids end. Pure; no sockets, no clock, no HTML."""

import itertools
from collections.abc import Sequence

from bootstrap.web.history import Row
from bootstrap.web.names import UNNAMED
from bootstrap.web.view import Facts, Phase, Point, Progress, RunView, Source, Subset, Volunteer
from spes_peer.identity import PeerId
from spes_peer.run.data import Data
from spes_peer.run.manifest import Manifest, Training
from spes_peer.run.peers import PeerState
from spes_peer.run.tallies import Tally

_RATE_ROUNDS = 8  # speed is that of the newest rounds
_MOST_AWAITED = 4  # are named; of the others, how many


def view_of(facts: Facts) -> RunView:
    """What strangers may see."""
    manifest, record = facts.manifest, facts.head
    volunteers = _volunteers(facts)
    waiting = [peer for peer in facts.states if _state(facts, peer) == "here"]
    return RunView(
        name=manifest.run.name,
        run_id=facts.run_id.hex(),
        round=record.round,
        phase=phase_of(facts, len(waiting)),
        progress=progress_of(facts),
        training_curve=_training_curve(facts.rows),
        held_out_curve=_held_out_curve(facts.rows),
        subsets=tuple(_subset(facts, number) for number in range(manifest.training.num_subsets)),
        volunteers=volunteers,
        num_training=0 if record.is_final else len(record.members),
        num_waiting=len(waiting),
        min_volunteers=manifest.run.min_peers,
        rows=facts.rows,
        certified_round=facts.certified_round,
        coordinators={**facts.labels, **facts.nodes},
        join_addresses=facts.join_addresses,
        sources=_sources(manifest.data),
        licence=manifest.data.licence,
        admission=manifest.admission.mode,
        model_words=_model_words(manifest),
        checkpoint_round=facts.checkpoint_round,
        checkpoint_bytes=facts.checkpoint_bytes,
    )


# ---- what happens now ----

_WORDS = {
    "training": "Training round {round}",
    "reducing": "Averaging what round {round} has trained",
    "closing": "Signing the record that closes round {round}",
    "resting": "Resting before round {round}",
    "electing": "Choosing who coordinates",
}
_NAMES = {
    "resting": "resting",
    "training": "training",
    "reducing": "averaging",
    "closing": "signing",
    "electing": "electing",
}


def phase_of(facts: Facts, num_waiting: int) -> Phase:
    """In words of ours: what the coordinator says of it is a stranger's text."""
    record, beat, round = facts.head, facts.beat, facts.head.round
    if record.is_final:
        return Phase("finished", f"Finished after {max(0, round - 1)} rounds", record.opened_at, 0.0)
    if facts.rules.is_paused:
        return Phase("paused", "Paused by the organizer", record.opened_at, 0.0)
    if record.roster and facts.rules.rests(len(record.members)):
        words = f"Resting: {len(record.members)} of the {facts.rules.quorum} volunteers that a round takes are here"
        return Phase("resting", words, record.opened_at, 0.0)
    if not record.roster:
        needed = (facts.rules.quorum or facts.manifest.run.min_peers) if round == 0 else 1
        words = f"Waiting for volunteers: {min(num_waiting, needed)} of the {needed} that it takes are here"
        return Phase("waiting", words, record.opened_at, 0.0)
    if beat is None or beat.phase not in _NAMES:
        return Phase("electing", "Looking for who coordinates", record.opened_at, 0.0)
    awaited = tuple(facts.labels.get(peer, facts.nodes.get(peer, UNNAMED)) for peer in beat.waiting_for)
    words = _WORDS[beat.phase].format(round=round)
    until_at = record.deadline_at if beat.phase == "training" else 0.0
    return Phase(_NAMES[beat.phase], words, record.opened_at, until_at, _shortened(awaited))


def _shortened(names: tuple[str, ...]) -> tuple[str, ...]:
    named, rest = names[:_MOST_AWAITED], len(names) - _MOST_AWAITED
    return (*named, f"{rest} more") if rest > 0 else named


# ---- how far it is ----


def planned_tokens(training: Training, sequence_length: int) -> int:
    """Tokens of the whole schedule, the final phase with its batches included."""
    last = training.total_steps - 1
    late = training.total_steps - min(training.final_phase_step, training.total_steps)
    early = training.total_steps - late
    sequences = early * training.batch_sequences_at(0) + late * training.batch_sequences_at(last)
    return sequences * sequence_length


def progress_of(facts: Facts) -> Progress:
    """Time left is by what the newest rounds took in which somebody trained."""
    training, last = facts.manifest.training, facts.rows[-1]
    rounds, steps, tokens, seconds = _newest(facts.rows)
    parts = [last.step / training.total_steps]
    left = [(training.total_steps - last.step) * seconds / steps] if seconds and steps else []
    if end := facts.rules.finish_after_round:
        closed = max(0, last.round - 1)
        parts.append(closed / end)
        left += [(end - closed) * seconds / rounds] if seconds else []
    is_going_on = not facts.head.is_final and not facts.rules.is_paused
    return Progress(
        tokens=last.total_tokens,
        planned_tokens=planned_tokens(training, facts.manifest.model.sequence_length),
        step=last.step,
        planned_steps=training.total_steps,
        fraction=1.0 if facts.head.is_final else min(1.0, max(parts)),
        tokens_per_second=tokens / seconds if seconds else None,
        round_seconds=seconds / rounds if seconds else None,
        seconds_left=max(0.0, min(left)) if left and is_going_on else None,
    )


def _newest(rows: Sequence[Row]) -> tuple[int, int, int, float]:
    """Of the newest rounds in which somebody trained: their number, steps, tokens and seconds; 0 seconds when that is
    not known."""
    numbers = (number for number in range(len(rows) - 1, 1, -1) if rows[number].tokens)
    closed = [(rows[number - 1], rows[number]) for number in itertools.islice(numbers, _RATE_ROUNDS)]
    steps = sum(row.step - before.step for before, row in closed)
    seconds = sum(row.opened_at - before.opened_at for before, row in closed)
    return len(closed), steps, sum(row.tokens for _before, row in closed), max(0.0, seconds)


def _training_curve(rows: Sequence[Row]) -> tuple[Point, ...]:
    known = ((row, row.train_loss) for row in rows)
    return tuple(Point(row.round - 1, row.total_tokens, loss) for row, loss in known if loss is not None)


def _held_out_curve(rows: Sequence[Row]) -> tuple[Point, ...]:
    """A record tells the loss of the state after the record before it, so after the round which that closed."""
    known = ((row, row.held_out_loss) for row in rows[1:])
    return tuple(
        Point(max(0, row.round - 2), row.total_tokens - row.tokens, loss) for row, loss in known if loss is not None
    )


# ---- who ----


def _volunteers(facts: Facts) -> tuple[Volunteer, ...]:
    """All that gave something, and who is on the roster."""
    total = sum(tally.tokens for tally in facts.tallies.values())
    peers = dict.fromkeys((*facts.tallies, *(entry.peer_id for entry in facts.head.roster)))
    made = [_volunteer(facts, peer, total) for peer in peers]
    return tuple(sorted(made, key=lambda one: (-one.tokens, one.name)))


def _volunteer(facts: Facts, peer: PeerId, total: int) -> Volunteer:
    tally, entry = facts.tallies.get(peer, Tally()), facts.head.entry_of(peer)
    subsets = entry.subsets if entry is not None and not facts.head.is_final else ()
    experts = tuple(expert for subset in subsets for expert in facts.manifest.experts_of(subset))
    share = tally.tokens / total if total else 0.0
    return Volunteer(facts.labels.get(peer, UNNAMED), _state(facts, peer), tally.tokens, share, tally.rounds, experts)


def _state(facts: Facts, peer: PeerId) -> str:
    if peer in facts.rules.banned:
        return "banned"
    match facts.states.get(peer):
        case PeerState.PAUSED:
            return "paused"
        case None | PeerState.LEAVING:
            is_expected = peer in facts.head.members and peer not in facts.states
            return "training" if is_expected and not facts.head.is_final else "away"
        case _ if peer in facts.head.members and not facts.head.is_final:
            return "training"
        case _:
            return "away" if _is_missed(facts, peer) else "here"


def _is_missed(facts: Facts, peer: PeerId) -> bool:
    """Whether it does not attend the node that coordinates, which is this one."""
    return facts.present is not None and peer not in facts.present


def _subset(facts: Facts, number: int) -> Subset:
    experts = facts.manifest.experts_of(number)
    owners = () if facts.head.is_final else facts.head.owners_of(number)
    last = facts.last_trained.get(number, 0)
    return Subset(
        first_expert=experts[0],
        last_expert=experts[-1],
        owners=tuple(facts.labels.get(peer, UNNAMED) for peer in owners),
        rounds_trained=facts.rounds_trained.get(number, 0),
        last_round=last - 1 if last else None,
        rounds_idle=max(0, facts.head.round - max(last, 1)),
    )


# ---- what it is ----


def _sources(data: Data) -> tuple[Source, ...]:
    shares = zip(data.sources, data.shares(), strict=True)
    return tuple(Source(one.name, one.licence, float(share)) for one, share in shares)


def _model_words(manifest: Manifest) -> str:
    model = manifest.model
    return (
        f"{model.num_layers} layers of width {model.d_model}, {model.num_experts} experts of which"
        f" {model.top_k} see each token, sequences of {model.sequence_length} tokens"
    )
