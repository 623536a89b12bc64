"""Keeps a trainer process running: starts it, starts another with back-off when it dies, and says what it is."""

import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import ChildFailed
from spes_peer.identity import PeerId
from spes_peer.process import Backoff
from spes_peer.training.client import TrainerProcess
from spes_peer.training.work import TrainerOpened, TrainProgress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerSettings:
    """What a trainer process is opened with."""

    manifest: bytes
    blob_folder: Path
    state_folder: Path
    log_path: Path
    peer_id: PeerId
    device: str
    num_threads: int
    resident: str = ""
    checkpointing: str = "auto"
    optimizer_bits: int = 32
    memory_bytes: int = 0


class TrainerHost:
    """The trainer process that runs now."""

    def __init__(
        self, settings: TrainerSettings, start_process: Callable[[Path], TrainerProcess] = TrainerProcess.start
    ) -> None:
        self.on_progress: Callable[[TrainProgress], None] = lambda _progress: None
        self.on_restart: Callable[[], None] = lambda: None
        """Called when a new process stands where one died: it holds no state."""
        self.opened = TrainerOpened(device="", max_subsets=1, tokens_per_second=0.0)
        self._settings = settings
        self._start_process = start_process
        self._process: TrainerProcess | None = None
        self._why_none = "the trainer is starting"

    async def start(self) -> None:
        """Start and open a process; `ChildFailed` when it cannot be opened, and then nothing is left of it."""
        settings = self._settings
        process = self._start_process(settings.log_path)
        process.on_progress = lambda progress: self.on_progress(progress)
        try:
            opened = await process.open(
                settings.manifest,
                settings.blob_folder,
                settings.state_folder,
                settings.peer_id,
                settings.device,
                settings.num_threads,
                resident=settings.resident,
                checkpointing=settings.checkpointing,
                optimizer_bits=settings.optimizer_bits,
                memory_bytes=settings.memory_bytes,
            )
        except BaseException:
            await process.stop()
            raise
        self.opened, self._process = opened, process

    async def supervise(self) -> None:
        """Replace a process that died, for ever; ends by cancellation."""
        backoff = Backoff()
        while True:
            if (process := self._process) is not None:
                await process.wait_ended()
                self._process, self._why_none = None, "the trainer has ended and is started again"
                await process.stop()
                logger.error("the trainer ended %s", how_ended(process.child.process.returncode))
            await backoff.pause("the trainer")
            try:
                await self.start()
            except (ChildFailed, OSError) as error:
                self._why_none = f"the trainer does not start: {error}"
                logger.error("the trainer does not start reason=%s", error)
            else:
                self.on_restart()

    def get(self) -> TrainerProcess:
        """The process; `ChildFailed` says why there is none."""
        if self._process is None:
            raise ChildFailed(self._why_none)
        return self._process

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()


def how_ended(code: int) -> str:
    """The way that a process ended, in words."""
    if code == -signal.SIGKILL:
        return "killed by the system or by somebody; when it is the system, memory is short"
    if code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with code {code}"
