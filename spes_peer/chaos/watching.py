"""Follows a run while it goes: every status of every volunteer, every disk, every process's weight; starts again what
ends by itself, and prints a line a round."""

import asyncio
import contextlib
import time

from spes_peer.chaos.nodes import Node, Nodes, memory_by_kind
from spes_peer.chaos.observer import Observer
from spes_peer.errors import NoBootstrap, SpesError

_LOOK_SECONDS = 0.5
_WEIGH_SECONDS = 3.0
_AGAIN_SECONDS = 2.0  # before a node that ended by itself is started again
_RECONNECT_SECONDS = 0.3
_SILENCE_SECONDS = 8.0  # after which a stopped daemon is asked anew


class Watching:
    def __init__(self, nodes: Nodes, observer: Observer) -> None:
        self.nodes = nodes
        self.observer = observer
        self._printed_round = 0

    async def run(self) -> None:
        """For ever; `ChildFailed` when a node ends before the first round."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._look(), self._weigh(), self._supervise(tasks), self._watch_all(tasks)):
                tasks.create_task(work)

    def say(self, text: str) -> None:
        """Print it with its moment, which counts from the first round."""
        started_at = self.observer.seen.started_at
        print(f"{time.time() - started_at:6.0f} s  {text}" if started_at else text, flush=True)

    async def until_all_hold_a_state_since(self, moment: float, timeout: float) -> bool:
        """Whether every volunteer came to hold the state of a certified record that was made after `moment`."""
        deadline = time.monotonic() + timeout
        while not all(self._holds_a_state_since(moment, name) for name in self.nodes.volunteers):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _holds_a_state_since(self, moment: float, name: str) -> bool:
        newest = self.observer.newest_of.get(name)
        return newest is not None and newest.is_certified and newest.opened_at > moment

    async def _watch_all(self, tasks: asyncio.TaskGroup) -> None:
        """Newcomers too."""
        watched: set[str] = set()
        while True:
            for name in self.nodes.volunteers.keys() - watched:
                watched.add(name)
                tasks.create_task(self._watch(name))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _watch(self, name: str) -> None:
        """Take every status of one volunteer, through all its lives."""
        while True:
            with contextlib.suppress(SpesError):  # it is away, which is what all this is about
                async with self.nodes.volunteers[name].client() as client:
                    async for status in client.watch(_SILENCE_SECONDS):
                        self.observer.take_status(name, status, time.time())
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _look(self) -> None:
        """Note records as they come to disks."""
        while True:
            for name in list(self.nodes.nodes):
                self.observer.look_at_disk(name, time.time())
            self._print_round()
            await asyncio.sleep(_LOOK_SECONDS)

    def _print_round(self) -> None:
        newest = self.observer.newest
        if newest is not None and newest.round > self._printed_round and newest.tokens:
            self._printed_round = newest.round
            contributors = len(newest.tokens_by_peer)
            self.say(f"round {newest.round - 1}  {newest.tokens:,} tokens of {contributors} volunteers")

    async def _weigh(self) -> None:
        while True:
            self.observer.weigh(memory_by_kind())
            await asyncio.sleep(_WEIGH_SECONDS)

    async def _supervise(self, tasks: asyncio.TaskGroup) -> None:
        """That a volunteer finds nobody while others are away is its right; whatever else ends a node is reported, and
        before the first round there is no excuse at all."""
        while True:
            for node in self.nodes.ended():
                if not self.observer.seen.started_at:
                    node.process.check()
                node.is_struck = True
                code = node.process.popen.returncode
                if code != NoBootstrap.exit_code:
                    self.observer.seen.unexpected_ends.append(f"{node.name}, code {code}: {node.process.last_lines()}")
                    self.say(f"{node.name} ended with code {code}")
                tasks.create_task(_start_again(node))
            await asyncio.sleep(_LOOK_SECONDS)


async def _start_again(node: Node) -> None:
    await asyncio.sleep(_AGAIN_SECONDS)
    node.start_again()
