"""What was sent and received today, kept in a file, so that a restart does not begin a new day."""

import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

from spes_peer.errors import DiskTrouble
from spes_peer.files import write_whole

logger = logging.getLogger(__name__)

TODAY_FILE = "traffic-today.json"
_MOST_BYTES = 1 << 62  # a status cannot say much more
_KEEP_BYTES = 1_000_000  # that a kill may make forgotten


class Today:
    """Bytes of this day."""

    def __init__(self, path: Path, totals: Callable[[], tuple[int, int]]) -> None:
        """`totals` are all bytes sent and received since the start; they only rise."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._path = path
        self._totals = totals
        self._counted = totals()
        self._kept = ("", 0)
        self._day = ""
        self._load()

    def count(self, day: str) -> None:
        """Take in what was moved since the last time; with a new day it starts anew. Call it every few seconds, where
        the totals are counted."""
        if day != self._day:
            self._day, self.sent_bytes, self.received_bytes = day, 0, 0
        before, self._counted = self._counted, self._totals()
        self.sent_bytes += self._counted[0] - before[0]
        self.received_bytes += self._counted[1] - before[1]

    def keep(self) -> None:
        """Write it down, if there is much that is not."""
        kept_day, kept_bytes = self._kept
        if self._day == kept_day and self.sent_bytes + self.received_bytes - kept_bytes < _KEEP_BYTES:
            return
        content = {"day": self._day, "sent": self.sent_bytes, "received": self.received_bytes}
        self._kept = (self._day, self.sent_bytes + self.received_bytes)
        with contextlib.suppress(DiskTrouble):  # which stands on the board of troubles
            write_whole(self._path, json.dumps(content).encode(), lasts=False)

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_bytes())
            day, sent, received = str(content["day"]), int(content["sent"]), int(content["received"])
            if not (0 <= sent < _MOST_BYTES and 0 <= received < _MOST_BYTES):
                raise ValueError("no machine moves so much")
        except FileNotFoundError:
            return
        except (ValueError, ArithmeticError, KeyError, TypeError, RecursionError, OSError) as error:
            logger.warning("the day's traffic is counted from 0 path=%s reason=%s", self._path, error)
            return
        self._day, self.sent_bytes, self.received_bytes = day, sent, received
        self._kept = (day, self.sent_bytes + self.received_bytes)
