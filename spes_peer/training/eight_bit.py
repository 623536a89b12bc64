"""AdamW whose moments take one byte a value instead of four: torchao's, where it is installed.

Moments are quantized in blocks of 256 values with a dynamic map (Dettmers et al., "8-bit Optimizers via Block-wise
Quantization", 2022). torchao because it is plain torch: it works on every device, the CPU too, and its states are two
tensors each, so a checkpoint holds them bit for bit. bitsandbytes has no such optimizer for CPUs. torchao compiles its
step for each shape, which takes a minute on a CPU and a C compiler on every volunteer's machine; it is run uncompiled
instead, and the pieces of `optimizer.py` keep its fp32 temporaries small.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from spes_peer.errors import BadConfiguration

BLOCK = 256
SMALLEST = 4096  # values; torchao keeps moments of smaller tensors in fp32


def adamw_8bit(parameters: list[torch.nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """torchao's AdamW with 8-bit moments; `BadConfiguration` without torchao."""
    optimizer: torch.optim.Optimizer = _torchao().AdamW8bit(parameters, block_size=BLOCK, **options)
    return optimizer


def new_moment(optimizer: torch.optim.Optimizer, parameter: Tensor, is_signed: bool) -> Tensor:
    """Zeros, as this optimizer keeps them for `parameter`."""
    moment: Tensor = optimizer._new_buffer(parameter, is_signed)  # type: ignore[attr-defined]
    return moment


def is_8bit(moment: Tensor) -> bool:
    return hasattr(moment, "codes")


def parts_of(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Its codes, uint8, and the scale of each block."""
    return moment.codes, moment.scale  # type: ignore[attr-defined]


def from_parts(codes: Tensor, scale: Tensor, is_signed: bool) -> Tensor:
    """The moment with these parts; `BadConfiguration` without torchao."""
    moment: Tensor = importlib.import_module(_torchao().__name__ + ".subclass_8bit").OptimState8bit.zeros(
        codes.shape, is_signed, BLOCK
    )
    for part, values in zip(parts_of(moment), (codes, scale), strict=True):
        part.copy_(values)
    return moment


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within it, what torchao would compile runs as it is written."""
    with torch.compiler.set_stance("force_eager"):
        yield


def _torchao() -> Any:
    try:
        return importlib.import_module("torchao.optim")
    except ImportError as error:
        raise BadConfiguration(
            f"8-bit optimizer states need torchao ({error}); install it (pip install torchao) or choose 32 bits"
        ) from None
