"""A model of others as a run's first weights: `python -m spes_peer.training.adopt RUN_FOLDER MODEL_FOLDER [--upcycle]`.

Does what `training.genesis` does, with the safetensors of a Hugging Face folder in place of random numbers. Every name
and every shape must be as the manifest's model has them. Prints what it is at; its last line on stderr says what was
wrong. A process of its own, because reading weights takes torch.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from spes_peer.blobs import BlobStore
from spes_peer.errors import BadConfiguration, ending_in_a_line
from spes_peer.model.huggingface import HuggingFaceTensor, dense_tensors_of, tensors_of
from spes_peer.model.upcycle import draw_routers, expert_of
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockName
from spes_peer.training.genesis import store_groups, write_genesis

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_DTYPES = ("F32", "BF16", "F16")


class Checkpoint:
    """The tensors of a Hugging Face folder; `BadConfiguration` for whatever is wrong with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = {name: file for file in self._files() for name in self._open(file).keys()}  # noqa: SIM118

    def check(self, wanted: Iterable[HuggingFaceTensor]) -> None:
        """Refuse a checkpoint with another tensor, another shape or one less; of a tied head the embedding serves."""
        names = set()
        for tensor in wanted:
            names.add(tensor.name)
            if tensor.name == _HEAD and _HEAD not in self._file_of:
                continue
            if tensor.name not in self._file_of:
                raise BadConfiguration(f"{self._folder} has no tensor {tensor.name}")
            part = self._open(self._file_of[tensor.name]).get_slice(tensor.name)
            if tuple(part.get_shape()) != tensor.shape:
                raise BadConfiguration(
                    f"{tensor.name} has the shape {list(part.get_shape())}; the run's model wants {list(tensor.shape)}"
                )
            if part.get_dtype() not in _DTYPES:
                raise BadConfiguration(f"{tensor.name} is {part.get_dtype()}; weights are read as {', '.join(_DTYPES)}")
        if _HEAD not in self._file_of and not self._is_tied():
            raise BadConfiguration(f"{self._folder} has no tensor {_HEAD}, and its config ties it to nothing")
        strange = sorted(set(self._file_of) - names)
        if strange:
            raise BadConfiguration(
                f"the run's model has no place for {strange[0]}"
                + (f" and {len(strange) - 1} more" * (len(strange) > 1))
            )

    def read(self, tensor: HuggingFaceTensor) -> Tensor:
        """Its values, fp32."""
        name = _EMBEDDING if tensor.name == _HEAD and _HEAD not in self._file_of else tensor.name
        values: Tensor = self._open(self._file_of[name]).get_tensor(name).to(torch.float32)
        if not bool(values.isfinite().all()):
            raise BadConfiguration(f"{name} has values that are not finite")
        return values

    def group(self, tensors: Iterable[HuggingFaceTensor], num_elements: int) -> Tensor:
        """One of our groups, put together of `tensors`; zero where none of them is."""
        flat = torch.zeros(num_elements)
        for tensor in tensors:
            flat[tensor.start : tensor.start + tensor.num_elements] = self.read(tensor).flatten()
        return flat

    def _is_tied(self) -> bool:
        return bool(self._json("config.json").get("tie_word_embeddings"))

    def _files(self) -> list[str]:
        if (self._folder / _INDEX).exists():
            weight_map = self._json(_INDEX).get("weight_map")
            files = list(weight_map.values()) if isinstance(weight_map, dict) else []
            if files and all(isinstance(file, str) and Path(file).name == file for file in files):
                return sorted(set(files))
            raise BadConfiguration(f"{self._folder / _INDEX} names no files of its folder")
        if (self._folder / _SINGLE).exists():
            return [_SINGLE]
        raise BadConfiguration(f"{self._folder} has neither {_SINGLE} nor {_INDEX}; no other format is read")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self._folder / name).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise BadConfiguration(f"cannot read {self._folder / name}: {error}") from None
        return content if isinstance(content, dict) else {}

    def _open(self, file: str) -> Any:
        """Maps the file; only the tensors that are read take memory."""
        try:
            return safetensors.safe_open(self._folder / file, framework="pt")
        except (OSError, safetensors.SafetensorError) as error:
            raise BadConfiguration(f"cannot read {self._folder / file}: {error}") from None


def adopted_groups(layout: Layout, checkpoint: Checkpoint) -> Iterator[tuple[int | None, Tensor]]:
    """The groups of a mixture of experts, one in memory at a time."""
    tensors = list(tensors_of(layout.manifest.model))
    checkpoint.check(tensors)
    for expert in (None, *range(layout.manifest.model.num_experts)):
        own = [tensor for tensor in tensors if tensor.expert == expert]
        yield expert, checkpoint.group(own, layout.num_shared if expert is None else layout.num_per_expert)


def upcycled_groups(layout: Layout, checkpoint: Checkpoint, seed: int) -> Iterator[tuple[int | None, Tensor]]:
    """The groups of a mixture of experts made of a dense model, two in memory at a time."""
    tensors = list(dense_tensors_of(layout.manifest.model))
    checkpoint.check(tensors)
    shared = checkpoint.group((tensor for tensor in tensors if tensor.expert is None), layout.num_shared)
    routers = [parameter for parameter in layout.shared_parameters if parameter.name.endswith(".router")]
    draw_routers([shared[router.offset : router.offset + router.num_elements] for router in routers], seed)
    yield None, shared
    del shared
    mlp = checkpoint.group((tensor for tensor in tensors if tensor.expert == 0), layout.num_per_expert)
    for expert in range(layout.manifest.model.num_experts):
        yield expert, expert_of(mlp, expert, seed)


def adopt(manifest: Manifest, blobs: BlobStore, folder: Path, upcycle: bool) -> tuple[BlockName, ...]:
    """Store the weights in `folder` as the first of the run; the names of their blocks, in block order."""
    layout, checkpoint = Layout(manifest), Checkpoint(folder)
    groups = upcycled_groups(layout, checkpoint, manifest.run.seed) if upcycle else adopted_groups(layout, checkpoint)
    return store_groups(layout, blobs, groups)


if __name__ == "__main__":
    with ending_in_a_line():
        write_genesis(
            Path(sys.argv[1]),
            lambda manifest, blobs: adopt(manifest, blobs, Path(sys.argv[2]), upcycle="--upcycle" in sys.argv[3:]),
        )
