"""How busy, full and warm a device is, and how much of that is other programs': read in the trainer's process.

Of a CPU, psutil knows. Of a GPU, torch knows the memory, and NVIDIA's NVML the rest. What cannot be had (no driver for
NVML, a machine without sensors, a container that hides the other processes) is unknown, never guessed.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import psutil
import torch

from spes_peer.training.work import UNKNOWN, DeviceFigures

logger = logging.getLogger(__name__)

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""The most telling first."""


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
            temperature=cpu_temperature(),
        )


def cpu_temperature() -> float:
    """The warmest core, degrees Celsius; 0 where no sensor tells."""
    with contextlib.suppress(OSError, AttributeError):  # the latter where psutil has none for the system
        sensors = psutil.sensors_temperatures()
        for name in _CPU_SENSORS:
            if warmest := max((one.current or 0.0 for one in sensors.get(name, ())), default=0.0):
                return float(warmest)
    return 0.0


class _Gpu:
    """One GPU, by torch and NVML."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._name = words_of(device)
        self._nvml = _Nvml.of(device)

    def read(self) -> DeviceFigures:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        nvml, reserved_bytes = self._nvml, torch.cuda.memory_reserved(self._device)
        return DeviceFigures(
            name=self._name,
            used_bytes=total_bytes - free_bytes,
            own_bytes=(nvml.own_bytes() if nvml else 0) or reserved_bytes,
            total_bytes=total_bytes,
            use=nvml.use() if nvml else UNKNOWN,
            others_use=nvml.others_use() if nvml else UNKNOWN,
            temperature=nvml.temperature() if nvml else 0.0,
        )


class _Running(Protocol):
    """A process on the GPU as NVML lists it."""

    pid: int
    usedGpuMemory: int | None


class _Nvml:
    """NVML's view of one GPU; each figure is unknown where the driver does not give it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._seen_at = int(time.time() * 1e6)
        """Microseconds: the newest sample of the processes' use that was looked at."""

    @classmethod
    def of(cls, device: torch.device) -> "_Nvml | None":
        """None without a driver that has it."""
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(device).uuid
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        except Exception as error:  # of the library, which loads the driver's: without it we know less, and train on
            logger.info("no temperature and use of the GPU are known reason=%s", error)
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer of one of NVML's calls; None where the driver gives none."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def use(self) -> float:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return UNKNOWN if rates is None else rates.gpu / 100

    def temperature(self) -> float:
        return float(self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU) or 0)

    def own_bytes(self) -> int:
        """Of this process, the driver's own share in it too; 0 when unknown."""
        return sum(one.usedGpuMemory or 0 for one in self._processes() if one.pid == os.getpid())

    def others_use(self) -> float:
        """The share of the GPU's time that went to other processes since the call before."""
        if all(one.pid != os.getpid() for one in self._processes()):
            return UNKNOWN  # a container, in which processes go by other numbers: ours would count as another's
        samples = self._ask("nvmlDeviceGetProcessUtilization", self._seen_at)
        if not samples:  # "not found" is how it says that nobody used it
            return 0.0
        self._seen_at = max(one.timeStamp for one in samples)
        return _sum_of_means((one.pid, one.smUtil / 100) for one in samples if one.pid != os.getpid())

    def _processes(self) -> list[_Running]:
        return self._ask("nvmlDeviceGetComputeRunningProcesses") or []


def _sum_of_means(samples: Iterable[tuple[int, float]]) -> float:
    """Of several samples of each process."""
    by_process: dict[int, list[float]] = {}
    for pid, share in samples:
        by_process.setdefault(pid, []).append(share)
    return min(1.0, sum(sum(shares) / len(shares) for shares in by_process.values()))
