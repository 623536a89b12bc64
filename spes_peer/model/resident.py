"""One matrix of every expert of a layer: values resident in a precision that each machine chooses for itself, and fp32
masters of the experts a peer owns.

Experts lie in slots; owned ones in the first slots, so that what is trained is always one contiguous piece. In fp32 the
masters *are* those slots, nothing is held twice. In bf16 the slots hold the masters' values for computing, `publish`
writes them there. Integers are for frozen experts alone: an owned expert is computed with its master. A quantized
matrix is read one expert at a time. The exact public state lies in blobs, so what a precision loses is lost to this
machine's forward pass only.

Shapes: E experts, O owned experts, A × B one expert's matrix, G values that share a scale.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import Parameter

Precision = Literal["fp32", "bf16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_GROUP = {"int8": 128, "int4": 64}
_LARGEST = {"int8": 127, "int4": 7}
_INT4_ZERO = 8  # nibbles are unsigned


def group_values(precision: Precision, num_elements: int) -> int:
    """G of a matrix of `num_elements`: 128 (int8) or 64 (int4), or the largest power of two below that divides it."""
    return math.gcd(_GROUP[precision], num_elements)


def resident_bytes(precision: Precision, num_elements: int) -> int:
    """Bytes of one expert's matrix: 4, 2, about 1.02 or 0.53 for each value."""
    if precision in ("fp32", "bf16"):
        return num_elements * (4 if precision == "fp32" else 2)
    scales = 2 * (num_elements // group_values(precision, num_elements))
    return num_elements // (1 if precision == "int8" else 2) + scales


class ExpertMatrix(torch.nn.Module):
    """`master` [O, A, B] is None where nothing is owned."""

    master: Parameter | None
    values: Tensor
    """[E, A, B] in fp32 or bf16; [E, A·B/G, G] int8; [E, A·B/G, G/2] int4, two in a byte."""
    scales: Tensor
    """[E, A·B/G, 1] bf16, with integers alone."""

    def __init__(self, shape: tuple[int, int, int], precision: Precision, device: torch.device) -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise ValueError(f"no resident precision is called {precision!r}: {', '.join(PRECISIONS)}")
        self.shape, self.precision = shape, precision
        self.register_parameter("master", None)
        if precision in ("fp32", "bf16"):
            dtype = torch.float32 if precision == "fp32" else torch.bfloat16
            self.register_buffer("values", torch.zeros(shape, dtype=dtype, device=device))
            return
        group = group_values(precision, shape[1] * shape[2])
        num_groups = shape[1] * shape[2] // group
        packed, dtype = (group, torch.int8) if precision == "int8" else (group // 2, torch.uint8)
        self.register_buffer("values", torch.zeros(shape[0], num_groups, packed, dtype=dtype, device=device))
        self.register_buffer("scales", torch.zeros(shape[0], num_groups, 1, dtype=torch.bfloat16, device=device))

    @property
    def num_owned(self) -> int:
        return 0 if self.master is None else self.master.shape[0]

    def whole(self, dtype: torch.dtype) -> Tensor | None:
        """All experts, [E, A, B], where they lie in one tensor of `dtype`."""
        return self.values if self.values.dtype == dtype else None

    def read(self, slot: int, dtype: torch.dtype) -> Tensor:
        """[A, B]: what the expert in `slot` is computed with. A view where it lies there in `dtype`."""
        if self.values.dtype == dtype:
            return self.values[slot]
        if self.master is not None and slot < self.num_owned:
            return self.master.detach()[slot].to(dtype)
        if not self.precision.startswith("int"):
            return self.values[slot].to(dtype)
        values = self.values[slot]
        if self.precision == "int4":
            values = torch.cat((values & 15, values >> 4), dim=-1).view(torch.int8) - _INT4_ZERO
        return (values.to(dtype) * self.scales[slot].to(dtype)).view(self.shape[1:])

    def store(self, slot: int, values_AB: Tensor) -> None:
        """Make `values_AB` what is resident in `slot`, rounded to the precision."""
        if not self.precision.startswith("int"):
            self.values[slot].copy_(values_AB)
            return
        groups = values_AB.detach().to(self.values.device, torch.float32).reshape(self.values.shape[1], -1)
        largest = _LARGEST[self.precision]
        scales = (groups.abs().amax(dim=-1, keepdim=True) / largest).to(torch.bfloat16)
        self.scales[slot].copy_(scales)
        # Divided by the scale that is kept: its own rounding then costs nothing but a clamp.
        steps = torch.where(scales > 0, groups / scales.float(), 0).round_().clamp_(-largest, largest)
        if self.precision == "int8":
            self.values[slot].copy_(steps)
            return
        low, high = (steps + _INT4_ZERO).to(torch.uint8).chunk(2, dim=-1)
        self.values[slot].copy_(low | (high << 4))

    def publish(self) -> None:
        """Write the masters' values where a forward pass in the resident dtype reads them."""
        if self.master is not None and self.precision == "bf16":
            self.values[: self.num_owned].copy_(self.master.detach())

    def own(self, swaps: list[tuple[int, int]], num_owned: int) -> None:
        """Swap slots, then own the first `num_owned`. Masters that stay keep their values exactly; those given up leave
        theirs resident; new ones start from the resident values."""
        exact: list[Tensor | None] = [None] * self.shape[0]
        if self.master is not None and self.precision != "fp32":
            for slot, values_AB in enumerate(self.master.detach()):
                exact[slot] = values_AB
                self.store(slot, values_AB)
        for slot, other in swaps:
            self._swap(slot, other)
            exact[slot], exact[other] = exact[other], exact[slot]
        self.master = None
        if num_owned and self.precision == "fp32":
            self.master = Parameter(self.values[:num_owned])
        elif num_owned:
            kept = [
                values if values is not None else self.read(slot, torch.float32)
                for slot, values in enumerate(exact[:num_owned])
            ]
            self.master = Parameter(torch.stack(kept))

    def _swap(self, slot: int, other: int) -> None:
        for tensor in (self.values, *([self.scales] if self.precision.startswith("int") else [])):
            kept = tensor[slot].clone()
            tensor[slot].copy_(tensor[other])
            tensor[other].copy_(kept)
