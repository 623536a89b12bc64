"""Drives the program's coroutines in virtual time, without an event loop: each step is an event of its process.

It knows what the program's rim awaits: `sleep`, `gather`, a `TaskGroup` that lasts for ever, and whatever is a `Pause`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from spes_peer import clock

from .network import Events, Killed, Process

Resume = Callable[..., None]
"""Takes a value, or with `error` an exception."""


class Pause:
    """Awaitable: `arm` gets what to call, once and not at once, when the wait is over."""

    def __init__(self, arm: Callable[[Resume], None]) -> None:
        self.arm = arm

    def __await__(self) -> Generator[Pause, Any, Any]:
        return (yield self)


class Task:
    """A coroutine of a process, which ends with it: see `Process.tasks`."""

    def __init__(self, process: Process, work: Coroutine[Any, Any, Any], on_done: Callable[[], None] | None = None):
        self._process = process
        self._work = work
        self._on_done = on_done
        process.tasks[self] = None

    def resume(self, value: Any = None, error: Exception | None = None) -> None:
        if self not in self._process.tasks:
            return
        try:
            pause = self._work.send(value) if error is None else self._work.throw(error)
        except BaseException as end:
            self._process.tasks.pop(self, None)
            if not isinstance(end, StopIteration):
                raise
            if self._on_done is not None:
                self._on_done()
        else:
            pause.arm(self.resume)

    def close(self) -> None:
        """Ends it where it waits. Python runs its `finally` clauses, which a killed process would not: what they do
        reaches nobody (see `Machine.crash`), and what they raise is nobody's."""
        with contextlib.suppress(Exception, Killed):
            self._work.close()


def end_all(process: Process) -> None:
    """The coroutines of a process that is dead."""
    while process.tasks:
        task, _ = process.tasks.popitem()
        task.close()


class VirtualAsyncio:
    """Takes the place of `asyncio` in a module of the program."""

    def __init__(self, events: Callable[[], Events]) -> None:
        self._events = events

    def spawn(self, work: Coroutine[Any, Any, Any], on_done: Callable[[], None] | None = None) -> None:
        process = self._events().current
        assert process is not None
        Task(process, work, on_done).resume()

    def sleep(self, seconds: float) -> Pause:
        events = self._events()
        return Pause(lambda resume: events.after(seconds, events.current, resume))

    async def sleep_awake(self, seconds: float) -> float:
        """As `spes_peer.clock.sleep_awake`: a process that is frozen has slept."""
        events = self._events()
        began_at = events.now
        await self.sleep(seconds)
        late = events.now - began_at - seconds
        return late if late > clock.GAP_SECONDS else 0.0

    def gather(self, *works: Coroutine[Any, Any, Any]) -> Pause:
        """Until all are done; what they return is not asked for."""

        def arm(resume: Resume) -> None:
            left = len(works)

            def done() -> None:
                nonlocal left
                left -= 1
                if not left:
                    events = self._events()
                    events.after(0.0, events.current, resume)

            for work in works:
                self.spawn(work, done)
            if not works:
                events = self._events()
                events.after(0.0, events.current, resume)

        return Pause(arm)

    def TaskGroup(self) -> _TaskGroup:
        return _TaskGroup(self)


class _TaskGroup:
    """Of loops that never end."""

    def __init__(self, asyncio: VirtualAsyncio) -> None:
        self._asyncio = asyncio

    async def __aenter__(self) -> _TaskGroup:
        return self

    async def __aexit__(self, *_: object) -> None:
        await Pause(lambda _resume: None)

    def create_task(self, work: Coroutine[Any, Any, Any]) -> None:
        self._asyncio.spawn(work)
