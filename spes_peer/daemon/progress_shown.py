"""What takes longer than a second, shown to whoever started a daemon without a dashboard: a bar below the log lines in
a terminal, and elsewhere a line now and then.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from spes_peer.daemon.status_words import how_far, progress_words
from spes_peer.wire.control_pb2 import Progress

logger = logging.getLogger(__name__)

LINE_SECONDS = 10.0
_SHOWN_AFTER_SECONDS = 1.0
_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class _Began:
    """Where something was when it was first seen."""

    what: str
    at: float
    done: float


Look = Callable[[], Progress | None]


async def show(look: Look, has_bar: bool) -> None:
    """For ever; ends by cancellation."""
    console = Console(stderr=True)
    if has_bar and console.is_terminal and not console.is_dumb_terminal:
        await _bars(look, console)
    else:
        await _lines(look)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        is_bytes = task.fields["unit"] == "bytes"
        return Text(f"{task.speed / 1e6:.1f} MB/s" if is_bytes else f"{task.speed:.1f} {task.fields['unit']}/s")


async def _bars(look: Look, console: Console) -> None:
    # log lines go through `stderr`, which the bar takes over while it is there
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Rate(), TimeRemainingColumn())
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if _is_worth_showing(look()):
            with Bars(*columns, console=console, transient=True) as bars:
                await _until_done(look, bars)


async def _until_done(look: Look, bars: Bars) -> None:
    shown: tuple[str, float] | None = None
    task = TaskID(-1)
    while (progress := look()) is not None:
        whole = progress.whole or None
        if shown != (progress.what, progress.since_at):
            for old in bars.task_ids:
                bars.remove_task(old)
            shown, task = (progress.what, progress.since_at), bars.add_task("", total=whole, unit=progress.unit)
        bars.update(task, description=how_far(progress), total=whole, completed=progress.done)
        await asyncio.sleep(_LOOK_SECONDS)


async def _lines(look: Look) -> None:
    said_at, began = -LINE_SECONDS, _Began("", 0.0, 0.0)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        progress, now = look(), time.monotonic()
        if progress is None or not _is_worth_showing(progress):
            continue
        if began.what != progress.what:
            began = _Began(progress.what, now, progress.done)
        if now - said_at >= LINE_SECONDS:
            said_at = now
            logger.info(
                "%s", progress_words(progress, (progress.done - began.done) / max(now - began.at, _LOOK_SECONDS))
            )


def _is_worth_showing(progress: Progress | None) -> bool:
    return progress is not None and time.time() - progress.since_at >= _SHOWN_AFTER_SECONDS


@contextlib.asynccontextmanager
async def shown(look: Look, has_bar: bool) -> AsyncIterator[None]:
    """While the block runs."""
    showing = asyncio.create_task(show(look, has_bar))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
