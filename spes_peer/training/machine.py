"""The device that trains, what is free on it, and the plan that follows."""

import dataclasses
import logging

import psutil
import torch

from spes_peer.errors import NoDevice
from spes_peer.run.manifest import RunFile
from spes_peer.training.choices import Choices
from spes_peer.training.plan import Plan, choices_for, coarser, fitting_plan, memory_plan, refuse_if_too_large
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
        raise NoDevice(f"the device {name!r} cannot be used: {reason}; name another with --device") from None


def usable_bytes(device: torch.device) -> int:
    """What a trainer may take of the device now."""
    return int(most_bytes(device) * (1.0 if device.type == "cuda" else _USABLE_PART))


def most_bytes(device: torch.device) -> int:
    """What is free on the device now."""
    if device.type == "cuda":
        free_bytes, _total = torch.cuda.mem_get_info(device)
        return int(free_bytes)
    return int(psutil.virtual_memory().available)


def total_bytes(device: torch.device) -> int:
    """What the device has."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def lent_bytes(request: OpenTrainer, device: torch.device) -> int:
    """What may be used: as much as its owner says, but of a GPU no more than is free; else what is usable."""
    allowed = request.memory_bytes or int(request.memory_part * total_bytes(device))
    if not allowed:
        return usable_bytes(device)
    return min(allowed, most_bytes(device)) if device.type == "cuda" else allowed


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device as its owner lends it."""

    device: torch.device
    memory_bytes: int
    choices: Choices
    may_be_coarser: bool = False
    """Whether its owner left the precision of residents to us."""

    @classmethod
    def of(cls, request: OpenTrainer, run: RunFile) -> "Machine":
        """As asked for; `NoDevice` where that cannot be had. Residents are as fine as usual, unless not one
        subset fits so and its owner has not chosen."""
        device = device_called(request.device)
        choices = choices_for(
            device.type == "cuda", request.resident, request.checkpointing, request.optimizer_bits or 32
        )
        memory_bytes = lent_bytes(request, device)
        plan, choices = fitting_plan(run, memory_bytes, choices, may_be_coarser=not request.resident)
        refuse_if_too_large(plan, most_bytes(device), str(device))
        return cls(device, memory_bytes, choices, not request.resident)

    def plan(self, run: RunFile, num_subsets: int = 0) -> Plan:
        """As `plan.memory_plan`."""
        return memory_plan(run, self.memory_bytes, self.choices, num_subsets)

    def is_smallest(self, run: RunFile, plan: Plan) -> bool:
        """Whether there is no plan that needs less than this one of ours."""
        least = memory_plan(run, 0, self.choices)
        return plan.needed_bytes <= least.needed_bytes and not (self.may_be_coarser and coarser(self.choices))
