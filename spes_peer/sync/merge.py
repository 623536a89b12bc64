"""The expert merge of the warm-up (SPES §1.4): each expert moves a little towards those most like it.

All peers merge alike, bit for bit: donors are the same set everywhere, and what they give is summed in index order.
Works in place and in pieces of a few columns of all experts at a time, so it takes 3 MB whatever the model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from spes_peer.run.layout import Layout, Parameter
from spes_peer.run.records import BlockId

NUM_DONORS = 4
_PIECE_VALUES = 1 << 17  # of all experts together: 3 MB at the peak, and within a cache
# BLAS sums in another order on another machine, so the last digits of a similarity differ there. Rounded, experts that
# are equally similar are so on all machines but one in a million, which repairs its state; the tie goes by index.
_SIMILARITY_DECIMALS = 9

Donors = Sequence[tuple[int, ...]]
"""For each expert the others that it moves towards, by index."""


def merge_experts(
    layout: Layout, blocks: Mapping[BlockId, Tensor], alpha: float, displaced: Mapping[BlockId, Tensor]
) -> None:
    """e ← e + α·(mean(donors) − e) for w1, v1 and w2 of each layer, donors taken before the merge.

    `blocks` has all experts' blocks in their public dtype; they change in place, computed in fp32 and rounded once. How
    far a block moves before it is rounded is added to its tensor in `displaced`, where there is one."""
    num_experts = layout.manifest.model.num_experts
    if num_experts == 1:
        return
    experts = _Experts(layout, blocks, displaced)
    width = _PIECE_VALUES // num_experts
    parameters = layout.expert_parameters
    for w1, v1, w2 in zip(parameters[0::3], parameters[1::3], parameters[2::3], strict=True):
        donors = donors_of(experts.read(start, end) for start, end in _pieces(w1, width))
        for parameter in (w1, v1, w2):
            for start, end in _pieces(parameter, width):
                before = experts.read(start, end)
                for expert, row in enumerate(before.unbind()):
                    step = _step(row, [before[donor] for donor in donors[expert]], alpha)
                    experts.move(expert, start, end, row + step, step)


def donors_of(w1: Iterable[Tensor]) -> Donors:
    """For each expert the min(4, E − 1) others whose flattened w1 has the highest cosine to its own.

    `w1` gives the columns of a matrix with a row for each expert, some at a time."""
    gram = sum(columns @ columns.T for columns in (piece.to(torch.float64) for piece in w1))
    assert isinstance(gram, Tensor)
    norms = gram.diagonal().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    similarity = (gram / torch.outer(norms, norms)).round(decimals=_SIMILARITY_DECIMALS).tolist()
    return [tuple(sorted(_most_similar(row, expert))) for expert, row in enumerate(similarity)]


class _Experts:
    """All experts as one matrix, a row for each, whose columns are cut into blocks."""

    def __init__(self, layout: Layout, blocks: Mapping[BlockId, Tensor], displaced: Mapping[BlockId, Tensor]) -> None:
        self._block_elements = layout.manifest.sync.block_elements
        ids = [[block.id for block in layout.expert_blocks(e)] for e in range(layout.manifest.model.num_experts)]
        self._values = [[blocks[block_id] for block_id in row] for row in ids]
        self._displaced = [[displaced.get(block_id) for block_id in row] for row in ids]

    def read(self, start: int, end: int) -> Tensor:
        """A copy of some columns of all experts, fp32."""
        columns = torch.empty(len(self._values), end - start)
        for index, in_block, in_columns in self._parts(start, end):
            for row, blocks in zip(columns, self._values, strict=True):
                row[in_columns] = blocks[index][in_block]
        return columns

    def move(self, expert: int, start: int, end: int, values: Tensor, step: Tensor) -> None:
        """Set columns of an expert to `values`, which are `step` away from what was there."""
        for index, in_block, in_columns in self._parts(start, end):
            self._values[expert][index][in_block] = values[in_columns]
            displaced = self._displaced[expert][index]
            if displaced is not None:
                displaced[in_block] += step[in_columns]

    def _parts(self, start: int, end: int) -> Iterator[tuple[int, slice, slice]]:
        """Which blocks these columns lie in: number, part of the block, part of the columns."""
        size = self._block_elements
        for index in range(start // size, (end - 1) // size + 1):
            low, high = max(start, index * size), min(end, (index + 1) * size)
            yield index, slice(low - index * size, high - index * size), slice(low - start, high - start)


def _pieces(parameter: Parameter, width: int) -> Iterator[tuple[int, int]]:
    """Columns [start, end) of the group, `width` at a time."""
    last = parameter.offset + parameter.num_elements
    for start in range(parameter.offset, last, width):
        yield start, min(start + width, last)


def _most_similar(similarity: Sequence[float], expert: int) -> list[int]:
    ranked = sorted((-value, other) for other, value in enumerate(similarity) if other != expert)
    return [other for _, other in ranked[:NUM_DONORS]]


def _step(values: Tensor, donors: Sequence[Tensor], alpha: float) -> Tensor:
    total = donors[0].clone()
    for donor in donors[1:]:
        total += donor
    return total.div_(len(donors)).sub_(values).mul_(alpha)
