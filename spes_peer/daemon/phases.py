"""The phase that the daemon is in, for its log and for watchers.

Every phase carries since when, waiting for whom, until when, and why.
"""

import logging
import time
from collections.abc import Callable, Iterable

from spes_peer.identity import PeerId
from spes_peer.wire.control_pb2 import Phase

logger = logging.getLogger(__name__)


class PhaseKeeper:
    """The phase that the daemon is in: since when, waiting for whom, until when, why."""

    def __init__(self, touch: Callable[[], None]) -> None:
        self.touch = touch
        """Says that something changed, to whoever watches."""
        self.message = Phase(name="starting", since_at=time.time())

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
        self.touch()
