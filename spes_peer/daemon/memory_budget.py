"""What a trainer may plan with after others before it ended for lack of memory, and how that is recognized."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from spes_peer.errors import DiskTrouble
from spes_peer.files import write_whole

logger = logging.getLogger(__name__)

_SHRUNK_PART = 0.85
_KEPT_SECONDS = 24 * 3600.0  # what took the memory away may have given it back
_SHORT_PART = 0.05  # of all memory: when less is free, a process that is killed was in somebody's way
_KERNEL_COUNTS = Path("/proc/vmstat")


class MemoryBudget:
    """Bytes, in a file, so that a restart of the daemon does not begin with a plan that failed. 0 for what is free."""

    def __init__(self, path: Path, chosen_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """`chosen_bytes` is what the owner allows at most; 0 if that was left open."""
        self._path = path
        self._chosen_bytes = chosen_bytes
        self._clock = clock
        self._shrunk_bytes, self._shrunk_at = self._load()

    @property
    def size_bytes(self) -> int:
        if not self.is_shrunk:
            return self._chosen_bytes
        return min(self._shrunk_bytes, self._chosen_bytes or self._shrunk_bytes)

    @property
    def is_shrunk(self) -> bool:
        return self._shrunk_bytes > 0 and self._clock() - self._shrunk_at < _KEPT_SECONDS

    def shrink(self, planned_bytes: int) -> None:
        """A plan that needs so many bytes was too large."""
        self._shrunk_bytes, self._shrunk_at = max(1, int(_SHRUNK_PART * planned_bytes)), self._clock()
        try:
            write_whole(self._path, json.dumps({"bytes": self._shrunk_bytes, "at": self._shrunk_at}).encode())
        except DiskTrouble as error:
            logger.debug("cannot keep the memory budget reason=%s", error)

    def _load(self) -> tuple[int, float]:
        try:
            content = json.loads(self._path.read_bytes())
            return int(content["bytes"]), float(content["at"])
        except FileNotFoundError:
            return 0, 0.0
        except (ValueError, KeyError, TypeError, OSError) as error:
            logger.warning("planning with all memory path=%s reason=%s", self._path, error)
            return 0, 0.0


class MemoryWitness:
    """Whether memory was short when a process was killed. The kernel counts those that it kills for it; other killers,
    such as systemd-oomd, leave no trace but that little was free just before."""

    def __init__(self) -> None:
        self._kernel_kills = _kernel_kills()
        self._free_part = 1.0

    def look(self) -> None:
        """Note how much is free; call it every second or so."""
        memory = psutil.virtual_memory()
        self._free_part = memory.available / memory.total

    def was_short(self) -> bool:
        """Since the last answer, or just before now."""
        before, self._kernel_kills = self._kernel_kills, _kernel_kills()
        return self._kernel_kills > before or self._free_part < _SHORT_PART


def _kernel_kills() -> int:
    try:
        lines = _KERNEL_COUNTS.read_text().splitlines()
    except OSError:  # not Linux
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
