"""What a daemon asks of its trainer and what the trainer answers, as frozen values; see proto/children.proto."""

from dataclasses import dataclass

from spes_peer.blobs import BlobName
from spes_peer.identity import PeerId
from spes_peer.run.manifest import Training
from spes_peer.run.offers import Offer, ReduceTask
from spes_peer.run.records import BlockName, DataRange, Record, RosterEntry


@dataclass(frozen=True)
class OpenTrainer:
    manifest: bytes
    blob_folder: str
    state_folder: str
    device: str
    num_threads: int
    peer_id: PeerId
    resident: str = ""
    checkpointing: str = "auto"
    optimizer_bits: int = 32
    memory_bytes: int = 0
    memory_part: float = 0.0


@dataclass(frozen=True)
class TrainerOpened:
    device: str
    max_subsets: int
    tokens_per_second: float


@dataclass(frozen=True)
class LoadState:
    round: int
    blocks: tuple[BlockName, ...]


@dataclass(frozen=True)
class StateLoaded:
    state_root: str


@dataclass(frozen=True)
class MeasureHeldOut:
    slice: int
    num_slices: int


@dataclass(frozen=True)
class HeldOut:
    loss_sum: float
    tokens: int


@dataclass(frozen=True)
class TrainRound:
    round: int
    first_step: int
    num_steps: int
    subsets: tuple[int, ...]
    ranges: tuple[DataRange, ...]
    sequences_per_step: int
    stop_at: float
    carried_steps: int = 0
    carried_sequences_per_step: int = 0

    @classmethod
    def of(cls, record: Record, entry: RosterEntry, num_steps: int, stop_at: float) -> "TrainRound":
        """What the round that `record` opened asks of the member with this place in it."""
        return cls(
            round=record.round,
            first_step=record.step,
            num_steps=num_steps,
            subsets=entry.subsets,
            ranges=entry.ranges,
            sequences_per_step=entry.sequences_per_step,
            stop_at=stop_at,
            carried_steps=entry.carried_steps,
            carried_sequences_per_step=entry.carried_sequences_per_step,
        )

    def step_sizes(self) -> tuple[int, ...]:
        """Sequences of each step."""
        carried = min(self.carried_steps, self.num_steps)
        late = self.num_steps - carried
        return (self.carried_sequences_per_step,) * carried + (self.sequences_per_step,) * late


@dataclass(frozen=True)
class TrainAhead:
    round: int
    first_step: int
    num_steps: int
    ranges: tuple[DataRange, ...]
    sequences_per_step: int
    stop_at: float

    @classmethod
    def of(cls, record: Record, entry: RosterEntry, training: Training, num_ahead: int, stop_at: float) -> "TrainAhead":
        """The first `num_ahead` steps of the round behind the one that `record` opened."""
        return cls(
            round=record.round,
            first_step=record.step + training.steps_per_round_at(record.step),
            num_steps=num_ahead,
            ranges=entry.ahead,
            sequences_per_step=entry.sequences_per_step,
            stop_at=stop_at,
        )

    def step_sizes(self) -> tuple[int, ...]:
        """Sequences of each step."""
        return (self.sequences_per_step,) * self.num_steps


@dataclass(frozen=True)
class StopTraining:
    pass


@dataclass(frozen=True)
class Done:
    pass


@dataclass(frozen=True)
class AheadTrained:
    steps: int


@dataclass(frozen=True)
class TrainProgress:
    round: int
    steps_done: int
    loss: float
    tokens_per_second: float
    memory_bytes: int


UNKNOWN = -1.0
"""A share that nobody could measure."""


@dataclass(frozen=True)
class DeviceFigures:
    """How busy, full and warm a device is. Bytes and degrees are 0, and shares `UNKNOWN`, where they are not known."""

    name: str
    """Such as "cpu" or "cuda:0 NVIDIA RTX 4090"."""
    used_bytes: int
    """By anybody."""
    own_bytes: int
    """By the trainer."""
    total_bytes: int
    use: float
    """Share of the time that it was busy, of 1."""
    others_use: float
    """The same, with other programs than the trainer."""
    temperature: float
    """Degrees Celsius."""
    uuid: str = ""
    """Of a GPU, as NVIDIA's tools call it."""

    @property
    def others_bytes(self) -> int:
        """Memory that is not the trainer's."""
        return max(0, self.used_bytes - self.own_bytes)


@dataclass(frozen=True)
class TrainerBeat:
    steps_begun: int
    is_in_step: bool
    planned_bytes: int
    is_smallest_plan: bool
    troubles: tuple[str, ...]
    device: DeviceFigures | None = None


@dataclass(frozen=True)
class RoundTrained:
    offers: tuple[Offer, ...]
    tokens: int
    steps: int
    train_loss: float
    tokens_per_second: float
    router_choices: tuple[int, ...] = ()
    """How often each expert was chosen in the round's steps, over all layers."""
    encode_seconds: float = 0.0
    """That making the offers took, after the steps."""


@dataclass(frozen=True)
class ReduceBlock:
    task: ReduceTask


@dataclass(frozen=True)
class BlockReduced:
    blob: str
    """Empty when no input was sound."""
    size_bytes: int
    rejected: tuple[PeerId, ...]


@dataclass(frozen=True)
class TryExpert:
    round: int
    expert: int
    blobs: tuple[BlobName, ...]
    slice: int
    num_slices: int


@dataclass(frozen=True)
class ExpertTried:
    loss_before: float
    loss_after: float
    fault: str


@dataclass(frozen=True)
class ApplyRecord:
    record: bytes
    keep_snapshot: bool


@dataclass(frozen=True)
class RecordApplied:
    state_root: str
    blocks: tuple[BlockName, ...]
    """Empty unless a snapshot was asked for."""
