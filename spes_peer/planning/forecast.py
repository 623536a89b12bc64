"""How a run would go with a fleet: time, tokens, exchange, traffic, memory, and what its bootstrap node needs.

Speeds that nobody has measured follow from a card's memory, by what the slowest common card of that size computes, and
from the part of it that training uses. What a token costs is counted: 2 operations forward for each weight that it
passes (shared ones but the embedding, and `top_k` experts), as many backward for activations, and as many for the
gradients of those weights that the peer trains; causal attention; and once more forward where activations are made
again. Batches are shared by speed, so a round's steps take what all speeds together need.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spes_peer.planning.fleet import Group
from spes_peer.run.data import TOKEN_BYTES, Data
from spes_peer.run.layout import RunLayout
from spes_peer.run.length import Length, TrainingPhase
from spes_peer.run.manifest import RunFile
from spes_peer.snapshots import KEPT_SNAPSHOTS
from spes_peer.training.choices import Choices
from spes_peer.training.plan import Plan, memory_plan
from spes_peer.training.traffic import TrafficPlan, traffic_plan, utilisation

UTILISATION = 0.25
"""Part of a card's operations that training uses where nobody has measured it: an assumption."""
CARDS = ((8e9, 20e12), (12e9, 25e12), (16e9, 45e12), (24e9, 71e12), (32e9, 105e12), (48e9, 155e12), (80e9, 312e12))
"""Memory of a card, and the bf16 operations a second (dense, summed in fp32) of a slow one of that size."""
CHOICES = tuple(Choices(True, resident, "auto", bits) for bits in (32, 8) for resident in ("bf16", "int8", "int4"))
DAY = 86_400.0
SHORT_STEP_SECONDS = 0.05
"""A step is some hundred operations for each layer, and a GPU takes some ten microseconds to begin one."""


@dataclass(frozen=True)
class GroupForecast:
    """Of each volunteer of a group."""

    group: Group
    plans: tuple[Plan, ...]
    """For each of `CHOICES`, with as many subsets as the card holds."""
    chosen: int
    """Index of the choices that it is planned with; −1 if nothing fits."""
    tokens_per_second: float
    is_assumed: bool
    """Whether the speed follows from the card's size."""

    @property
    def plan(self) -> Plan:
        return self.plans[self.chosen]

    @property
    def fits(self) -> bool:
        return self.chosen >= 0


@dataclass(frozen=True)
class PhaseForecast:
    """Of each round of a phase."""

    phase: TrainingPhase
    training_seconds: float
    exchange_seconds: float
    utilisation: float
    """Part of the time in which peers train."""

    @property
    def round_seconds(self) -> float:
        return self.training_seconds / self.utilisation

    @property
    def seconds(self) -> float:
        return self.round_seconds * self.phase.num_rounds


@dataclass(frozen=True)
class NodeForecast:
    """Of the bootstrap node, at the end of the run."""

    disk_bytes: int
    received_bytes_per_day: float
    """All updates of the run."""
    sent_bytes_per_day: float
    """Each shard once, and the updates once: peers serve each other. Newcomers' snapshots come on top."""
    data_is_known: bool


@dataclass(frozen=True)
class Forecast:
    """Of a run with a fleet."""

    run: RunFile
    groups: tuple[GroupForecast, ...]
    traffic: TrafficPlan
    phases: tuple[PhaseForecast, ...]
    length: Length
    node: NodeForecast
    part_trained: float
    """Of the subsets that are held at a time; below 1 they take turns."""

    @property
    def num_peers(self) -> int:
        return self.traffic.num_peers

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def tokens_per_second(self) -> float:
        return self.length.num_tokens / self.seconds

    @property
    def utilisation(self) -> float:
        trained = sum(one.training_seconds * one.phase.num_rounds for one in self.phases)
        return trained / self.seconds

    @property
    def sent_bytes(self) -> int:
        """That one volunteer sends in all, and receives."""
        return self.traffic.sent_bytes * self.length.num_rounds

    @property
    def bytes_per_day(self) -> float:
        """Of these, if the run lasts for a day or more."""
        return self.sent_bytes / (self.seconds / DAY)

    @property
    def is_unforeseeable(self) -> bool:
        """Whether the time hangs on what nobody has measured: steps so short wait for the machine to begin each of
        their many operations, not for the operations."""
        shortest = min(one.training_seconds / one.phase.steps_per_round for one in self.phases)
        return shortest < SHORT_STEP_SECONDS and any(one.is_assumed for one in self.groups)

    @property
    def longest_round_seconds(self) -> float:
        return max(one.round_seconds for one in self.phases)


def forecast(run: RunFile, fleet: Sequence[Group], data: Data | None, part: float = UTILISATION) -> Forecast | None:
    """With all volunteers there all the time; `part` is what training uses of a card whose speed nobody has measured.
    None if the run fits on no card."""
    wanted = _subsets_each(run, fleet)
    groups = tuple(_of_group(run, group, wanted, part) for group in fleet)
    there = [one for one in groups if one.fits]
    if not there:
        return None
    num_peers = sum(one.group.count for one in there)
    traffic = traffic_plan(run, num_peers)
    length = Length.of(run)
    phases = tuple(_of_phase(run, phase, there, traffic) for phase in length.phases)
    held = sum(one.group.count * one.plan.num_subsets for one in there)
    seconds = sum(phase.seconds for phase in phases)
    node = _of_node(run, traffic, length, seconds / DAY, data)
    return Forecast(run, groups, traffic, phases, length, node, min(1.0, held / run.training.num_subsets))


def operations_per_token(run: RunFile, plan: Plan) -> float:
    """Of one peer's training; see above."""
    layout, model = RunLayout(run), run.model
    shared = layout.num_shared - model.vocab_rows * model.d_model
    routed = model.top_k * layout.num_per_expert
    attention = 2.0 * model.num_layers * model.sequence_length * model.d_model
    forward = 2.0 * (shared + routed) + attention
    owned = plan.num_subsets / run.training.num_subsets
    backward = 2.0 * (shared + routed) + 2.0 * (shared + owned * routed) + 2.0 * attention
    return forward * (2 if plan.checkpoints else 1) + backward


def assumed_speed(memory_bytes: int) -> float:
    """bf16 operations a second of a card of that size."""
    return max((speed for size, speed in CARDS if size <= 1.02 * memory_bytes), default=CARDS[0][1])


# ---- the parts ----


def _subsets_each(run: RunFile, fleet: Sequence[Group]) -> int:
    """As many as everybody must hold for each subset to have an owner."""
    return -(-run.training.num_subsets // sum(group.count for group in fleet))


def _of_group(run: RunFile, group: Group, wanted: int, part: float) -> GroupForecast:
    """With the finest choices by which the card holds as many subsets as are wanted of it, else with those by which it
    holds the most."""
    plans = tuple(_up_to(run, group.memory_bytes, choices, wanted) for choices in CHOICES)
    fitting = [index for index, plan in enumerate(plans) if plan.fits]
    chosen = max(fitting, key=lambda index: (plans[index].num_subsets, -index), default=-1)
    if chosen < 0:
        return GroupForecast(group, plans, chosen, 0.0, is_assumed=False)
    if group.tokens_per_second:
        return GroupForecast(group, plans, chosen, group.tokens_per_second, is_assumed=False)
    speed = part * assumed_speed(group.memory_bytes) / operations_per_token(run, plans[chosen])
    return GroupForecast(group, plans, chosen, speed, is_assumed=True)


def _up_to(run: RunFile, memory_bytes: int, choices: Choices, wanted: int) -> Plan:
    plan = memory_plan(run, memory_bytes, choices)
    return plan if plan.num_subsets <= wanted else memory_plan(run, memory_bytes, choices, wanted)


def _of_phase(
    run: RunFile, phase: TrainingPhase, groups: Sequence[GroupForecast], traffic: TrafficPlan
) -> PhaseForecast:
    num_peers = sum(one.group.count for one in groups)
    speed = sum(one.group.count * one.tokens_per_second for one in groups)
    length, slowest = run.model.sequence_length, min(one.tokens_per_second for one in groups)
    step_seconds = max(max(phase.batch_sequences, num_peers) * length / speed, length / slowest)
    training_seconds = phase.steps_per_round * step_seconds
    exchange_seconds = max(one.group.line.exchange_seconds(traffic) for one in groups)
    training = run.training.model_copy(update={"steps_per_round": phase.steps_per_round})
    same_length = run.model_copy(update={"training": training})
    part = utilisation(same_length, training_seconds, exchange_seconds)
    return PhaseForecast(phase, training_seconds, exchange_seconds, part)


def _of_node(run: RunFile, traffic: TrafficPlan, length: Length, days: float, data: Data | None) -> NodeForecast:
    updates = traffic.applied_bytes
    disk = (KEPT_SNAPSHOTS + 1) * traffic.snapshot_bytes  # and the next one while it is made
    disk += KEPT_SNAPSHOTS * run.sync.snapshot_rounds * updates
    data_bytes = length.num_tokens * (2 if run.model.vocab_rows <= 1 << 16 else 4)
    if data is not None:
        data_bytes = data.num_tokens * TOKEN_BYTES[data.token_dtype]
    received = updates * length.num_rounds / days
    return NodeForecast(disk + data_bytes, received, received + data_bytes / days, data is not None)
