"""The trainer process: requests in, answers out, one after another; a reduce, or the test of an expert, is
served between the steps of a round.

A thread reads the socket and the main thread works, so the end of the parent ends this process at once, even in the
middle of a step. Another thread tells every second which step the main thread is in: from that the daemon sees that
this process is frozen, or that a step hangs.

An error costs the request it came from. Memory that runs out in a step costs a smaller micro-batch (stepping.py); only
where not even one sequence fits, or outside of steps, it ends the process, because torch does not give back what it
holds then.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import psutil

from spes_peer import troubles
from spes_peer.errors import BadMessage, SpesError
from spes_peer.logs import log_of_child
from spes_peer.process import OUT_OF_MEMORY, OUT_OF_MEMORY_EXIT, kind_of, socket_to_parent
from spes_peer.run.records import SealedRecord
from spes_peer.training.activity import Activity
from spes_peer.training.device_figures import reader_of
from spes_peer.training.stepping import is_out_of_memory
from spes_peer.training.trainer import Trainer
from spes_peer.training.work import (
    AheadTrained,
    ApplyRecord,
    DeviceFigures,
    Done,
    LoadState,
    MeasureHeldOut,
    OpenTrainer,
    RecordApplied,
    ReduceBlock,
    RoundTrained,
    StopTraining,
    TrainAhead,
    TrainerBeat,
    TrainerOpened,
    TrainProgress,
    TrainRound,
    TryExpert,
)
from spes_peer.wire import convert, frames
from spes_peer.wire.children_pb2 import Frame

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
_SECONDS_BETWEEN_PROGRESS = 0.25
_SECONDS_BETWEEN_BEATS = 1.0
_SERVED_BETWEEN_STEPS = frozenset({"ReduceBlock", "TryExpert"})
_ENDS_A_ROUND = frozenset({"ApplyRecord", "LoadState", "StopTraining"})


class TrainerService:
    """Serves one parent until it is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._activity = Activity()
        self._incoming: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._later: deque[Frame] = deque()
        """Came during a round and waits for its end."""
        self._trainer: Trainer | None = None
        self._progress_at = 0.0
        self._read_device: Callable[[], DeviceFigures] | None = None
        self._requests: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
            "OpenTrainer": (OpenTrainer, self._open),
            "LoadState": (LoadState, lambda request: self.trainer.load_state(request)),
            "MeasureHeldOut": (MeasureHeldOut, lambda request: self.trainer.measure_held_out(request)),
            "TrainRound": (TrainRound, self._train),
            "TrainAhead": (TrainAhead, self._train_ahead),
            "StopTraining": (StopTraining, lambda _request: Done()),  # done by coming: the round has ended
            "ReduceBlock": (ReduceBlock, lambda request: self.trainer.reduce_block(request.task)),
            "TryExpert": (TryExpert, lambda request: self.trainer.try_expert(request)),
            "ApplyRecord": (ApplyRecord, self._apply),
        }

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise SpesError("the trainer is not open yet")
        return self._trainer

    def run(self) -> None:
        """Work for ever; the reading thread ends the process."""
        threading.Thread(target=self._read, name="read", daemon=True).start()
        threading.Thread(target=self._beat_for_ever, name="beat", daemon=True).start()
        while True:
            self._serve(self._later.popleft() if self._later else self._incoming.get())

    def _read(self) -> None:
        reader = frames.FrameReader()
        try:
            while content := self._end.recv(_READ_BYTES):
                for frame in reader.feed(content):
                    self._incoming.put(frame)
        except (OSError, BadMessage):
            logger.exception("lost the parent")
        finally:
            os._exit(0)  # nothing here needs an orderly end: files change only whole

    def _beat_for_ever(self) -> None:
        with contextlib.suppress(OSError):  # the parent is gone, which the reading thread sees too
            while True:
                self._beat()
                time.sleep(_SECONDS_BETWEEN_BEATS)

    def _beat(self) -> None:
        doing = self._activity
        beat = TrainerBeat(
            doing.steps_begun,
            doing.is_in_step,
            doing.planned_bytes,
            doing.is_smallest_plan,
            troubles.board.texts,
            self._device_figures(),
        )
        self._send(frames.event(convert.to_message(beat)))

    def _device_figures(self) -> DeviceFigures | None:
        """None before a device is chosen, or while its driver fails."""
        if self._trainer is None:
            return None
        try:
            self._read_device = self._read_device or reader_of(self._trainer.device)
            return self._read_device()
        except Exception as error:  # of any driver; the steps meet it where it matters, and a beat must not end
            logger.debug("no figures of the device reason=%s", error)
            return None

    def _serve(self, frame: Frame) -> None:
        try:
            if frame.kind not in self._requests:
                raise BadMessage(f"a trainer does not know {frame.kind[:80]!r}")
            cls, work = self._requests[frame.kind]
            answer = convert.to_message(work(convert.from_message(cls, frames.message_in(frame))))
        except SpesError as error:
            logger.warning("failed request=%s reason=%s", frame.kind, error)
            self._fail(frame, str(error), kind_of(error))
        except Exception as error:  # a bug must cost one request, and be read in the log
            logger.exception("failed request=%s", frame.kind)
            if is_out_of_memory(error):
                self._beat()  # with the plan that failed, should none have been sent
                self._fail(frame, f"out of memory: {(str(error) or 'RAM').splitlines()[0]}", OUT_OF_MEMORY)
                os._exit(OUT_OF_MEMORY_EXIT)
            self._fail(frame, f"{type(error).__name__}: {error}", kind_of(error))
        else:
            self._send(frames.answer(frame, answer))

    def _open(self, request: OpenTrainer) -> TrainerOpened:
        if self._trainer is not None:
            raise SpesError("the trainer is open already")
        self._trainer = Trainer(request, activity=self._activity)
        return self._trainer.opened()

    def _train(self, work: TrainRound) -> RoundTrained:
        return self.trainer.train_round(work, self._progress_of(work.round, work.num_steps), self._between_steps)

    def _train_ahead(self, work: TrainAhead) -> AheadTrained:
        return self.trainer.train_ahead(work, self._progress_of(work.round + 1, work.num_steps), self._between_steps)

    def _progress_of(self, round: int, num_steps: int) -> Callable[[int, float, float], None]:
        """Tells the daemon of steps done, not too often."""

        def on_step(steps_done: int, loss: float, tokens_per_second: float) -> None:
            now = time.monotonic()
            if now - self._progress_at >= _SECONDS_BETWEEN_PROGRESS or steps_done == num_steps:
                self._progress_at = now
                memory_bytes = psutil.Process().memory_info().rss
                progress = TrainProgress(round, steps_done, loss, tokens_per_second, memory_bytes)
                self._send(frames.event(convert.to_message(progress)))

        return on_step

    def _between_steps(self) -> bool:
        """Serve the reduces and tests that have come; False when something has come that the round must not delay."""
        while True:
            try:
                frame = self._incoming.get_nowait()
            except queue.Empty:
                return not any(waiting.kind in _ENDS_A_ROUND for waiting in self._later)
            if frame.kind in _SERVED_BETWEEN_STEPS:
                self._serve(frame)
            else:
                self._later.append(frame)

    def _apply(self, request: ApplyRecord) -> RecordApplied:
        return self.trainer.apply_record(SealedRecord.from_bytes(request.record).record, request.keep_snapshot)

    def _fail(self, asked: Frame, why: str, kind: str) -> None:
        failed = frames.failure(asked, why)
        failed.error_kind = kind
        self._send(failed)

    def _send(self, frame: Frame) -> None:
        with self._sending:
            self._end.sendall(frames.pack(frame))


def main() -> None:
    log_of_child()
    TrainerService(socket_to_parent()).run()


if __name__ == "__main__":
    main()
