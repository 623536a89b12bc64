"""What a restarted trainer takes up again: masters, moments, residuals and the random numbers, in safetensors files.

Written when a record has been applied, so all in it stands where that record left it: a restart in the middle of a
round goes on from the round's start, and then as if nothing had happened. The public state is not in it: that lies in
the blob store. Nor is the data position: the round says it, whose record assigns the ranges.

There are two generations, in two files: the older one is replaced, whole, while the newer one lies still. So at every
instant of a save two are complete, and one that turns out damaged costs a record's worth of moments.
"""

import json
import logging
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from spes_peer.errors import BadConfiguration
from spes_peer.files import UNFINISHED, our_disk, saved_well

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
_ADVICE = "move it away to go on without its optimizer state"
_OS_ERROR = re.compile(r"os error (\d+)")
# what reading a damaged file raises; the last two come of an infinite number and of brackets without end
_DAMAGE = (SafetensorError, OSError, KeyError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Checkpoint:
    """State of one peer after record `round`, whose public state had `state_root`."""

    round: int
    state_root: str
    tensors: dict[str, torch.Tensor]


def files_of(path: Path) -> tuple[Path, Path]:
    """The two files of the checkpoint called `path`."""
    return path, path.with_name(f"{path.stem}.2{path.suffix}")


def save(path: Path, run_id: str, peer_id: str, checkpoint: Checkpoint) -> None:
    """Replace the older generation of the checkpoint at `path`. `DiskTrouble` leaves both as they are."""
    generations = {file: _generation(file) for file in files_of(path)}
    about = {
        "version": FORMAT_VERSION,
        "run_id": run_id,
        "peer_id": peer_id,
        "round": checkpoint.round,
        "state_root": checkpoint.state_root,
        "generation": max(generations.values()) + 1,
        "checksum": _checksum(checkpoint.tensors),
    }
    # The library writes to a path of its own, so this is `files.replacing` by hand; one process writes, so one name.
    temporary = path.with_name(f".{path.name}{UNFINISHED}")
    with our_disk(path.parent):
        try:
            _write(temporary, checkpoint.tensors, {"spes_peer": json.dumps(about)})
            os.replace(temporary, min(generations, key=lambda file: generations[file]))
        except BaseException:
            temporary.unlink(missing_ok=True)  # it may be what fills the disk
            raise
    saved_well(path.parent)


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        raise OSError(int(number[1]) if number else 0, str(error)) from None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path, run_id: str, peer_id: str) -> Checkpoint | None:
    """The newest checkpoint at `path` that is whole, None where there is none; `BadConfiguration` if all are damaged or
    it is a foreign one."""
    present = [file for file in files_of(path) if file.exists()]
    damage: BadConfiguration | None = None
    for file in sorted(present, key=_generation, reverse=True):
        try:
            about, checkpoint = _read(file)
        except _DAMAGE as error:
            damage = BadConfiguration(f"the checkpoint {file} is damaged ({error}); {_ADVICE}")
            logger.warning("%s", damage)
            continue
        _refuse_foreign(file, about, run_id, peer_id)
        return checkpoint
    if damage is not None:
        raise damage
    return None


def _read(file: Path) -> tuple[dict[str, Any], Checkpoint]:
    with safe_open(file, framework="pt") as content:
        about = _about(content)
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
    if about.get("checksum", checksum := _checksum(tensors)) != checksum:  # there is none in what older programs wrote
        raise ValueError("its checksum is wrong")
    return about, Checkpoint(int(about["round"]), str(about["state_root"]), tensors)


def _checksum(tensors: dict[str, torch.Tensor]) -> int:
    """Of all bytes; the format itself only sees that a file is too short. The fastest that there is: with every record
    gigabytes go through it."""
    checksum = 0
    for _, values in sorted(tensors.items()):
        checksum = zlib.crc32(values.cpu().flatten().view(torch.uint8).numpy().data, checksum)
    return checksum


def _about(content: Any) -> dict[str, Any]:
    about = json.loads((content.metadata() or {})["spes_peer"])
    if not isinstance(about, dict):
        raise ValueError("it does not say what it is")
    return about


def _generation(file: Path) -> int:
    """Higher is newer; 0 for one written before they were counted, -1 where there is none that can be read."""
    try:
        with safe_open(file, framework="pt") as content:
            return int(_about(content).get("generation", 0))
    except _DAMAGE:
        return -1


def _refuse_foreign(file: Path, about: dict[str, Any], run_id: str, peer_id: str) -> None:
    found = tuple(about.get(key) for key in ("version", "run_id", "peer_id"))
    for name, has, wants in zip(("version", "run", "peer"), found, (FORMAT_VERSION, run_id, peer_id), strict=True):
        if has != wants:
            raise BadConfiguration(f"the checkpoint {file} is of another {name} ({has}, not {wants}); {_ADVICE}")
