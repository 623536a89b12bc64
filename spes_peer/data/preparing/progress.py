"""How a preparation shows that it goes on: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from spes_peer.measures import duration

LINE_SECONDS = 10.0


class Shows(Protocol):
    """Who is told how far it is."""

    def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
        """So many bytes of all files have been read, and so many tokens made of them, since the beginning."""


class Silent:
    def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
        pass


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{rate_words(task.fields['rate'])}" if task.fields["rate"] else "")


class Shown:
    """On standard error; `num_bytes` is what there is to read, and `num_done` what was read before."""

    def __init__(self, num_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._num_bytes, self._clock = num_bytes, clock
        self._console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
        self._has_bar = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._has_bar,
        )
        self._task = self._bars.add_task("reading", total=num_bytes or 1, rate=0.0)
        self._began: tuple[float, int, int] | None = None
        self._said_at = clock()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._bars.stop()

    def went_on(self, what: str, num_bytes: int, num_tokens: int) -> None:
        now = self._clock()
        began_at, first_bytes, first_tokens = self._began = self._began or (now, num_bytes, num_tokens)
        seconds = max(now - began_at, 1e-3)
        rate = (num_tokens - first_tokens) / seconds
        self._bars.update(
            self._task, completed=num_bytes, description=f"{what}: {count_words(num_tokens)} tokens", rate=rate
        )
        if not self._has_bar and now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            bytes_rate = (num_bytes - first_bytes) / seconds
            speed = f", {rate_words(rate)}" if rate else ""
            left = f", {duration((self._num_bytes - num_bytes) / bytes_rate)} left" if bytes_rate else ""
            part = 100 * num_bytes / max(1, self._num_bytes)
            self._console.print(
                f"{what}: {part:.0f} % read, {count_words(num_tokens)} tokens{speed}{left}", markup=False
            )


def count_words(number: float) -> str:
    """Three digits: 12.3 M."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.3g} T"


def rate_words(tokens_per_second: float) -> str:
    return f"{count_words(tokens_per_second)} tokens/s"
