"""A machine of the simulation: what lasts while its node starts, is killed and starts again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spes_peer.identity import PeerId
from spes_peer.run.signed import Signed

from .coroutines import Task, end_all
from .disk import Disk
from .network import Action, Killed, Stream
from .node import SimulatedNode, Volunteer
from .streams import Incoming

if TYPE_CHECKING:
    from .world import World


class Machine:
    """With its disk, its clock and its lines."""

    def __init__(self, world: World, name: str, trains: bool, clock_offset_seconds: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.peer_id = PeerId(name)
        self.trains = trains
        self.disk = Disk(records={0: world.genesis}, roots=[(world.zero.hash, world.zero.record.state_root)])
        self.clock_offset_seconds = clock_offset_seconds
        """By which its wall clock is ahead; a node asks it only as it starts."""
        self.train_seconds = world.train_seconds
        """That it takes for all steps of a round."""
        self.capacity = 1
        """Subsets that it has room for."""
        self.is_paused = False
        self.cannot_train = False
        self.slowness = 1.0
        self.epoch = 0
        self.is_alive = False
        self.is_frozen = False
        self.backlog: list[tuple[int, Action, tuple[Any, ...]]] = []
        self.streams: dict[Stream, None] = {}
        self.tasks: dict[Any, None] = {}
        self.dies_at: Callable[[str], bool] = lambda _point: False
        """Asked at instants at which a crash leaves something half done."""
        self.make: Callable[[Machine], SimulatedNode] = Volunteer if trains else SimulatedNode
        """What starts on it."""
        self._node: SimulatedNode | None = None
        self._incoming: dict[Stream, Incoming] = {}

    @property
    def node(self) -> SimulatedNode:
        """The present start, or the last one."""
        assert self._node is not None
        return self._node

    @property
    def has_started(self) -> bool:
        return self.is_alive and self._node is not None and self._node.is_current

    def clock(self) -> float:
        """Unix seconds, as this machine's wall clock shows them."""
        return self.world.events.now + self.clock_offset_seconds

    def start(self) -> None:
        self.is_alive = True
        self.disk.num_starts += 1
        self._node = self.make(self)
        self._node.begin()

    def crash(self) -> None:
        """All but the disk is gone."""
        self.epoch += 1
        self.is_alive = self.is_frozen = False
        self.backlog.clear()
        self._incoming.clear()
        before, self.world.events.current = self.world.events.current, self
        end_all(self)
        self.world.events.current = before
        self.epoch += 1  # what its coroutines have begun as they ended is nobody's either

    def reached(self, point: str) -> None:
        """Something is on disk, and nobody knows yet."""
        if self.dies_at(point):
            self.world.note(f"{self.name} has {point}")
            self.dies_at = lambda _point: False
            self.epoch += 1  # from here on, nothing that it does is done
            self.is_alive = False
            raise Killed

    # ---- streams ----

    def on_open(self, stream: Stream) -> None:
        """Another node begins to attend this one."""
        incoming = self._incoming[stream] = Incoming()
        caller = PeerId(stream.ends[0].name)
        self.node.hears_time(caller, self.world[caller].node.now())
        on_attend = self.node.on_attend
        assert on_attend is not None
        send: Callable[[Signed], None] = lambda signed: stream.send(signed, to_server=False)  # noqa: E731
        work: Any = on_attend(caller, incoming, send)
        Task(self, work).resume()

    def on_message(self, stream: Stream, as_server: bool, signed: Signed) -> None:
        if not as_server:
            self.node.attending.take(stream, signed)
        elif stream in self._incoming:
            self._incoming[stream].put(signed)

    def on_end(self, stream: Stream, as_server: bool, why: str) -> None:
        if not as_server:
            self.node.attending.end(stream, why)
        elif stream in self._incoming:
            self._incoming.pop(stream).end()
