"""The public state: the same bits on every replica."""

import hashlib
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from spes_peer.blobs import digests_of, name_of
from spes_peer.errors import BadMessage, BlobMissing, StateTorn
from spes_peer.model.initial import initial_groups
from spes_peer.run.encodings import Dtype
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId
from spes_peer.sync.encoding import state_bytes
from spes_peer.sync.state import PublicState

SHARED = BlockId("shared/0001")
EXPERT = BlockId("expert/03/0000")


def layout_of(manifest: Manifest, expert_dtype: Dtype, **sync: Any) -> Layout:
    raw = manifest.model_dump(mode="json")
    raw["model"] |= {"d_model": 32, "expert_hidden": 16}
    raw["sync"] |= {"block_elements": 1024, "expert_dtype": expert_dtype, **sync}
    return Layout(Manifest.model_validate(raw))


@pytest.fixture(params=["fp32", "bf16"])
def layout(manifest: Manifest, request: pytest.FixtureRequest) -> Layout:
    return layout_of(manifest, request.param)


@pytest.fixture(params=["fp32", "bf16"])
def nesterov(manifest: Manifest, request: pytest.FixtureRequest) -> Layout:
    return layout_of(manifest, request.param, shared_outer="nesterov", expert_outer="nesterov")


def genesis(layout: Layout) -> dict[BlockId, bytes]:
    groups = dict(initial_groups(layout.manifest, seed=1))
    return {
        block.id: bytes(layout.state_bytes(block))
        if block.is_momentum
        else state_bytes(layout.dtype_of(block), groups[block.expert][block.start : block.end])
        for block in layout.state_blocks
    }


def fresh(layout: Layout) -> PublicState:
    return PublicState.from_blocks(layout, genesis(layout).__getitem__)


def again(state: PublicState) -> PublicState:
    """The state, through bytes."""
    blocks = {block.id: state.block_bytes(block) for block in state.layout.state_blocks}
    return PublicState.from_blocks(state.layout, blocks.__getitem__)


def move(state: PublicState, deltas: dict[BlockId, Tensor], merge_alpha: float = 0.0) -> dict[BlockId, Tensor]:
    """Apply, as the owner of all experts."""
    return state.apply(tuple(deltas), deltas.__getitem__, merge_alpha, range(8)).displaced


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
    move(state, deltas_for(layout), merge_alpha=0.1)
    assert again(state).root() == state.root()
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
        found, other = move(first, deltas, alpha), move(second, backwards, alpha)
        assert found.keys() == other.keys()
        assert all(torch.equal(found[block], other[block]) for block in found)
        assert first.root() == second.root()
        assert again(first).root() == first.root()


def test_only_blocks_with_an_update_change(layout: Layout) -> None:
    state = fresh(layout)
    before = {name.block: name for name in state.names()}
    move(state, deltas_for(layout, 0, SHARED, EXPERT))
    assert {name.block for name in state.names() if name != before[name.block]} == {SHARED, EXPERT}


def test_a_bit_that_the_memory_has_flipped_is_found_with_the_next_record(layout: Layout) -> None:
    """Also in a block that the record does not change."""
    sound, flipped = fresh(layout), fresh(layout)
    assert sound.root() == flipped.root()
    values = flipped._blocks[EXPERT].view(torch.uint8)
    values[3] ^= 0x10
    for state in (sound, flipped):
        move(state, deltas_for(layout, 0, SHARED))
    assert sound.root() != flipped.root()
    assert [name.block for name, other in zip(sound.names(), flipped.names(), strict=True) if name != other] == [EXPERT]


def test_displacements_are_those_of_tracked_experts_only(layout: Layout) -> None:
    deltas = deltas_for(layout, 0, SHARED, EXPERT, BlockId("expert/04/0000"))
    first, second = fresh(layout), fresh(layout)
    assert set(first.apply(tuple(deltas), deltas.__getitem__, 0.0, {3}).displaced) == {EXPERT}
    assert set(first.apply((), deltas.__getitem__, 0.1, {3}).displaced) == {
        block.id for block in layout.expert_blocks(3)
    }
    second.apply(tuple(deltas), deltas.__getitem__, 0.0)
    assert second.apply((), deltas.__getitem__, 0.1).displaced == {}
    assert second.root() == first.root()


def test_an_update_is_added_and_rounded_to_the_public_dtype(layout: Layout) -> None:
    state = fresh(layout)
    before = state.block(layout.by_id[EXPERT]).clone()
    deltas = deltas_for(layout, 0, EXPERT)
    displacement = move(state, deltas)[EXPERT]
    dtype = torch.float32 if layout.manifest.sync.expert_dtype == "fp32" else torch.bfloat16
    assert torch.equal(state.block(layout.by_id[EXPERT]), (before + deltas[EXPERT]).to(dtype).float())
    assert torch.equal(displacement, deltas[EXPERT])  # not rounded


def test_a_merge_works_on_rounded_values_of_all_experts_and_is_rounded_again(layout: Layout) -> None:
    state, stepwise = fresh(layout), fresh(layout)
    deltas = deltas_for(layout, 0, SHARED, EXPERT)
    move(stepwise, deltas)
    shared, experts = stepwise.group(None), [stepwise.group(expert) for expert in range(8)]
    by_merge = move(stepwise, {}, merge_alpha=0.2)
    displaced = move(state, deltas, merge_alpha=0.2)
    assert state.root() == stepwise.root()
    assert torch.equal(state.group(None), shared)
    assert set(displaced) == {block.id for block in layout.blocks if block.expert is not None}
    dtype = torch.float32 if layout.manifest.sync.expert_dtype == "fp32" else torch.bfloat16
    for expert, before in enumerate(experts):
        for block in layout.expert_blocks(expert):
            step = by_merge[block.id]
            wanted = (before[block.start : block.end] + step).to(dtype).float()
            assert torch.equal(state.block(block), wanted)
            assert torch.equal(displaced[block.id], deltas[block.id] + step if block.id in deltas else step)
    assert torch.equal(deltas[EXPERT], deltas_for(layout, 0, SHARED, EXPERT)[EXPERT])


@pytest.mark.parametrize("name", [BlockId("shared/0001"), BlockId("expert/03/0000")])
def test_the_outer_step_is_sgd_with_nesterov_momentum_on_the_negated_update(nesterov: Layout, name: BlockId) -> None:
    block = nesterov.by_id[name]
    state, exact = fresh(nesterov), nesterov.dtype_of(block) == "fp32"
    weights = torch.nn.Parameter(state.block(block).clone())
    sync = nesterov.manifest.sync
    reference = torch.optim.SGD([weights], lr=sync.outer_lr, momentum=sync.outer_momentum, nesterov=True)
    master = weights.detach().clone()
    for step in range(5):
        deltas = deltas_for(nesterov, step, name)
        displaced = move(state, deltas)
        master += displaced.get(name, torch.zeros(()))
        weights.grad = -deltas[name]
        reference.step()
        momentum = state.block(nesterov.momentum_of(block))
        torch.testing.assert_close(momentum, -reference.state[weights]["momentum_buffer"], rtol=1e-6, atol=1e-9)
        tolerance = 1e-6 if exact else 2e-3  # each step rounds to bf16
        torch.testing.assert_close(state.block(block), weights.detach(), rtol=tolerance, atol=tolerance)
    if block.expert is not None:
        torch.testing.assert_close(master, weights.detach(), rtol=1e-6, atol=1e-6)  # displacements are not rounded


def test_replicas_with_outer_momentum_are_equal_bit_for_bit_also_from_a_snapshot(nesterov: Layout) -> None:
    first, second = fresh(nesterov), fresh(nesterov)
    for round_, alpha in enumerate((0.0, 0.05, 0.0)):
        for state in (first, second):
            move(state, deltas_for(nesterov, round_), alpha)
        assert first.root() == second.root()
        second = again(first)
    assert [name.block for name in first.names()] == [block.id for block in nesterov.state_blocks]
    assert [name.size_bytes for name in first.names()] == [nesterov.state_bytes(one) for one in nesterov.state_blocks]


def test_a_block_without_an_update_keeps_its_momentum_and_the_root_covers_it(nesterov: Layout) -> None:
    state = fresh(nesterov)
    move(state, deltas_for(nesterov))
    before = {name.block: name for name in state.names()}
    move(state, deltas_for(nesterov, 1, SHARED))
    changed = {name.block for name in state.names() if name != before[name.block]}
    assert changed == {SHARED, BlockId(f"{SHARED}/momentum")}
    blocks = {block.id: state.block_bytes(block) for block in nesterov.state_blocks}
    blocks[BlockId(f"{SHARED}/momentum")] = bytes(len(blocks[BlockId(f"{SHARED}/momentum")]))
    assert PublicState.from_blocks(nesterov, blocks.__getitem__).root() != state.root()


def test_without_momentum_the_outer_step_is_lr_times_the_update(manifest: Manifest) -> None:
    layout = layout_of(manifest, "fp32", expert_outer="nesterov", outer_momentum=0.0, outer_lr=0.5)
    state, deltas = fresh(layout), deltas_for(layout, 0, SHARED, EXPERT)
    before = {block: state.block(layout.by_id[block]).clone() for block in deltas}
    assert torch.equal(move(state, deltas)[EXPERT], deltas[EXPERT] * 0.5)
    assert torch.equal(state.block(layout.by_id[EXPERT]), before[EXPERT] + deltas[EXPERT] * 0.5)
    assert torch.equal(state.block(layout.by_id[SHARED]), before[SHARED] + deltas[SHARED])  # "mean" for shared ones
    assert len(state.names()) == len(layout.blocks)


def test_updates_are_decoded_one_after_another(layout: Layout) -> None:
    """Of all deltas no more than one is there at a time, whatever their number."""
    state, deltas = fresh(layout), deltas_for(layout)
    alive: list[weakref.ref[Tensor]] = []

    def delta_of(block_id: BlockId) -> Tensor:
        assert sum(one() is not None for one in alive) <= 1
        delta = deltas[block_id].clone()
        alive.append(weakref.ref(delta))
        return delta

    state.apply(tuple(deltas), delta_of, 0.0)
    assert len(alive) == 2 * len(deltas)


def test_a_delta_of_another_shape_leaves_the_state_as_it_was(layout: Layout) -> None:
    state = fresh(layout)
    root = state.root()
    with pytest.raises(ValueError, match="shared/0001"):
        move(state, {EXPERT: deltas_for(layout)[EXPERT], SHARED: torch.zeros(1)})
    assert state.root() == root


def test_updates_that_cannot_be_read_or_would_not_be_finite_are_left_out_and_named(layout: Layout) -> None:
    """They are the same bytes for everybody; a state that refused the record would never move again."""
    state, plain, good = fresh(layout), fresh(layout), deltas_for(layout, 0, EXPERT)
    for one in (state, plain):
        move(one, {SHARED: torch.full((1024,), 3e38)})
    unreadable = layout.shared_blocks[0].id

    def delta_of(block_id: BlockId) -> Tensor:
        if block_id == unreadable:
            raise BadMessage("a scale that is none")
        return torch.full((1024,), 3.4e38) if block_id == SHARED else good[block_id]

    moved = state.apply((unreadable, SHARED, EXPERT), delta_of, 0.0, {layout.by_id[EXPERT].expert})  # type: ignore[arg-type]
    assert set(moved.displaced) == {EXPERT}
    assert moved.bad.keys() == {unreadable, SHARED}
    assert "a scale that is none" in moved.bad[unreadable]
    assert "not finite" in moved.bad[SHARED]
    move(plain, good)
    assert state.root() == plain.root()


def test_a_state_that_stopped_half_way_is_of_no_use_any_more(layout: Layout) -> None:
    state, deltas = fresh(layout), deltas_for(layout, 0, SHARED, EXPERT)
    num_calls = 0

    def delta_of(block_id: BlockId) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 4:
            raise BlobMissing("the disk is gone")
        return deltas[block_id]

    with pytest.raises(StateTorn, match=r"must be loaded anew: the disk is gone"):
        state.apply(tuple(deltas), delta_of, 0.0)
    for use in (state.root, lambda: state.group(None), lambda: move(state, deltas)):
        with pytest.raises(StateTorn, match="must be loaded anew"):
            use()


def test_bytes_that_are_no_such_block_are_refused(layout: Layout) -> None:
    blocks = genesis(layout) | {EXPERT: b"\xff" * layout.state_bytes(layout.by_id[EXPERT])}
    with pytest.raises(BadMessage, match="finite"):
        PublicState.from_blocks(layout, blocks.__getitem__)
    blocks[EXPERT] = b""
    with pytest.raises(BadMessage, match="0 bytes"):
        PublicState.from_blocks(layout, blocks.__getitem__)
