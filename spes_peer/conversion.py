"""A run that begins with a model in a Hugging Face folder: what of it needs no weights, but only its config.json.

The weights are moved by a process of its own, which loads torch (`training.adopt`).
"""

import math
from pathlib import Path
from typing import Any

from spes_peer.model.huggingface import OLMOE, Upcycling, architecture_of, check_same_model, model_of
from spes_peer.model.huggingface_folder import read_config
from spes_peer.run.layout import shared_parameters_of
from spes_peer.run.manifest import Model, RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.writing import commented

_SHARED_BLOCKS = 32  # or so: enough that every peer reduces some
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 12, 1 << 24


def check_fits(wanted: Model, model_folder: Path, upcycle: bool) -> None:
    """`BadConfiguration` unless the checkpoint is of a run's model, or of a dense one that becomes it."""
    upcycling = Upcycling(wanted.num_experts, wanted.top_k) if upcycle else None
    check_same_model(wanted, model_of(read_config(model_folder), wanted.sequence_length, upcycling))


def run_file_for(config: dict[str, Any], name: str, upcycle: bool) -> str:
    """A run file for a checkpoint: its [model], and a preset of the same kind for all that no checkpoint says."""
    qwen = parse_run_file(PRESETS["spes-9b"])
    upcycling = Upcycling(qwen.model.num_experts, qwen.model.top_k) if upcycle else None
    model = model_of(config, qwen.model.sequence_length, upcycling)
    preset = "spes-1b" if architecture_of(model) == OLMOE else "spes-9b"
    raw = parse_run_file(PRESETS[preset]).model_dump()
    raw["run"]["name"] = name[:64] or "imported"
    raw["model"] = model.model_dump()
    raw["training"]["num_subsets"] = math.gcd(model.num_experts, raw["training"]["num_subsets"])
    raw["sync"]["block_elements"] = _block_elements(model)
    # a public state in bf16 would round the weights of a checkpoint that has more digits
    is_bf16 = "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))
    raw["sync"]["expert_dtype"] = "bf16" if is_bf16 else "fp32"
    heading = f"Made for a checkpoint; what no checkpoint says is as in the preset {preset}."
    return commented(RunFile.model_validate(raw), heading)


def _block_elements(model: Model) -> int:
    num_shared = sum(parameter.num_elements for parameter in shared_parameters_of(model))
    wanted = 1 << max(0, (num_shared // _SHARED_BLOCKS - 1).bit_length())
    return min(max(wanted, _SMALLEST_BLOCK), _LARGEST_BLOCK)
