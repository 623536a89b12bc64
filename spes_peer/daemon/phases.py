"""The phase that the daemon is in, for its log and for watchers.

Every phase carries since when, waiting for whom, until when, and why.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from spes_peer.identity import PeerId
from spes_peer.wire.control_pb2 import Phase, Progress

logger = logging.getLogger(__name__)

_MOMENT_SECONDS = 1.0
_Measure = Callable[[], float]


class PhaseKeeper:
    """The phase that the daemon is in: since when, waiting for whom, until when, why."""

    def __init__(self, touch: Callable[[], None]) -> None:
        self.touch = touch
        """Says that something changed, to whoever watches."""
        self.message = Phase(name="starting", since_at=time.time())
        self.on_say: Callable[[], None] = lambda: None
        """Called when a phase is entered, or said again."""
        self._measured: list[tuple[Progress, _Measure, _Measure]] = []

    @property
    def name(self) -> str:
        return self.message.name

    def say(self, name: str, why: str = "", waiting_for: Iterable[PeerId] = (), until_at: float = 0.0) -> None:
        """Enter a phase, or give a new reason in it; logged when it changes. `until_at` is 0 without a fixed end."""
        if (name, why) != (self.message.name, self.message.why):
            level = logging.INFO if name != self.message.name else logging.DEBUG
            logger.log(level, "%s%s", name, f": {why}" if why else "")
        since_at = self.message.since_at if name == self.message.name else time.time()
        self.message = Phase(name=name, since_at=since_at, why=why, waiting_for=waiting_for, until_at=until_at)
        self.on_say()
        self.touch()

    @contextlib.contextmanager
    def measuring(self, what: str, unit: str, done: _Measure, whole: _Measure) -> Iterator[None]:
        """While the block runs, watchers see how far it is, if it takes longer than a moment."""
        measured = (Progress(what=what, unit=unit, since_at=time.time()), done, whole)
        self._measured.append(measured)
        try:
            yield
        finally:
            self._measured.remove(measured)
            self.touch()

    @property
    def progress(self) -> Progress | None:
        """Of what takes longer than a moment, if anything does."""
        if not self._measured or time.time() - self._measured[0][0].since_at < _MOMENT_SECONDS:
            return None
        progress, done, whole = self._measured[0]
        progress.done, progress.whole = done(), whole()
        return progress
