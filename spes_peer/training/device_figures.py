"""How busy, full and warm a device is, and how much of that is other programs': read in the trainer's process.

Of a CPU, psutil knows. Of a GPU, torch knows the memory, and NVIDIA's NVML the rest. What cannot be had (no driver for
NVML, a machine without sensors, a container that hides the other processes) is unknown, never guessed.
"""

import os
from collections.abc import Callable

import psutil
import torch

from spes_peer.sensors import Gpu, cpu_temperature
from spes_peer.training.work import UNKNOWN, DeviceFigures


def words_of(device: torch.device) -> str:
    """Such as "cpu" or "cuda:0 NVIDIA RTX 4090"."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def reader_of(device: torch.device) -> Callable[[], DeviceFigures]:
    """Call it again and again: use is that since the call before, unknown at first."""
    return _Gpu(device).read if device.type == "cuda" else _Cpu().read


class _Cpu:
    """All cores together, and the machine's memory."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._is_first = True
        self._busy()

    def _busy(self) -> tuple[float, float]:
        """Shares since the call before: by anybody, and by this process."""
        return psutil.cpu_percent() / 100, self._own.cpu_percent() / 100 / (psutil.cpu_count() or 1)

    def read(self) -> DeviceFigures:
        memory, (use, own_use) = psutil.virtual_memory(), self._busy()
        if is_first := self._is_first:
            self._is_first = False
        return DeviceFigures(
            name="cpu",
            used_bytes=memory.total - memory.available,
            own_bytes=self._own.memory_info().rss,
            total_bytes=memory.total,
            use=UNKNOWN if is_first else use,
            others_use=UNKNOWN if is_first else max(0.0, use - own_use),
            temperature=cpu_temperature() or 0.0,
        )


class _Gpu:
    """One GPU, by torch and NVML."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._name = words_of(device)
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        self._uuid = f"GPU-{uuid}" if uuid else self._name
        self._nvml = Gpu.of(self._uuid)

    def read(self) -> DeviceFigures:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        nvml, reserved_bytes = self._nvml, torch.cuda.memory_reserved(self._device)
        return DeviceFigures(
            name=self._name,
            used_bytes=total_bytes - free_bytes,
            own_bytes=(nvml.own_bytes(os.getpid()) if nvml else None) or reserved_bytes,
            total_bytes=total_bytes,
            use=_share(nvml.use() if nvml else None),
            others_use=_share(nvml.others_use(os.getpid()) if nvml else None),
            temperature=(nvml.temperature() if nvml else None) or 0.0,
            uuid=self._uuid,
        )


def _share(known: float | None) -> float:
    return UNKNOWN if known is None else known
