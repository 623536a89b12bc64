"""The public state: the same bits on every replica."""

import hashlib

import pytest
import torch
from torch import Tensor

from spes_peer.blobs import digests_of, name_of
from spes_peer.errors import BadMessage
from spes_peer.model.initial import initial_groups
from spes_peer.run.encodings import Dtype
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId
from spes_peer.sync.encoding import state_bytes
from spes_peer.sync.merge import merge_experts
from spes_peer.sync.state import PublicState

SHARED = BlockId("shared/0001")
EXPERT = BlockId("expert/03/0000")


def layout_of(manifest: Manifest, expert_dtype: Dtype) -> Layout:
    raw = manifest.model_dump(mode="json")
    raw["model"] |= {"d_model": 32, "expert_hidden": 16}
    raw["sync"] |= {"block_elements": 1024, "expert_dtype": expert_dtype}
    return Layout(Manifest.model_validate(raw))


@pytest.fixture(params=["fp32", "bf16"])
def layout(manifest: Manifest, request: pytest.FixtureRequest) -> Layout:
    return layout_of(manifest, request.param)


def genesis(layout: Layout) -> dict[BlockId, bytes]:
    groups = dict(initial_groups(layout.manifest, seed=1))
    return {
        block.id: state_bytes(layout.dtype_of(block), groups[block.expert][block.start : block.end])
        for block in layout.blocks
    }


def fresh(layout: Layout) -> PublicState:
    return PublicState.from_blocks(layout, genesis(layout).__getitem__)


def deltas_for(layout: Layout, seed: int = 0, *blocks: BlockId) -> dict[BlockId, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        block: torch.randn(layout.by_id[block].num_elements, generator=generator) * 1e-3
        for block in blocks or tuple(layout.by_id)
    }


def test_the_root_is_the_sha256_of_the_sorted_names_of_all_blocks(layout: Layout) -> None:
    blocks = genesis(layout)
    lines = sorted(f"{block} {name_of(digests_of(content))}\n" for block, content in blocks.items())
    assert fresh(layout).root() == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_state_goes_through_bytes_unchanged(layout: Layout) -> None:
    state = fresh(layout)
    state.apply(deltas_for(layout), merge_alpha=0.1)
    again = PublicState.from_blocks(layout, {b.id: state.block_bytes(b) for b in layout.blocks}.__getitem__)
    assert again.root() == state.root()
    assert [name.size_bytes for name in state.names()] == [layout.state_bytes(block) for block in layout.blocks]


def test_groups_are_their_blocks_in_order(layout: Layout) -> None:
    state = fresh(layout)
    groups = dict(initial_groups(layout.manifest, seed=1))
    assert torch.equal(state.group(None), groups[None])
    dtype = torch.float32 if layout.manifest.sync.expert_dtype == "fp32" else torch.bfloat16
    assert torch.equal(state.group(3), groups[3].to(dtype).float())
    assert state.group(3).dtype == torch.float32


def test_replicas_that_apply_the_same_are_equal_bit_for_bit(layout: Layout) -> None:
    first, second = fresh(layout), fresh(layout)
    for round_, alpha in enumerate((0.05, 0.0, 0.03)):
        deltas = deltas_for(layout, round_)
        backwards = dict(reversed(deltas.items()))
        found, other = first.apply(deltas, alpha), second.apply(backwards, alpha)
        assert found.keys() == other.keys()
        assert all(torch.equal(found[block], other[block]) for block in found)
        assert first.root() == second.root()
        recomputed = PublicState.from_blocks(layout, {b.id: first.block_bytes(b) for b in layout.blocks}.__getitem__)
        assert recomputed.root() == first.root()


def test_only_blocks_with_an_update_change(layout: Layout) -> None:
    state = fresh(layout)
    before = {name.block: name for name in state.names()}
    moved = state.apply(deltas_for(layout, 0, SHARED, EXPERT), merge_alpha=0.0)
    changed = {name.block for name in state.names() if name != before[name.block]}
    assert changed == set(moved) == {SHARED, EXPERT}


def test_an_update_is_added_and_rounded_to_the_public_dtype(layout: Layout) -> None:
    state = fresh(layout)
    before = state.block(layout.by_id[EXPERT])
    deltas = deltas_for(layout, 0, EXPERT)
    displacement = state.apply(deltas, merge_alpha=0.0)[EXPERT]
    dtype = torch.float32 if layout.manifest.sync.expert_dtype == "fp32" else torch.bfloat16
    assert torch.equal(state.block(layout.by_id[EXPERT]), (before + deltas[EXPERT]).to(dtype).float())
    assert torch.equal(displacement, deltas[EXPERT])  # not rounded


def test_a_merge_works_on_rounded_values_of_all_experts_and_is_rounded_again(layout: Layout) -> None:
    state, updated = fresh(layout), fresh(layout)
    deltas = deltas_for(layout, 0, SHARED, EXPERT)
    updated.apply(deltas, merge_alpha=0.0)
    before = {expert: updated.group(expert) for expert in range(8)}
    moved = state.apply(deltas, merge_alpha=0.2)
    merged = merge_experts(before, layout, 0.2)
    dtype = torch.float32 if layout.manifest.sync.expert_dtype == "fp32" else torch.bfloat16
    for expert in range(8):
        assert torch.equal(state.group(expert), merged[expert].to(dtype).float())
        for block in layout.expert_blocks(expert):
            by_merge = (merged[expert] - before[expert])[block.start : block.end]
            wanted = deltas[block.id] + by_merge if block.id in deltas else by_merge
            assert torch.equal(moved[block.id], wanted)
    assert torch.equal(state.group(None), updated.group(None))
    assert set(moved) == {SHARED} | {block.id for block in layout.blocks if block.expert is not None}


def test_a_delta_that_does_not_fit_leaves_the_state_as_it_was(layout: Layout) -> None:
    state = fresh(layout)
    root = state.root()
    with pytest.raises(ValueError, match="shared/0001"):
        state.apply({EXPERT: deltas_for(layout)[EXPERT], SHARED: torch.zeros(1)}, merge_alpha=0.0)
    assert state.root() == root
    assert torch.equal(state.group(3), fresh(layout).group(3))


def test_bytes_that_are_no_such_block_are_refused(layout: Layout) -> None:
    blocks = genesis(layout) | {EXPERT: b"\xff" * layout.state_bytes(layout.by_id[EXPERT])}
    with pytest.raises(BadMessage, match="finite"):
        PublicState.from_blocks(layout, blocks.__getitem__)
    blocks[EXPERT] = b""
    with pytest.raises(BadMessage, match="0 bytes"):
        PublicState.from_blocks(layout, blocks.__getitem__)
