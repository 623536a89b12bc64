"""What a restarted trainer takes up again: masters, moments, residuals and the random numbers, in one safetensors
file.

Written when a record has been applied, so all in it stands where that record left it: a restart in the middle of a
round goes on from the round's start, and then as if nothing had happened. The public state is not in it: that lies in
the blob store. Nor is the data position: the round says it, whose record assigns the ranges. The file changes only
whole, so a kill at any instant leaves the old one or the new one.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from spes_peer.errors import BadConfiguration

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """State of one peer after record `round`, whose public state had `state_root`."""

    round: int
    state_root: str
    tensors: dict[str, torch.Tensor]


def save(path: Path, run_id: str, peer_id: str, checkpoint: Checkpoint) -> None:
    """Replace the file at `path`; a crash leaves the old one. Raises OSError where the disk refuses."""
    about = {
        "version": FORMAT_VERSION,
        "run_id": run_id,
        "peer_id": peer_id,
        "round": checkpoint.round,
        "state_root": checkpoint.state_root,
    }
    # The library writes to a path of its own, so this is `files.replacing` by hand; one process writes, so one name.
    temporary = path.with_name(f".{path.name}.writing")
    try:
        save_file(checkpoint.tensors, temporary, {"spes_peer": json.dumps(about)})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def load(path: Path, run_id: str, peer_id: str) -> Checkpoint | None:
    """The checkpoint at `path`, None where there is none; `BadConfiguration` for a damaged or foreign one."""
    if not path.exists():
        return None
    advice = "move it away to go on without its optimizer state"
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["spes_peer"])
            found = (about["version"], about["run_id"], about["peer_id"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            checkpoint = Checkpoint(int(about["round"]), str(about["state_root"]), tensors)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise BadConfiguration(f"the checkpoint {path} is damaged ({error}); {advice}") from None
    for name, has, wants in zip(("version", "run", "peer"), found, (FORMAT_VERSION, run_id, peer_id), strict=True):
        if has != wants:
            raise BadConfiguration(f"the checkpoint {path} is of another {name} ({has}, not {wants}); {advice}")
    return checkpoint
