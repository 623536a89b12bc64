"""Keeps a trainer process running: starts it, watches it, and starts another with back-off when it dies.

One that is frozen or hangs is killed. After one that ended for lack of memory, the next plans with less of it; where
even the smallest plan does not fit, the owner is told, and it is tried again every few minutes.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spes_peer import troubles
from spes_peer.daemon.memory_budget import MemoryBudget, MemoryWitness
from spes_peer.daemon.stalling import STALL_SECONDS, StallWatch
from spes_peer.errors import ChildDied, ChildFailed, ChildOutOfMemory, ChildStalled, ChildUnfit, NoDevice
from spes_peer.files import remove_litter
from spes_peer.identity import PeerId
from spes_peer.process import OUT_OF_MEMORY_EXIT, Backoff, Service, start_surely
from spes_peer.run.manifest import RunFile
from spes_peer.training.client import TrainerProcess
from spes_peer.training.plan import choices_for, fitting_plan, refuse_if_too_large
from spes_peer.training.work import DeviceFigures, TrainerBeat, TrainerOpened, TrainProgress

logger = logging.getLogger(__name__)

BUDGET_FILE = "memory.json"
_LOOK_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0  # when not even the smallest plan fits
_MEMORY = "memory"
_REPORTED = "the trainer"


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
    memory_part: float = 0.0
    """Of all the device has, where bytes are left open."""
    max_subsets: int = 0
    """To train, at most; 0 takes what fits."""
    has_low_priority: bool = False
    """Among all programs of the machine."""
    cache_folder: Path | None = None
    """For what its libraries keep to be faster the next time; None leaves them where they like."""
    stall_seconds: float = STALL_SECONDS
    """Without a sign of life, or in one step that takes ten times as long as any before, after which it is killed."""


class TrainerHost:
    """The trainer process that runs now."""

    def __init__(
        self,
        settings: TrainerSettings,
        start_process: Callable[[Path, bool, Path | None], TrainerProcess] = TrainerProcess.start,
        witness: MemoryWitness | None = None,
    ) -> None:
        self.on_progress: Callable[[TrainProgress], None] = lambda _progress: None
        self.on_restart: Callable[[], None] = lambda: None
        """Called when a new process stands where one died: it holds no state, and `opened` may say less than before."""
        self.opened = TrainerOpened(device="", max_subsets=1, tokens_per_second=0.0)
        self.service = Service("trainer")
        self._settings = settings
        self._start_process = start_process
        self._budget = MemoryBudget(settings.state_folder / BUDGET_FILE, settings.memory_bytes)
        self._witness = witness or MemoryWitness()
        self._process: TrainerProcess | None = None
        self._num_processes = 0
        """Also such as open or end."""
        self._watch = StallWatch(settings.stall_seconds)
        self._beat: TrainerBeat | None = None
        """The newest of the newest process."""
        self._is_hopeless = False
        """The last ended for lack of memory, and there is no smaller plan."""
        self._why_none = "the trainer is starting"
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._why_resting = ""
        self._has_rested = False
        """There is no process, or not yet, because there was to be none for a while."""

    @property
    def max_subsets(self) -> int:
        """How many it can train, and may."""
        fits = self.opened.max_subsets
        return min(fits, self._settings.max_subsets) if self._settings.max_subsets else fits

    async def start(self) -> None:
        """Start and open a process, another if that one is killed meanwhile; `ChildFailed` when it cannot be opened,
        and then nothing is left of it. `NoDevice` where that is for want of a device, or of memory in it.
        Nothing happens while it is to rest."""
        if self.is_resting:
            return
        try:
            await start_surely("the trainer", self._launch, (ChildDied, ChildOutOfMemory, ChildStalled))
        except ChildUnfit as error:
            raise NoDevice(str(error)) from None

    def refuse_a_limit_below_every_plan(self, run: RunFile) -> None:
        """`NoDevice` where the owner allows less than the smallest part of the run takes. Once it has started."""
        chosen, device = self._settings, self.opened.device
        if chosen.memory_bytes and device:
            is_gpu = device.startswith("cuda")
            choices = choices_for(is_gpu, chosen.resident, chosen.checkpointing, chosen.optimizer_bits)
            smallest, _ = fitting_plan(run, chosen.memory_bytes, choices, may_be_coarser=not chosen.resident)
            refuse_if_too_large(smallest, chosen.memory_bytes, device)

    async def _launch(self) -> None:
        settings = self._settings
        # of a trainer that was killed while it saved; each is as large as a checkpoint
        await asyncio.to_thread(remove_litter, settings.state_folder, older_than_seconds=0.0)
        process = self._start_process(settings.log_path, settings.has_low_priority, settings.cache_folder)
        self._num_processes += 1
        process.on_progress = lambda progress: self.on_progress(progress)
        process.on_beat = self._take_beat
        self._watch, self._beat = StallWatch(settings.stall_seconds), None
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
                memory_bytes=self._budget.size_bytes,
                memory_part=settings.memory_part,
            )
        except BaseException as error:
            await self._stop(process)
            if isinstance(error, ChildFailed):
                said = "" if isinstance(error, ChildDied) else str(error)
                self._note_end(process, said, isinstance(error, ChildOutOfMemory))
            raise
        self.opened, self._process = opened, process
        troubles.board.clear(_MEMORY)
        self.service.say("running", self._how_it_plans())

    async def supervise(self) -> None:
        """Replace a process that died or stalled, for ever; ends by cancellation."""
        backoff = Backoff()
        while True:
            await self._may_run.wait()
            if (process := self._process) is not None:
                await self._until_ended(process)
                if self._process is not process:  # put to rest
                    continue
                self._process = None
                await self._stop(process)
                self._note_end(process)
            if not self._has_rested:
                await backoff.pause("the trainer", _LONGEST_PAUSE_SECONDS if self._is_hopeless else 0.0)
            if self.is_resting:
                continue
            try:
                await self._launch()
            except (ChildFailed, OSError) as error:
                self._has_rested = False
                self._why_none = f"the trainer does not start: {error}"
                logger.error("the trainer does not start reason=%s", error)
            else:
                await self._go_on_or_rest()

    async def _go_on_or_rest(self) -> None:
        """A new process stands there, and may have been told to rest while it started."""
        if self.is_resting:
            await self.rest(self._why_resting)
        else:
            self._has_rested = False
            self.on_restart()

    @property
    def is_resting(self) -> bool:
        """Whether there is no process because none is wanted."""
        return not self._may_run.is_set()

    @property
    def has_left_device(self) -> bool:
        """Whether all that is used of the device is others', for as long as it rests."""
        return self.is_resting and not self._num_processes

    @property
    def is_waking(self) -> bool:
        """Whether there is no process yet because none was wanted."""
        return self._has_rested and not self.is_resting

    async def rest(self, why: str) -> None:
        """End the process, which frees all that it holds of the device, and start none before `wake`."""
        self._may_run.clear()
        self._has_rested = True
        self._why_resting = why
        self._why_none = f"the trainer rests: {why}"
        process, self._process = self._process, None
        self.service.say("resting", why)
        if process is not None:
            await self._stop(process)

    def wake(self) -> None:
        """Start a process again, soon; `on_restart` is called then. Nothing happens where none rests."""
        if self.is_resting:
            self._why_none = "the trainer is starting"
            self.service.say("starting")
            self._may_run.set()

    async def _until_ended(self, process: TrainerProcess) -> None:
        """Until it has ended by itself, or was killed because it stalled."""
        ended = asyncio.create_task(process.wait_ended())
        look_seconds = min(_LOOK_SECONDS, self._settings.stall_seconds / 4)
        looked_at = time.monotonic()
        try:
            while not (await asyncio.wait((ended,), timeout=look_seconds))[0]:
                now = time.monotonic()
                self._watch.awake(min(now - looked_at, 2 * look_seconds))  # beyond that we ourselves were suspended
                looked_at = now
                self._witness.look()
                if (why := self._watch.why) and not process.why_killed:
                    process.kill(why)
        finally:
            ended.cancel()

    @property
    def device(self) -> DeviceFigures | None:
        """As the trainer found its device a second ago; None while there is no trainer that tells."""
        return self._beat.device if self._beat is not None and self._process is not None else None

    def _take_beat(self, beat: TrainerBeat) -> None:
        self._watch.heard(beat)
        self._beat = beat
        if beat.troubles:
            troubles.board.set(_REPORTED, "; ".join(beat.troubles))
        else:
            troubles.board.clear(_REPORTED)

    def _note_end(self, process: TrainerProcess, said: str = "", is_out_of_memory: bool = False) -> None:
        """Say how a process ended, and shrink what the next plans with if it was for lack of memory."""
        code = process.child.process.returncode
        was_killed = code == -signal.SIGKILL and not process.why_killed
        is_for_memory = is_out_of_memory or code == OUT_OF_MEMORY_EXIT or (was_killed and self._witness.was_short())
        how = process.why_killed or said or how_ended(code)
        self._is_hopeless = False
        if is_for_memory:
            how = "killed by the system (memory)" if was_killed else "out of memory"
            self._shrink()
        self._why_none = f"the trainer has ended and is started again: {how}"
        self.service.say("restarting", how)
        logger.error("the trainer ended reason=%s", how)

    def _shrink(self) -> None:
        planned_bytes = self._beat.planned_bytes if self._beat else 0
        self._is_hopeless = not planned_bytes or (self._beat is not None and self._beat.is_smallest_plan)
        if planned_bytes and not self._is_hopeless:
            self._budget.shrink(planned_bytes)
        if self._is_hopeless:
            needs = f"needs {planned_bytes / 1e9:.1f} GB and " if planned_bytes else ""
            text = (
                f"not enough memory: even the trainer's smallest plan {needs}does not fit; free some, or leave the run"
            )
            troubles.board.set(_MEMORY, text)

    def _how_it_plans(self) -> str:
        """What is unusual in it."""
        before = self.service.why.partition(";")[0]
        if not self._budget.is_shrunk:
            return before
        plans = f"planning with {self._budget.size_bytes / 1e9:.1f} GB now"
        return f"{before}; {plans}" if before else plans

    def get(self) -> TrainerProcess:
        """The process; `ChildFailed` says why there is none."""
        if self._process is None:
            raise ChildFailed(self._why_none)
        return self._process

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await self._stop(process)

    async def _stop(self, process: TrainerProcess) -> None:
        try:
            await process.stop()
        finally:
            self._num_processes -= 1


def how_ended(code: int) -> str:
    """The way that a process ended, in words."""
    if code == -signal.SIGKILL:
        return "killed by somebody (SIGKILL)"
    if code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with code {code}"
