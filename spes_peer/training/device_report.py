"""What torch says of a device: `python -m spes_peer.training.device_report NAME` prints a line of JSON."""

import json
import sys
from typing import Any

import torch

from spes_peer.errors import UserError
from spes_peer.training.device_figures import words_of
from spes_peer.training.machine import device_called, most_bytes, total_bytes, usable_bytes


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
        print(json.dumps(report(sys.argv[1] if len(sys.argv) > 1 else "")))
    except UserError as error:
        sys.exit(str(error))
