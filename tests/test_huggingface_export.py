"""A run's state as a Hugging Face folder: their library loads it and computes what ours does."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_runs import (
    KINDS,
    manifest_of,
    our_logits,
    run_file_of,
    tensors_in,
    their_logits,
    tokens_of,
    write_manifest,
    write_run,
)
from torch.nn import functional
from training_swarm import PEERS, Swarm

from spes_peer.data import tokenizer
from spes_peer.data.sampler import Sampler
from spes_peer.errors import BadConfiguration
from spes_peer.identity import Identity
from spes_peer.model.huggingface import architecture_of, tensors_of
from spes_peer.model.norm import RMS_NORM_EPS
from spes_peer.run.data import BYTES_END_OF_TEXT
from spes_peer.run.layout import Layout
from spes_peer.run.records import Snapshot
from spes_peer.training import export as export_module
from spes_peer.training.export import StoredState, export, shards_of
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import Snapshots

TOLERANCE = 1e-4  # two orders of summation in fp32, on logits of about 1


@pytest.mark.parametrize("kind", KINDS)
def test_their_library_computes_our_logits(kind: str, tmp_path: Path) -> None:
    layout = write_run(tmp_path / "run", run_file_of(kind))
    stored = export(tmp_path / "run", tmp_path / "out")
    tokens = tokens_of(layout.manifest.model.vocab_rows)
    ours, theirs = our_logits(stored, tokens), their_logits(tmp_path / "out", tokens)
    assert ours.std() > 0.5
    torch.testing.assert_close(theirs, ours, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("kind", "name"), [("olmoe", "OlmoeForCausalLM"), ("qwen3_moe", "Qwen3MoeForCausalLM")])
def test_the_config_says_what_their_defaults_have_wrong(kind: str, name: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of(kind))
    export(tmp_path / "run", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["rms_norm_eps"], written["norm_topk_prob"]) == (1e-6, kind == "qwen3_moe")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == name
    assert model.dtype == torch.float32
    assert model.config.rms_norm_eps == RMS_NORM_EPS
    assert model.config.norm_topk_prob == (kind == "qwen3_moe")
    assert model.config.rope_parameters["rope_theta"] == 12_345.0
    assert model.config.pad_token_id is None


def test_every_value_is_in_the_files_once_and_untouched(tmp_path: Path) -> None:
    layout = write_run(tmp_path / "run", run_file_of("olmoe"))
    stored = export(tmp_path / "run", tmp_path / "out")
    held = tensors_in(tmp_path / "out")
    assert sum(tensor.numel() for tensor in held.values()) == sum(block.num_elements for block in layout.blocks)
    shared = stored.read(None, 0, layout.num_shared)
    assert torch.equal(held["model.embed_tokens.weight"].flatten(), shared[: 272 * 48])
    assert torch.equal(held["lm_head.weight"].flatten(), shared[-272 * 48 :])
    assert torch.equal(held["model.layers.0.mlp.experts.4.gate_proj.weight"].flatten(), stored.read(4, 0, 40 * 48))


def test_shards_and_their_index_hold_the_same_model(tmp_path: Path) -> None:
    layout = write_run(tmp_path / "run", run_file_of("qwen3_moe"))
    export(tmp_path / "run", tmp_path / "whole")
    export(tmp_path / "run", tmp_path / "cut", max_shard_bytes=100_000)
    files = sorted((tmp_path / "cut").glob("*.safetensors"))
    assert len(files) > 5
    assert max(file.stat().st_size for file in files) < 110_000
    whole, cut = tensors_in(tmp_path / "whole"), tensors_in(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    tokens = tokens_of(layout.manifest.model.vocab_rows)
    assert torch.equal(their_logits(tmp_path / "cut", tokens), their_logits(tmp_path / "whole", tokens))


def test_everybody_may_read_what_is_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    export(tmp_path / "run", tmp_path / "out")
    assert {path.stat().st_mode & 0o444 for path in (tmp_path / "out").iterdir()} == {0o444}


def test_shards_keep_the_order_and_the_size() -> None:
    layout = Layout(manifest_of(run_file_of("olmoe")))
    tensors = list(tensors_of(layout.manifest.model))
    shards = shards_of(tensors, layout, 50_000)
    assert [tensor for shard in shards for tensor in shard] == tensors
    sizes = [4 * sum(tensor.num_elements for tensor in shard) for shard in shards]
    assert all(size <= 50_000 or len(shard) == 1 for size, shard in zip(sizes, shards, strict=True))


def test_experts_in_bf16_are_written_as_they_are_and_computed_with_in_fp32(tmp_path: Path) -> None:
    layout = write_run(tmp_path / "run", run_file_of("olmoe", expert_dtype="bf16"))
    stored = export(tmp_path / "run", tmp_path / "out")
    held = tensors_in(tmp_path / "out")
    assert held["model.layers.1.mlp.experts.2.up_proj.weight"].dtype == torch.bfloat16
    assert held["model.embed_tokens.weight"].dtype == torch.float32
    tokens = tokens_of(layout.manifest.model.vocab_rows)
    torch.testing.assert_close(their_logits(tmp_path / "out", tokens), our_logits(stored, tokens), atol=1e-4, rtol=0)


def test_a_trained_state_has_the_loss_that_its_peers_measured(tmp_path: Path) -> None:
    """From training to a volunteer's data folder to their library."""
    swarm = Swarm.create(tmp_path, (0,), (1,))
    swarm.apply()
    applied = swarm.apply(swarm.updates(swarm.train()), keep_snapshot=True)
    organizer = next(seed for seed in range(3) if Identity.from_seed(bytes([seed]) * 32).peer_id == PEERS[0])
    write_manifest(tmp_path, swarm.manifest, Identity.from_seed(bytes([organizer]) * 32))
    snapshots = Snapshots()
    snapshots.snapshots.append(convert.to_message(Snapshot(2, applied[PEERS[0]].blocks)))  # type: ignore[arg-type]
    (tmp_path / "snapshots.spes").write_bytes(snapshots.SerializeToString())
    assert export(tmp_path, tmp_path / "out").snapshot.round == 2
    losses = []
    for batch in Sampler(swarm.manifest, swarm.blobs).held_out(0, 1, 64):
        logits = their_logits(tmp_path / "out", batch.tokens_BT)
        losses.append(functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten(), reduction="none"))
    measured = swarm.held_out_loss()
    assert measured < 5
    assert float(torch.cat(losses).mean()) == pytest.approx(measured, abs=1e-4)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "after record 2" in readme
    assert "standard library" in readme


def test_their_tokenizer_gives_our_tokens_and_the_model_writes_with_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    export(tmp_path / "run", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("def f(x):\n\treturn  x", "ψ ≈ 0,62 · Φ — 模型 🙂", "\x00\x7f\u00a0\u00ad  \r\n", " leading"):
        ids = theirs(text)["input_ids"]
        assert ids == tokenizer.encode(text)[:-1].tolist()
        assert theirs.decode(ids) == text
    assert theirs.eos_token_id == BYTES_END_OF_TEXT
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = theirs("import ", return_tensors="pt")
    written = model.generate(**prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=256)
    assert written.shape == (1, 12)


def test_the_newest_whole_snapshot_counts(tmp_path: Path) -> None:
    write_run(tmp_path, run_file_of("olmoe"))
    genesis = StoredState(tmp_path).snapshot
    assert genesis.round == 0
    absent = tuple(dataclasses.replace(name, blob="ee" * 32) for name in genesis.blocks)
    _keep(tmp_path, Snapshot(5, genesis.blocks), Snapshot(9, absent))
    assert StoredState(tmp_path).snapshot.round == 5


def _keep(folder: Path, *snapshots: Snapshot) -> None:
    kept = Snapshots()
    for snapshot in snapshots:
        kept.snapshots.append(convert.to_message(snapshot))  # type: ignore[arg-type]
    (folder / "snapshots.spes").write_bytes(kept.SerializeToString())


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="neither a volunteer's data folder nor a run folder"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "identity.key").write_bytes(b"")
    with pytest.raises(BadConfiguration, match="has not found its run yet"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(BadConfiguration, match=rf"is not signed yet, .*: spes-peer run sign {tmp_path}$"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "manifest.spes").write_bytes(b"\xff\xff")
    with pytest.raises(BadConfiguration, match="cannot read"):
        export(tmp_path, tmp_path / "out")


def test_a_folder_that_holds_no_whole_state_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, run_file_of("olmoe"))
    shutil.rmtree(tmp_path / "blobs")
    with pytest.raises(BadConfiguration, match="no whole state yet"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "snapshots.spes").write_bytes(b"\xff")
    with pytest.raises(BadConfiguration, match="damaged"):
        export(tmp_path, tmp_path / "out")


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, run_file_of("olmoe"))
    blocks = StoredState(tmp_path).snapshot.blocks
    _keep(tmp_path, Snapshot(3, blocks[:-1]))
    with pytest.raises(BadConfiguration, match=r"after record 3 .* is not of its manifest"):
        export(tmp_path, tmp_path / "out")


def test_a_damaged_block_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    name = StoredState(tmp_path / "run").snapshot.blocks[3]
    path = next((tmp_path / "run" / "blobs").glob(f"*/{name.blob}.data"))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadConfiguration, match="shared/0003 is damaged"):
        export(tmp_path / "run", tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(BadConfiguration, match="not an empty folder"):
        export(tmp_path / "run", tmp_path / "out")
    assert (tmp_path / "out" / "mine").exists()


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))

    def full(*_arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(export_module, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        export(tmp_path / "run", tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("qk_norm", "renormalizes"), [("width", True), ("head", False)])
def test_a_model_that_is_neither_of_theirs_is_refused_by_name(qk_norm: str, renormalizes: bool) -> None:
    model = run_file_of("olmoe").model.model_copy(update={"qk_norm": qk_norm, "renormalize_top_k": renormalizes})
    with pytest.raises(BadConfiguration, match=f"no Hugging Face model has QK-norm over the {qk_norm}"):
        architecture_of(model)
