"""`spes-peer import`: a new run that begins with a model in a Hugging Face folder.

Parsing and what needs no weights; the weights are moved by a process of its own, which loads torch.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.model.huggingface import OLMOE, Upcycling, architecture_of, check_same_model, model_of
from spes_peer.organize import Genesis, create_run, run_file_text
from spes_peer.run.layout import shared_parameters_of
from spes_peer.run.manifest import Model, RunFile, SignedManifest, parse_run_file
from spes_peer.run.presets import PRESETS

_SHARED_BLOCKS = 32  # or so: enough that every peer reduces some
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 12, 1 << 24


def add_import_command(commands: Any) -> argparse.ArgumentParser:
    """`commands` is what `add_subparsers` gave; returns the command's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "import",
        help="make a run that begins with a Hugging Face model",
        description="Make a run folder whose first weights are those of a Hugging Face folder.",
        epilog="then: spes-bootstrap --run RUN_FOLDER",
    )
    parser.add_argument("model", type=Path, metavar="HF_FOLDER", help="config.json and safetensors of the model")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="the run folder to make")
    parser.add_argument(
        "--config", type=Path, metavar="RUN.toml", help="your own run file; its [model] must be the checkpoint's"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="text files to train on (Python's standard library)"
    )
    parser.add_argument("--upcycle", action="store_true", help="make experts out of a dense Qwen3 model's MLPs")
    parser.set_defaults(run=_import)
    return parser


def _import(options: argparse.Namespace) -> None:
    signed = import_run(options.model, options.folder, options.config, options.corpus, options.upcycle)
    print(f"run {signed.run_id.hex()} in {options.folder}")
    print("its data are bytes, whatever the tokenizer of the model was")
    print(f"start its bootstrap node with: spes-bootstrap --run {options.folder}")


def import_run(
    model_folder: Path, run_folder: Path, config: Path | None = None, corpus: Path | None = None, upcycle: bool = False
) -> SignedManifest:
    """Make `run_folder`; its run file is `config`, or else made of the checkpoint and a preset of its kind."""
    their_config = read_config(model_folder)
    if config is None:
        text = run_file_for(their_config, run_folder.name, upcycle)
    else:
        text = run_file_text(None, config)
        wanted = parse_run_file(text, config.name).model
        upcycling = Upcycling(wanted.num_experts, wanted.top_k) if upcycle else None
        check_same_model(wanted, model_of(their_config, wanted.sequence_length, upcycling))
    arguments = (str(model_folder), *(["--upcycle"] if upcycle else []))
    return create_run(run_folder, text, corpus, Genesis("spes_peer.training.adopt", arguments))


def read_config(folder: Path) -> dict[str, Any]:
    """A Hugging Face folder's config.json."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadConfiguration(f"{folder} is no Hugging Face folder: it has no config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadConfiguration(f"cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise BadConfiguration(f"{path} is not a table of settings")
    return config


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
    heading = f"# Made for a checkpoint; what no checkpoint says is as in the preset {preset}.\n"
    return heading + to_toml(RunFile.model_validate(raw))


def to_toml(run_file: RunFile) -> str:
    """The text of a run file that is read back as the same."""
    lines = []
    for section, values in run_file.model_dump(mode="json").items():
        lines.append(f"\n[{section}]")
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
        ]  # JSON's scalars are TOML's
    return "\n".join(lines) + "\n"


def _block_elements(model: Model) -> int:
    num_shared = sum(parameter.num_elements for parameter in shared_parameters_of(model))
    wanted = 1 << max(0, (num_shared // _SHARED_BLOCKS - 1).bit_length())
    return min(max(wanted, _SMALLEST_BLOCK), _LARGEST_BLOCK)
