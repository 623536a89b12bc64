"""All that is shown of a run, as frozen values made of what the node knows: no sockets, no clock, no HTML.

`view_of(facts)` is where peer ids end: what comes out holds labels of volunteers and numbers, and is the one source of
the page, the JSON and the metrics. Moments are Unix seconds, losses nats per token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bootstrap.web.history import Row
from bootstrap.web.names import UNNAMED
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import CoordinatorBeat
from spes_peer.run.manifest import Manifest, Training
from spes_peer.run.peers import PeerState
from spes_peer.run.records import Record
from spes_peer.run.tallies import Tally

_RATE_ROUNDS = 8  # speed is that of the newest rounds
_MOST_AWAITED = 4  # are named; of the others, how many


@dataclass(frozen=True)
class Facts:
    """What the node knows at one moment (`source`)."""

    manifest: Manifest
    run_id: bytes
    head: Record
    certified_round: int
    rows: Sequence[Row]
    """Of all records, oldest first; the last is the head's."""
    rounds_trained: Mapping[int, int]
    """By subset."""
    last_trained: Mapping[int, int]
    """By subset: the newest record with an update of it; 0 for none."""
    tallies: Mapping[PeerId, Tally]
    labels: Mapping[PeerId, str]
    """What volunteers are shown as."""
    nodes: Mapping[PeerId, str]
    """What the organizer's own nodes are shown as."""
    states: Mapping[PeerId, PeerState]
    """Of volunteers whom the DHT lists now."""
    beat: CoordinatorBeat | None
    """The newest of who coordinates the open round; None when nobody is heard."""
    join_addresses: tuple[str, ...] = ()
    checkpoint_round: int = -1
    """The record after which the newest whole state is that the node holds; -1 for none."""
    checkpoint_bytes: int = 0
    is_paused: bool = False
    """By the organizer."""
    finish_after_round: int = 0
    """By the organizer; 0 goes on to the end of the schedule."""


@dataclass(frozen=True)
class Phase:
    """What happens now, and whom it waits for."""

    name: str
    """waiting | training | averaging | signing | electing | paused | finished"""
    words: str
    since_at: float
    until_at: float
    """0 when only people can end it."""
    waiting_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far the run is."""

    tokens: int
    planned_tokens: int
    step: int
    planned_steps: int
    fraction: float
    tokens_per_second: float | None
    """Over the newest rounds; None before one is closed."""
    round_seconds: float | None
    seconds_left: float | None


@dataclass(frozen=True)
class Point:
    """One loss, and how far the run was then."""

    round: int
    tokens: int
    loss: float


@dataclass(frozen=True)
class Volunteer:
    """By the name it chose."""

    name: str
    state: str
    """training | here | paused | away"""
    tokens: int
    """That records took in."""
    share: float
    """Of all tokens."""
    rounds: int
    experts: tuple[int, ...]
    """That it trains in the open round."""


@dataclass(frozen=True)
class Subset:
    """Experts that are trained together, and by whom."""

    first_expert: int
    last_expert: int
    owners: tuple[str, ...]
    rounds_trained: int
    last_round: int | None
    """The newest closed round in which they were trained; None for never."""
    rounds_idle: int
    """Closed rounds since then."""


@dataclass(frozen=True)
class Closed:
    """One record, for people: it closes the round before."""

    record: int
    opened_at: float
    seconds: float | None
    """That the round took which it closes."""
    tokens: int
    total_tokens: int
    train_loss: float | None
    held_out_loss: float | None
    root: str
    contributors: int
    members: int
    coordinator: str
    is_certified: bool
    is_final: bool


@dataclass(frozen=True)
class Source:
    """Text that is trained on."""

    name: str
    licence: str = ""
    ratio: float | None = None


@dataclass(frozen=True)
class RunView:
    """See the module docstring."""

    name: str
    run_id: str
    round: int
    """That is open; 0 before the first."""
    phase: Phase
    progress: Progress
    training_curve: tuple[Point, ...]
    held_out_curve: tuple[Point, ...]
    subsets: tuple[Subset, ...]
    volunteers: tuple[Volunteer, ...]
    """Who gave most first."""
    num_training: int
    num_waiting: int
    """Who is here and not on the roster yet, also strangers that no record names."""
    min_volunteers: int
    rows: Sequence[Row]
    certified_round: int
    coordinators: Mapping[PeerId, str] = field(repr=False)
    """Labels, to look up rows' coordinators by: not for showing."""
    join_addresses: tuple[str, ...]
    sources: tuple[Source, ...]
    licence: str
    admission: str
    """open | invitation | list"""
    model_words: str
    checkpoint_round: int
    checkpoint_bytes: int

    def closed(self, first: int, end: int) -> tuple[Closed, ...]:
        """Records `first` to `end`, without the latter, as far as there are any; record 0 closes nothing."""
        return tuple(self._closed(number) for number in range(max(first, 1), min(end, len(self.rows))))

    def _closed(self, number: int) -> Closed:
        row, before = self.rows[number], self.rows[number - 1]
        label = self.coordinators.get(row.coordinator, UNNAMED) if row.coordinator else ""
        seconds = max(0.0, row.opened_at - before.opened_at) if number > 1 else None
        return Closed(
            record=row.round,
            opened_at=row.opened_at,
            seconds=seconds,
            tokens=row.tokens,
            total_tokens=row.total_tokens,
            train_loss=row.train_loss,
            held_out_loss=row.held_out_loss,
            root=row.root,
            contributors=row.num_contributors,
            members=row.num_members,
            coordinator=label,
            is_certified=number <= self.certified_round,
            is_final=row.is_final,
        )


def view_of(facts: Facts) -> RunView:
    """What strangers may see."""
    manifest, record = facts.manifest, facts.head
    volunteers = _volunteers(facts)
    is_here = {PeerState.JOINING, PeerState.ONLINE}
    waiting = [peer for peer, state in facts.states.items() if state in is_here and peer not in record.members]
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
        sources=_sources(manifest),
        licence=manifest.data.licence,
        admission=_admission(manifest),
        model_words=_model_words(manifest),
        checkpoint_round=facts.checkpoint_round,
        checkpoint_bytes=facts.checkpoint_bytes,
    )


# ---- what happens now ----

_WORDS = {
    "training": "Training round {round}",
    "reducing": "Averaging what round {round} has trained",
    "closing": "Signing the record that closes round {round}",
    "electing": "Choosing who coordinates",
}
_NAMES = {"training": "training", "reducing": "averaging", "closing": "signing", "electing": "electing"}


def phase_of(facts: Facts, num_waiting: int) -> Phase:
    """In words of ours: what the coordinator says of it is a stranger's text."""
    record, beat, round = facts.head, facts.beat, facts.head.round
    if record.is_final:
        return Phase("finished", f"Finished after {max(0, round - 1)} rounds", record.opened_at, 0.0)
    if facts.is_paused:
        return Phase("paused", "Paused by the organizer", record.opened_at, 0.0)
    if not record.roster:
        needed = facts.manifest.run.min_peers if round == 0 else 1
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
    """Time left is by what the newest rounds took."""
    training, rows, last = facts.manifest.training, facts.rows, facts.rows[-1]
    first = rows[max(1, len(rows) - 1 - _RATE_ROUNDS)] if len(rows) > 1 else last
    rounds, seconds = last.round - first.round, last.opened_at - first.opened_at
    steps, tokens = last.step - first.step, last.total_tokens - first.total_tokens
    known = rounds > 0 and seconds > 0
    parts = [last.step / training.total_steps]
    left = [(training.total_steps - last.step) * seconds / steps] if known and steps else []
    if facts.finish_after_round:
        closed = max(0, last.round - 1)
        parts.append(closed / facts.finish_after_round)
        left += [(facts.finish_after_round - closed) * seconds / rounds] if known else []
    return Progress(
        tokens=last.total_tokens,
        planned_tokens=planned_tokens(training, facts.manifest.model.sequence_length),
        step=last.step,
        planned_steps=training.total_steps,
        fraction=1.0 if facts.head.is_final else min(1.0, max(parts)),
        tokens_per_second=tokens / seconds if known else None,
        round_seconds=seconds / rounds if known else None,
        seconds_left=max(0.0, min(left)) if left and not facts.head.is_final and not facts.is_paused else None,
    )


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
    match facts.states.get(peer):
        case PeerState.PAUSED:
            return "paused"
        case None | PeerState.LEAVING:
            is_expected = peer in facts.head.members and peer not in facts.states
            return "training" if is_expected and not facts.head.is_final else "away"
        case _:
            return "training" if peer in facts.head.members and not facts.head.is_final else "here"


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


def _sources(manifest: Manifest) -> tuple[Source, ...]:
    """Of today's manifests, which tell names alone, and of those that tell more."""
    return tuple(
        Source(getattr(one, "name", str(one)), getattr(one, "licence", ""), getattr(one, "ratio", None))
        for one in manifest.data.sources
    )


def _admission(manifest: Manifest) -> str:
    return str(getattr(getattr(manifest, "admission", None), "mode", "open"))


def _model_words(manifest: Manifest) -> str:
    model = manifest.model
    return (
        f"{model.num_layers} layers of width {model.d_model}, {model.num_experts} experts of which"
        f" {model.top_k} see each token, sequences of {model.sequence_length} tokens"
    )
