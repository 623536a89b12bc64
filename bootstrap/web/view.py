"""All that is shown of a run, as frozen values, and the facts of which `seeing` makes it.

`RunView` holds labels of volunteers and numbers, and is the one source of the page, the JSON and the metrics. Moments
are Unix seconds, losses nats per token.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from bootstrap.web.history import Row
from bootstrap.web.names import UNNAMED
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import CoordinatorBeat
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import PeerState
from spes_peer.run.records import Record
from spes_peer.run.rules import Rules
from spes_peer.run.tallies import Tally


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
    """Of volunteers whom the DHT lists now: of one that was killed until its entry expires."""
    beat: CoordinatorBeat | None
    """The newest of who coordinates the open round; None when nobody is heard."""
    rules: Rules
    """The organizer's, as they are now."""
    present: Set[PeerId] | None = None
    """Who attends this node, if it coordinates; None if others must be believed."""
    join_addresses: tuple[str, ...] = ()
    checkpoint_round: int = -1
    """The record after which the newest whole state is that the node holds; -1 for none."""
    checkpoint_bytes: int = 0


@dataclass(frozen=True)
class Phase:
    """What happens now, and whom it waits for."""

    name: str
    """waiting | training | averaging | signing | resting | electing | paused | finished"""
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
    """training | here | paused | away | banned"""
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
    licence: str
    share: float
    """Of what is trained."""


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
