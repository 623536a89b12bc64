"""Where statuses come from and where commands go: a living daemon, or a recording of one (`tui.recorded`).

A feed never raises for what happens to a daemon: that it is gone is news like any other.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spes_peer.control import ControlClient
from spes_peer.errors import UserError
from spes_peer.wire.control_pb2 import Status

_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 5.0
_ENDS_A_DAEMON = {
    "leaving": "the daemon has left the run",
    "finished": "the daemon has finished the run",
}


@dataclass(frozen=True)
class Lost:
    """No statuses come now; they are looked for again by themselves."""

    why: str


@dataclass(frozen=True)
class Ended:
    """No status will ever come."""

    why: str


@dataclass(frozen=True)
class Jumped:
    """The next status is from another time: what was remembered of the ones before does not lead to it."""


News = Status | Lost | Ended | Jumped


class Player(Protocol):
    """What moves through a recording. Positions are seconds from its beginning."""

    @property
    def duration_seconds(self) -> float: ...
    @property
    def position_seconds(self) -> float: ...
    @property
    def round_seconds(self) -> Sequence[float]:
        """Where rounds begin, in order."""
        ...

    @property
    def is_playing(self) -> bool: ...
    @property
    def speed(self) -> float:
        """Seconds of the recording in a second."""
        ...

    def seek(self, seconds: float) -> None:
        """Go to a position; outside of the recording means its nearest end."""
        ...

    def play(self, is_playing: bool) -> None: ...
    def set_speed(self, speed: float) -> None: ...


class Feed(Protocol):
    """What the dashboard follows. Commands answer with a sentence; `UserError` refuses."""

    @property
    def player(self) -> Player | None:
        """None for a living daemon."""
        ...

    def now(self) -> float:
        """Unix seconds of the moment that is shown."""
        ...

    def news(self) -> AsyncIterator[News]:
        """Statuses and what happens to them; waits for ever unless something has `Ended`."""
        ...

    async def pause(self) -> str: ...
    async def resume(self) -> str: ...
    async def leave(self, at_once: bool) -> str: ...


class LiveFeed:
    """The daemon behind a control socket. One that is gone is looked for again, less and less often."""

    player: Player | None = None

    def __init__(self, socket_path: Path, leave_ends_feed: bool = True, clock: Callable[[], float] = time.time) -> None:
        self._socket_path = socket_path
        self._leave_ends_feed = leave_ends_feed
        self._clock = clock

    def now(self) -> float:
        return self._clock()

    async def news(self) -> AsyncIterator[News]:
        retry_seconds = _FIRST_RETRY_SECONDS
        last: Status | None = None
        while True:
            reason = "it ended"
            try:
                async with ControlClient(self._socket_path) as client:
                    async for status in client.watch():
                        last, retry_seconds = status, _FIRST_RETRY_SECONDS
                        yield status
                if self._leave_ends_feed and last is not None and (ended := _ENDS_A_DAEMON.get(last.phase.name)):
                    yield Ended(ended)
                    return
            except UserError as error:
                reason = str(error)
            yield Lost(
                f"the daemon is gone, reconnecting…  {reason}" if last is not None else f"{reason}; waiting for it…"
            )
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)

    async def pause(self) -> str:
        async with ControlClient(self._socket_path) as client:
            return await client.pause()

    async def resume(self) -> str:
        async with ControlClient(self._socket_path) as client:
            return await client.resume()

    async def leave(self, at_once: bool) -> str:
        async with ControlClient(self._socket_path) as client:
            return await client.leave(at_once)
