"""How long a run is: its rounds, sequences and merges, in closed form.

Rounds begin at step 0, H, 2H, … and, once one would begin in the final phase, every `final_phase_steps_per_round`
steps from there on; the run ends with the first that would begin at `total_steps` or later.
"""

import math
from dataclasses import dataclass

from spes_peer.run.manifest import RunFile, Sync, Training


@dataclass(frozen=True)
class TrainingPhase:
    """Rounds of one length, one behind the other."""

    first_step: int
    num_rounds: int
    steps_per_round: int
    batch_sequences: int
    """Of a step, over all peers together."""

    @property
    def end_step(self) -> int:
        """The step behind its last."""
        return self.first_step + self.num_rounds * self.steps_per_round

    @property
    def num_sequences(self) -> int:
        return self.num_rounds * self.steps_per_round * self.batch_sequences


@dataclass(frozen=True)
class Length:
    """Of a whole run."""

    phases: tuple[TrainingPhase, ...]
    """The main one and the final one; without those that have no round."""
    sequence_length: int

    @classmethod
    def of(cls, run: RunFile) -> "Length":
        training = run.training
        turn = min(training.final_phase_step, training.total_steps)
        early = _phase(training, 0, turn)
        late = _phase(training, early.end_step, training.total_steps)
        return cls(tuple(one for one in (early, late) if one.num_rounds), run.model.sequence_length)

    @property
    def num_rounds(self) -> int:
        return sum(phase.num_rounds for phase in self.phases)

    @property
    def num_sequences(self) -> int:
        return sum(phase.num_sequences for phase in self.phases)

    @property
    def num_tokens(self) -> int:
        return self.num_sequences * self.sequence_length


def num_merges(phase: TrainingPhase, sync: Sync) -> int:
    """Rounds of a phase that end with a merge of experts: at steps below T_w that are multiples of T_i (SPES §1.4)."""
    if not sync.merge_alpha:
        return 0
    interval, size = sync.merge_interval_steps, phase.steps_per_round
    common = math.gcd(interval, size)
    if phase.first_step % common:
        return 0
    # of first + k·size ≡ 0 (mod interval) the least k ≥ 1, and then every interval / common rounds
    every = interval // common
    first = -phase.first_step // common * pow(size // common, -1, every) % every or every
    last = min(phase.num_rounds, -(-(sync.merge_warmup_steps - phase.first_step) // size) - 1)
    return max(0, (last - first) // every + 1)


def _phase(training: Training, first_step: int, until_step: int) -> TrainingPhase:
    """Rounds from `first_step` on, as many as begin before `until_step`."""
    steps = training.steps_per_round_at(first_step)
    num_rounds = max(0, -(-(until_step - first_step) // steps))
    return TrainingPhase(first_step, num_rounds, steps, training.batch_sequences_at(first_step))
