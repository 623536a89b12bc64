"""How many subsets a machine's memory holds, estimated from sizes (SPES §1.5)."""

import psutil
import torch

from spes_peer.run.layout import Layout

_VALUE_BYTES = 4
_SHARED_COPIES = 6  # parameters, gradients, two moments; public state and residual
_RESIDENT_COPIES = 2  # frozen parameters and public state
_OWNED_COPIES = 5  # master, gradient, two moments; the offer that no record has answered
_USABLE_FRACTION = 0.5  # the rest is for activations, and for whoever else uses the machine


def max_subsets_of(layout: Layout, device: torch.device) -> int:
    """Subsets that fit into what is free on `device` now, at least 1 and at most all."""
    if device.type == "cuda":
        free_bytes, _total = torch.cuda.mem_get_info(device)
    else:
        free_bytes = psutil.virtual_memory().available
    num_experts, num_subsets = layout.manifest.model.num_experts, layout.manifest.training.num_subsets
    fixed = _SHARED_COPIES * layout.num_shared + _RESIDENT_COPIES * num_experts * layout.num_per_expert
    per_subset = _OWNED_COPIES * layout.num_per_expert * num_experts // num_subsets
    spare = int(free_bytes * _USABLE_FRACTION) // _VALUE_BYTES - fixed
    return max(1, min(num_subsets, spare // per_subset))
