"""The order and cut of all parameters: the published counts, and blocks that miss and repeat nothing."""

import itertools
from typing import NamedTuple

import pytest

from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, Model


class Published(NamedTuple):
    """A column of the table of configurations that the SPES authors published, and what it must count."""

    model: Model
    num_shared: int
    num_experts_all: int
    num_one_expert: int


SIZES = {
    "1B": Published(
        Model(
            d_model=768, num_layers=12, num_heads=12, num_kv_heads=12, num_experts=16, top_k=2, expert_hidden=2048,
            vocab_rows=151_665, sequence_length=2048, qk_norm="width",
        ),
        261_454_080, 905_969_664, 56_623_104,
    ),
    "7B": Published(
        Model(
            d_model=2048, num_layers=16, num_heads=16, num_kv_heads=16, num_experts=32, top_k=4, expert_hidden=2048,
            vocab_rows=151_665, sequence_length=2048, rope_theta=32_000, qk_norm="width",
        ),
        890_836_992, 6_442_450_944, 201_326_592,
    ),
    "9B": Published(
        Model(
            d_model=2048, num_layers=28, num_heads=16, num_kv_heads=8, num_experts=8, top_k=2, expert_hidden=6144,
            vocab_rows=151_936, sequence_length=4096, rope_theta=1_000_000, qk_norm="head", renormalize_top_k=True,
        ),
        975_234_048, 8_455_716_864, 1_056_964_608,
    ),
}  # fmt: skip


def layout_of(manifest: Manifest, size: str) -> Layout:
    sync = manifest.sync.model_copy(update={"block_elements": 16 << 20})
    return Layout(manifest.model_copy(update={"model": SIZES[size].model, "sync": sync}))


@pytest.mark.parametrize("size", SIZES)
def test_the_counts_are_the_published_ones(manifest: Manifest, size: str) -> None:
    layout, published = layout_of(manifest, size), SIZES[size]
    assert layout.num_shared == published.num_shared
    assert layout.num_per_expert == published.num_one_expert
    assert layout.num_per_expert * published.model.num_experts == published.num_experts_all


def layouts(manifest: Manifest) -> list[Layout]:
    return [Layout(manifest), *(layout_of(manifest, size) for size in SIZES)]


def test_parameters_tile_their_group_without_gap(manifest: Manifest) -> None:
    for layout in layouts(manifest):
        groups = ((layout.shared_parameters, layout.num_shared), (layout.expert_parameters, layout.num_per_expert))
        for parameters, size in groups:
            end = 0
            for parameter in parameters:
                assert parameter.offset == end
                end += parameter.num_elements
            assert end == size
            assert len({parameter.name for parameter in parameters}) == len(parameters)


def test_blocks_tile_every_group_without_gap_and_all_but_the_last_are_full(manifest: Manifest) -> None:
    for layout in layouts(manifest):
        full = layout.manifest.sync.block_elements
        groups = [(layout.shared_blocks, None, layout.num_shared)]
        groups += [
            (layout.expert_blocks(e), e, layout.num_per_expert) for e in range(layout.manifest.model.num_experts)
        ]
        for blocks, expert, size in groups:
            assert blocks[0].start == 0
            assert blocks[-1].end == size
            assert all(one.end == next.start for one, next in itertools.pairwise(blocks))
            assert all(block.num_elements == full for block in blocks[:-1])
            assert 0 < blocks[-1].num_elements <= full
            assert {block.expert for block in blocks} == {expert}
        assert layout.blocks == tuple(block for blocks, _, _ in groups for block in blocks)


def test_block_ids_are_unique_and_say_their_place(manifest: Manifest) -> None:
    layout = Layout(manifest)
    assert layout.shared_blocks[3].id == "shared/0003"
    assert layout.expert_blocks(3)[2].id == "expert/03/0002"
    assert len(layout.by_id) == len(layout.blocks)
    assert layout.by_id[layout.blocks[-1].id] is layout.blocks[-1]


def test_owners_offer_all_shared_blocks_and_those_of_their_experts(manifest: Manifest) -> None:
    layout = Layout(manifest)
    offered = layout.blocks_offered_by((1, 3))
    assert {block.expert for block in offered} == {None, *manifest.experts_of(1), *manifest.experts_of(3)}
    assert list(offered) == [block for block in layout.blocks if block in offered]
    assert layout.blocks_offered_by(()) == layout.shared_blocks
    everything = layout.blocks_offered_by(tuple(range(manifest.training.num_subsets)))
    assert everything == layout.blocks


def test_a_subset_is_the_one_whose_experts_the_manifest_names(manifest: Manifest) -> None:
    layout = Layout(manifest)
    assert layout.subset_of(layout.shared_blocks[0]) is None
    for subset in range(manifest.training.num_subsets):
        for expert in manifest.experts_of(subset):
            assert layout.subset_of(layout.expert_blocks(expert)[0]) == subset


def test_sizes_in_bytes_follow_the_encoding_and_the_public_dtype(manifest: Manifest) -> None:
    dtypes = {
        "shared_dtype": "fp32",
        "expert_dtype": "bf16",
        "shared_offer_encoding": "bf16",
        "expert_encoding": "fp32",
    }
    layout = Layout(manifest.model_copy(update={"sync": manifest.sync.model_copy(update=dtypes)}))
    for block, state_bytes, offer_bytes in [(layout.shared_blocks[-1], 4, 2), (layout.expert_blocks(0)[-1], 2, 4)]:
        assert layout.state_bytes(block) == state_bytes * block.num_elements
        assert layout.offer_bytes(block) == offer_bytes * block.num_elements


def test_the_demo_has_at_least_four_shared_blocks_so_that_several_peers_reduce(manifest: Manifest) -> None:
    assert len(Layout(manifest).shared_blocks) >= 4
