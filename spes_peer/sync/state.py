"""The public state: what all peers hold alike after a record, bit for bit."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spes_peer.blobs import digests_of, name_of
from spes_peer.errors import BadMessage, StateTorn
from spes_peer.run.layout import Block, Layout
from spes_peer.run.records import BlockId, BlockName, state_root
from spes_peer.sync.encoding import from_state_bytes, rounded, state_bytes
from spes_peer.sync.merge import merge_experts
from spes_peer.sync.outer import outer_step


@dataclass(frozen=True)
class Moved:
    """What a record did to the public state."""

    displaced: dict[BlockId, Tensor]
    """Of the tracked experts, the displacement of each block that moved, fp32 and before rounding, outer step and merge
    together: what owners add to their masters (`feedback.master_after`)."""
    bad: dict[BlockId, str]
    """Updates that were left out, and why."""


class PublicState:
    """All blocks in their public dtype, the outer momentum of those that have one, and their names as blobs."""

    def __init__(self, layout: Layout, blocks: dict[BlockId, Tensor]) -> None:
        """`blocks` are those of `layout.state_blocks`; the state owns them, and writes to them."""
        self.layout = layout
        self._held: dict[BlockId, Tensor] | None = blocks
        self._names: dict[BlockId, BlockName] = {}

    @classmethod
    def from_blocks(cls, layout: Layout, read: Callable[[BlockId], bytes]) -> "PublicState":
        """The state whose blocks' bytes `read` gives; `BadMessage` for bytes that are not such a block."""
        blocks = {
            block.id: from_state_bytes(layout.dtype_of(block), read(block.id), block.num_elements)
            for block in layout.state_blocks
        }
        return cls(layout, blocks)

    def block(self, block: Block) -> Tensor:
        """Its values, fp32; a copy or not: never to be written to, nor to be kept until the state moves."""
        return self._blocks[block.id].to(torch.float32)

    def group(self, expert: int | None) -> Tensor:
        """The flattened shared parameters (None) or one flattened expert, fp32."""
        return torch.cat([self.block(block) for block in self._blocks_of(expert)])

    def block_bytes(self, block: Block) -> bytes:
        return state_bytes(self.layout.dtype_of(block), self._blocks[block.id])

    def names(self) -> tuple[BlockName, ...]:
        """Every block's name as a blob, in the order of `state_blocks`; hashed once after each record."""
        for block in self.layout.state_blocks:
            if block.id not in self._names:
                content = self.block_bytes(block)
                self._names[block.id] = BlockName(block.id, name_of(digests_of(content)), len(content))
        return tuple(self._names[block.id] for block in self.layout.state_blocks)

    def root(self) -> str:
        return state_root(self.names())

    def apply(
        self,
        block_ids: Sequence[BlockId],
        delta_of: Callable[[BlockId], Tensor],
        merge_alpha: float,
        tracked: Collection[int] = (),
    ) -> "Moved":
        """Make the outer step of each of these blocks on its mean update, round, merge all experts when `merge_alpha`
        > 0, round again. A block without an update keeps value and momentum.

        An update that cannot be read (`delta_of` raises `BadMessage`) or leads to values that are not finite is left
        out: it is the same bytes for everybody, so all leave it out alike.

        Takes memory for a few blocks: `delta_of` is called twice for each of them. All are tried before one is moved,
        so whatever else `delta_of` raises then leaves the state as it was. An error after that is `StateTorn`, then and
        at every later use."""
        self._names.clear()  # all are hashed again, so that a bit that the memory has flipped is found
        bad = {block_id: fault for block_id in block_ids if (fault := self._fault_in(block_id, delta_of))}
        try:
            displaced = {}
            for block_id in block_ids:
                if block_id in bad:
                    continue
                displacement = self._step(block_id, delta_of(block_id))
                if self.layout.by_id[block_id].expert in tracked:
                    displaced[block_id] = displacement
            if merge_alpha > 0:
                self._merge(merge_alpha, tracked, displaced)
        except Exception as error:
            self._held = None
            raise StateTorn(f"the public state is half moved and must be loaded anew: {error}") from error
        return Moved(displaced, bad)

    def moved(self, block: Block, delta: Tensor) -> Tensor:
        """What the mean update `delta` would make of a block, fp32; nothing moves. `BadMessage` as in `apply`."""
        return self._stepped(block.id, delta)[1][block.id].to(torch.float32)

    def _fault_in(self, block_id: BlockId, delta_of: Callable[[BlockId], Tensor]) -> str:
        """Why the update of a block can move nothing; empty if it can."""
        try:
            self._stepped(block_id, delta_of(block_id))
        except BadMessage as error:
            return str(error)
        return ""

    @property
    def _blocks(self) -> dict[BlockId, Tensor]:
        if self._held is None:
            raise StateTorn("the public state was half moved and must be loaded anew")
        return self._held

    def _step(self, block_id: BlockId, delta: Tensor) -> Tensor:
        """Move a block and its momentum; its displacement before rounding."""
        displacement, changed = self._stepped(block_id, delta)
        for changed_id, values in changed.items():
            self._blocks[changed_id] = values
        return displacement

    def _stepped(self, block_id: BlockId, delta: Tensor) -> tuple[Tensor, dict[BlockId, Tensor]]:
        """The displacement of a block by its mean update, and what that makes of it and of its momentum."""
        block = self.layout.by_id[block_id]
        if delta.shape != (block.num_elements,):
            raise ValueError(f"a delta of shape {tuple(delta.shape)} for {block_id} of {block.num_elements} elements")
        momentum_id = self.layout.momentum_of(block).id
        displacement, momentum = outer_step(self.layout.manifest.sync, block, delta, self._blocks.get(momentum_id))
        changed = {block_id: rounded(self.layout.dtype_of(block), displacement + self._blocks[block_id])}
        if momentum is not None:
            changed[momentum_id] = momentum
        if not all(_are_finite(values) for values in changed.values()):
            raise BadMessage(f"an update of {block_id} that leads to values that are not finite")
        return displacement, changed

    def _merge(self, alpha: float, tracked: Collection[int], displaced: dict[BlockId, Tensor]) -> None:
        """Merge all experts, and add to `displaced` how far that moves the tracked ones."""
        for block in self.layout.blocks:
            if block.expert in tracked:
                # a copy, because a plain mean's displacement is the update, which is another's
                by_update = displaced.get(block.id)
                displaced[block.id] = torch.zeros(block.num_elements) if by_update is None else by_update.clone()
        merge_experts(self.layout, self._blocks, alpha, displaced)

    def _blocks_of(self, expert: int | None) -> tuple[Block, ...]:
        return self.layout.shared_blocks if expert is None else self.layout.expert_blocks(expert)


def _are_finite(values: Tensor) -> bool:
    least, most = values.aminmax()  # of which a NaN makes both NaN
    return math.isfinite(least.item()) and math.isfinite(most.item())
