"""What torch says of a device: `python -m spes_peer.training.device_report NAME [-]` prints a line of JSON, with the
speed at which it trains the run whose manifest comes in, if any does.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

import torch

from spes_peer.errors import UserError
from spes_peer.run.manifest import parse_manifest
from spes_peer.training.device_figures import words_of
from spes_peer.training.machine import device_called, most_bytes, total_bytes, usable_bytes
from spes_peer.training.speed import measure


def report(name: str) -> dict[str, Any]:
    """Of the device called `name`, or of the best there is."""
    device = device_called(name)
    is_gpu = device.type == "cuda"
    return {
        "kind": device.type,
        "name": words_of(device),
        "free_bytes": usable_bytes(device),
        "most_bytes": most_bytes(device),
        "total_bytes": total_bytes(device),
        "has_bf16": torch.cuda.is_bf16_supported(including_emulation=False) if is_gpu else True,
    }


if __name__ == "__main__":
    try:
        said = report(sys.argv[1] if len(sys.argv) > 1 else "")
        if len(sys.argv) > 2:
            said |= asdict(measure(parse_manifest(sys.stdin.buffer.read()), sys.argv[1]))
        print(json.dumps(said))
    except UserError as error:
        sys.exit(str(error))
