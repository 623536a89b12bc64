"""Which of several addresses leads somewhere, and which IP addresses a name has.

The rule (RFC 8305, "happy eyeballs"): they are tried in their order, and the next one begins when one has failed, or
has not answered for a moment. So a dead address in front costs that moment, and a slow one is still waited for.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from spes_peer.errors import Unreachable

T = TypeVar("T")

HEAD_START_SECONDS = 0.4
"""Of an address before the next one."""
LOOK_UP_SECONDS = 5.0
MAX_IP_ADDRESSES = 4
"""Of a name."""


class NoneAnswers(Unreachable):
    """All attempts have failed."""

    def __init__(self, failures: Sequence[BaseException]) -> None:
        super().__init__("; ".join(str(failure) for failure in failures) or "there is no address to try")
        self.failures = tuple(failures)
        """In the order of the attempts."""


async def first_that_answers(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    discard: Callable[[T], Awaitable[object]] | None = None,
    head_start_seconds: float = HEAD_START_SECONDS,
) -> T:
    """What the first attempt to succeed gives; `NoneAnswers` when none does. A second one that succeeds in the same
    moment is handed to `discard`."""
    tasks: list[asyncio.Task[T]] = []
    winner: asyncio.Task[T] | None = None
    try:
        while winner is None:
            if len(tasks) < len(attempts):
                tasks.append(asyncio.create_task(_run(attempts[len(tasks)])))
            running = [task for task in tasks if not task.done()]
            if not running and len(tasks) == len(attempts):
                break
            has_next = len(tasks) < len(attempts)
            await asyncio.wait(
                running, timeout=head_start_seconds if has_next else None, return_when=asyncio.FIRST_COMPLETED
            )
            winner = next((task for task in tasks if _has_result(task)), None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if discard is not None and task is not winner and _has_result(task):
                await discard(task.result())
    if winner is None:
        raise NoneAnswers([failure for task in tasks if not task.cancelled() and (failure := task.exception())])
    return winner.result()


async def _run(attempt: Callable[[], Awaitable[T]]) -> T:
    return await attempt()


def _has_result(task: "asyncio.Task[T]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def look_up(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[str]:
    """The IP addresses of `host`, as `loop.getaddrinfo` would give them; none if it has none. In a thread for which the
    end of the program does not wait: a resolver without a network takes half a minute, and a Ctrl-C is obeyed at
    once."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def ask() -> None:
        found: list[str] = []
        with contextlib.suppress(OSError, UnicodeError):
            answers = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
            found = [str(one[4][0]) for one in answers]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(found))

    threading.Thread(target=ask, name=f"look up {host}", daemon=True).start()
    return await future
