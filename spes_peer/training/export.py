"""A public state as a Hugging Face folder: `python -m spes_peer.training.export STATE OUT`.

STATE is a volunteer's data folder or an organizer's run folder. Every block is checked against the name that the run's
records vouch for before it is used. Tensors are written in their public dtype, so nothing is lost; one shard is in
memory at a time. OUT appears whole or not at all.

Prints what it is at; its last line on stderr says what was wrong. A process of its own, because it takes torch.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from google.protobuf.message import DecodeError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spes_peer.blobs import BlobStore, digests_of, name_of
from spes_peer.data.huggingface_tokenizer import byte_tokenizer_files
from spes_peer.data.tokenizer import END_OF_TEXT
from spes_peer.errors import BadConfiguration, PeerError, SpesError, UserError
from spes_peer.files import making_folder
from spes_peer.folder import MANIFEST_FILE, SNAPSHOTS_FILE
from spes_peer.model.huggingface import HuggingFaceTensor, config_of, tensors_of
from spes_peer.run.certificates import Checks
from spes_peer.run.chain import Chain
from spes_peer.run.encodings import BYTES_PER_VALUE
from spes_peer.run.layout import Block, Layout
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.records import Snapshot
from spes_peer.sync.encoding import from_state_bytes
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import Snapshots

MAX_SHARD_BYTES = 2 << 30


class StoredState:
    """The newest whole public state in a folder, read block by block."""

    def __init__(self, folder: Path) -> None:
        """`BadConfiguration` where there is none."""
        self.signed = _manifest_in(folder)
        self.layout = Layout(self.signed.open())
        self._blobs = BlobStore(folder / "blobs")
        self.snapshot = self._newest_whole(folder)
        self._names = {name.block: name for name in self.snapshot.blocks}
        self._read_block = lru_cache(maxsize=1)(self._checked)  # the next tensor mostly lies in the same block

    def read(self, expert: int | None, start: int, num_elements: int) -> Tensor:
        """Values of a group in their public dtype: a copy."""
        blocks = self.layout.shared_blocks if expert is None else self.layout.expert_blocks(expert)
        end, size = start + num_elements, self.layout.manifest.sync.block_elements
        parts = [
            self._read_block(block)[max(start - block.start, 0) : end - block.start]
            for block in blocks[start // size : (end - 1) // size + 1]
        ]
        return torch.cat(parts)

    def _checked(self, block: Block) -> Tensor:
        content = self._blobs.read(self._names[block.id].blob)
        if name_of(digests_of(content)) != self._names[block.id].blob:
            raise BadConfiguration(f"block {block.id} is damaged on disk; let the volunteer fetch it again")
        return from_state_bytes(self.layout.dtype_of(block), content, block.num_elements)

    def _newest_whole(self, folder: Path) -> Snapshot:
        """Of those whose blobs are all here; a volunteer drops the genesis once it has two snapshots."""
        for snapshot in self._candidates(folder):
            blocks = [(name.block, name.size_bytes) for name in snapshot.blocks]
            if blocks != [(block.id, self.layout.state_bytes(block)) for block in self.layout.state_blocks]:
                raise BadConfiguration(f"the state after record {snapshot.round} in {folder} is not of its manifest")
            if all(self._blobs.has(name.blob) for name in snapshot.blocks):
                return snapshot
        raise BadConfiguration(
            f"{folder} holds no whole state yet; volunteers keep one every"
            f" {self.layout.manifest.sync.snapshot_rounds} rounds"
        )

    def _candidates(self, folder: Path) -> Iterator[Snapshot]:
        yield from sorted(_kept_snapshots(folder), key=lambda snapshot: -snapshot.round)
        chain = Chain(folder, Checks.of(self.layout.manifest, self.signed.run_id))
        if chain.num_records:
            yield Snapshot(0, chain.record(0).sealed.record.genesis)


def _kept_snapshots(folder: Path) -> list[Snapshot]:
    try:
        kept = Snapshots.FromString((folder / SNAPSHOTS_FILE).read_bytes())
        return [convert.from_message(Snapshot, message) for message in kept.snapshots]
    except FileNotFoundError:
        return []
    except (DecodeError, PeerError) as error:
        raise BadConfiguration(f"{folder / SNAPSHOTS_FILE} is damaged: {error}") from None


def _manifest_in(folder: Path) -> SignedManifest:
    try:
        return SignedManifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        raise BadConfiguration(f"{folder} is neither a volunteer's data folder nor a run folder") from None
    except (OSError, PeerError) as error:
        raise BadConfiguration(f"cannot read {folder / MANIFEST_FILE}: {error}") from None


def export(state: Path, out: Path, max_shard_bytes: int = MAX_SHARD_BYTES) -> StoredState:
    """Write `out`, which is new or empty; `BadConfiguration` says what cannot be used."""
    stored = StoredState(state)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadConfiguration(f"{out} is not an empty folder; name a new one")
    config = config_of(stored.layout.manifest.model, _dtype_of(stored.layout), END_OF_TEXT)
    with making_folder(out, mode=0o755) as building:
        _write_weights(stored, building, max_shard_bytes)
        generation = {"eos_token_id": END_OF_TEXT, "do_sample": True}
        files = {
            "config.json": json.dumps(config, indent=1),
            "generation_config.json": json.dumps(generation, indent=1),
        }
        files |= byte_tokenizer_files(stored.layout.manifest.model.sequence_length)
        files["README.md"] = _readme(stored, config["architectures"][0])
        for name, text in files.items():
            (building / name).write_text(text + "\n")
    return stored


def shards_of(tensors: Sequence[HuggingFaceTensor], layout: Layout, max_bytes: int) -> list[list[HuggingFaceTensor]]:
    """`tensors` in their order, cut so that no shard is larger unless one tensor is."""
    shards: list[list[HuggingFaceTensor]] = [[]]
    room = max_bytes
    for tensor in tensors:
        size = _size_bytes(tensor, layout)
        if shards[-1] and size > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(tensor)
        room -= size
    return shards


def _write_weights(stored: StoredState, folder: Path, max_shard_bytes: int) -> None:
    shards = shards_of(list(tensors_of(stored.layout.manifest.model)), stored.layout, max_shard_bytes)
    total = sum(_size_bytes(tensor, stored.layout) for shard in shards for tensor in shard)
    done = 0
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        try:
            save_file({tensor.name: _values(stored, tensor) for tensor in shard}, folder / name, {"format": "pt"})
        except SafetensorError as error:
            raise SpesError(f"cannot write {name}: {error}") from None
        (folder / name).chmod(0o644)  # their library makes it its writer's alone
        done += sum(_size_bytes(tensor, stored.layout) for tensor in shard)
        weight_map |= dict.fromkeys((tensor.name for tensor in shard), name)
        print(f"wrote {name}, {done / 1e6:.1f} of {total / 1e6:.1f} MB", flush=True)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _values(stored: StoredState, tensor: HuggingFaceTensor) -> Tensor:
    return stored.read(tensor.expert, tensor.start, tensor.num_elements).view(tensor.shape)


def _size_bytes(tensor: HuggingFaceTensor, layout: Layout) -> int:
    sync = layout.manifest.sync
    return tensor.num_elements * BYTES_PER_VALUE[sync.shared_dtype if tensor.expert is None else sync.expert_dtype]


def _dtype_of(layout: Layout) -> str:
    """What their library computes in, unless it is told otherwise: the widest that is in the files."""
    sync = layout.manifest.sync
    return "float32" if "fp32" in (sync.shared_dtype, sync.expert_dtype) else "bfloat16"


def _readme(stored: StoredState, architecture: str) -> str:
    manifest = stored.layout.manifest
    return f"""\
# {manifest.run.name}

The public state of the run `{stored.signed.run_id.hex()}` after record {stored.snapshot.round}, written by spes-peer.
An `{architecture}`: load it with `AutoModelForCausalLM.from_pretrained`. Sequences of up to
{manifest.model.sequence_length} tokens.

Tokens are bytes of UTF-8, and {END_OF_TEXT} ends a document; `AutoTokenizer.from_pretrained` reads the tokenizer beside
this file. Trained on: {", ".join(manifest.data.sources) or "unknown text"}."""


if __name__ == "__main__":
    try:
        export(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except (SpesError, OSError) as error:
        sys.exit(str(error))
