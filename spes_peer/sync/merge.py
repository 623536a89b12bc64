"""The expert merge of the warm-up (SPES §1.4): each expert moves a little towards those most like it.

All peers merge alike, bit for bit: donors are the same set everywhere, and what they give is summed in index order.
"""

import torch
from torch import Tensor

from spes_peer.run.layout import Layout, Parameter

NUM_DONORS = 4
_GRAM_COLUMNS = 1 << 20
# BLAS sums in another order on another machine, so the last digits of a similarity differ there. Rounded, experts that
# are equally similar are so everywhere, and the tie goes by index.
_SIMILARITY_DECIMALS = 9


def merge_experts(groups: dict[int, Tensor], layout: Layout, alpha: float) -> dict[int, Tensor]:
    """e ← e + α·(mean(donors) − e) for w1, v1 and w2 of each layer, donors taken before the merge.

    `groups` are all experts, flattened, and stay as they are. Beside the result this takes about a layer's memory."""
    merged = {expert: torch.empty_like(flat) for expert, flat in groups.items()}
    parameters = layout.expert_parameters
    for w1, v1, w2 in zip(parameters[0::3], parameters[1::3], parameters[2::3], strict=True):
        donors = donors_of({expert: _part(flat, w1) for expert, flat in groups.items()})
        for parameter in (w1, v1, w2):
            for expert, flat in groups.items():
                given = [_part(groups[donor], parameter) for donor in donors[expert]]
                _part(merged[expert], parameter).copy_(_moved(_part(flat, parameter), given, alpha))
    return merged


def donors_of(w1: dict[int, Tensor]) -> dict[int, tuple[int, ...]]:
    """For each expert the min(4, E − 1) others whose flattened w1 has the highest cosine to its own, by index."""
    experts = sorted(w1)
    gram = torch.zeros(len(experts), len(experts), dtype=torch.float64)
    for start in range(0, w1[experts[0]].numel(), _GRAM_COLUMNS):
        columns = torch.stack([w1[expert][start : start + _GRAM_COLUMNS] for expert in experts]).to(torch.float64)
        gram = gram + columns @ columns.T
    norms = gram.diagonal().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    similarity = (gram / torch.outer(norms, norms)).round(decimals=_SIMILARITY_DECIMALS).tolist()
    return {
        expert: tuple(sorted(_most_similar(experts, similarity[row], expert))) for row, expert in enumerate(experts)
    }


def _most_similar(experts: list[int], similarity: list[float], expert: int) -> list[int]:
    ranked = sorted((-value, other) for other, value in zip(experts, similarity, strict=True) if other != expert)
    return [other for _, other in ranked[:NUM_DONORS]]


def _moved(values: Tensor, donors: list[Tensor], alpha: float) -> Tensor:
    if not donors:
        return values
    total = donors[0]
    for donor in donors[1:]:
        total = total + donor
    step = (total / len(donors) - values) * alpha
    return values + step


def _part(flat: Tensor, parameter: Parameter) -> Tensor:
    return flat[parameter.offset : parameter.offset + parameter.num_elements]
