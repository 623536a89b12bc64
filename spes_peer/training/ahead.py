"""The steps of a round, and those of them that were made before its record came (DESIGN.md, "A round": overlap).

With `overlap_steps` a peer encodes what it trained in round r and trains on, on sequences of round r + 1, while the
exchange runs. When record r + 1 comes, its shared parameters become

    base + what they gained since the encode,    base = public_new + overlap_keep · (encoded − public_new)

and the next offer is counted from the base, so that all progress is offered once. Its experts go on in their masters.

Why keep a part: what was gained since the encode also undoes what this peer's own sequences had done before it, and
that is gone when the others' average takes its place. With `overlap_keep` = 0 the undoing alone remains, as noise that
swings from round to round; with all of it kept, peers would drift apart. A half bounds both, as in Streaming DiLoCo
(arXiv 2501.18512), whose mix of local and global parameters this is.

Only the record that follows keeps the steps. When another one comes first, or the round is trained a second time, the
gain of the shared parameters is dropped and the round begins at the public state: its sequences go back to the pool, or
are trained again.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Steps:
    """What a round has done so far."""

    num_steps: int = 0
    num_skipped: int = 0
    skipped_in_a_row: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / max(1, self.num_steps)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def num_tried(self) -> int:
        return self.num_steps + self.num_skipped

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / max(1, self.num_tried)

    def count(self, tokens: int, loss: float | None, seconds: float) -> None:
        """A step more; `loss` is None when it was skipped."""
        self.seconds += seconds
        if loss is None:
            self.num_skipped += 1
            self.skipped_in_a_row += 1
        else:
            self.num_steps += 1
            self.skipped_in_a_row = 0
            self.tokens += tokens
            self.loss_sum += loss

    def to_tensor(self) -> Tensor:
        """For a checkpoint: fp64, which holds every count exactly."""
        return torch.tensor(dataclasses.astuple(self), dtype=torch.float64)

    @classmethod
    def from_tensor(cls, values: Tensor) -> "Steps":
        num_steps, num_skipped, skipped_in_a_row, tokens, loss_sum, seconds = values.tolist()
        return cls(int(num_steps), int(num_skipped), int(skipped_in_a_row), int(tokens), loss_sum, seconds)


@dataclass
class Ahead:
    """The steps of `round` that were made so far, before its record came."""

    round: int
    encoded: Tensor
    """The flattened shared parameters when the round before was encoded."""
    steps: Steps = dataclasses.field(default_factory=Steps)

    def gained(self, shared: Tensor) -> Tensor:
        """What the flattened shared parameters gained since the encode."""
        return shared - self.encoded

    def base(self, public: Tensor, keep: float) -> Tensor:
        """See the module."""
        return public + (self.encoded - public) * keep


@dataclass(frozen=True)
class Begun:
    """Steps of `round`, which is open now, that were made before its record came."""

    round: int
    steps: Steps
