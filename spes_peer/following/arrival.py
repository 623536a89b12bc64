"""Who introduces this peer to its run: the nodes that its owner named, or any that it met before.

All are asked at once, and the first that answers for the right run counts. What cannot get better (an address that
another node has, a folder of another run, a run that is too new) is refused; anything else is tried again, for ever.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from spes_peer.errors import BadConfiguration, ChildFailed, NoBootstrap, TooOld, UserError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.introduction import INTRODUCTION_SECONDS, Introduction, WrongNode, describe
from spes_peer.node import Node
from spes_peer.run.peers import PeerEntry

logger = logging.getLogger(__name__)

Say = Callable[[str, float], None]
"""Takes why this peer waits, and until when by the wall clock; 0 without an end."""

_AT_ONCE = 16
_HEAD_START_SECONDS = 1.0  # of the nodes that were named: another run's is a mistake that its owner must hear of
_KNOWN_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 5.0
_SHOWN_REASONS = 3


class Unanswered(NoBootstrap):
    """Nobody has introduced us, and somebody may a little later."""


class Arrival:
    """Asks for introductions. `accept` refuses one to another run with `BadConfiguration`."""

    def __init__(
        self,
        named: Sequence[NodeAddress],
        known: Callable[[], Sequence[NodeAddress]],
        accept: Callable[[Introduction], None],
        say: Say,
    ) -> None:
        self._named = tuple(dict.fromkeys(named))
        self._known = known
        self._accept = accept
        self._say = say

    @property
    def addresses(self) -> tuple[NodeAddress, ...]:
        """All that can be asked now, those that were named first."""
        return tuple(dict.fromkeys((*self._named, *self._known())))

    async def ask(self, seconds: float = INTRODUCTION_SECONDS) -> Introduction:
        """One look at everybody. `Unanswered` if that may get better, another `UserError` if not."""
        failures: dict[NodeAddress, UserError] = {}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def ask_one(address: NodeAddress, timeout_seconds: float) -> Introduction | None:
            async with turns:
                try:
                    introduction = await describe(address, timeout_seconds)
                    self._accept(introduction)
                    return introduction
                except UserError as error:
                    failures[address] = error
                    return None

        named = [asyncio.create_task(ask_one(address, seconds)) for address in self._named]
        tasks = set(named)
        try:
            if introduction := await _first_of(tasks, _HEAD_START_SECONDS):
                return introduction
            refuse_if_hopeless(self._named, failures)
            others = [address for address in self.addresses if address not in self._named]
            tasks |= {asyncio.create_task(ask_one(one, min(seconds, _KNOWN_SECONDS))) for one in others}
            if introduction := await _first_of(tasks, None):
                return introduction
        finally:
            for task in (*tasks, *named):
                task.cancel()
            await asyncio.gather(*tasks, *named, return_exceptions=True)
        refuse_if_hopeless(self._named, failures)
        raise Unanswered(in_words([failures[one] for one in self.addresses if one in failures]))

    async def insist(self, on_waiting: Callable[[], Awaitable[None]]) -> Introduction:
        """Ask until somebody answers, for ever; `on_waiting` is called after the first time that nobody did."""
        nodes = "the node" if len(self._named) == 1 else "the nodes"
        self._say(f"asking {nodes} at {', '.join(str(one.endpoint) for one in self._named)}", 0.0)
        attempt, pause_seconds, trouble = 1, _FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                return await self.ask()
            except Unanswered as error:
                if attempt == 1:
                    await on_waiting()
                attempt += 1
                if trouble != (trouble := str(error)):
                    logger.warning("waiting for a node of the run reason=%s", error)
                why = f"{error}; trying again in {pause_seconds:.0f} s (attempt {attempt})"
                self._say(why, time.time() + pause_seconds)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)

    async def keep_in_touch(self, node: Node, is_introduced: bool) -> None:
        """Look for somebody whenever this node knows nobody, for ever: it started alone, or was left alone."""
        pause_seconds, trouble = _FIRST_PAUSE_SECONDS, ""
        while True:
            await asyncio.sleep(pause_seconds)
            if is_introduced and node.directory is not None and node.directory.num_neighbours:
                pause_seconds = _LAST_PAUSE_SECONDS
                continue
            try:
                introduction = await self.ask()
            except UserError as error:
                if self.addresses and trouble != (trouble := str(error)):
                    logger.warning("alone in the run so far reason=%s", error)
                pause_seconds = min(2 * pause_seconds, _LAST_PAUSE_SECONDS)
                continue
            is_introduced, trouble = True, ""
            logger.info("introduced by a node of the run peer=%s", introduction.entry.peer_id[-8:])
            node.take_time(introduction.clock.time())
            await _meet(node, introduction.entry)


async def _first_of(
    tasks: "set[asyncio.Task[Introduction | None]]", timeout_seconds: float | None
) -> Introduction | None:
    """The first introduction, or None when all have failed or the time is over; those that failed leave `tasks`."""
    loop = asyncio.get_running_loop()
    until = None if timeout_seconds is None else loop.time() + timeout_seconds
    while tasks:
        left_seconds = None if until is None else max(0.0, until - loop.time())
        done, _ = await asyncio.wait(tasks, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
        tasks -= done
        for task in done:
            if introduction := task.result():
                return introduction
        if not done:
            break
    return None


def refuse_if_hopeless(named: Sequence[NodeAddress], failures: dict[NodeAddress, UserError]) -> None:
    """Raise what will not be better the next time."""
    too_old = [error for error in failures.values() if isinstance(error, TooOld)]
    of_named = [failures.get(address) for address in named]
    of_another_run = [error for error in of_named if isinstance(error, BadConfiguration)]
    for error in (*too_old, *of_another_run):
        raise error
    if of_named and all(isinstance(error, WrongNode) for error in of_named):
        raise of_named[0]  # type: ignore[misc]


def in_words(failures: Sequence[UserError]) -> str:
    """Why nobody introduced us."""
    if len(failures) == 1:
        return str(failures[0])
    shown = [str(failure) for failure in failures[:_SHOWN_REASONS]]
    more = [f"and {len(failures) - _SHOWN_REASONS} more"] if len(failures) > _SHOWN_REASONS else []
    return f"nobody answers: {'; '.join((*shown, *more))}" if failures else "no other node of the run is known"


async def _meet(node: Node, entry: PeerEntry) -> None:
    """Know how to reach it, and through it all others."""
    node.take_entry(entry)
    if node.directory is not None:
        with contextlib.suppress(ChildFailed):  # it is being started again, and will hear of it from the others
            await node.directory.meet(entry)
    node.announce_soon.set()
