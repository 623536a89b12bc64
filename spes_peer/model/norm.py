"""RMSNorm as every part of the decoder uses it."""

import torch
from torch import Tensor
from torch.nn import functional

RMS_NORM_EPS = 1e-6


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, computed in fp32."""
    normed: Tensor = functional.rms_norm(x.to(torch.float32), weight.shape, weight.to(torch.float32), RMS_NORM_EPS)
    return normed.to(x.dtype)
