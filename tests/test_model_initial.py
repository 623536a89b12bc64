"""Genesis values."""

import pytest
import torch

from spes_peer.model.initial import initial_groups
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest


def test_initial_matrices_are_truncated_normal_and_norms_one(manifest: Manifest) -> None:
    layout = Layout(manifest)
    groups = list(initial_groups(manifest, seed=1))
    assert [expert for expert, _ in groups] == [None, *range(8)]
    shared = groups[0][1]
    for parameter in layout.shared_parameters:
        values = shared[parameter.offset : parameter.offset + parameter.num_elements]
        if "norm" in parameter.name:
            assert (values == 1).all()
        else:
            assert values.abs().max() <= 0.06
    for _, flat in groups[1:]:
        assert flat.numel() == layout.num_per_expert
        assert flat.abs().max() <= 0.06
        assert flat.mean().abs() < 2e-4
        assert flat.std().item() == pytest.approx(0.02 * 0.9866, rel=0.01)  # a cut at 3 std takes 1.3 % of std


def test_initial_values_follow_the_seed(manifest: Manifest) -> None:
    first, again, other = (dict(initial_groups(manifest, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[expert], again[expert]) for expert in first)
    assert not torch.equal(first[None], other[None])
    assert not torch.equal(first[0], first[1])
