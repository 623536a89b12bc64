"""What the working thread of a trainer process does, for the thread that tells the daemon of it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Activity:
    """Written by the working thread only; each field may be read at any time."""

    steps_begun: int = 0
    is_in_step: bool = False
    planned_bytes: int = 0
    """That the present plan needs; 0 before there is one."""
    is_smallest_plan: bool = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A step is under way."""
        self.steps_begun += 1
        self.is_in_step = True
        try:
            yield
        finally:
            self.is_in_step = False
