"""A recording of a daemon, played as if it were one: the feed of `spes-peer replay`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from spes_peer.errors import UserError
from spes_peer.wire.control_pb2 import Status
from tui.feed import Jumped, News

_TICK_SECONDS = 0.25
_SPEEDS = (0.125, 512.0)
_REFUSAL = "this is a recording: there is no daemon to command"


class Recording(Protocol):
    """What was recorded. Moments are Unix seconds."""

    @property
    def started_at(self) -> float: ...
    @property
    def ended_at(self) -> float: ...
    @property
    def rounds_at(self) -> Sequence[float]:
        """When rounds began, in order."""
        ...

    def status_at(self, at: float) -> Status:
        """The newest status that is not after a moment within the recording; the first one before it."""
        ...


class RecordedFeed:
    """Plays a recording from its beginning, and stops at its end. It is its own player."""

    def __init__(
        self, recording: Recording, clock: Callable[[], float] = time.monotonic, is_playing: bool = True
    ) -> None:
        self._recording = recording
        self._clock = clock
        self._begun_at = clock()  # when the position below was true
        self._begun_seconds = 0.0
        self._is_playing = is_playing
        self._speed = 1.0
        self._has_jumped = False
        self._bell = asyncio.Event()

    # a feed

    @property
    def player(self) -> "RecordedFeed":
        return self

    def now(self) -> float:
        return self._recording.started_at + self.position_seconds

    async def news(self) -> AsyncIterator[News]:
        while True:
            self._bell.clear()
            if self._has_jumped:
                self._has_jumped = False
                yield Jumped()
            yield self._recording.status_at(self.now())
            try:
                async with asyncio.timeout(_TICK_SECONDS if self.is_playing else None):
                    await self._bell.wait()
            except TimeoutError:
                continue

    async def pause(self) -> str:
        raise UserError(_REFUSAL)

    async def resume(self) -> str:
        raise UserError(_REFUSAL)

    async def leave(self, at_once: bool) -> str:
        raise UserError(_REFUSAL)

    # a player

    @property
    def duration_seconds(self) -> float:
        return max(0.0, self._recording.ended_at - self._recording.started_at)

    @property
    def position_seconds(self) -> float:
        passed = (self._clock() - self._begun_at) * self._speed if self._is_playing else 0.0
        return min(self.duration_seconds, self._begun_seconds + max(0.0, passed))

    @property
    def round_seconds(self) -> Sequence[float]:
        return [at - self._recording.started_at for at in self._recording.rounds_at]

    @property
    def is_playing(self) -> bool:
        return self._is_playing and self.position_seconds < self.duration_seconds

    @property
    def speed(self) -> float:
        return self._speed

    def seek(self, seconds: float) -> None:
        before = self.position_seconds
        self._begun_seconds = min(self.duration_seconds, max(0.0, seconds))
        self._begun_at = self._clock()
        self._has_jumped = self._has_jumped or self._begun_seconds < before
        self._bell.set()

    def play(self, is_playing: bool) -> None:
        self._begin_here()
        self._is_playing = is_playing

    def set_speed(self, speed: float) -> None:
        self._begin_here()
        self._speed = min(_SPEEDS[1], max(_SPEEDS[0], speed))

    def _begin_here(self) -> None:
        self._begun_seconds, self._begun_at = self.position_seconds, self._clock()
        self._bell.set()
