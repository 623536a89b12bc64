"""Keeps a trainer process running: starts it, starts another with back-off when it dies, and says what it is."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import ChildFailed
from spes_peer.identity import PeerId
from spes_peer.training.client import TrainerProcess
from spes_peer.training.work import TrainerOpened, TrainProgress

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF_SECONDS = 30.0


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


class TrainerHost:
    """The trainer process that runs now."""

    def __init__(self, settings: TrainerSettings) -> None:
        self.on_progress: Callable[[TrainProgress], None] = lambda _progress: None
        self.on_restart: Callable[[], None] = lambda: None
        """Called when a new process stands where one died: it holds no state."""
        self.opened = TrainerOpened(device="", max_subsets=1, tokens_per_second=0.0)
        self._settings = settings
        self._process: TrainerProcess | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Start and open the first process; `ChildFailed` when it cannot be opened."""
        process = TrainerProcess.start(self._settings.log_path)
        self._process = process
        process.on_progress = lambda progress: self.on_progress(progress)
        settings = self._settings
        self.opened = await process.open(
            settings.manifest,
            settings.blob_folder,
            settings.state_folder,
            settings.peer_id,
            settings.device,
            settings.num_threads,
        )
        self._ready.set()

    async def supervise(self) -> None:
        """Replace a process that died, for ever; ends by cancellation."""
        backoff_seconds = 1.0
        while True:
            assert self._process is not None
            await self._process.wait_ended()
            self._ready.clear()
            code = await asyncio.to_thread(self._process.child.process.wait)
            logger.error("the trainer ended, starting another code=%d in_seconds=%.0f", code, backoff_seconds)
            await self._process.stop()
            await asyncio.sleep(backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, _LONGEST_BACKOFF_SECONDS)
            try:
                await self.start()
            except ChildFailed as error:
                logger.error("the trainer did not start reason=%s", error)
                continue
            self.on_restart()

    def get(self) -> TrainerProcess:
        """The process; `ChildFailed` while there is none."""
        if self._process is None or not self._ready.is_set():
            raise ChildFailed("the trainer is being restarted")
        return self._process

    async def until_ready(self) -> None:
        await self._ready.wait()

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()
