"""Dropless mixture of experts, of which some are trained and the others only used.

expert(x) = w2(silu(w1 x) ⊙ v1 x). Tokens are sorted by expert and each expert works on its own rows, so there is no
capacity limit and no padding. The backward pass gives gradients of activations through every routed expert, and of
weights for owned experts alone: what the official code computes for frozen experts and drops is never computed.
Weights are read where they lie; no tensor of experts is concatenated or copied.

Shapes: N tokens, D d_model, E experts, O owned experts, F expert_hidden, K routes per token, R = N·K routed rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@dataclass(frozen=True)
class ExpertWeights:
    """All experts of one layer: resident ones, and trainable masters that take the place of the owned ones."""

    w1_EFD: Tensor
    v1_EFD: Tensor
    w2_EDF: Tensor
    owned: tuple[int, ...]
    """Which expert each row of the masters is; empty where there are none."""
    w1_OFD: Tensor | None = None
    v1_OFD: Tensor | None = None
    w2_ODF: Tensor | None = None

    def of(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """w1 [F, D], v1 [F, D] and w2 [D, F] that `expert` works with."""
        if expert in self.owned:
            assert self.w1_OFD is not None
            assert self.v1_OFD is not None
            assert self.w2_ODF is not None
            row = self.owned.index(expert)
            return self.w1_OFD[row], self.v1_OFD[row], self.w2_ODF[row]
        return self.w1_EFD[expert], self.v1_EFD[expert], self.w2_EDF[expert]


@dataclass(frozen=True)
class Routes:
    """Which token goes to which expert, sorted by expert."""

    token_R: Tensor
    """The token of each row."""
    order_R: Tensor
    """The route n·K + k of each row."""
    row_NK: Tensor
    """The row of each route."""
    counts: tuple[int, ...]
    """Rows of each expert."""

    @classmethod
    def of(cls, expert_NK: Tensor, num_experts: int) -> "Routes":
        num_routes = expert_NK.shape[1]
        flat = expert_NK.flatten()
        order = flat.argsort(stable=True)
        row = torch.empty_like(order)
        row[order] = torch.arange(len(order), device=order.device)
        counts = torch.bincount(flat, minlength=num_experts).tolist()
        return cls(order // num_routes, order, row.view_as(expert_NK), tuple(counts))

    def spans(self) -> Iterator[tuple[int, slice]]:
        """Each expert that has rows, and which."""
        start = 0
        for expert, count in enumerate(self.counts):
            if count:
                yield expert, slice(start, start + count)
            start += count


def routed_experts(x_ND: Tensor, gate_NK: Tensor, routes: Routes, weights: ExpertWeights) -> Tensor:
    """Σ_k gate_nk · expert_nk(x_n) for each token n: [N, D]."""
    masters = (weights.w1_OFD, weights.v1_OFD, weights.w2_ODF)
    return cast(Tensor, _RoutedExperts.apply(x_ND, gate_NK, routes, weights, *masters))  # type: ignore[no-untyped-call]


class _RoutedExperts(torch.autograd.Function):
    """The masters are passed beside `weights`, which holds them too, for autograd to see them."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, gate_NK: Tensor, routes: Routes, weights: ExpertWeights, *masters: Tensor | None
    ) -> Tensor:
        x_RD = x_ND[routes.token_R]
        w1_x_RF, v1_x_RF = (x_RD.new_empty(len(x_RD), weights.w1_EFD.shape[1]) for _ in range(2))
        for expert, rows in routes.spans():
            w1, v1, _ = weights.of(expert)
            torch.mm(x_RD[rows], w1.T, out=w1_x_RF[rows])
            torch.mm(x_RD[rows], v1.T, out=v1_x_RF[rows])
        hidden_RF = functional.silu(w1_x_RF).mul_(v1_x_RF)
        y_RD = torch.empty_like(x_RD)
        for expert, rows in routes.spans():
            torch.mm(hidden_RF[rows], weights.of(expert)[2].T, out=y_RD[rows])
        ctx.save_for_backward(x_ND, gate_NK, w1_x_RF, v1_x_RF, *masters)
        ctx.routes, ctx.weights = routes, weights
        y_RD.mul_(_gate_of_rows(gate_NK, routes))
        return _sum_over_routes(y_RD, routes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Any, ...]:
        x_ND, gate_NK, w1_x_RF, v1_x_RF, *_ = ctx.saved_tensors
        routes: Routes = ctx.routes
        weights: ExpertWeights = ctx.weights
        grad_RD = grad_ND[routes.token_R]
        grad_hidden_RF = torch.empty_like(w1_x_RF)
        for expert, rows in routes.spans():
            torch.mm(grad_RD[rows], weights.of(expert)[2], out=grad_hidden_RF[rows])
        silu_RF = functional.silu(w1_x_RF)
        grad_silu_RF = grad_hidden_RF * v1_x_RF
        # y = w2 hidden is not kept: gradient · y = (w2ᵀ gradient) · hidden
        grad_gate_R = torch.linalg.vecdot(grad_silu_RF, silu_RF)
        gate_R1 = _gate_of_rows(gate_NK, routes)
        grad_v1_RF = grad_hidden_RF.mul_(gate_R1).mul_(silu_RF)
        grad_w1_RF = torch.ops.aten.silu_backward(grad_silu_RF.mul_(gate_R1), w1_x_RF)
        grad_x_RD = torch.empty_like(grad_RD)
        for expert, rows in routes.spans():
            w1, v1, _ = weights.of(expert)
            torch.mm(grad_w1_RF[rows], w1, out=grad_x_RD[rows]).addmm_(grad_v1_RF[rows], v1)
        hidden_RF = silu_RF.mul_(v1_x_RF)
        masters = _master_gradients(
            weights, routes, x_ND[routes.token_R], hidden_RF, grad_w1_RF, grad_v1_RF, grad_RD.mul_(gate_R1)
        )
        grad_gate_NK = grad_gate_R[routes.row_NK]
        return _sum_over_routes(grad_x_RD, routes), grad_gate_NK, None, None, *masters


def _master_gradients(
    weights: ExpertWeights,
    routes: Routes,
    x_RD: Tensor,
    hidden_RF: Tensor,
    grad_w1_RF: Tensor,
    grad_v1_RF: Tensor,
    grad_y_RD: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the owned experts' w1, v1 and w2; zero for an owned expert that no token was routed to."""
    if weights.w1_OFD is None or weights.v1_OFD is None or weights.w2_ODF is None:
        return None, None, None
    w1, v1, w2 = (torch.zeros_like(master) for master in (weights.w1_OFD, weights.v1_OFD, weights.w2_ODF))
    for expert, rows in routes.spans():
        if expert in weights.owned:
            owned = weights.owned.index(expert)
            torch.mm(grad_w1_RF[rows].T, x_RD[rows], out=w1[owned])
            torch.mm(grad_v1_RF[rows].T, x_RD[rows], out=v1[owned])
            torch.mm(grad_y_RD[rows].T, hidden_RF[rows], out=w2[owned])
    return w1, v1, w2


def _gate_of_rows(gate_NK: Tensor, routes: Routes) -> Tensor:
    return gate_NK.flatten()[routes.order_R].unsqueeze(1)


def _sum_over_routes(y_RD: Tensor, routes: Routes) -> Tensor:
    # A gather and a sum, where index_add would add in an order that differs from run to run on a GPU.
    return y_RD[routes.row_NK].sum(dim=1)
