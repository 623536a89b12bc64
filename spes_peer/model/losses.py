"""The four losses of SPES §2. Shapes: N tokens, D d_model, V vocabulary, E experts, K routes per token."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from spes_peer.run.manifest import Training

IGNORED_TARGET = -100
_CHUNK_LOGITS = 1 << 24  # 64 MiB of fp32 logits at a time; the demo's vocabulary fits into one chunk


@dataclass(frozen=True)
class Losses:
    """Scalars; all but `total` without their coefficients."""

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
    def of(cls, ce: Tensor, z: Tensor, load_balance: Tensor, router_z: Tensor, training: Training) -> "Losses":
        total = ce + training.z_loss * z + training.load_balance_loss * load_balance + training.router_z_loss * router_z
        return cls(ce, z, load_balance, router_z, total)


def head_losses(x_ND: Tensor, head_VD: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """(cross-entropy, z) of the output head, averaged over the targets that are not ignored; 0 where all are.

    Logits are made in chunks of tokens, and made again in the backward pass when there is more than one chunk."""
    chunk = max(1, _CHUNK_LOGITS // head_VD.shape[0])
    if len(x_ND) <= chunk:
        sums = _head_sums(x_ND, head_VD, target_N)
    else:
        parts = [
            cast(Tensor, checkpoint(_head_sums, x, head_VD, target, use_reentrant=False))
            for x, target in zip(torch.split(x_ND, chunk), torch.split(target_N, chunk), strict=True)
        ]
        sums = torch.stack(parts).sum(dim=0)
    count = (target_N != IGNORED_TARGET).sum().clamp(min=1)
    ce, z = (sums / count).unbind()
    return ce, z


def _head_sums(x_ND: Tensor, head_VD: Tensor, target_N: Tensor) -> Tensor:
    logits_NV = functional.linear(x_ND, head_VD).to(torch.float32)
    counted_N = target_N != IGNORED_TARGET
    lse_N = logits_NV.logsumexp(dim=-1)
    target_logit_N = logits_NV.gather(1, target_N.clamp(min=0).unsqueeze(1)).squeeze(1)
    ce, z = lse_N - target_logit_N, lse_N.square()
    return torch.stack(((ce * counted_N).sum(), (z * counted_N).sum()))


@dataclass(frozen=True)
class Routing:
    """One layer's router at work."""

    logits_NE: Tensor
    probabilities_NE: Tensor
    expert_NK: Tensor
    gate_NK: Tensor


def route(x_ND: Tensor, router_ED: Tensor, top_k: int, renormalize: bool) -> Routing:
    """Softmax over all experts in fp32, then the top k of it, divided by their sum where the model says so."""
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
