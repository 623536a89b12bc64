"""The first weights of a run, made once by its organizer: `python -m spes_peer.training.genesis RUN_FOLDER`.

Reads RUN_FOLDER/manifest.spes, writes every block to RUN_FOLDER/blobs and their names to RUN_FOLDER/genesis.spes, a
`Snapshot` of round 0. Prints what it is at. A process of its own, so that the organizer's command needs no torch.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from spes_peer.blobs import BlobStore
from spes_peer.errors import SpesError
from spes_peer.files import write_whole
from spes_peer.model.initial import initial_groups
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, SignedManifest
from spes_peer.run.records import BlockName, Snapshot
from spes_peer.sync.encoding import state_bytes
from spes_peer.wire import convert


def make_genesis(manifest: Manifest, blobs: BlobStore) -> tuple[BlockName, ...]:
    """Draw all parameters from the run's seed and store them; their names, in the order of `state_blocks`."""
    return store_groups(Layout(manifest), blobs, initial_groups(manifest, manifest.run.seed))


def store_groups(
    layout: Layout, blobs: BlobStore, groups: Iterable[tuple[int | None, Tensor]]
) -> tuple[BlockName, ...]:
    """Store groups, which come in block order, in their public dtype, and momentum of zero where the run has any; the
    names of their blocks, in the order of `state_blocks`."""
    names, num_experts = [], layout.manifest.model.num_experts
    for expert, flat in groups:
        what = "shared parameters" if expert is None else f"expert {expert + 1} of {num_experts}"
        print(f"storing {what}, {flat.numel() / 1e6:.1f} million values", flush=True)
        for block in layout.shared_blocks if expert is None else layout.expert_blocks(expert):
            blob = blobs.put(state_bytes(layout.dtype_of(block), flat[block.start : block.end]))
            names.append(BlockName(block.id, blob.name, blob.size_bytes))
    for block in layout.state_blocks:
        if block.is_momentum:
            blob = blobs.put(bytes(layout.state_bytes(block)))
            names.append(BlockName(block.id, blob.name, blob.size_bytes))
    return tuple(names)


def write_genesis(folder: Path, make: Callable[[Manifest, BlobStore], tuple[BlockName, ...]]) -> None:
    """Make and name the first weights of the run in `folder`."""
    manifest = SignedManifest.from_bytes((folder / "manifest.spes").read_bytes()).open()
    blocks = make(manifest, BlobStore(folder / "blobs"))
    write_whole(folder / "genesis.spes", convert.encode(Snapshot(0, blocks)))


if __name__ == "__main__":
    try:
        write_genesis(Path(sys.argv[1]), make_genesis)
    except (SpesError, OSError) as error:
        sys.exit(str(error))
