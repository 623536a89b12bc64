"""What a machine chooses for itself to make more of a run fit, and how it is typed. Needs nothing of a run."""

import argparse
from dataclasses import dataclass
from typing import Any, Literal, get_args

from spes_peer.errors import BadConfiguration
from spes_peer.measures import size

Resident = Literal["fp32", "bf16", "int8", "int4"]
Checkpointing = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Choices:
    """What a machine chooses for itself, whatever the run."""

    is_gpu: bool = True
    """bf16 where it computes, and the public state elsewhere."""
    resident: Resident = "bf16"
    checkpointing: Checkpointing = "auto"
    optimizer_bits: int = 32

    def __post_init__(self) -> None:
        for name, value, known in (
            ("resident precision", self.resident, get_args(Resident)),
            ("checkpointing", self.checkpointing, get_args(Checkpointing)),
            ("number of optimizer bits", self.optimizer_bits, (32, 8)),
        ):
            if value not in known:
                raise BadConfiguration(f"no {name} is {value!r}: choose {', '.join(map(str, known))}")


@dataclass(frozen=True)
class Memory:
    """How much of a device's memory may be used: bytes, or else a part of it; neither for all that is free."""

    size_bytes: int = 0
    part: float = 0.0
    typed: str = ""

    def __str__(self) -> str:
        return self.typed


def add_memory_choices(parser: Any) -> None:
    """What a machine chooses for itself to make more fit; `join` has these too."""
    parser.add_argument(
        "--resident",
        choices=get_args(Resident),
        default="",
        help="precision of the experts that others train (bf16 on a GPU, fp32 on a CPU)",
    )
    parser.add_argument(
        "--checkpointing",
        choices=get_args(Checkpointing),
        default="auto",
        help="make activations again in the backward pass: slower by about a third, far smaller (%(default)s)",
    )
    parser.add_argument(
        "--optimizer-bits",
        type=int,
        choices=(32, 8),
        default=32,
        help="of each value of the optimizer's two moments; 8 needs torchao (%(default)s)",
    )


def size_or_part(text: str) -> "Memory":
    """Bytes as in `size`, or "50%" of the whole."""
    percent = text.strip().removesuffix("%")
    if percent == text.strip():
        return Memory(size(text), 0.0, text.strip())
    if not percent.isdecimal() or not 1 <= int(percent) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 50%")
    return Memory(0, int(percent) / 100, text.strip())
