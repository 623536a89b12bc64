"""The daemon's end of the trainer process: asks, waits with a time-out, and hears of progress. Needs no torch.

Requests are done one after another, except that a reduce, and the test of
an expert, is served between the steps of a running round. When the
process dies, every open request ends with `ChildFailed`; the daemon starts another and loads the state again.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from spes_peer.errors import BadMessage, ChildStalled
from spes_peer.identity import PeerId
from spes_peer.process import Child, let_others_go_first
from spes_peer.run.offers import ReduceTask
from spes_peer.run.records import BlockName
from spes_peer.training.work import (
    AheadTrained,
    ApplyRecord,
    BlockReduced,
    Done,
    ExpertTried,
    HeldOut,
    LoadState,
    MeasureHeldOut,
    OpenTrainer,
    RecordApplied,
    ReduceBlock,
    RoundTrained,
    StateLoaded,
    StopTraining,
    TrainAhead,
    TrainerBeat,
    TrainerOpened,
    TrainProgress,
    TrainRound,
    TryExpert,
)
from spes_peer.wire import convert

T = TypeVar("T")
logger = logging.getLogger(__name__)

# Far above what each takes on slow machines: they end waits for a process that hangs, not for one that is slow.
OPEN_SECONDS = 300.0  # imports torch from a cold disk, takes its place in memory
STATE_SECONDS = 900.0  # reads, hashes and writes the whole public state
REDUCE_SECONDS = 300.0
LAST_STEP_SECONDS = 600.0  # beyond `stop_at`: the step it is in, and the encoding of all offers


def _caches_in(folder: Path | None) -> dict[str, str]:
    """Environment for torch's compiler, Triton and CUDA's; by itself each writes into another place of the user's."""
    names = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda"}
    return {} if folder is None else {name: str(folder / inside) for name, inside in names.items()}


class TrainerProcess:
    """One trainer process. Every method raises `ChildFailed` with the reason when there is no answer."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.on_progress: Callable[[TrainProgress], None] = lambda _progress: None
        self.on_beat: Callable[[TrainerBeat], None] = lambda _beat: None
        self.why_killed = ""
        """Why we killed it, if we did."""
        child.on_event = self._take_event

    @classmethod
    def start(
        cls, log_path: Path, has_low_priority: bool = False, cache_folder: Path | None = None
    ) -> "TrainerProcess":
        """Start the process; call inside a running loop. What torch and the driver keep for the next time goes into
        `cache_folder`, or where they like."""
        child = Child.start("trainer", "spes_peer.training", log_path, _caches_in(cache_folder))
        if has_low_priority:
            let_others_go_first(child.pid)
        return cls(child)

    async def open(
        self,
        manifest: bytes,
        blob_folder: Path,
        state_folder: Path,
        peer_id: PeerId,
        device: str = "",
        num_threads: int = 0,
        *,
        resident: str = "",
        checkpointing: str = "auto",
        optimizer_bits: int = 32,
        memory_bytes: int = 0,
        memory_part: float = 0.0,
    ) -> TrainerOpened:
        """Build the model. `device` "" takes the GPU where there is one; 0 threads leaves torch its choice; the rest is
        as in `choices.Choices`, with 0 bytes, and no part of all, for what is free."""
        request = OpenTrainer(
            manifest,
            str(blob_folder),
            str(state_folder),
            device,
            num_threads,
            peer_id,
            resident,
            checkpointing,
            optimizer_bits,
            memory_bytes,
            memory_part,
        )
        return await self._ask(request, TrainerOpened, OPEN_SECONDS)

    async def load_state(self, round: int, blocks: tuple[BlockName, ...]) -> str:
        """Load the whole public state after record `round` from blobs in the store; its root."""
        return (await self._ask(LoadState(round, blocks), StateLoaded, STATE_SECONDS)).state_root

    async def measure_held_out(self, slice: int, num_slices: int) -> HeldOut:
        return await self._ask(MeasureHeldOut(slice, num_slices), HeldOut, STATE_SECONDS)

    async def train_round(self, work: TrainRound) -> RoundTrained:
        """Train until the steps are done or `work.stop_at`; all shards of its ranges are in the store."""
        seconds = max(0.0, work.stop_at - time.time()) + LAST_STEP_SECONDS
        return await self._ask(work, RoundTrained, seconds)

    async def train_ahead(self, work: TrainAhead) -> AheadTrained:
        """Train the first steps of the next round while this one's exchange runs; `apply_record` ends it."""
        seconds = max(0.0, work.stop_at - time.time()) + LAST_STEP_SECONDS
        return await self._ask(work, AheadTrained, seconds)

    async def stop_training(self) -> None:
        """Make no further step: what is being trained ends with the steps made. The answer comes when it has ended."""
        await self._ask(StopTraining(), Done, STATE_SECONDS)

    async def reduce_block(self, task: ReduceTask) -> BlockReduced:
        """Average the offers of one block; all their blobs are in the store."""
        return await self._ask(ReduceBlock(task), BlockReduced, REDUCE_SECONDS)

    async def try_expert(self, work: TryExpert) -> ExpertTried:
        """What the updates of an expert of another do to the held-out loss; all their blobs are in the store."""
        return await self._ask(work, ExpertTried, REDUCE_SECONDS)

    async def apply_record(self, record: bytes, keep_snapshot: bool) -> RecordApplied:
        """Apply a certified record; ends a round that is still running with the steps made."""
        return await self._ask(ApplyRecord(record, keep_snapshot), RecordApplied, STATE_SECONDS)

    async def wait_ended(self) -> None:
        """Until the process is gone."""
        await self.child.ended.wait()

    async def stop(self) -> None:
        await self.child.stop()

    def kill(self, why: str) -> None:
        """It hangs, in a driver perhaps, and only another process can go on."""
        self.why_killed = why
        self.child.kill()

    async def _ask(self, request: Any, reply: type[T], timeout_seconds: float) -> T:
        kind = convert.message_class(reply.__name__)
        try:
            answer = await self.child.call(convert.to_message(request), kind, timeout_seconds)
        except ChildStalled as error:
            self.kill(str(error))
            raise
        return convert.from_message(reply, answer)

    def _take_event(self, message: Message) -> None:
        try:
            if message.DESCRIPTOR.name == TrainerBeat.__name__:
                self.on_beat(convert.from_message(TrainerBeat, message))
            else:
                self.on_progress(convert.from_message(TrainProgress, message))
        except BadMessage as error:
            logger.warning("dropped an event of the trainer reason=%s", error)
