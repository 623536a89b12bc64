"""The public state: what all peers hold alike after a record, bit for bit."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spes_peer.blobs import digests_of, name_of
from spes_peer.run.layout import Block, Layout
from spes_peer.run.records import BlockId, BlockName, state_root
from spes_peer.sync.encoding import from_state_bytes, rounded, state_bytes
from spes_peer.sync.merge import merge_experts


class PublicState:
    """All blocks in their public dtype, and their names as blobs."""

    def __init__(self, layout: Layout, blocks: dict[BlockId, Tensor]) -> None:
        self.layout = layout
        self._blocks = blocks
        self._names: dict[BlockId, BlockName] = {}

    @classmethod
    def from_blocks(cls, layout: Layout, read: Callable[[BlockId], bytes]) -> "PublicState":
        """The state whose blocks' bytes `read` gives; `BadMessage` for bytes that are not such a block."""
        blocks = {
            block.id: from_state_bytes(layout.dtype_of(block), read(block.id), block.num_elements)
            for block in layout.blocks
        }
        return cls(layout, blocks)

    def block(self, block: Block) -> Tensor:
        """Its values, fp32; a copy or not, never to be written to."""
        return self._blocks[block.id].to(torch.float32)

    def group(self, expert: int | None) -> Tensor:
        """The flattened shared parameters (None) or one flattened expert, fp32."""
        return torch.cat([self.block(block) for block in self._blocks_of(expert)])

    def block_bytes(self, block: Block) -> bytes:
        return state_bytes(self.layout.dtype_of(block), self._blocks[block.id])

    def names(self) -> tuple[BlockName, ...]:
        """Every block's name as a blob, in block order; only blocks that changed are hashed again."""
        for block in self.layout.blocks:
            if block.id not in self._names:
                content = self.block_bytes(block)
                self._names[block.id] = BlockName(block.id, name_of(digests_of(content)), len(content))
        return tuple(self._names[block.id] for block in self.layout.blocks)

    def root(self) -> str:
        return state_root(self.names())

    def apply(self, deltas: Mapping[BlockId, Tensor], merge_alpha: float) -> dict[BlockId, Tensor]:
        """Add `deltas`, round, merge all experts when `merge_alpha` > 0, round again.

        Returns the displacement of each block that this moves, fp32 and before rounding: what owners add to their
        masters (`feedback.ExpertFeedback`). All or nothing: an error leaves the state as it was."""
        moved = dict(deltas)
        changed = {block_id: self._rounded(block_id, delta) for block_id, delta in deltas.items()}
        if merge_alpha > 0:
            for block_id, step in self._merge(changed, merge_alpha).items():
                moved[block_id] = moved[block_id] + step if block_id in moved else step
        self._blocks.update(changed)
        for block_id in changed:
            self._names.pop(block_id, None)
        return moved

    def _rounded(self, block_id: BlockId, delta: Tensor) -> Tensor:
        block = self.layout.by_id[block_id]
        if delta.shape != (block.num_elements,):
            raise ValueError(f"a delta of shape {tuple(delta.shape)} for {block_id} of {block.num_elements} elements")
        return rounded(self.layout.dtype_of(block), self.block(block) + delta)

    def _merge(self, changed: dict[BlockId, Tensor], alpha: float) -> dict[BlockId, Tensor]:
        """Put every merged expert block into `changed`; returns how far the merge moved each, before rounding."""
        experts = range(self.layout.manifest.model.num_experts)
        groups = {
            expert: torch.cat(
                [
                    changed.get(block.id, self._blocks[block.id]).to(torch.float32)
                    for block in self.layout.expert_blocks(expert)
                ]
            )
            for expert in experts
        }
        steps = {}
        for expert, merged in merge_experts(groups, self.layout, alpha).items():
            for block in self.layout.expert_blocks(expert):
                values = merged[block.start : block.end]
                steps[block.id] = values - groups[expert][block.start : block.end]
                changed[block.id] = rounded(self.layout.dtype_of(block), values)
        return steps

    def _blocks_of(self, expert: int | None) -> tuple[Block, ...]:
        return self.layout.shared_blocks if expert is None else self.layout.expert_blocks(expert)
