"""What is wrong with this machine now, in words for its owner: a full disk, a wrong clock, too little memory.

One board for the process, because a disk is noticed wherever something is written. A trouble stands under a key until
it is cleared; it is logged when it comes, when its words change, and when it has passed.
"""

import logging
import threading

logger = logging.getLogger(__name__)


class Troubles:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, key: str, text: str) -> None:
        """From now on there is the trouble `key`, described by `text`."""
        with self._lock:
            is_new = self._texts.get(key) != text
            self._texts[key] = text
        if is_new:
            logger.warning("%s", text)

    def clear(self, key: str) -> None:
        """The trouble has passed; nothing happens where there was none."""
        with self._lock:
            text = self._texts.pop(key, None)
        if text is not None:
            logger.info("this has passed: %s", text)

    @property
    def texts(self) -> tuple[str, ...]:
        """All that there are, oldest first, each once: two processes meet the same full disk."""
        with self._lock:
            return tuple(dict.fromkeys(self._texts.values()))


board = Troubles()
