"""Experts out of a dense model's MLP (SPES §2, "Upcycling"): copies, each with noise of its own in a random half of its
entries, so that they differ enough for a router to tell them apart and are near enough to work from the first step.

The router begins small: at first every expert is about as likely as another. Everything is drawn from seeds, and each
expert's noise depends on its number alone.
"""

import torch
from torch import Tensor

NOISE_STD = 0.02  # the paper's launch script
NOISE_FRACTION = 0.5
ROUTER_STD = 0.001

_ROUTER_STREAM = -1
_DRAWN_AT_ONCE = 1 << 24  # an expert may have a billion entries; the noise need not be there all at once


def expert_of(mlp: Tensor, expert: int, seed: int) -> Tensor:
    """Expert number `expert`, flattened like `mlp`, the dense model's MLPs of all layers: fp32 on the CPU."""
    generator = _generator(seed, expert)
    values = mlp.clone()
    for part in torch.split(values, _DRAWN_AT_ONCE):
        chosen = torch.rand(part.shape, generator=generator) < NOISE_FRACTION
        part += torch.randn(part.shape, generator=generator).mul_(NOISE_STD).mul_(chosen)
    return values


def draw_routers(routers: list[Tensor], seed: int) -> None:
    """Set all layers' routers."""
    generator = _generator(seed, _ROUTER_STREAM)
    for router in routers:
        router.normal_(std=ROUTER_STD, generator=generator)


def _generator(seed: int, stream: int) -> torch.Generator:
    """Streams of one seed differ, and none is the one from which a run's first weights are drawn."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (stream + 2) * 0xBF58476D1CE4E5B9) % (1 << 63)
    return torch.Generator("cpu").manual_seed(mixed)
