"""The four losses of SPES §2. Shapes: N tokens, C tokens of a chunk, D d_model, V vocabulary, E experts, K routes per
token."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from spes_peer.run.manifest import Training

IGNORED_TARGET = -100
_CHUNK_LOGITS = 40_000_000  # 160 MB of fp32 logits at a time: 256 tokens of a vocabulary of 151,665


@dataclass(frozen=True)
class Losses:
    """Scalars; all but `total`, which alone has a gradient, without their coefficients."""

    ce: Tensor
    """Mean cross-entropy of the targets that are not ignored, nats."""
    z: Tensor
    """Mean squared logsumexp of the logits of the same tokens."""
    load_balance: Tensor
    """1 when tokens and probabilities are spread evenly over all experts."""
    router_z: Tensor
    """Sum over layers of the mean squared logsumexp of the router's logits."""
    total: Tensor

    @classmethod
    def of(cls, head: "HeadLosses", load_balance: Tensor, router_z: Tensor, training: Training) -> "Losses":
        """`head` was made with the z coefficient of `training`."""
        total = head.total + training.load_balance_loss * load_balance + training.router_z_loss * router_z
        return cls(head.ce, head.z, load_balance, router_z, total)


class HeadLosses(NamedTuple):
    """Scalars: total = ce + z_coefficient · z has a gradient, its parts have none."""

    total: Tensor
    ce: Tensor
    z: Tensor


def head_losses(x_ND: Tensor, head_VD: Tensor, target_N: Tensor, z_coefficient: float) -> HeadLosses:
    """Losses of the output head, averaged over the targets that are not ignored; 0 where all are.

    Logits are made in the dtype of x, for a chunk of tokens at a time, and go into losses and gradients on the spot:
    nothing is computed twice, and beside the gradients themselves memory is bounded whatever N and V are."""
    with_gradient = torch.is_grad_enabled()
    return HeadLosses(*_Head.apply(x_ND, head_VD, target_N, z_coefficient, with_gradient))  # type: ignore[no-untyped-call]


class _Head(torch.autograd.Function):
    """Gradients are made in the forward pass, for an upstream gradient of 1, and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, head_VD: Tensor, target_N: Tensor, z_coefficient: float, with_gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = (target_N != IGNORED_TARGET).sum().clamp(min=1)
        weights_VD = head_VD.detach().to(x_ND.dtype)
        grad_x_ND = torch.empty_like(x_ND) if with_gradient else None
        grad_VD: Tensor | None = None
        sums = torch.zeros(2, device=x_ND.device)
        num_chunks = max(1, math.ceil(target_N.numel() * len(head_VD) / _CHUNK_LOGITS))
        rows = torch.arange(len(x_ND)).tensor_split(num_chunks)
        for chunk in (slice(int(part[0]), int(part[-1]) + 1) for part in rows if len(part)):
            x_CD = x_ND[chunk]
            chunk_sums, grad_VC = _chunk(x_CD, weights_VD, target_N[chunk], z_coefficient, count)
            sums += chunk_sums
            if grad_x_ND is not None:
                torch.mm(grad_VC.T, weights_VD, out=grad_x_ND[chunk])
                grad_VD = _plus_product(grad_VD, grad_VC, x_CD)
            del grad_VC  # before the next chunk is made
        ce, z = (sums / count).unbind()
        ctx.save_for_backward(grad_x_ND, grad_VD)
        ctx.mark_non_differentiable(ce, z)
        return ce + z_coefficient * z, ce, z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_ND, grad_VD = ctx.saved_tensors
        return _scaled(grad_x_ND, grad), _scaled(grad_VD, grad), None, None, None


def _chunk(
    x_CD: Tensor, head_VD: Tensor, target_C: Tensor, z_coefficient: float, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of (cross-entropy, z) over a chunk, and the gradient of its logits [V, C] in the dtype of x.

    Vocabulary first: on a CPU that product takes a third less time than the one with tokens first."""
    logits_VC = torch.mm(head_VD, x_CD.T).to(torch.float32)
    counted_C, index_1C = target_C != IGNORED_TARGET, target_C.clamp(min=0).unsqueeze(0)
    target_logit_C = logits_VC.gather(0, index_1C).squeeze(0)
    largest_C = logits_VC.amax(dim=0)
    exp_VC = logits_VC.sub_(largest_C).exp_()
    sum_C = exp_VC.sum(dim=0)
    lse_C = sum_C.log() + largest_C
    sums = torch.stack((((lse_C - target_logit_C) * counted_C).sum(), (lse_C.square() * counted_C).sum()))
    # ∂(lse − target + c·lse²) = (1 + 2c·lse) · softmax − [target]
    weight_C = counted_C / count
    grad_VC = exp_VC.mul_(weight_C * (1 + 2 * z_coefficient * lse_C) / sum_C)
    return sums, grad_VC.scatter_add_(0, index_1C, -weight_C.unsqueeze(0)).to(x_CD.dtype)


def _plus_product(sum_VD: Tensor | None, a_VC: Tensor, b_CD: Tensor) -> Tensor:
    """sum + a · b in the place of the sum, which is fp32 whatever a and b are."""
    if sum_VD is None:
        return torch.mm(a_VC, b_CD).to(torch.float32)
    if a_VC.dtype == sum_VD.dtype:
        return sum_VD.addmm_(a_VC, b_CD)
    return sum_VD.add_(torch.mm(a_VC, b_CD))


def _scaled(gradient: Tensor, by: Tensor) -> Tensor:
    """Its memory is as large as the head: on a CPU, which need not wait to know, a factor of 1 is left out."""
    return gradient if by.device.type == "cpu" and by.item() == 1 else gradient * by


@dataclass(frozen=True)
class Routing:
    """One layer's router at work."""

    logits_NE: Tensor
    probabilities_NE: Tensor
    expert_NK: Tensor
    gate_NK: Tensor


def route(x_ND: Tensor, router_ED: Tensor, top_k: int, renormalize: bool) -> Routing:
    """Softmax over all experts in fp32, then the top k of it, divided by their sum where the model says so."""
    with torch.autocast(x_ND.device.type, enabled=False):
        logits_NE = functional.linear(x_ND.to(torch.float32), router_ED.to(torch.float32))
    probabilities_NE = logits_NE.softmax(dim=-1)
    gate_NK, expert_NK = probabilities_NE.topk(top_k, dim=-1)
    if renormalize:
        gate_NK = gate_NK / gate_NK.sum(dim=-1, keepdim=True)
    return Routing(logits_NE, probabilities_NE, expert_NK, gate_NK)


def load_balance_of(routing: Routing, counts_E: Tensor) -> Tensor:
    """One layer's E/(N·K) · Σ_e counts_e · mean_n p_ne, over all experts, frozen ones too."""
    num_tokens, num_experts = routing.probabilities_NE.shape
    scale = num_experts / (num_tokens * routing.expert_NK.shape[1])
    return scale * (counts_E * routing.probabilities_NE.mean(dim=0)).sum()


def router_z_of(routing: Routing) -> Tensor:
    """One layer's mean squared logsumexp of the router's logits."""
    return routing.logits_NE.logsumexp(dim=-1).square().mean()
