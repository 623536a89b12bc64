"""Writes down what happens to the daemon, and at last why it ended; what watchers see is what is written."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from spes_peer.control import StatusBoard
from spes_peer.errors import SpesError, first_in
from spes_peer.events.journal import EventLog
from spes_peer.events.picture import Picture
from spes_peer.wire.control_pb2 import Status

logger = logging.getLogger(__name__)

AS_ASKED = "left the run, as its owner asked"
_AGAIN_SECONDS = 5.0
BY_SIGNAL = "left the run, as a signal asked"


class Recorder:
    """Of one daemon, whose `facts` are everything that a watcher may want to know, as it is now."""

    def __init__(self, facts: Callable[[], Status]) -> None:
        self._facts = facts
        self._picture: Picture | None = None
        self._why_ending = ""
        self.board = StatusBoard(lambda: self._picture.look() if self._picture is not None else Status())

    def say_why(self, why: str) -> None:
        """The daemon is asked to end; the first reason counts."""
        self._why_ending = self._why_ending or why

    @contextlib.asynccontextmanager
    async def running(self, folder: Path, log_file: logging.Handler | None) -> AsyncIterator[None]:
        """Write events to `folder` meanwhile. An error that comes out of the block is the reason for the end; it is
        noted in `log_file` too, because else only the terminal would have it."""
        self._picture = Picture(self._facts, EventLog(folder))
        recording = asyncio.create_task(self._record())
        why, exit_code = "", 0
        try:
            yield
        except BaseException as error:
            first = first_in(error) if isinstance(error, BaseExceptionGroup) else error
            is_a_fault = not isinstance(first, SpesError)
            why = f"a fault of the program: {type(first).__name__} {first}" if is_a_fault else str(first)
            exit_code = getattr(first, "exit_code", 1)
            if log_file is not None:
                log_file.handle(_last_words(why, error if is_a_fault else None))
            raise
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)
            self._picture.end(why or self._why_ending or "ended", exit_code)
            await asyncio.to_thread(self._picture.close)  # else a slow disk would stop the loop

    async def _record(self) -> None:
        """Look at what changes, also while nobody watches; a look that fails is no reason never to look again."""
        while True:
            try:
                async for _ in self.board.watch():
                    pass
                return
            except Exception:
                logger.exception("could not look at what the daemon does")
                await asyncio.sleep(_AGAIN_SECONDS)


def _last_words(why: str, fault: BaseException | None) -> logging.LogRecord:
    trace = (type(fault), fault, fault.__traceback__) if fault is not None else None
    return logger.makeRecord(logger.name, logging.ERROR, __file__, 0, "ended: %s", (why,), trace)
