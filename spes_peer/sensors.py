"""What the machine's sensors tell: heat, battery, and who uses a GPU. Unknown, never guessed, is None.

Of a GPU, NVIDIA's NVML tells; it needs the driver alone, so that a process without torch can ask, and one that holds
nothing of the GPU.
"""

import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import psutil

logger = logging.getLogger(__name__)

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""The most telling first."""
_POWER_SUPPLIES = Path("/sys/class/power_supply")
"""Where Linux lists them."""


def cpu_temperature() -> float | None:
    """The warmest core, degrees Celsius."""
    with contextlib.suppress(OSError, AttributeError, RuntimeError, ValueError):  # as psutil has it for the system
        sensors = psutil.sensors_temperatures()
        for name in _CPU_SENSORS:
            if warmest := max((one.current or 0.0 for one in sensors.get(name, ())), default=0.0):
                return float(warmest)
    return None


def is_on_battery() -> bool | None:
    """None also where there is no battery."""
    return _is_on_battery_by(_POWER_SUPPLIES) if _POWER_SUPPLIES.is_dir() else _is_on_battery_by_psutil()


def _is_on_battery_by(folder: Path) -> bool | None:
    """psutil takes a mouse's battery for the machine's, and knows adapters of two names only."""
    statuses: set[str] = set()
    is_unplugged = False
    with contextlib.suppress(OSError):
        for supply in folder.iterdir():
            if _entry(supply, "scope") == "Device":  # a mouse's
                continue
            kind, online = _entry(supply, "type"), _entry(supply, "online")
            if kind == "Battery" and _entry(supply, "present") != "0":
                statuses.add(_entry(supply, "status"))
            elif (kind == "Mains" or kind.startswith("USB")) and online not in ("", "0"):
                return False
            is_unplugged |= kind == "Mains" and online == "0"
    if not statuses:
        return None
    if "Charging" in statuses:
        return False
    if "Discharging" in statuses or is_unplugged:
        return True
    return None if statuses <= {"", "Unknown"} else False


def _entry(supply: Path, name: str) -> str:
    """ "" where it has none, or does not tell."""
    try:
        return (supply / name).read_text().strip()
    except (OSError, ValueError):
        return ""


def _is_on_battery_by_psutil() -> bool | None:
    try:
        battery = psutil.sensors_battery()
    except (OSError, AttributeError, RuntimeError, ValueError) as error:
        logger.debug("the battery does not tell reason=%s", error)
        return None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


class _Running(Protocol):
    """A process on the GPU as NVML lists it."""

    pid: int
    usedGpuMemory: int | None


class Gpu:
    """NVML's view of one GPU; each figure is None where the driver does not give it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._seen_at = int(time.time() * 1e6)
        """Microseconds: the newest sample of the processes' use that was looked at."""

    @classmethod
    def of(cls, uuid: str) -> "Gpu | None":
        """None without a driver that has it."""
        try:
            import pynvml

            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except Exception as error:  # of the library, which loads the driver's: without it we know less, and train on
            logger.info("no temperature and use of the GPU are known reason=%s", error)
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer of one of NVML's calls; None where the driver gives none."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def use(self) -> float | None:
        """The share of its time that it was busy, of 1."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else rates.gpu / 100

    def temperature(self) -> float | None:
        """Degrees Celsius."""
        degrees = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        return float(degrees) if degrees else None

    def used_bytes(self) -> int | None:
        """By anybody, the driver too."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        return None if memory is None else int(memory.used)

    def own_bytes(self, pid: int) -> int | None:
        """Of the process `pid`, the driver's own share in it too."""
        return sum(one.usedGpuMemory or 0 for one in self._processes() if one.pid == pid) or None

    def others_use(self, pid: int | None) -> float | None:
        """The share of its time, of 1, that went to other processes than `pid` since the call before; with None no
        process on it is ours."""
        if pid is not None and all(one.pid != pid for one in self._processes()):
            return None  # a container, in which processes go by other numbers: ours would count as another's
        samples = self._ask("nvmlDeviceGetProcessUtilization", self._seen_at)
        if not samples:  # "not found" is how it says that nobody used it
            return 0.0
        self._seen_at = max(one.timeStamp for one in samples)
        return _sum_of_means((one.pid, one.smUtil / 100) for one in samples if one.pid != pid)

    def _processes(self) -> list[_Running]:
        return self._ask("nvmlDeviceGetComputeRunningProcesses") or []


def _sum_of_means(samples: Iterable[tuple[int, float]]) -> float:
    """Of several samples of each process."""
    by_process: dict[int, list[float]] = {}
    for pid, share in samples:
        by_process.setdefault(pid, []).append(share)
    return min(1.0, sum(sum(shares) / len(shares) for shares in by_process.values()))
