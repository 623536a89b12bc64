"""Dropless mixture of experts, of which some are trained and the others only used.

expert(x) = w2(silu(w1 x) ⊙ v1 x). Tokens are sorted by expert and each expert works on its own rows, so there is no
capacity limit and no padding. The backward pass gives gradients of activations through every routed expert, and of
weights for owned experts alone: what the official code computes for frozen experts and drops is never computed.
Weights are read where they lie; no tensor of experts is concatenated or copied.

There are two inner loops under the one function: a product for each expert, or `grouped_mm` for all of them.

Shapes: N tokens, D d_model, E experts, O owned experts, F expert_hidden, K routes per token, R = N·K routed rows,
A and B whatever a matrix leads from and to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from spes_peer.model.resident import ExpertMatrix

_ALIGNED_BYTES = 16


@dataclass(frozen=True)
class ExpertWeights:
    """All experts of one layer: w1 [E, F, D], v1 [E, F, D], w2 [E, D, F]."""

    w1: ExpertMatrix
    v1: ExpertMatrix
    w2: ExpertMatrix

    def matrices(self) -> tuple[ExpertMatrix, ExpertMatrix, ExpertMatrix]:
        return self.w1, self.v1, self.w2


@dataclass(frozen=True)
class Routes:
    """Which token goes to which slot, sorted by slot."""

    token_R: Tensor
    """The token of each row."""
    order_R: Tensor
    """The route n·K + k of each row."""
    row_NK: Tensor
    """The row of each route."""
    counts_E: Tensor
    """Rows of each slot."""

    @classmethod
    def of(cls, slot_NK: Tensor, num_experts: int) -> "Routes":
        flat = slot_NK.flatten()
        order = flat.argsort(stable=True)
        row = torch.empty_like(order)
        row[order] = torch.arange(len(order), device=order.device)
        # bincount would make the host wait for a GPU
        counts_E = (flat.unsqueeze(1) == torch.arange(num_experts, device=flat.device)).sum(dim=0)
        return cls(order // slot_NK.shape[1], order, row.view_as(slot_NK), counts_E)

    @cached_property
    def ends_E(self) -> Tensor:
        """One past the last row of each slot, as grouped_mm wants it."""
        return self.counts_E.cumsum(0).to(torch.int32)

    @cached_property
    def spans(self) -> list[tuple[int, slice]]:
        """Each slot that has rows, and which. The host waits for a GPU to know."""
        return list(_spans(self.counts_E.tolist()))


def _spans(counts: list[int]) -> Iterator[tuple[int, slice]]:
    start = 0
    for slot, count in enumerate(counts):
        if count:
            yield slot, slice(start, start + count)
        start += count


def routed_experts(x_ND: Tensor, gate_NK: Tensor, routes: Routes, weights: ExpertWeights) -> Tensor:
    """Σ_k gate_nk · expert_nk(x_n) for each token n: [N, D], in the dtype of x, in which everything is computed."""
    masters = (matrix.master for matrix in weights.matrices())
    return cast(Tensor, _RoutedExperts.apply(x_ND, gate_NK, routes, weights, *masters))  # type: ignore[no-untyped-call]


def can_group(device_type: str, weight: Tensor | None) -> bool:
    """Whether `grouped_mm` can be used for experts that lie in one tensor `weight` [E, A, B], or in none. If it can, it
    is: measured on a CPU in fp32 it took 0.83 to 1.00 times the loop's time, less the smaller experts are (docs/LOG.md,
    2026-11-29). On GPUs it wants bf16, which those that cannot do it do not have either."""
    if weight is None or any(size * weight.element_size() % _ALIGNED_BYTES for size in weight.shape[1:]):
        return False
    return device_type == "cpu" or weight.dtype == torch.bfloat16


class _Loop:
    """A product for each expert that has rows; the only one where experts must be converted one at a time."""

    def __init__(self, routes: Routes) -> None:
        self._spans = routes.spans

    def multiply(self, x_RA: Tensor, matrix: ExpertMatrix, transposed: bool, add_to: Tensor | None = None) -> Tensor:
        """Each row times its expert's matrix [A, B], or [B, A] transposed: [R, B]."""
        width = matrix.shape[1 if transposed else 2]
        y_RB = x_RA.new_empty(len(x_RA), width) if add_to is None else add_to
        for slot, rows in self._spans:
            weight = matrix.read(slot, x_RA.dtype)
            weight_AB = weight.T if transposed else weight
            if add_to is None:
                torch.mm(x_RA[rows], weight_AB, out=y_RB[rows])
            else:
                y_RB[rows].addmm_(x_RA[rows], weight_AB)
        return y_RB

    def gradient(self, grad_RB: Tensor, x_RA: Tensor, matrix: ExpertMatrix) -> Tensor | None:
        """[O, B, A] in fp32; zero for an owned expert that no token was routed to."""
        if matrix.master is None:
            return None
        gradient = torch.empty_like(matrix.master)
        empty = set(range(matrix.num_owned))
        for slot, rows in self._spans:
            if slot >= matrix.num_owned:
                break
            empty.discard(slot)
            if x_RA.dtype == gradient.dtype:
                torch.mm(grad_RB[rows].T, x_RA[rows], out=gradient[slot])
            else:
                gradient[slot].copy_(grad_RB[rows].T @ x_RA[rows])
        for slot in empty:
            gradient[slot].zero_()
        return gradient


class _Grouped:
    """One call for all experts: less overhead where they are many and small, and no wait for a GPU."""

    def __init__(self, routes: Routes) -> None:
        self._ends_E = routes.ends_E

    def multiply(self, x_RA: Tensor, matrix: ExpertMatrix, transposed: bool, add_to: Tensor | None = None) -> Tensor:
        weight = matrix.whole(x_RA.dtype)
        assert weight is not None
        y_RB = functional.grouped_mm(x_RA, weight.mT if transposed else weight, offs=self._ends_E)
        return y_RB if add_to is None else add_to.add_(y_RB)

    def gradient(self, grad_RB: Tensor, x_RA: Tensor, matrix: ExpertMatrix) -> Tensor | None:
        if matrix.master is None:
            return None
        # owned experts come first: rows past their last are not looked at
        return functional.grouped_mm(grad_RB.T, x_RA, offs=self._ends_E[: matrix.num_owned]).to(torch.float32)


class _RoutedExperts(torch.autograd.Function):
    """The masters are passed beside `weights`, which holds them too, for autograd to see them."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, gate_NK: Tensor, routes: Routes, weights: ExpertWeights, *masters: Tensor | None
    ) -> Tensor:
        is_grouped = can_group(x_ND.device.type, weights.w1.whole(x_ND.dtype))
        inner = _Grouped(routes) if is_grouped else _Loop(routes)
        x_RD = x_ND[routes.token_R]
        w1_x_RF = inner.multiply(x_RD, weights.w1, transposed=True)
        v1_x_RF = inner.multiply(x_RD, weights.v1, transposed=True)
        hidden_RF = functional.silu(w1_x_RF).mul_(v1_x_RF)
        y_RD = inner.multiply(hidden_RF, weights.w2, transposed=True)
        ctx.save_for_backward(x_ND, gate_NK, w1_x_RF, v1_x_RF)
        ctx.routes, ctx.weights, ctx.inner = routes, weights, inner
        return _sum_over_routes(y_RD.mul_(_gate_of_rows(gate_NK, routes)), routes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Any, ...]:
        x_ND, gate_NK, w1_x_RF, v1_x_RF = ctx.saved_tensors
        routes: Routes = ctx.routes
        weights: ExpertWeights = ctx.weights
        inner: _Loop | _Grouped = ctx.inner
        grad_RD = grad_ND[routes.token_R]
        grad_hidden_RF = inner.multiply(grad_RD, weights.w2, transposed=False)
        silu_RF = functional.silu(w1_x_RF)
        grad_silu_RF = grad_hidden_RF * v1_x_RF
        # y = w2 hidden is not kept: gradient · y = (w2ᵀ gradient) · hidden
        grad_gate_R = torch.linalg.vecdot(grad_silu_RF, silu_RF).to(gate_NK.dtype)
        gate_R1 = _gate_of_rows(gate_NK, routes)
        grad_v1_RF = grad_hidden_RF.mul_(gate_R1).mul_(silu_RF)
        grad_w1_RF = torch.ops.aten.silu_backward(grad_silu_RF.mul_(gate_R1), w1_x_RF)
        grad_x_RD = inner.multiply(grad_w1_RF, weights.w1, transposed=False)
        inner.multiply(grad_v1_RF, weights.v1, transposed=False, add_to=grad_x_RD)
        masters: list[Tensor | None] = [None, None, None]
        if weights.w1.num_owned:
            x_RD, hidden_RF = x_ND[routes.token_R], silu_RF.mul_(v1_x_RF)
            masters = [
                inner.gradient(grad_w1_RF, x_RD, weights.w1),
                inner.gradient(grad_v1_RF, x_RD, weights.v1),
                inner.gradient(grad_RD.mul_(gate_R1), hidden_RF, weights.w2),
            ]
        return _sum_over_routes(grad_x_RD, routes), grad_gate_R[routes.row_NK], None, None, *masters


def _gate_of_rows(gate_NK: Tensor, routes: Routes) -> Tensor:
    return gate_NK.flatten()[routes.order_R].unsqueeze(1)


def _sum_over_routes(y_RD: Tensor, routes: Routes) -> Tensor:
    # A gather and a sum, where index_add would add in an order that differs from run to run on a GPU.
    return y_RD[routes.row_NK].sum(dim=1)
