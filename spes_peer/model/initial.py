"""Values of a new run's parameters (SPES §2). The organizer makes them once; peers fetch them as blobs, because random
number kernels differ between machines."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spes_peer.run.layout import Layout, Parameter
from spes_peer.run.manifest import Manifest

STD = 0.02
CUT_AT_STD = 3.0


def initial_groups(manifest: Manifest, seed: int) -> Iterator[tuple[int | None, Tensor]]:
    """Each group flattened, fp32 on the CPU: the shared one (None), then expert by expert; one in memory at a time.

    Matrices are normal, cut at 3 standard deviations; norms' weights are 1. The same seed gives the same values."""
    layout = Layout(manifest)
    generator = torch.Generator("cpu").manual_seed(seed)
    yield None, _group(layout.shared_parameters, generator)
    for expert in range(manifest.model.num_experts):
        yield expert, _group(layout.expert_parameters, generator)


def _group(parameters: Sequence[Parameter], generator: torch.Generator) -> Tensor:
    flat = torch.ones(sum(parameter.num_elements for parameter in parameters))
    for parameter in parameters:
        if len(parameter.shape) > 1:
            values = flat[parameter.offset : parameter.offset + parameter.num_elements]
            torch.nn.init.trunc_normal_(values, std=STD, a=-CUT_AT_STD * STD, b=CUT_AT_STD * STD, generator=generator)
    return flat
