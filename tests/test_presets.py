"""The run files that come with the program: the paper's models to the parameter, and its hyperparameters."""

from dataclasses import dataclass

import pytest

from spes_peer.model.decoder import Decoder
from spes_peer.run.checking import check_text, trains_bytes
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, RunFile, parse_run_file
from spes_peer.run.presets import PRESETS


@dataclass(frozen=True)
class Published:
    """Parameters and hyperparameters as the paper and its code have them."""

    num_shared: int
    num_in_experts: int
    num_subsets: int
    experts_per_subset: int
    lr: float
    warmup_steps: int
    sequence_length: int
    rope_theta: float


PAPER = {
    "spes-1b": Published(261_454_080, 905_969_664, 4, 4, 5e-4, 2000, 2048, 500_000),
    "spes-7b": Published(890_836_992, 6_442_450_944, 4, 8, 4e-4, 2000, 2048, 32_000),
    "spes-9b": Published(975_234_048, 8_455_716_864, 4, 2, 1e-4, 1000, 4096, 1_000_000),
}
LARGE = [name for name in PRESETS if name != "demo"]


def run_file_of(preset: str) -> RunFile:
    return parse_run_file(PRESETS[preset], preset)


def layout_of(preset: str, manifest: Manifest) -> Layout:
    sections = run_file_of(preset).model_dump()
    return Layout(Manifest.model_validate({**manifest.model_dump(), **sections, "data": made_up_data(manifest)}))


def made_up_data(manifest: Manifest) -> object:
    return manifest.data.model_dump()


@pytest.mark.parametrize("preset", PAPER)
def test_the_layout_counts_as_many_parameters_as_the_paper(preset: str, manifest: Manifest) -> None:
    layout, paper = layout_of(preset, manifest), PAPER[preset]
    assert layout.num_shared == paper.num_shared
    assert layout.num_per_expert * layout.manifest.model.num_experts == paper.num_in_experts
    assert sum(block.num_elements for block in layout.blocks) == paper.num_shared + paper.num_in_experts


@pytest.mark.parametrize("preset", LARGE)
def test_the_decoder_has_the_parameters_of_the_layout(preset: str, manifest: Manifest) -> None:
    layout = layout_of(preset, manifest)
    decoder = Decoder(layout.manifest.model, "meta", layout.manifest.training)
    assert sum(parameter.numel() for parameter in decoder.shared_parameters()) == layout.num_shared
    decoder.own((0, 1))
    assert sum(parameter.numel() for parameter in decoder.owned_parameters()) == 2 * layout.num_per_expert


@pytest.mark.parametrize("preset", PAPER)
def test_the_hyperparameters_are_the_papers(preset: str) -> None:
    run_file, paper = run_file_of(preset), PAPER[preset]
    model, training, sync = run_file.model, run_file.training, run_file.sync
    assert (training.lr, training.warmup_steps) == (paper.lr, paper.warmup_steps)
    assert (model.sequence_length, model.rope_theta) == (paper.sequence_length, paper.rope_theta)
    assert training.num_subsets == paper.num_subsets
    assert model.num_experts == paper.num_subsets * paper.experts_per_subset
    assert (training.weight_decay, training.clip_norm, training.z_loss) == (0.1, 1.0, 1e-4)
    assert training.steps_per_round == 50
    assert (sync.merge_warmup_steps, sync.merge_interval_steps) == (12_500, 300)
    assert 0.01 <= sync.merge_alpha <= 0.1


def test_only_the_upcycled_model_has_head_norms_and_renormalizes() -> None:
    kinds = {name: (run_file_of(name).model.qk_norm, run_file_of(name).model.renormalize_top_k) for name in PAPER}
    assert kinds == {"spes-1b": ("width", False), "spes-7b": ("width", False), "spes-9b": ("head", True)}


def test_the_stand_in_says_that_it_is_one_and_is_as_large_as_the_papers(manifest: Manifest) -> None:
    layout = layout_of("spes-2b", manifest)
    assert "stand-in" in PRESETS["spes-2b"].partition("\n")[0]
    assert layout.num_shared == pytest.approx(0.62e9, rel=0.01)
    assert layout.num_per_expert * 16 == pytest.approx(1.5e9, rel=0.01)
    assert (layout.manifest.model.num_experts, layout.manifest.training.num_subsets) == (16, 16)


@pytest.mark.parametrize("preset", PRESETS)
def test_nothing_is_wrong_with_a_preset(preset: str) -> None:
    assert check_text(PRESETS[preset], None).findings == ()


def test_the_demo_alone_trains_bytes_and_the_others_say_what_to_prepare() -> None:
    assert [name for name in PRESETS if trains_bytes(run_file_of(name))] == ["demo"]
    assert all("spes-peer data prepare --tokenizer" in PRESETS[name] for name in LARGE)


@pytest.mark.parametrize("preset", LARGE)
def test_a_lease_outlives_two_rounds_and_every_reducer_has_work(preset: str, manifest: Manifest) -> None:
    layout = layout_of(preset, manifest)
    timing, sync = layout.manifest.timing, layout.manifest.sync
    assert timing.lease_seconds > 2 * timing.round_seconds
    assert len(layout.shared_blocks) * sync.reducers_per_block >= 2 * layout.manifest.run.min_peers
    assert len(layout.blocks) < 1000
