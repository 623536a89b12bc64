"""How an experiment shows that it goes on: bars on a terminal, a line for each cell elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from spes_peer.experiment.config import Cell
from spes_peer.experiment.results import CellResult


class Lines:
    """A line for each cell that ends, on `file` or else standard error; on a terminal bars below them."""

    def __init__(self, num_cells: int, num_known: int) -> None:
        self._num_cells, self._num_ended = num_cells, num_known
        self._console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._all = self._bars.add_task("cells", total=num_cells, completed=num_known)
        self._tasks: dict[Cell, TaskID] = {}
        if num_known:
            self._say(f"{num_known} of {num_cells} cells are finished already")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._bars.stop()

    def started(self, cell: Cell) -> None:
        self._tasks[cell] = self._bars.add_task(cell.name, total=cell.arm.num_rounds)

    def went_on(self, cell: Cell, rounds_done: int, held_out_loss: float) -> None:
        self._bars.update(
            self._tasks[cell], completed=rounds_done, description=f"{cell.name}: held-out loss {held_out_loss:.4f}"
        )

    def finished(self, cell: Cell, result: CellResult) -> None:
        self._ended(
            cell,
            f"held-out loss {result.final.held_out_loss:.4f} after {result.final.tokens:,} tokens"
            f" ({result.final.seconds:.0f} s, {result.tokens_per_second:,.0f} tokens/s)",
        )

    def failed(self, cell: Cell, reason: str) -> None:
        self._ended(cell, f"failed: {reason}")

    def _ended(self, cell: Cell, what: str) -> None:
        self._num_ended += 1
        self._bars.remove_task(self._tasks.pop(cell))
        self._bars.update(self._all, completed=self._num_ended)
        self._say(f"[{self._num_ended}/{self._num_cells}] {cell.name}: {what}")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)
