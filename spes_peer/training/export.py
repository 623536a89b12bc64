"""A public state as a Hugging Face folder: `python -m spes_peer.training.export STATE OUT [OPTIONS]`.

STATE is a volunteer's data folder, an organizer's run folder or what a visitor has fetched. Every block is checked
against the name that the run's records vouch for before it is used. Tensors are written in their public dtype unless
another is asked for, so nothing is lost; one shard is in memory at a time. OUT appears whole or not at all.

Prints what it is at, its last line on stderr says what was wrong. A process of its own, because it takes torch.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spes_peer.data.huggingface_tokenizer import tokenizer_files
from spes_peer.errors import BadConfiguration, SpesError, ending_in_a_line
from spes_peer.files import making_folder
from spes_peer.model.huggingface import HuggingFaceTensor, config_of, tensors_of
from spes_peer.run.encodings import BYTES_PER_VALUE, Dtype
from spes_peer.run.layout import Layout
from spes_peer.training.history import History
from spes_peer.training.known_names import known_names
from spes_peer.training.model_card import Origin, model_card
from spes_peer.training.stored_state import StoredState

MAX_SHARD_BYTES = 2 << 30
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def export(
    state: Path,
    out: Path,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    dtype: Dtype | None = None,
    round: int | None = None,
    replays: bool = False,
) -> StoredState:
    """Write `out`, which is new or empty; `BadConfiguration` says what cannot be used. Values are `dtype`, or as the
    run has them; the state is the one after record `round`, or the newest; `replays` as in `StoredState`."""
    refuse_if_taken(out)
    stored = StoredState(state, round, replays, say=lambda what: print(what, flush=True))
    data = stored.layout.manifest.data
    tokenizer = tokenizer_files(data, stored.layout.manifest.model.sequence_length, stored.sound)
    config = config_of(stored.layout.manifest.model, _dtype_of(stored.layout, dtype), tokenizer.end_of_text)
    with making_folder(out, mode=0o755) as building:
        _Writer(stored, dtype).write(building, max_shard_bytes)
        generation = {"eos_token_id": tokenizer.end_of_text, "do_sample": True}
        files = {
            "config.json": json.dumps(config, indent=1) + "\n",
            "generation_config.json": json.dumps(generation, indent=1) + "\n",
            "README.md": model_card(_origin(stored, state), config),
            **tokenizer.files,
        }
        for name, text in files.items():
            (building / name).write_text(text, encoding="utf-8")
    return stored


def refuse_if_taken(out: Path) -> None:
    """`BadConfiguration` where something lies that is not ours."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadConfiguration(f"{out} is not an empty folder; name a new one")


def _origin(stored: StoredState, folder: Path) -> Origin:
    chain = stored.chain
    records = (chain.record(number).sealed.record for number in range(chain.num_records))
    return Origin(
        layout=stored.layout,
        run_id=stored.signed.run_id.hex(),
        organizer=stored.signed.organizer,
        root=stored.root,
        newest_round=max(stored.round, chain.num_records - 1),
        history=History.of(records, stored.round),
        names=known_names(folder),
    )


def shards_of(
    tensors: Sequence[HuggingFaceTensor], layout: Layout, max_bytes: int, dtype: Dtype | None = None
) -> list[list[HuggingFaceTensor]]:
    """`tensors` in their order, cut so that no shard is larger unless one tensor is."""
    shards: list[list[HuggingFaceTensor]] = [[]]
    room = max_bytes
    for tensor in tensors:
        size = _size_bytes(tensor, layout, dtype)
        if shards[-1] and size > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(tensor)
        room -= size
    return shards


class _Writer:
    """Writes safetensors, shard by shard, and shows how far it is: a bar in a terminal, else a line for each shard."""

    def __init__(self, stored: StoredState, dtype: Dtype | None) -> None:
        self._stored, self._dtype = stored, dtype

    def write(self, folder: Path, max_shard_bytes: int) -> None:
        tensors = list(tensors_of(self._stored.layout.manifest.model))
        shards = shards_of(tensors, self._stored.layout, max_shard_bytes, self._dtype)
        total = sum(map(self._size_bytes, tensors))
        console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
        columns = (TextColumn("writing the model"), BarColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        weight_map: dict[str, str] = {}
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task("", total=total)
            for number, shard in enumerate(shards, 1):
                name = (
                    "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
                )
                held = {}
                for tensor in shard:
                    held[tensor.name] = self._values(tensor)
                    bars.advance(task, self._size_bytes(tensor))
                _save(held, folder / name)
                weight_map |= dict.fromkeys(held, name)
                if not console.is_terminal:
                    print(f"wrote {name}, {number} of {len(shards)}, {total / 1e6:.1f} MB in all", flush=True)
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")

    def _values(self, tensor: HuggingFaceTensor) -> Tensor:
        values = self._stored.read(tensor.expert, tensor.start, tensor.num_elements).view(tensor.shape)
        return values if self._dtype is None else values.to(_DTYPES[self._dtype])

    def _size_bytes(self, tensor: HuggingFaceTensor) -> int:
        return _size_bytes(tensor, self._stored.layout, self._dtype)


def _save(held: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(held, path, {"format": "pt"})
    except SafetensorError as error:
        raise SpesError(f"cannot write {path.name}: {error}") from None
    path.chmod(0o644)  # their library makes it its writer's alone


def _size_bytes(tensor: HuggingFaceTensor, layout: Layout, dtype: Dtype | None) -> int:
    sync = layout.manifest.sync
    held = dtype or (sync.shared_dtype if tensor.expert is None else sync.expert_dtype)
    return tensor.num_elements * BYTES_PER_VALUE[held]


def _dtype_of(layout: Layout, dtype: Dtype | None) -> str:
    """What their library computes in, unless it is told otherwise: the widest that is in the files."""
    sync = layout.manifest.sync
    return "float32" if "fp32" in ((dtype,) if dtype else (sync.shared_dtype, sync.expert_dtype)) else "bfloat16"


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=tuple(_DTYPES))
    parser.add_argument("--round", type=int)
    options = parser.parse_args()
    stored = export(options.state, options.out, dtype=options.dtype, round=options.round, replays=True)
    print(f"the state after record {stored.round} of {max(stored.round, stored.chain.num_records - 1)}", flush=True)


if __name__ == "__main__":
    with ending_in_a_line():
        _main()
