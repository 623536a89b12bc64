"""Causal attention: fused q, k, v; RMSNorm on q and k before RoPE; grouped queries; no biases (SPES §2).

Shapes: B batch, T sequence, D d_model, K kv heads, H head dim, A attention heads, X any number of heads.
"""

import torch
from torch import Tensor
from torch.nn import functional

from spes_peer.model.norm import rms_norm
from spes_peer.run.manifest import Model


class Rotary(torch.nn.Module):
    """RoPE in the rotate-half form: the first half of a head's dimensions pairs with the second."""

    cos_TH: Tensor
    sin_TH: Tensor

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__()
        # On the CPU in float64 first: angles of late positions lose digits in fp32, and differently on each device.
        exponents = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
        positions = torch.arange(model.sequence_length, dtype=torch.float64)
        angles_TH = torch.outer(positions, model.rope_theta**-exponents).repeat(1, 2)
        self.register_buffer("cos_TH", angles_TH.cos().to(device, torch.float32), persistent=False)
        self.register_buffer("sin_TH", angles_TH.sin().to(device, torch.float32), persistent=False)

    def forward(self, x_BXTH: Tensor, start: int = 0) -> Tensor:
        """`x_BXTH` with each head rotated by its position, of which the first is `start`, in fp32."""
        x = x_BXTH.to(torch.float32)
        positions = slice(start, start + x.shape[-2])
        first, second = x.chunk(2, dim=-1)
        rotated = x * self.cos_TH[positions] + torch.cat((-second, first), dim=-1) * self.sin_TH[positions]
        return rotated.to(x_BXTH.dtype)


class Past:
    """Keys and values of one layer for the tokens so far, so that a text is continued token by token."""

    def __init__(self) -> None:
        self._k_BKTH: Tensor | None = None
        self._v_BKTH: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self._k_BKTH is None else self._k_BKTH.shape[-2]

    def extend(self, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all tokens, with these of the newest."""
        if self._k_BKTH is not None and self._v_BKTH is not None:
            k_BKTH = torch.cat((self._k_BKTH, k_BKTH), dim=-2)
            v_BKTH = torch.cat((self._v_BKTH, v_BKTH), dim=-2)
        self._k_BKTH, self._v_BKTH = k_BKTH, v_BKTH
        return k_BKTH, v_BKTH


def attention(
    x_BTD: Tensor,
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    out: Tensor,
    rotary: Rotary,
    model: Model,
    past: Past | None = None,
) -> Tensor:
    """Attention of normed activations; `qkv` [D + 2·K·H, D] and `out` [D, D] are weights, the norms' width says whether
    they go over the full width or over each head. Behind a `past` that is not empty comes one token at a time."""
    start = 0 if past is None else past.length
    kv_width = model.num_kv_heads * model.head_dim
    q, k, v = torch.split(functional.linear(x_BTD, qkv), [model.d_model, kv_width, kv_width], dim=-1)
    q_BATH, k_BKTH = (rotary(_normed_heads(x, norm, model), start) for x, norm in ((q, q_norm), (k, k_norm)))
    v_BKTH = _heads(v, model)
    if past is not None:
        k_BKTH, v_BKTH = past.extend(k_BKTH, v_BKTH)
    mixed_BATH = functional.scaled_dot_product_attention(
        q_BATH, k_BKTH, v_BKTH, is_causal=start == 0, enable_gqa=model.num_kv_heads != model.num_heads
    )
    return functional.linear(mixed_BATH.transpose(1, 2).flatten(2), out)


def _heads(x: Tensor, model: Model) -> Tensor:
    return x.view(*x.shape[:-1], -1, model.head_dim).transpose(1, 2)


def _normed_heads(x: Tensor, norm: Tensor, model: Model) -> Tensor:
    if model.qk_norm == "width":
        return _heads(rms_norm(x, norm), model)
    return rms_norm(_heads(x, model), norm)
