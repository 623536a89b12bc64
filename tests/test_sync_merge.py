"""The expert merge against the formula of SPES §1.4."""

import pytest
import torch
from torch import Tensor

from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.sync import merge as merge_module
from spes_peer.sync.merge import donors_of, merge_experts


def layout_of(manifest: Manifest, num_experts: int) -> Layout:
    raw = manifest.model_dump(mode="json")
    raw["model"] |= {"num_experts": num_experts, "top_k": 1, "d_model": 16, "num_layers": 2, "expert_hidden": 8}
    raw["training"] |= {"num_subsets": 1}
    return Layout(Manifest.model_validate(raw))


def drawn_groups(layout: Layout) -> dict[int, Tensor]:
    """Experts with something in common, so that similarities differ in size and sign."""
    generator = torch.Generator().manual_seed(7)
    size = layout.num_per_expert
    common = torch.randn(size, generator=generator)
    experts = range(layout.manifest.model.num_experts)
    return {e: torch.randn(size, generator=generator) + common * (e % 3 - 1) for e in experts}


def reference(groups: dict[int, Tensor], layout: Layout, alpha: float) -> dict[int, Tensor]:
    merged = {expert: flat.double().clone() for expert, flat in groups.items()}
    width = layout.num_per_expert // layout.manifest.model.num_layers
    for start in range(0, layout.num_per_expert, width):
        w1 = {expert: flat[start : start + width // 3].double() for expert, flat in groups.items()}
        for expert, flat in groups.items():
            others = sorted(
                (other for other in groups if other != expert),
                key=lambda other: -torch.cosine_similarity(w1[expert], w1[other], dim=0).item(),
            )[:4]
            if others:
                mean = torch.stack([groups[other][start : start + width].double() for other in others]).mean(0)
                own = flat[start : start + width].double()
                merged[expert][start : start + width] = own + alpha * (mean - own)
    return merged


@pytest.mark.parametrize("num_experts", [1, 2, 3, 5, 12])
def test_experts_move_towards_the_mean_of_their_donors(manifest: Manifest, num_experts: int) -> None:
    layout = layout_of(manifest, num_experts)
    groups = drawn_groups(layout)
    before = {expert: flat.clone() for expert, flat in groups.items()}
    merged = merge_experts(groups, layout, 0.1)
    for expert, wanted in reference(groups, layout, 0.1).items():
        torch.testing.assert_close(merged[expert], wanted.float(), rtol=1e-6, atol=1e-6)
        assert torch.equal(groups[expert], before[expert])  # donors were taken before the merge


def test_layers_choose_their_own_donors() -> None:
    near, far = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 1.0])
    w1 = {0: torch.tensor([1.0, 0.0]), 1: near, 2: far, 3: near * 2, 4: near + 0.1, 5: -near}
    assert donors_of(w1)[0] == (1, 2, 3, 4)  # 5 points the other way


def test_equally_similar_experts_go_by_index_whatever_their_last_digits() -> None:
    base = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    copies = {expert: base.clone() for expert in range(8)}
    copies[1] = base * 3  # as similar, but for the last digits of its similarity
    donors = donors_of(copies)
    assert donors[0] == (1, 2, 3, 4)
    assert donors[2] == (0, 1, 3, 4)
    assert donors[7] == (0, 1, 2, 3)


def test_an_expert_of_zeros_is_similar_to_none_and_breaks_nothing() -> None:
    w1 = {expert: torch.eye(3)[expert] + 0.1 for expert in range(3)} | {3: torch.zeros(3)}
    assert donors_of(w1)[3] == (0, 1, 2)


def test_similarities_do_not_depend_on_the_columns_taken_at_a_time(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(manifest, 12)
    groups = drawn_groups(layout)
    whole = merge_experts(groups, layout, 0.3)
    monkeypatch.setattr(merge_module, "_GRAM_COLUMNS", 7)
    assert all(torch.equal(found, whole[expert]) for expert, found in merge_experts(groups, layout, 0.3).items())
