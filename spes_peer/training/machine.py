"""The device that trains, what is free on it, and the plan that follows."""

import dataclasses
import logging

import psutil
import torch

from spes_peer.errors import BadConfiguration
from spes_peer.run.manifest import RunFile
from spes_peer.training.plan import Choices, Plan, choices_for, memory_plan
from spes_peer.training.work import OpenTrainer

logger = logging.getLogger(__name__)

_USABLE_PART = 0.5  # of a CPU's free memory: it is everybody's on the machine, a second peer's too


def device_called(name: str) -> torch.device:
    """The device called `name`; "" takes a GPU where there is one."""
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadConfiguration(f"the device {name!r} cannot be used: {reason}") from None


def usable_bytes(device: torch.device) -> int:
    """What a trainer may take of the device now."""
    if device.type == "cuda":
        free_bytes, _total = torch.cuda.mem_get_info(device)
        return int(free_bytes)
    return int(psutil.virtual_memory().available * _USABLE_PART)


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device as its owner lends it."""

    device: torch.device
    memory_bytes: int
    choices: Choices

    @classmethod
    def of(cls, request: OpenTrainer) -> "Machine":
        """As asked for; `BadConfiguration` where that cannot be had."""
        device = device_called(request.device)
        choices = choices_for(
            device.type == "cuda", request.resident, request.checkpointing, request.optimizer_bits or 32
        )
        return cls(device, request.memory_bytes or usable_bytes(device), choices)

    def plan(self, run: RunFile, num_subsets: int = 0) -> Plan:
        """As `plan.memory_plan`."""
        return memory_plan(run, self.memory_bytes, self.choices, num_subsets)
