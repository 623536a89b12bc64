"""What this peer has given to its run, over all its starts.

Tokens and rounds stand in the chain. Hours and bytes are in no record: they are kept in a file of the state folder,
written with every round; a kill costs what came after the last.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spes_peer.errors import DiskTrouble
from spes_peer.files import write_whole
from spes_peer.run.tallies import Tally
from spes_peer.wire.control_pb2 import Given

logger = logging.getLogger(__name__)

GIVEN_FILE = "given.json"
_MOST = 1 << 62  # bytes or seconds; a status cannot say much more


class GivenKeeper:
    """Seconds of training, and bytes sent."""

    def __init__(self, path: Path, sent_bytes: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        """`sent_bytes` are those since the start; they only rise."""
        self._now = now
        self._path = path
        self._sent_bytes = sent_bytes
        self._seconds, self._bytes_before = self._read()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """While this peer trains."""
        began = self._now()
        try:
            yield
        finally:
            self._seconds += self._now() - began

    def message(self, tally: Tally) -> Given:
        """With what the chain says of this peer."""
        return Given(tokens=tally.tokens, rounds=tally.rounds, seconds=self._seconds, bytes_sent=self._total_bytes)

    def keep(self) -> None:
        """Write it down; a disk that is full is told of elsewhere, and then only the next start knows less."""
        content = {"training_seconds": self._seconds, "bytes_sent": self._total_bytes}
        try:
            write_whole(self._path, json.dumps(content).encode(), lasts=False)
        except (DiskTrouble, OSError) as error:
            logger.debug("cannot keep what was given path=%s reason=%s", self._path, error)

    @property
    def _total_bytes(self) -> int:
        return self._bytes_before + self._sent_bytes()

    def _read(self) -> tuple[float, int]:
        try:
            content = json.loads(self._path.read_bytes())
            seconds, sent_bytes = float(content["training_seconds"]), int(content["bytes_sent"])
            if not (0 <= seconds < _MOST and 0 <= sent_bytes < _MOST):  # NaN too
                raise ValueError("no machine gives so much")
            return seconds, sent_bytes
        except FileNotFoundError:
            return 0.0, 0
        except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError, OSError) as error:
            logger.warning("hours and bytes given are counted from 0 path=%s reason=%s", self._path, error)
            return 0.0, 0
