"""All cells of an experiment, each in a process of its own; those that a file already answers are not run again.

A cell that fails, or whose process dies, costs that cell. An interruption ends the cells that run; what is finished
stays, since a result's file is written whole when its cell is done.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from spes_peer.errors import SpesError
from spes_peer.experiment.config import Cell
from spes_peer.experiment.results import CellResult, load_result, save_result

_STOP_SECONDS = 5.0
_WAIT_SECONDS = 1.0


class Progress(Protocol):
    """Who is told how it goes."""

    def started(self, cell: Cell) -> None: ...

    def went_on(self, cell: Cell, rounds_done: int, held_out_loss: float) -> None: ...

    def finished(self, cell: Cell, result: CellResult) -> None: ...

    def failed(self, cell: Cell, reason: str) -> None: ...


def num_jobs(asked: int, num_cells: int) -> int:
    """Cells at a time: as asked for, or else as many as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked or cores, num_cells))


@dataclass
class _Running:
    cell: Cell
    process: BaseProcess
    said: Connection
    failure: str = ""
    is_done: bool = False


def run_cells(cells: tuple[Cell, ...], folder: Path, jobs: int, progress: Progress) -> dict[Cell, str]:
    """Run what has no result in `folder` yet, `jobs` at a time; why cells failed."""
    context = _context()
    to_do = [cell for cell in cells if load_result(folder / cell.file_name) is None]
    failed: dict[Cell, str] = {}
    running: list[_Running] = []
    with _ended(running):
        while to_do or running:
            while to_do and len(running) < jobs:
                with _uninterrupted():  # or a process runs that nobody knows of
                    running.append(_start(context, to_do.pop(0), folder))
                progress.started(running[-1].cell)
            wait([one.said for one in running], _WAIT_SECONDS)
            for one in tuple(running):
                _hear(one, progress)
                if not one.is_done:
                    continue
                running.remove(one)
                one.process.join(_STOP_SECONDS)
                result = None if one.failure else load_result(folder / one.cell.file_name)
                if result is not None:
                    progress.finished(one.cell, result)
                else:
                    failed[one.cell] = one.failure or f"its process ended with code {one.process.exitcode}"
                    progress.failed(one.cell, failed[one.cell])
    return failed


def _context() -> BaseContext:
    """A server that has torch loaded forks each cell, where there is one; elsewhere each cell starts anew."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spes_peer.experiment.cell"])
    return context


def _start(context: BaseContext, cell: Cell, folder: Path) -> _Running:
    hears, says = multiprocessing.Pipe(duplex=False)
    process = context.Process(target=_work, args=(cell, folder, says), name=cell.name, daemon=True)  # type: ignore[attr-defined]
    process.start()
    says.close()
    return _Running(cell, process, hears)


def _hear(one: _Running, progress: Progress) -> None:
    """Take what the cell's process has said; the end of it is the process's end."""
    try:
        while one.said.poll():
            said = json.loads(one.said.recv_bytes())
            if "failure" in said:
                one.failure = said["failure"]
            else:
                progress.went_on(one.cell, said["rounds_done"], said["held_out_loss"])
    except (EOFError, ConnectionError):
        one.is_done = True


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interruption meanwhile comes right after. A blocked signal would not do: multiprocessing unblocks it."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _ended(running: list[_Running]) -> Iterator[None]:
    """Leave no process behind, whatever happens."""
    try:
        yield
    finally:
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.join(_STOP_SECONDS)
            if one.process.is_alive():
                one.process.kill()
                one.process.join(_STOP_SECONDS)


def _work(cell: Cell, folder: Path, says: Connection) -> None:
    """In the cell's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    from spes_peer.experiment.cell import run_cell

    told_at = -1.0

    def on_round(rounds_done: int, held_out_loss: float) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _WAIT_SECONDS:
            told_at = time.monotonic()
            _say(says, {"rounds_done": rounds_done, "held_out_loss": held_out_loss})

    try:
        save_result(folder / cell.file_name, run_cell(cell, on_round))
    except (SpesError, OSError) as error:
        _say(says, {"failure": str(error)})
    except Exception as error:  # a bug must cost one cell, and be read
        logging.getLogger(__name__).exception("failed cell=%s", cell.name)
        _say(says, {"failure": f"{type(error).__name__}: {error}"})


def _say(says: Connection, what: dict[str, object]) -> None:
    try:
        says.send_bytes(json.dumps(what).encode())
    except BrokenPipeError:  # who wants to know is gone
        sys.exit(1)
