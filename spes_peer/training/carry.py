"""Another run's newest state as a run's first weights: `python -m spes_peer.training.carry RUN_FOLDER OLD_FOLDER`.

Does what `training.genesis` does, with the state in OLD_FOLDER, an organizer's folder or a volunteer's, in place of
random numbers; the round of the snapshot that it writes is the one behind which that state stood. Blocks are cut and
rounded as the new run has them; outer momentum begins at zero. The model must have the same parameters. Its last line
on stderr says what was wrong. A process of its own, because it takes torch.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from spes_peer.blobs import BlobStore
from spes_peer.errors import ending_in_a_line
from spes_peer.files import write_whole
from spes_peer.run.checking import refuse_another_model
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.records import Snapshot
from spes_peer.training.genesis import store_groups
from spes_peer.training.stored_state import StoredState
from spes_peer.wire import convert


def carry(folder: Path, old_folder: Path) -> None:
    """Write the genesis of the run in `folder`."""
    layout = Layout(SignedManifest.from_bytes((folder / "manifest.spes").read_bytes()).open())
    old = StoredState(old_folder, replays=True, say=lambda text: print(text, flush=True))
    refuse_another_model(old.layout.manifest.model, layout.manifest.model)
    print(f"beginning with the state of {old.layout.manifest.run.name} after record {old.round}", flush=True)
    blocks = store_groups(layout, BlobStore(folder / "blobs"), _groups(old))
    write_whole(folder / "genesis.spes", convert.encode(Snapshot(old.round, blocks)))


def _groups(old: StoredState) -> Iterator[tuple[int | None, Tensor]]:
    """In fp32, one in memory at a time."""
    for expert in (None, *range(old.layout.manifest.model.num_experts)):
        num_elements = old.layout.num_shared if expert is None else old.layout.num_per_expert
        yield expert, old.read(expert, 0, num_elements).float()


if __name__ == "__main__":
    with ending_in_a_line():
        carry(Path(sys.argv[1]), Path(sys.argv[2]))
