"""The order and cut of all parameters: which parameter is where in which block. No tensors, only numbers.

Shared parameters are flattened into one group, each expert (its matrices of every layer) into a group of its own; each
group is cut into blocks of `block_elements`. This order is part of the protocol: all peers must agree on it.

Shapes use D = d_model, V = vocab_rows, E = num_experts, F = expert_hidden, H = head_dim, K = num_kv_heads.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from spes_peer.run.encodings import BYTES_PER_VALUE, Dtype, Format
from spes_peer.run.manifest import Manifest, Model, RunFile
from spes_peer.run.records import BlockId, Update


@dataclass(frozen=True)
class Parameter:
    """One tensor of a group and where its flattened values begin in that group."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Block:
    """Elements [start, end) of a group; `expert` is None for the shared group."""

    id: BlockId
    expert: int | None
    start: int
    end: int
    is_momentum: bool = False
    """Whether it holds the outer momentum of these elements instead of their values."""

    @property
    def num_elements(self) -> int:
        return self.end - self.start


def _placed(named: Iterator[tuple[str, tuple[int, ...]]]) -> tuple[Parameter, ...]:
    placed, offset = [], 0
    for name, shape in named:
        placed.append(Parameter(name, shape, offset))
        offset += math.prod(shape)
    return tuple(placed)


def _shared_shapes(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    d_model, kv_width = model.d_model, model.num_kv_heads * model.head_dim
    per_head = model.qk_norm == "head"
    yield "embedding", (model.vocab_rows, d_model)
    for layer in range(model.num_layers):
        yield f"layers.{layer}.attention_norm", (d_model,)
        yield f"layers.{layer}.qkv", (d_model + 2 * kv_width, d_model)
        yield f"layers.{layer}.q_norm", (model.head_dim if per_head else d_model,)
        yield f"layers.{layer}.k_norm", (model.head_dim if per_head else kv_width,)
        yield f"layers.{layer}.attention_out", (d_model, d_model)
        yield f"layers.{layer}.ffn_norm", (d_model,)
        yield f"layers.{layer}.router", (model.num_experts, d_model)
    yield "final_norm", (d_model,)
    yield "head", (model.vocab_rows, d_model)


def _expert_shapes(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer in range(model.num_layers):
        yield f"layers.{layer}.w1", (model.expert_hidden, model.d_model)
        yield f"layers.{layer}.v1", (model.expert_hidden, model.d_model)
        yield f"layers.{layer}.w2", (model.d_model, model.expert_hidden)


def shared_parameters_of(model: Model) -> tuple[Parameter, ...]:
    return _placed(_shared_shapes(model))


def expert_parameters_of(model: Model) -> tuple[Parameter, ...]:
    """Of any one expert: all have the same."""
    return _placed(_expert_shapes(model))


@dataclass(frozen=True)
class RunLayout:
    """All parameters and blocks of a run, which needs no data and no peers yet."""

    manifest: RunFile

    @cached_property
    def shared_parameters(self) -> tuple[Parameter, ...]:
        return shared_parameters_of(self.manifest.model)

    @cached_property
    def expert_parameters(self) -> tuple[Parameter, ...]:
        """Of any one expert: all have the same."""
        return expert_parameters_of(self.manifest.model)

    @cached_property
    def num_shared(self) -> int:
        return sum(parameter.num_elements for parameter in self.shared_parameters)

    @cached_property
    def num_per_expert(self) -> int:
        return sum(parameter.num_elements for parameter in self.expert_parameters)

    @cached_property
    def shared_blocks(self) -> tuple[Block, ...]:
        return tuple(self._cut("shared", None, self.num_shared))

    def expert_blocks(self, expert: int) -> tuple[Block, ...]:
        return tuple(self._cut(f"expert/{expert:02d}", expert, self.num_per_expert))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks: shared ones, then expert by expert."""
        experts = range(self.manifest.model.num_experts)
        return (*self.shared_blocks, *(block for expert in experts for block in self.expert_blocks(expert)))

    @cached_property
    def by_id(self) -> dict[BlockId, Block]:
        return {block.id: block for block in self.blocks}

    def subset_of(self, block: Block) -> int | None:
        """The subset whose owners offer this block; None for shared blocks, which every peer offers."""
        if block.expert is None:
            return None
        return block.expert // (self.manifest.model.num_experts // self.manifest.training.num_subsets)

    def blocks_offered_by(self, subsets: tuple[int, ...]) -> tuple[Block, ...]:
        """What an owner of `subsets` offers each round, in block order."""
        return tuple(block for block in self.blocks if block.expert is None or self.subset_of(block) in subsets)

    @cached_property
    def state_blocks(self) -> tuple[Block, ...]:
        """What the public state consists of: all blocks, then the outer momentum of those that have one."""
        return (*self.blocks, *(self.momentum_of(block) for block in self.blocks if self.has_momentum(block)))

    def momentum_of(self, block: Block) -> Block:
        """The block of the same elements' outer momentum."""
        return replace(block, id=BlockId(f"{block.id}/momentum"), is_momentum=True)

    def has_momentum(self, block: Block) -> bool:
        sync = self.manifest.sync
        outer = sync.shared_outer if block.expert is None else sync.expert_outer
        return outer == "nesterov" and sync.outer_momentum > 0

    def offer_format(self, block: Block) -> Format:
        sync = self.manifest.sync
        if block.expert is None:
            return Format(sync.shared_offer_encoding, sync.shared_offer_kept)
        return Format(sync.expert_encoding, sync.expert_kept)

    def mean_format(self, block: Block) -> Format:
        """Of what reducers make of several offers."""
        sync = self.manifest.sync
        if block.expert is None:
            return Format(sync.shared_update_encoding, sync.shared_update_kept)
        return Format(sync.expert_encoding, sync.expert_kept)

    def update_format(self, update: Update) -> Format:
        """An update that nobody reduced is an only offer. KeyError for a block that there is not."""
        block = self.by_id[update.block]
        return self.mean_format(block) if update.reducers else self.offer_format(block)

    def dtype_of(self, block: Block) -> Dtype:
        """The public dtype."""
        sync = self.manifest.sync
        if block.is_momentum:
            return "fp32"
        return sync.shared_dtype if block.expert is None else sync.expert_dtype

    def offer_bytes(self, block: Block) -> int:
        return self.offer_format(block).encoded_bytes(block.num_elements)

    def mean_bytes(self, block: Block) -> int:
        return self.mean_format(block).encoded_bytes(block.num_elements)

    def update_bytes(self, update: Update) -> int:
        return self.update_format(update).encoded_bytes(self.by_id[update.block].num_elements)

    def state_bytes(self, block: Block) -> int:
        """Size of this block's public state."""
        return block.num_elements * BYTES_PER_VALUE[self.dtype_of(block)]

    def _cut(self, prefix: str, expert: int | None, num_elements: int) -> Iterator[Block]:
        size = self.manifest.sync.block_elements
        for index, start in enumerate(range(0, num_elements, size)):
            yield Block(BlockId(f"{prefix}/{index:04d}"), expert, start, min(start + size, num_elements))


@dataclass(frozen=True)
class Layout(RunLayout):
    """… of a run that peers have agreed on."""

    manifest: Manifest
