"""How far something is that takes long: a bar on a terminal, elsewhere a line now and then; on standard error."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_LOOK_SECONDS = 0.25
_LINE_SECONDS = 10.0


def say(line: str) -> None:
    """To the person who waits."""
    print(line, file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def bytes_shown(what: str, done: Callable[[], int], whole: Callable[[], int]) -> AsyncIterator[None]:
    """While the block runs, show how many bytes of how many are `done`."""
    showing = asyncio.create_task(_show(what, done, whole))
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _show(what: str, done: Callable[[], int], whole: Callable[[], int]) -> None:
    console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        await _lines(what, done, whole)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        while True:
            bars.update(task, completed=done(), total=whole() or None)
            await asyncio.sleep(_LOOK_SECONDS)


async def _lines(what: str, done: Callable[[], int], whole: Callable[[], int]) -> None:
    said_at = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if time.monotonic() - said_at >= _LINE_SECONDS:
            said_at = time.monotonic()
            say(f"{what}: {done() / 1e6:.1f} of {whole() / 1e6:.1f} MB")
