"""What a cell found, as frozen values and as its file has it."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.files import write_whole


@dataclass(frozen=True)
class Point:
    """The state after `round` rounds."""

    round: int
    step: int
    tokens: int
    """Trained by all peers together."""
    bytes_sent: float
    """So far, mean over peers; as `traffic` counts."""
    bytes_received: float
    held_out_loss: float
    """Of the public state; nats per token."""
    train_loss: float | None
    """Mean since the point before; None at the first."""
    seconds: float
    """Since the swarm stood."""


@dataclass(frozen=True)
class CellResult:
    arm: str
    seed: int
    hash: str
    config: dict[str, Any]
    """All that decided the result, every default filled in."""
    points: tuple[Point, ...]
    num_rounds: int
    bytes_fp32: float
    """What sent and received would be together in fp32; mean over peers."""
    num_shared: int
    num_expert_parameters: int
    """Of all experts together."""
    source: str
    """What the text is."""
    epochs: float
    """How often the training text was seen."""
    cpu_seconds: dict[str, float]
    """training, exchange, evaluation."""

    @property
    def final(self) -> Point:
        return self.points[-1]

    @property
    def tokens_per_second(self) -> float:
        """Of CPU time, all peers one after the other, evaluation left out."""
        return self.final.tokens / max(1e-9, self.cpu_seconds["training"] + self.cpu_seconds["exchange"])

    @property
    def times_fewer_bytes(self) -> float | None:
        """fp32 bytes for each byte that travelled; None where none did."""
        travelled = self.final.bytes_sent + self.final.bytes_received
        return self.bytes_fp32 / travelled if travelled else None


def save_result(path: Path, result: CellResult) -> None:
    write_whole(path, json.dumps(dataclasses.asdict(result), indent=1).encode() + b"\n")


def load_result(path: Path) -> CellResult | None:
    """None where there is none; `BadConfiguration` for a damaged one."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        points = tuple(Point(**point) for point in raw.pop("points"))
        return CellResult(points=points, **raw)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise BadConfiguration(f"{path} is damaged ({error}); remove it to run the cell anew") from None


def by_arm(results: tuple[CellResult, ...]) -> Iterator[tuple[str, tuple[CellResult, ...]]]:
    """Arms in the order in which they first come."""
    for arm in dict.fromkeys(result.arm for result in results):
        yield arm, tuple(result for result in results if result.arm == arm)
