"""A Hugging Face model as the beginning of a run: no weight lost, nothing taken that does not fit, MLPs to experts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_runs import (
    KINDS,
    manifest_of,
    our_logits,
    random_model,
    run_file_of,
    tensors_in,
    their_logits,
    tokens_of,
    write_genesis,
    write_manifest,
    write_run,
)
from torch import Tensor

from spes_peer.blobs import BlobStore
from spes_peer.cli import main
from spes_peer.conversion import run_file_for
from spes_peer.errors import BadConfiguration
from spes_peer.model import upcycle
from spes_peer.model.huggingface import Upcycling, model_of
from spes_peer.model.upcycle import expert_of
from spes_peer.run.manifest import RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.writing import commented
from spes_peer.training.adopt import Checkpoint, adopt, upcycled_groups
from spes_peer.training.export import StoredState, export


def run_of(run: Path, model_folder: Path, upcycle_it: bool = False, **sync: Any) -> StoredState:
    """A run that begins with a checkpoint, made in this process."""
    config = json.loads((model_folder / "config.json").read_text())
    run_file = parse_run_file(run_file_for(config, "imported", upcycle_it))
    manifest = manifest_of(
        RunFile.model_validate({**run_file.model_dump(), "sync": {**run_file.sync.model_dump(), **sync}})
    )
    run_id = write_manifest(run, manifest)
    write_genesis(run, manifest, run_id, adopt(manifest, BlobStore(run / "blobs"), model_folder, upcycle_it))
    return StoredState(run)


def saved(folder: Path, kind: str, shard_size: str = "5GB", **settings: Any) -> dict[str, Tensor]:
    """Their own files of a random model; returns its tensors."""
    random_model(kind, **settings).save_pretrained(folder, max_shard_size=shard_size)
    return tensors_in(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shard_size", ["5GB", "60KB"])
def test_their_model_comes_back_bit_for_bit(kind: str, shard_size: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path / "theirs", kind, shard_size)
    assert (len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1) == (shard_size == "60KB")
    run_of(tmp_path / "run", tmp_path / "theirs")
    export(tmp_path / "run", tmp_path / "ours")
    ours = tensors_in(tmp_path / "ours")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    tokens = tokens_of(272)
    assert torch.equal(their_logits(tmp_path / "ours", tokens), their_logits(tmp_path / "theirs", tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_our_model_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    run_file = run_file_of(kind)
    write_run(tmp_path / "run", run_file)
    before = export(tmp_path / "run", tmp_path / "out", max_shard_bytes=100_000)
    manifest = before.layout.manifest
    assert adopt(manifest, BlobStore(tmp_path / "blobs"), tmp_path / "out", upcycle=False) == before.snapshot.blocks


@pytest.mark.parametrize("kind", KINDS)
def test_their_logits_are_ours_after_an_import(kind: str, tmp_path: Path) -> None:
    saved(tmp_path / "theirs", kind)
    stored = run_of(tmp_path / "run", tmp_path / "theirs")
    tokens = tokens_of(272)
    theirs = their_logits(tmp_path / "theirs", tokens)
    assert theirs.std() > 0.1
    torch.testing.assert_close(our_logits(stored, tokens), theirs, atol=1e-4, rtol=0)


def test_a_checkpoint_in_bf16_makes_experts_in_bf16_and_loses_nothing(tmp_path: Path) -> None:
    random_model("olmoe").to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    run_of(tmp_path / "run", tmp_path / "theirs")
    export(tmp_path / "run", tmp_path / "ours")
    theirs, ours = tensors_in(tmp_path / "theirs"), tensors_in(tmp_path / "ours")
    assert all(torch.equal(ours[name].float(), theirs[name].float()) for name in theirs)
    assert ours["model.layers.0.mlp.experts.0.up_proj.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("tied", [False, True])
def test_experts_without_noise_are_the_dense_model(tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcycle, "NOISE_STD", 0.0)
    saved(tmp_path / "dense", "qwen3", tie_word_embeddings=tied)
    stored = run_of(tmp_path / "run", tmp_path / "dense", upcycle_it=True)
    assert stored.layout.manifest.model.num_experts == 8
    tokens = tokens_of(272)
    torch.testing.assert_close(our_logits(stored, tokens), their_logits(tmp_path / "dense", tokens), atol=1e-4, rtol=0)


def test_each_expert_is_the_mlp_with_noise_in_another_half(tmp_path: Path) -> None:
    dense = saved(tmp_path / "dense", "qwen3")
    run_of(tmp_path / "run", tmp_path / "dense", upcycle_it=True)
    export(tmp_path / "run", tmp_path / "out")
    made = tensors_in(tmp_path / "out")
    changes = []
    for expert in range(8):
        parts = [
            (made[f"model.layers.1.mlp.experts.{expert}.{name}.weight"] - dense[f"model.layers.1.mlp.{name}.weight"])
            for name in ("gate_proj", "up_proj", "down_proj")
        ]
        changes.append(torch.cat([part.flatten() for part in parts]))
    for change in changes:
        assert float((change != 0).float().mean()) == pytest.approx(0.5, abs=0.03)
        assert float(change[change != 0].std()) == pytest.approx(0.02, rel=0.05)
    both = ((changes[0] != 0) & (changes[1] != 0)).float().mean()
    assert float(both) == pytest.approx(0.25, abs=0.03)
    for name, values in dense.items():
        assert ".mlp." in name or torch.equal(values, made[name])
    router = made["model.layers.0.mlp.gate.weight"]
    assert 0 < float(router.abs().max()) < 0.01
    assert not torch.equal(router, made["model.layers.1.mlp.gate.weight"])


def test_the_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    saved(tmp_path / "dense", "qwen3")
    layout = run_of(tmp_path / "run", tmp_path / "dense", upcycle_it=True).layout
    first, again, other = (dict(upcycled_groups(layout, Checkpoint(tmp_path / "dense"), seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[group], again[group]) for group in first)
    assert not any(torch.equal(first[group], other[group]) for group in first)


def test_an_experts_noise_is_its_own_whatever_the_others_are() -> None:
    mlp = torch.zeros(1000)
    assert torch.equal(expert_of(mlp, 5, seed=1), expert_of(mlp, 5, seed=1))
    assert not torch.equal(expert_of(mlp, 5, seed=1), expert_of(mlp, 4, seed=1))
    assert (mlp == 0).all()


DAMAGES: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (
        lambda t: t.pop("model.layers.1.mlp.experts.2.up_proj.weight"),
        "no tensor model.layers.1.mlp.experts.2",
    ),
    "no head": (lambda t: t.pop("lm_head.weight"), "no tensor lm_head.weight"),
    "strange": (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}), "no place for .*bias"),
    "shape": (lambda t: t.update({"model.norm.weight": torch.ones(47)}), r"model.norm.weight has the shape \[47\]"),
    "type": (lambda t: t.update({"model.norm.weight": torch.ones(48, dtype=torch.int32)}), "norm.weight is I32"),
    "values": (lambda t: t["model.norm.weight"].fill_(float("nan")), "norm.weight has values that are not finite"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_does_not_fit_is_refused_by_the_tensor(damage: str, tmp_path: Path) -> None:
    tensors = saved(tmp_path / "theirs", "olmoe")
    change, reason = DAMAGES[damage]
    change(tensors)
    safetensors.torch.save_file(tensors, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(BadConfiguration, match=reason):
        run_of(tmp_path / "run", tmp_path / "theirs")


def test_a_truncated_file_and_a_folder_without_safetensors_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "theirs", "olmoe")
    path = tmp_path / "theirs" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadConfiguration, match=r"cannot read .*model\.safetensors"):
        run_of(tmp_path / "run", tmp_path / "theirs")
    path.unlink()
    with pytest.raises(BadConfiguration, match=r"neither model\.safetensors nor"):
        run_of(tmp_path / "run", tmp_path / "theirs")
    index = tmp_path / "theirs" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(BadConfiguration, match="names no files of its folder"):
        run_of(tmp_path / "run", tmp_path / "theirs")
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "gone.safetensors"}}))
    with pytest.raises(BadConfiguration, match=r"cannot read .*gone\.safetensors"):
        run_of(tmp_path / "run", tmp_path / "theirs")


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("olmoe", {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05; our decoder has 1e-06"),
    ("olmoe", {"norm_topk_prob": True}, "norm_topk_prob is True"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
    ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob is False"),
    ("qwen3_moe", {"head_dim": 24}, "head_dim is 24"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
    ("qwen3_moe", {"attention_bias": True}, "attention_bias is True"),
    ("qwen3_moe", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("qwen3_moe", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "RoPE of type 'yarn'"),
    ("qwen3_moe", {"hidden_size": "48"}, "hidden_size is missing or not a whole number"),
    ("qwen3_moe", {"num_key_value_heads": 3}, "num_heads must be a multiple of num_kv_heads"),
    ("qwen3_moe", {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM is not one of OlmoeForCausalLM"),
    ("qwen3_moe", {"num_hidden_layers": 10**9}, "num_layers: .* less than or equal to 1024"),
    ("qwen3", {}, "is a dense model; --upcycle makes experts of it"),
]


@pytest.mark.parametrize(("kind", "settings", "reason"), CONFIGS)
def test_a_model_that_our_decoder_is_not_is_refused_by_the_setting(
    kind: str, settings: dict[str, Any], reason: str
) -> None:
    config = {**random_model(kind).config.to_dict(), **settings}
    with pytest.raises(BadConfiguration, match=reason):
        model_of(config, 64)


def test_what_has_experts_is_not_upcycled() -> None:
    with pytest.raises(BadConfiguration, match="Qwen3MoeForCausalLM has experts already"):
        model_of({"architectures": ["Qwen3MoeForCausalLM"]}, 64, Upcycling(8, 2))


def test_configs_of_older_versions_are_read() -> None:
    config = random_model("qwen3_moe").config.to_dict()
    del config["rope_parameters"]
    assert model_of({**config, "rope_theta": 77.0, "rope_scaling": None}, 32).rope_theta == 77.0
    assert model_of(config, 32).rope_theta == 10_000.0
    assert model_of(config, 4096).sequence_length == 64


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_file_is_read_back_from_its_text(preset: str) -> None:
    run_file = parse_run_file(PRESETS[preset])
    named = run_file.model_copy(update={"run": run_file.run.model_copy(update={"name": 'ψ "1"\\🙂'})})
    assert parse_run_file(commented(named, "")) == named


def test_the_papers_dense_model_becomes_its_9b() -> None:
    """Qwen3 1.7B as its config.json has it."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 32768, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_sliding_window": False, "vocab_size": 151936, "max_window_layers": 28,
    }  # fmt: skip
    made, preset = parse_run_file(run_file_for(config, "nine", upcycle=True)), parse_run_file(PRESETS["spes-9b"])
    assert made.model == preset.model
    assert made.training == preset.training
    assert made.sync == preset.sync


def test_a_run_file_of_another_model_is_refused_by_the_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "theirs", "olmoe")
    model, folder = str(tmp_path / "theirs"), tmp_path / "run"
    assert command("run", "new", str(folder), "--model", model) == 0
    run_toml = folder / "run.toml"
    run_toml.write_text(run_toml.read_text().replace("top_k = 2", "top_k = 1"))
    capfd.readouterr()
    assert command("run", "sign", str(folder), "--import", model) == 2
    assert "the run file has model.top_k = 1, the checkpoint 2" in capfd.readouterr().err
    assert not (folder / "manifest.spes").exists()


@pytest.mark.slow
def test_the_commands_bring_a_model_in_and_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    theirs = saved(tmp_path / "theirs", "olmoe")
    model, folder, out = (str(tmp_path / name) for name in ("theirs", "run", "out"))
    assert command("run", "new", folder, "--model", model) == 0
    assert f"spes-peer run sign {folder} --import {model}" in capfd.readouterr().out
    shorten(tmp_path / "run" / "run.toml")
    assert command("run", "sign", folder, "--import", model) == 0
    assert command("export", folder, out) == 0
    ours = tensors_in(tmp_path / "out")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    printed = capfd.readouterr()
    assert "storing expert 4 of 4" in printed.err
    assert f"the model is in {out}" in printed.out + printed.err


def shorten(path: Path) -> None:
    """A schedule for the embedded text."""
    for key, value in (("total_steps", 100), ("warmup_steps", 10), ("batch_sequences", 8), ("snapshot_rounds", 1)):
        path.write_text(re.sub(rf"^(# )?{key} = .*$", f"{key} = {value}", path.read_text(), flags=re.MULTILINE))


@pytest.mark.slow
def test_wrong_folders_end_the_commands_with_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere, out, theirs = (str(tmp_path / name) for name in ("nowhere", "out", "theirs"))
    assert command("export", nowhere, out) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"spes-peer: '{nowhere}' is neither a folder nor an address of a run")
    assert command("run", "new", out, "--model", nowhere) == 2
    assert capfd.readouterr().err == f"spes-peer: {nowhere} is no Hugging Face folder: it has no config.json\n"
    saved(tmp_path / "theirs", "olmoe")
    assert command("run", "new", out, "--model", theirs) == 0
    shorten(tmp_path / "out" / "run.toml")
    (tmp_path / "theirs" / "model.safetensors").write_bytes(b"\0" * 100)
    capfd.readouterr()
    assert command("run", "sign", out, "--import", theirs) == 2
    assert "cannot read" in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out" / "manifest.spes").exists()


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)
