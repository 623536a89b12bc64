"""The expert merge against the formula of SPES §1.4."""

from functools import partial

import pytest
import torch
from memory_meter import peak_bytes
from torch import Tensor

from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId
from spes_peer.sync import merge as merge_module
from spes_peer.sync.merge import donors_of, merge_experts


def layout_of(manifest: Manifest, num_experts: int, block_elements: int = 1024, **model: int) -> Layout:
    raw = manifest.model_dump(mode="json")
    raw["model"] |= {"num_experts": num_experts, "top_k": 1, "d_model": 24, "num_layers": 2, "expert_hidden": 40}
    raw["model"] |= model
    raw["training"] |= {"num_subsets": 1}
    raw["sync"] |= {"block_elements": block_elements}
    return Layout(Manifest.model_validate(raw))


def drawn_groups(layout: Layout) -> list[Tensor]:
    """Experts with something in common, so that similarities differ in size and sign."""
    generator = torch.Generator().manual_seed(7)
    size = layout.num_per_expert
    common = torch.randn(size, generator=generator)
    experts = range(layout.manifest.model.num_experts)
    return [torch.randn(size, generator=generator) + common * (e % 3 - 1) for e in experts]


def cut(layout: Layout, groups: list[Tensor], dtype: torch.dtype = torch.float32) -> dict[BlockId, Tensor]:
    return {
        block.id: groups[block.expert][block.start : block.end].to(dtype, copy=True)
        for block in layout.blocks
        if block.expert is not None
    }


def merged(layout: Layout, groups: list[Tensor], alpha: float, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    blocks = cut(layout, groups, dtype)
    merge_experts(layout, blocks, alpha, {})
    return [torch.cat([blocks[block.id] for block in layout.expert_blocks(e)]).float() for e in range(len(groups))]


def reference(groups: list[Tensor], layout: Layout, alpha: float) -> Tensor:
    """E experts × layers × (w1, v1, w2) × matrix."""
    before = torch.stack(groups).double().view(len(groups), layout.manifest.model.num_layers, 3, -1)
    w1 = before[:, :, 0]
    similarity = torch.cosine_similarity(w1[:, None], w1[None], dim=-1)  # E × E × layers
    similarity.diagonal().fill_(-2)
    donors = similarity.topk(min(4, len(groups) - 1), dim=1).indices  # E × 4 × layers
    means = torch.stack([before[donors[..., layer], layer].mean(1) for layer in range(before.shape[1])], 1)
    after: Tensor = before + alpha * (means - before)
    return after.flatten(1).float()


@pytest.mark.parametrize("num_experts", [2, 3, 5, 8, 12])
def test_experts_move_towards_the_mean_of_their_donors(manifest: Manifest, num_experts: int) -> None:
    layout = layout_of(manifest, num_experts)
    groups = drawn_groups(layout)
    found = torch.stack(merged(layout, groups, 0.1))
    torch.testing.assert_close(found, reference(groups, layout, 0.1), rtol=1e-6, atol=1e-6)
    assert not torch.equal(found, torch.stack(groups))


def test_one_expert_alone_stays_as_it_is(manifest: Manifest) -> None:
    layout = layout_of(manifest, 1)
    groups = drawn_groups(layout)
    assert torch.equal(merged(layout, groups, 0.1)[0], groups[0])


def test_what_moves_is_rounded_once_and_its_displacement_is_not(manifest: Manifest) -> None:
    layout = layout_of(manifest, 5)
    groups = [flat.bfloat16().float() for flat in drawn_groups(layout)]
    blocks = cut(layout, groups, torch.bfloat16)
    ours = {block.id: torch.full((block.num_elements,), 5.0) for block in layout.expert_blocks(2)}
    merge_experts(layout, blocks, 0.1, ours)
    exact = merged(layout, groups, 0.1)
    for expert, block in ((e, block) for e in range(5) for block in layout.expert_blocks(e)):
        values = exact[expert][block.start : block.end]
        assert torch.equal(blocks[block.id], values.bfloat16())
        if expert == 2:
            by_merge = values - groups[2][block.start : block.end]
            torch.testing.assert_close(ours[block.id] - 5.0, by_merge, rtol=0, atol=1e-6)  # what 5 + x keeps of x


def test_layers_choose_their_own_donors() -> None:
    near, far = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 1.0])
    w1 = torch.stack([torch.tensor([1.0, 0.0]), near, far, near * 2, near + 0.1, -near])
    assert donors_of([w1])[0] == (1, 2, 3, 4)  # 5 points the other way


def test_equally_similar_experts_go_by_index_whatever_their_last_digits() -> None:
    base = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    copies = base.repeat(8, 1)
    copies[1] = base * 3  # as similar, but for the last digits of its similarity
    donors = donors_of([copies[:, :3000], copies[:, 3000:]])
    assert donors[0] == (1, 2, 3, 4)
    assert donors[2] == (0, 1, 3, 4)
    assert donors[7] == (0, 1, 2, 3)


def test_an_expert_of_zeros_is_similar_to_none_and_breaks_nothing() -> None:
    assert donors_of([torch.cat([torch.eye(3) + 0.1, torch.zeros(1, 3)])])[3] == (0, 1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_depend_neither_on_blocks_nor_on_pieces_nor_on_threads(
    manifest: Manifest, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = drawn_groups(layout_of(manifest, 8))
    wanted = merged(layout_of(manifest, 8), groups, 0.3, dtype)
    threads = torch.get_num_threads()
    try:
        for num_threads, piece, block_elements in ((1, 1 << 17, 4096), (2, 1 << 17, 1024), (1, 7 * 8, 1 << 16)):
            torch.set_num_threads(num_threads)
            monkeypatch.setattr(merge_module, "_PIECE_VALUES", piece)
            found = merged(layout_of(manifest, 8, block_elements), groups, 0.3, dtype)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_a_large_merge_has_the_same_bits_with_one_and_two_threads_and_takes_less_than_one_matrix(
    manifest: Manifest,
) -> None:
    """Experts that are large enough for BLAS and torch to share the work out."""
    layout = layout_of(manifest, 8, 1 << 20, d_model=1024, expert_hidden=1024, num_layers=1)
    groups = drawn_groups(layout)
    blocks = [cut(layout, groups, torch.bfloat16) for _ in range(2)]
    del groups
    threads = torch.get_num_threads()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            peak = peak_bytes(partial(merge_experts, layout, blocks[num_threads - 1], 0.1, {}))
            assert 1 << 20 < peak < layout.expert_parameters[0].num_elements * 4
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(blocks[0][block_id], blocks[1][block_id]) for block_id in blocks[0])
