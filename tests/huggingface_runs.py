"""Small runs with any weights, and their library's small random models."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before their library is imported: it shall find everything in the folder

import safetensors.torch
import torch
import transformers
from data_parts import made_up_data
from torch import Tensor
from torch.nn import functional
from training_swarm import record_of

from spes_peer.blobs import BlobStore
from spes_peer.identity import Identity
from spes_peer.model.decoder import Decoder
from spes_peer.model.norm import rms_norm
from spes_peer.run.certificates import Checks, sign_genesis
from spes_peer.run.chain import Chain
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, RunFile, parse_run_file, sign_manifest
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import BlockName, state_root
from spes_peer.training.export import StoredState
from spes_peer.training.genesis import store_groups

ORGANIZER = Identity.from_seed(b"1" * 32)
KINDS = ("olmoe", "qwen3_moe")
LENGTH = 64


def run_file_of(kind: str, **sync: Any) -> RunFile:
    """Proportions of which no two can be mixed up unseen; grouped queries in both kinds."""
    raw = parse_run_file(PRESETS["demo"]).model_dump()
    raw["model"] |= {"vocab_rows": 272, "d_model": 48, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
    raw["model"] |= {"num_experts": 6, "top_k": 2, "expert_hidden": 40, "sequence_length": LENGTH}
    raw["model"] |= {"rope_theta": 12_345.0, "qk_norm": "head" if kind == "qwen3_moe" else "width"}
    raw["model"] |= {"renormalize_top_k": kind == "qwen3_moe"}
    raw["training"] |= {"num_subsets": 3}
    raw["sync"] |= {"block_elements": 5000, **sync}
    return RunFile.model_validate(raw)


def manifest_of(run_file: RunFile) -> Manifest:
    raw = {**run_file.model_dump(), "data": made_up_data(), "organizers": [ORGANIZER.peer_id]}
    return Manifest.model_validate(raw)


def random_groups(layout: Layout) -> Iterator[tuple[int | None, Tensor]]:
    """Weights large enough that logits are, norms' weights too, so that every one of them counts."""
    generator = torch.Generator().manual_seed(5)
    yield None, torch.randn(layout.num_shared, generator=generator) * 0.5
    for expert in range(layout.manifest.model.num_experts):
        yield expert, torch.randn(layout.num_per_expert, generator=generator) * 0.5


def write_manifest(folder: Path, manifest: Manifest, organizer: Identity = ORGANIZER) -> bytes:
    """Sign it; returns the run id."""
    signed = sign_manifest(manifest, organizer)
    folder.mkdir(exist_ok=True)
    (folder / "manifest.spes").write_bytes(signed.to_bytes())
    return signed.run_id


def write_run(folder: Path, run_file: RunFile) -> Layout:
    """A run folder whose first weights are random."""
    manifest = manifest_of(run_file)
    layout = Layout(manifest)
    run_id = write_manifest(folder, manifest)
    write_genesis(folder, manifest, run_id, store_groups(layout, BlobStore(folder / "blobs"), random_groups(layout)))
    return layout


def write_genesis(folder: Path, manifest: Manifest, run_id: bytes, blocks: tuple[BlockName, ...]) -> None:
    record = dataclasses.replace(
        record_of(0), run_id=run_id, previous_hash=b"", genesis=blocks, state_root=state_root(blocks)
    )
    Chain(folder, Checks.of(manifest, run_id)).append(sign_genesis(record, ORGANIZER, run_id))


def tokens_of(vocab_rows: int, length: int = LENGTH) -> Tensor:
    return torch.randint(vocab_rows, (3, length), generator=torch.Generator().manual_seed(7))


def our_logits(stored: StoredState, tokens_BT: Tensor) -> Tensor:
    """Of the decoder that holds the state."""
    manifest, layout = stored.layout.manifest, stored.layout
    decoder = Decoder(manifest.model, "cpu", manifest.training)
    decoder.load_group(None, stored.read(None, 0, layout.num_shared).float())
    for expert in range(manifest.model.num_experts):
        decoder.load_group(expert, stored.read(expert, 0, layout.num_per_expert).float())
    with torch.no_grad():
        x_BTD = functional.embedding(tokens_BT, decoder.embedding)
        for layer in decoder.layers:
            x_BTD, *_ = layer(x_BTD, decoder.rotary)
        return functional.linear(rms_norm(x_BTD, decoder.final_norm), decoder.head)


def their_logits(folder: Path, tokens_BT: Tensor) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(tokens_BT).logits


def tensors_in(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(file)
    return tensors


def random_model(kind: str, **settings: Any) -> transformers.PreTrainedModel:
    """Theirs, with random weights everywhere. `kind` is a model type; `settings` go into the config."""
    common: dict[str, Any] = {
        "vocab_size": 272, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 12,
        "num_key_value_heads": 2, "intermediate_size": 40, "moe_intermediate_size": 40, "max_position_embeddings": 64,
        "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": kind == "qwen3_moe", "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "tie_word_embeddings": False,
        "pad_token_id": None,
    }  # fmt: skip
    if kind == "qwen3":
        for key in ("moe_intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob"):
            del common[key]
    config = transformers.AutoConfig.for_model(kind, **{**common, **settings})
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model
