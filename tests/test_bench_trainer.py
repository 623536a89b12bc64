"""The benchmark of the trainer runs the code that trains, and reports ratios."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spes_peer.bench.command import add_bench_command, add_trainer_arguments
from spes_peer.bench.measure import interleaved_seconds, peak_bytes
from spes_peer.bench.rivals import OfficialExperts, full_logits_loss
from spes_peer.bench.trainer import _expert_weights, _ours, run_bench, step_flops
from spes_peer.errors import BadConfiguration
from spes_peer.model.losses import head_losses, route
from spes_peer.run.manifest import parse_run_file
from spes_peer.run.presets import PRESETS

CPU = torch.device("cpu")


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_trainer_arguments(parser)
    return parser.parse_args(["--quick", "--device", "cpu", *arguments])


def test_the_report_has_every_ratio_and_names_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.bench.trainer.transformers_model", _not_installed)
    path = tmp_path / "report.json"
    report = run_bench(options("--preset", "demo", "--report", str(path)))
    assert json.loads(path.read_text()) == report
    for ratio in ("own_vs_full", "own_vs_official_layer", "head_time_ratio", "head_bytes_ratio"):
        assert report[ratio] > 0
    assert "transformers is not installed" in report["own_vs_transformers"]
    assert report["preset"] == "demo"
    assert report["tokens_per_second"] > 0


def _not_installed(*_: object) -> None:
    raise ImportError


def test_transformers_model_of_the_same_shape_is_measured_where_it_is_installed() -> None:
    pytest.importorskip("transformers")
    report = run_bench(options("--preset", "demo"))
    assert report["own_vs_transformers"] > 0
    assert report["transformers"].startswith("transformers 5")


def test_the_official_style_computes_what_ours_does_and_trains_the_owned_experts_alone() -> None:
    torch.manual_seed(0)
    values = [torch.randn(6, 24, 16) / 4, torch.randn(6, 24, 16) / 4, torch.randn(6, 16, 24) / 4]
    x = torch.randn(40, 16)
    routing = route(x, torch.randn(6, 16), 2, renormalize=False)
    official = OfficialExperts((values[0], values[1], values[2]), num_owned=2)
    theirs = official(x, routing)
    theirs.square().sum().backward()
    weights = _expert_weights(values, 2, torch.float32)
    ours = _ours(x, routing, weights)
    ours.square().sum().backward()
    torch.testing.assert_close(ours, theirs)
    for matrix, experts in zip(weights.matrices(), (official.w1, official.v1, official.w2), strict=True):
        gradients: list[Tensor | None] = [expert.grad for expert in experts]
        assert [gradient is not None for gradient in gradients] == [True, True, False, False, False, False]
        torch.testing.assert_close(matrix.master.grad, torch.stack(gradients[:2]))


def test_full_logits_give_the_loss_of_chunks() -> None:
    torch.manual_seed(0)
    x, head, target = torch.randn(20, 8), torch.randn(30, 8), torch.randint(30, (20,))
    torch.testing.assert_close(full_logits_loss(x, head, target, 0.1), head_losses(x, head, target, 0.1).total)


def test_the_chunked_head_needs_a_fraction_of_the_memory_of_full_logits() -> None:
    """As at vocabulary 151,665 and 2048 tokens of d_model 768, all made smaller by a factor of about 16."""
    x, head = torch.randn(2048, 48, requires_grad=True), torch.randn(9479, 48, requires_grad=True)
    target = torch.randint(9479, (2048,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spes_peer.model.losses._CHUNK_LOGITS", 40_000_000 // 16)
        ours = peak_bytes(lambda: head_losses(x, head, target, 1e-4).total.backward(), CPU)
    assert ours < 0.15 * peak_bytes(lambda: full_logits_loss(x, head, target, 1e-4).backward(), CPU)


def test_peak_bytes_counts_what_lives_at_one_time() -> None:
    def work() -> None:
        for _ in range(3):
            torch.empty(1000, 256)
        kept = torch.empty(1000, 256)
        torch.empty(500, 256)
        del kept

    assert peak_bytes(work, CPU) == pytest.approx(1500 * 1024, rel=0.01)


def test_calls_are_interleaved_after_one_turn_of_warming_up() -> None:
    order: list[str] = []
    seconds = interleaved_seconds({name: (lambda name=name: order.append(name)) for name in "ab"}, 2, CPU)
    assert order == ["a", "b"] * 3
    assert set(seconds) == {"a", "b"}


def test_flops_of_a_step_count_owned_gradients_alone() -> None:
    """6 FLOPs for each weight a token meets, if all are trained: the 1B model has about 375 million of those."""
    run_file = parse_run_file(PRESETS["spes-1b"])
    everything = step_flops(run_file.model, run_file.training.model_copy(update={"num_subsets": 1}), 1, 2048)
    experts = 3 * 768 * 2048 * 2 * 12
    met = 261_454_080 - 151_665 * 768 + experts
    attention = 6 * 12 * 2048 * 2048 * 768
    assert everything == pytest.approx(6 * 2048 * met + attention, rel=1e-3)
    owned = step_flops(run_file.model, run_file.training, 1, 2048)
    assert everything - owned == pytest.approx(2 * 2048 * experts * 3 / 4)


def test_a_device_there_is_not_is_a_clear_error() -> None:
    chosen = options()
    chosen.device = "cuda:77"
    with pytest.raises(BadConfiguration, match="cuda:77"):
        run_bench(chosen)


def test_the_command_line_knows_the_options() -> None:
    parser = argparse.ArgumentParser()
    add_bench_command(parser.add_subparsers())
    parsed = parser.parse_args(["bench", "trainer", "--preset", "demo", "--quick"])
    assert (parsed.preset, parsed.quick, parsed.report) == ("demo", True, None)
    assert callable(parsed.run)
