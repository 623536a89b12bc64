"""What happened, one line an event: time, node, what."""

from collections.abc import Callable

from spes_peer.run.records import SealedRecord


class Trace:
    """Writes nothing unless somebody reads: a line is made only then."""

    def __init__(self, start_at: float, write: Callable[[str], None] | None = None) -> None:
        self._start_at = start_at
        self._write = write

    def __bool__(self) -> bool:
        return self._write is not None

    def note(self, now: float, name: str, what: str, sealed: SealedRecord | None = None) -> None:
        if self._write is not None:
            minutes, seconds = divmod(now - self._start_at, 60)
            record = f" {shown(sealed)}" if sealed else ""
            self._write(f"{minutes:4.0f}:{seconds:06.3f}  {name:<12} {what}{record}")


def shown(sealed: SealedRecord) -> str:
    """A record by its round and the first of its hash."""
    return f"record {sealed.round} ({sealed.hash.hex()[:6]})"
