"""Feeds without a daemon, for the tests of the dashboard: what they say is made up, and they note commands."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from tui_statuses import NOW, status

from spes_peer.errors import UserError
from spes_peer.wire.control_pb2 import Status
from tui.feed import News, Player


class MadeUpFeed:
    """Says what it is given, then nothing more; its time stands still."""

    player: Player | None = None

    def __init__(self, news: Sequence[News], at: float = NOW) -> None:
        self.num_said = 0
        self.commands: list[str] = []
        self._news = news
        self._at = at

    def now(self) -> float:
        return self._at

    async def news(self) -> AsyncIterator[News]:
        for one in self._news:
            self.num_said += 1
            yield one
        await asyncio.Event().wait()

    async def pause(self) -> str:
        self.commands.append("pause")
        return "pauses after round 24"

    async def resume(self) -> str:
        raise UserError("this peer is not paused")

    async def leave(self, at_once: bool) -> str:
        self.commands.append(f"leave at_once={at_once}")
        return "leaves"


class BurstFeed(MadeUpFeed):
    """A thousand statuses a second, or as fast as the program takes them, until somebody has had enough."""

    def __init__(self, make: Callable[[int], Status]) -> None:
        super().__init__([])
        self.is_enough = False
        self._make = make

    async def news(self) -> AsyncIterator[News]:
        while not self.is_enough:
            self.num_said += 1
            yield self._make(self.num_said)
            await asyncio.sleep(0.001)
        await asyncio.Event().wait()


class MadeUpRecording:
    """Twenty-four rounds of ten seconds."""

    started_at = NOW - 240
    ended_at = NOW
    rounds_at = tuple(NOW - 240 + 10 * n for n in range(24))

    def status_at(self, at: float) -> Status:
        shown = status(max(1, min(24, 1 + int((at - self.started_at) // 10))))
        for phase in (shown.phase, shown.round_phase):
            phase.since_at, phase.until_at = at, 0
        return shown
