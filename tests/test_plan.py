"""The memory plan: that it predicts what a step takes, what it chooses, and what a person sees of it."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_meter import peak_bytes
from training_swarm import PEERS, Swarm

from spes_peer.data.sampler import Batch
from spes_peer.errors import BadConfiguration
from spes_peer.measures import size
from spes_peer.model import losses, resident
from spes_peer.model.decoder import Decoder
from spes_peer.run.manifest import RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.training import optimizer, plan
from spes_peer.training.ahead import Begun, Steps
from spes_peer.training.choices import Checkpointing, Choices
from spes_peer.training.optimizer import LocalOptimizer
from spes_peer.training.plan import Plan, choices_for, memory_plan
from spes_peer.training.plan_command import add_plan_command
from spes_peer.training.stepping import Stepper

GB = 10**9
PLENTY = 1 << 50


def run_file(num_subsets: int = 4, **model: Any) -> RunFile:
    raw = parse_run_file(PRESETS["demo"]).model_dump()
    raw["model"] |= {"num_kv_heads": 2, "num_layers": 2, "vocab_rows": 1024} | model
    raw["training"]["num_subsets"] = num_subsets
    return RunFile.model_validate(raw)


def step(run: RunFile, choices: Choices, planned: Plan, device: str) -> None:
    """Two steps as a trainer makes them, each over two micro-batches; random data."""
    torch.set_num_threads(1)
    decoder = Decoder(
        run.model, device, run.training, resident=choices.resident, checkpointing=choices.checkpointing == "on"
    )
    for parameter in decoder.shared_parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    adam = LocalOptimizer(decoder, run.training, choices.optimizer_bits)
    adam.own(tuple(range(planned.num_subsets * run.model.num_experts // run.training.num_subsets)))
    stepper = Stepper(decoder, adam, run.training, planned.micro_batch, may_recompute=False)
    for _ in range(2):
        tokens = torch.randint(0, run.model.vocab_rows, (2 * planned.micro_batch, run.model.sequence_length))
        assert stepper.step(Batch(tokens, tokens), 1e-3) is not None


def plan_of(run: RunFile, choices: Choices, num_subsets: int, micro_batch: int) -> Plan:
    run = run.model_copy(update={"training": run.training.model_copy(update={"batch_sequences": micro_batch})})
    return memory_plan(run, PLENTY, choices, num_subsets)


CONFIGS = {
    "activations": (run_file(num_layers=4), Choices(False, "fp32", "off"), 1, 4),
    "activations made again": (run_file(num_layers=4), Choices(False, "fp32", "on"), 1, 4),
    "a large vocabulary": (run_file(vocab_rows=16384), Choices(False, "fp32", "off"), 1, 1),
    "int4, two subsets": (run_file(d_model=256, expert_hidden=512), Choices(False, "int4", "off"), 2, 1),
    "bf16, all subsets, top 4": (run_file(top_k=4, qk_norm="head"), Choices(False, "bf16", "off"), 4, 4),
}


@pytest.mark.parametrize(("run", "choices", "num_subsets", "micro_batch"), CONFIGS.values(), ids=CONFIGS)
def test_a_step_takes_what_the_plan_says(run: RunFile, choices: Choices, num_subsets: int, micro_batch: int) -> None:
    planned = plan_of(run, choices, num_subsets, micro_batch)
    assert planned.micro_batch == micro_batch
    measured = peak_bytes(lambda: step(run, choices, planned, "cpu"))
    assert planned.total_bytes == pytest.approx(measured, rel=0.05)  # 0.15 is promised


def test_a_step_with_everything_on_takes_what_the_plan_says() -> None:
    pytest.importorskip("torchao")
    run, choices = run_file(vocab_rows=8192), Choices(False, "int8", "on", 8)
    planned = plan_of(run, choices, 1, 2)
    measured = peak_bytes(lambda: step(run, choices, planned, "cpu"))
    assert planned.total_bytes == pytest.approx(measured, rel=0.15)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("checkpointing", ["on", "off"])
def test_a_step_on_a_gpu_takes_what_the_plan_says(checkpointing: Checkpointing) -> None:
    run = run_file(d_model=1024, num_heads=8, num_kv_heads=8, expert_hidden=1024, sequence_length=1024)
    choices = Choices(True, "bf16", checkpointing)
    planned = plan_of(run, choices, 1, 8)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(run, choices, planned, "cuda")
    assert planned.total_bytes == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.15)


HOST = {
    "bf16": {},
    "topk with overlap and momentum": {
        "shared_offer_encoding": "topk", "expert_encoding": "topk", "overlap_steps": 2,
        "shared_outer": "nesterov", "expert_outer": "nesterov",
    },
}  # fmt: skip


@pytest.mark.parametrize("sync", HOST.values(), ids=HOST)
def test_accounts_and_the_public_state_take_what_the_plan_says(sync: dict[str, Any], tmp_path: Path) -> None:
    """Two trainers, each of which reduces everything; parameters large beside blocks and activations."""
    sizes = {"d_model": 64, "expert_hidden": 256, "vocab_rows": 4096}
    swarm = Swarm.create(tmp_path, (0,), (1,), model=sizes, merge_alpha=0.05, **sync)
    trainer, manifest = swarm.trainers[PEERS[0]], swarm.manifest
    run = manifest.model_copy(update={"run": manifest.run.model_copy(update={"min_peers": 2})})
    planned = {row.what: row.size_bytes for row in memory_plan(run, PLENTY, Choices(False, "fp32"), 1).host_rows}
    assert planned["public state"] == sum(trainer._layout.state_bytes(one) for one in trainer._layout.state_blocks)

    swarm.updates(swarm.train())
    ledger, ahead = trainer._ledger, trainer._ahead
    held = [*ledger.residuals().values(), *(lost for lost, _ in ledger._lost.values())]
    held += [ahead.encoded] if ahead is not None else []
    waiting = sum(len(content) for content in ledger._unanswered.values())
    accounts = waiting + sum(values.nbytes for values in held)
    assert planned["residuals and offers"] == pytest.approx(accounts, rel=0.01)

    if ahead is not None:  # a checkpoint is written when the record has come
        trainer._begun, trainer._base = Begun(1, Steps()), ahead.encoded
    peaks = [peak_bytes(work) for work in (trainer._show_public, lambda: trainer._save("root"))]
    assert planned["apply, measure or save"] == pytest.approx(max(peaks), rel=0.05)


def test_its_constants_are_those_of_the_parts_that_it_plans_for() -> None:
    assert plan.HEAD_CHUNK_LOGITS == losses._CHUNK_LOGITS
    assert plan.PIECE_VALUES == optimizer._PIECE
    for precision in resident.PRECISIONS:
        for num_elements in (3 * 1 << 20, 96):
            expected = resident.resident_bytes(precision, num_elements)
            assert plan.resident_bytes(precision, num_elements) == expected


# ---- what it chooses ----


def preset(name: str) -> RunFile:
    return parse_run_file(PRESETS[name])


def test_the_2b_trains_one_subset_within_24_gb_plainly_and_within_12_with_everything_on() -> None:
    plain = memory_plan(preset("spes-2b"), 24 * GB, choices_for(is_gpu=True), num_subsets=1)
    assert plain.fits
    assert not plain.checkpoints
    small = memory_plan(preset("spes-2b"), 12 * GB, Choices(True, "int4", "on", 8), num_subsets=1)
    assert small.fits
    assert small.total_bytes < 12 * GB


def test_as_many_subsets_as_fit_are_planned_and_then_the_largest_micro_batch() -> None:
    plans = [memory_plan(preset("spes-2b"), memory * GB, choices_for(is_gpu=True)) for memory in (19, 24, 32, 48, 80)]
    assert [one.num_subsets for one in plans] == sorted(one.num_subsets for one in plans)
    assert (plans[0].num_subsets, plans[-1].num_subsets) == (1, 16)
    assert plans[-1].micro_batch > plans[-2].micro_batch
    for one in plans:
        assert one.fits
        if one.num_subsets < 16:
            more = memory_plan(preset("spes-2b"), one.memory_bytes, choices_for(is_gpu=True), one.num_subsets + 1)
            assert not more.fits or more.checkpoints


def test_activations_are_made_again_only_where_one_subset_does_not_fit_otherwise() -> None:
    run = run_file(num_layers=12, sequence_length=2048)
    off, on = (memory_plan(run, PLENTY, Choices(True, "bf16", which), 1) for which in ("off", "on"))
    assert (off.checkpoints, on.checkpoints) == (False, True)
    one_off, one_on = (plan_of(run, Choices(True, "bf16", which), 1, 1) for which in ("off", "on"))
    assert one_on.total_bytes < one_off.total_bytes
    between = int((one_on.total_bytes + one_off.total_bytes) / 2 / (1 - plan._FREE_PART))
    assert not memory_plan(run, PLENTY, Choices(True)).checkpoints
    assert memory_plan(run, between, Choices(True)).checkpoints


def test_where_nothing_fits_the_smallest_plan_says_so() -> None:
    planned = memory_plan(preset("spes-7b"), GB, choices_for(is_gpu=True))
    assert (planned.fits, planned.num_subsets, planned.micro_batch, planned.checkpoints) == (False, 1, 1, True)


def test_on_a_cpu_the_public_state_needs_room_beside_the_model() -> None:
    run = run_file()
    cpu, gpu = (plan_of(run, choices_for(is_gpu), 1, 1) for is_gpu in (False, True))
    assert cpu.needed_bytes == cpu.total_bytes + cpu.host_bytes
    assert gpu.needed_bytes == gpu.total_bytes + int(plan._FREE_PART * PLENTY)
    assert not any(row.what == "public state" for row in gpu.rows)


def test_choices_that_there_are_not_are_refused_by_name() -> None:
    with pytest.raises(BadConfiguration, match="no resident precision is 'fp8': choose fp32, bf16, int8, int4"):
        choices_for(is_gpu=True, resident="fp8")
    with pytest.raises(BadConfiguration, match="no checkpointing is 'maybe'"):
        choices_for(is_gpu=True, checkpointing="maybe")
    with pytest.raises(BadConfiguration, match="no number of optimizer bits is 16: choose 32, 8"):
        choices_for(is_gpu=True, optimizer_bits=16)


# ---- the command ----


def run_plan(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_plan_command(parser.add_subparsers())
    options = parser.parse_args(["plan", *arguments])
    return int(options.run(options))


def test_the_table_names_every_term_and_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan("--preset", "spes-2b", "--gpu-memory", "24GB") == 0
    said = capsys.readouterr().out
    for term in ("resident experts", "masters", "gradients", "moments", "activations", "public state"):
        assert term in said
    assert "subset" in said.splitlines()[-1]
    assert run_plan("--preset", "spes-7b", "--gpu-memory", "8GB") == 1
    assert "Does not fit: " in capsys.readouterr().out


def test_programs_read_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan("--preset", "spes-1b", "--gpu-memory", "16GB", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"]
    assert said["total_bytes"] == sum(said["device"].values())
    assert said["device"]["masters"] == 4 * 4 * said["num_subsets"] * 56_623_104


def test_a_size_has_a_unit_of_thousands_or_of_1024() -> None:
    assert [size(text) for text in ("48GB", "1.5 gb", "16GiB", "2T", "123")] == [
        48 * GB, 1_500_000_000, 16 << 30, 2 * 10**12, 123,
    ]  # fmt: skip
    for text in ("lots", "GB", "1 XB", "-1GB", "1000001TB", "9" * 400 + "GB"):
        with pytest.raises(argparse.ArgumentTypeError):
            size(text)


def test_the_plan_needs_no_torch() -> None:
    code = "import sys, spes_peer.training.plan_command; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "False"
