"""Virtual time and what is between nodes: events in order of time, lines that delay, break and part.

A stream carries the messages of each direction in order for as long as it lasts, like a gRPC stream. What is under way
when the network parts is either held and comes late, as TCP does, or is lost with the stream, of which neither end need
hear. A frozen process gets nothing until it thaws, then all at once; a killed one gets nothing any more.
"""

import heapq
import math
import random
from collections.abc import Callable
from typing import Any, Protocol

from spes_peer.run.signed import Signed

Action = Callable[..., None]
_CONNECT_SECONDS = 4.0  # until a machine that does not answer is given up
_SHORT_SECONDS = 0.0001


class Killed(BaseException):
    """The process that is handling an event ends here; nothing in it may catch this."""


class Process(Protocol):
    """Whoever handles events."""

    name: str
    epoch: int
    """Rises with every crash: events of an earlier one are nobody's."""
    is_alive: bool
    is_frozen: bool
    backlog: list[tuple[int, Action, tuple[Any, ...]]]
    streams: dict["Stream", None]
    tasks: dict[Any, None]
    """Its coroutines that have not ended."""
    slowness: float
    """Factor on every delay to and from it."""

    def on_open(self, stream: "Stream") -> None: ...

    def on_message(self, stream: "Stream", as_server: bool, signed: Signed) -> None: ...

    def on_end(self, stream: "Stream", as_server: bool, why: str) -> None: ...


class Events:
    """The queue of what will happen."""

    def __init__(self, start_at: float) -> None:
        self.now = start_at
        """Unix seconds, true ones."""
        self.current: Process | None = None
        """Whose event this is."""
        self.on_killed: Callable[[Process], None] = lambda _process: None
        self.around: Callable[[Process | None, Action, tuple[Any, ...]], None] | None = None
        """Runs the actions of events, for who measures them."""
        self._queue: list[tuple[float, int, Process | None, int, Action, tuple[Any, ...]]] = []
        self._counter = 0
        self.num_done = 0

    def after(self, seconds: float, owner: Process | None, action: Action, *args: Any) -> None:
        """`action` happens to `owner`, unless it is killed before; None: to the world."""
        self.at(self.now + seconds, owner, owner.epoch if owner else 0, action, *args)

    def at(self, moment: float, owner: Process | None, epoch: int, action: Action, *args: Any) -> None:
        self._counter += 1
        heapq.heappush(self._queue, (moment, self._counter, owner, epoch, action, args))

    def next_at(self) -> float:
        return self._queue[0][0] if self._queue else math.inf

    def step(self) -> None:
        """The next event."""
        self.num_done += 1
        self.now, _, owner, epoch, action, args = heapq.heappop(self._queue)
        if owner is None:
            action(*args)
        else:
            self.happen(owner, epoch, action, args)

    def happen(self, owner: Process, epoch: int, action: Action, args: tuple[Any, ...]) -> None:
        """Now, if the process still runs; when it thaws, if it is frozen."""
        if owner.epoch != epoch:
            return
        if owner.is_frozen:
            owner.backlog.append((epoch, action, args))
        else:
            self._do(owner, action, args)

    def _do(self, owner: Process, action: Action, args: tuple[Any, ...]) -> None:
        self.current = owner
        try:
            if self.around is None:
                action(*args)
            else:
                self.around(owner, action, args)
        except Killed:
            self.on_killed(owner)
        finally:
            self.current = None


class Stream:
    """From a member to who coordinates, or would; equal only to itself."""

    def __init__(self, network: "Network", member: Process, server: Process) -> None:
        self.network = network
        self.ends = (member, server)
        self.epochs = (member.epoch, server.epoch)
        self.is_open = [True, True]
        """For each end, whether it knows of no end of the stream."""
        self.is_dead = False
        """Nothing goes through any more, whoever knows it."""
        self._last_at = [0.0, 0.0]
        self._held: list[tuple[int, Action, tuple[Any, ...]]] = []
        for end in dict.fromkeys(self.ends):
            end.streams[self] = None

    def send(self, signed: Signed, to_server: bool) -> None:
        receiver = 1 if to_server else 0
        if self.is_open[1 - receiver] and not self.is_dead and self.ends[1 - receiver].is_alive:
            self.network.count(self.ends[1 - receiver], self.ends[receiver], signed)
            self._carry(receiver, self.ends[receiver].on_message, (self, to_server, signed))

    def close(self, as_server: bool, why: str, is_told: bool = True) -> None:
        """One end is through with it; the other hears of that if it `is_told` and can be reached."""
        end, other = (1, 0) if as_server else (0, 1)
        if not self.is_open[end]:
            return
        self._forget(end)
        if is_told and not self.is_dead:
            self._carry(other, self._end, (other, why))
        if not is_told:
            self.is_dead = True

    def break_off(self, is_noticed: bool) -> None:
        """The line fails."""
        self.is_dead = True
        for end in (0, 1):
            if is_noticed:
                self.network.events.at(
                    self.network.events.now, self.ends[end], self.epochs[end], self._end, end, "the line is broken"
                )

    def release(self) -> None:
        """What was held goes on its way."""
        held, self._held = self._held, []
        for receiver, action, args in held:
            self._carry(receiver, action, args)

    def _carry(self, receiver: int, action: Action, args: tuple[Any, ...]) -> None:
        network = self.network
        moment = max(self._last_at[receiver], network.events.now + network.delay(*self.ends))
        self._last_at[receiver] = moment
        network.events.at(moment, None, 0, self._arrive, receiver, action, args)

    def _arrive(self, receiver: int, action: Action, args: tuple[Any, ...]) -> None:
        network = self.network
        if self.is_dead or not self.is_open[receiver]:
            return
        if not network.is_joined(*self.ends):
            if self._held or network.holds():
                self._held.append((receiver, action, args))
            else:
                self.is_dead = True
            return
        if network.loses(*self.ends):
            self.break_off(is_noticed=network.dice.random() < 0.5)
            return
        network.events.happen(self.ends[receiver], self.epochs[receiver], action, args)

    def _end(self, end: int, why: str) -> None:
        if self.is_open[end]:
            self._forget(end)
            self.ends[end].on_end(self, end == 1, why)

    def _forget(self, end: int) -> None:
        self.is_open[end] = False
        if not any(self.is_open):
            for process in self.ends:
                process.streams.pop(self, None)


class Network:
    """Who can reach whom, and how fast."""

    def __init__(self, events: Events, dice: random.Random) -> None:
        self.events = events
        self.dice = dice
        self.loss = 0.0
        """Part of messages with which their stream breaks."""
        self.parts: dict[str, int] = {}
        """In which part of the network each node is; 0 where it is silent."""
        self.cuts: set[frozenset[str]] = set()
        """Pairs with no line between them."""
        self.count: Callable[[Process, Process, Signed], None] = lambda _sender, _receiver, _signed: None
        """Told of every message sent."""
        self._base: dict[tuple[str, str], float] = {}

    def is_joined(self, one: Process, other: Process) -> bool:
        """Whether their machines can reach each other."""
        if one is other:
            return True
        if self.cuts and frozenset((one.name, other.name)) in self.cuts:
            return False
        return self.parts.get(one.name, 0) == self.parts.get(other.name, 0)

    def loses(self, one: Process, other: Process) -> bool:
        return self.loss > 0 and one is not other and self.dice.random() < self.loss

    def holds(self) -> bool:
        """Whether what meets a parted network is kept until it heals."""
        return self.dice.random() < 0.5

    def delay(self, one: Process, other: Process) -> float:
        """Seconds for one message."""
        if one is other:
            return _SHORT_SECONDS
        pair = (one.name, other.name) if one.name < other.name else (other.name, one.name)
        base = self._base.get(pair)
        if base is None:
            base = self._base[pair] = self.dice.uniform(0.005, 0.1)
        return base * max(one.slowness, other.slowness) * (0.8 + 0.6 * self.dice.random())

    def part(self, *groups: list[Process]) -> None:
        """Only who is in one group reaches each other; who is in none is with the first."""
        self.parts = {process.name: number for number, group in enumerate(groups) for process in group}

    def heal(self, streams: list[Stream]) -> None:
        """One network again; what the given streams held comes through."""
        self.parts, self.cuts, self.loss = {}, set(), 0.0
        for stream in streams:
            stream.release()

    def connect(self, member: Process, server: Process, done: Action, failed: Action) -> None:
        """`done(stream)` or `failed(why)` happens to `member`."""
        if not self.is_joined(member, server) or (server.is_alive and server.is_frozen):
            self.events.after(_CONNECT_SECONDS, member, failed, f"{server.name} does not answer")
            return
        trip_seconds = 2 * self.delay(member, server)
        self.events.after(trip_seconds, member, self._connected, member, server, server.epoch, done, failed)

    def _connected(self, member: Process, server: Process, epoch: int, done: Action, failed: Action) -> None:
        if not server.is_alive or server.epoch != epoch:
            failed(f"{server.name} refuses")
        elif not self.is_joined(member, server):
            failed(f"{server.name} does not answer")
        else:
            stream = Stream(self, member, server)
            self.events.at(self.events.now, server, epoch, server.on_open, stream)
            done(stream)

    def call(
        self,
        caller: Process,
        server: Process,
        ask: Callable[[], Any],
        answered: Action,
        failed: Action,
        timeout_seconds: float,
    ) -> None:
        """`answered(answer)` or `failed(why)` happens to `caller`, once; `ask` gives the answer of the server as it is
        when the question comes."""
        call = _Call(self, caller, server, ask, answered, failed)
        self.events.after(timeout_seconds, caller, call.fail, f"{server.name} does not answer")
        if not server.is_alive and self.is_joined(caller, server):
            self.events.after(self.delay(caller, server), caller, call.fail, f"{server.name} refuses")
        else:
            moment = self.events.now + self.delay(caller, server)
            self.events.at(moment, server, server.epoch, call.serve)


class _Call:
    def __init__(
        self,
        network: Network,
        caller: Process,
        server: Process,
        ask: Callable[[], Any],
        answered: Action,
        failed: Action,
    ) -> None:
        self._network, self._caller, self._server = network, caller, server
        self._epoch = caller.epoch
        self._ask, self._answered, self._failed = ask, answered, failed
        self._is_done = False

    def serve(self) -> None:
        if self._network.is_joined(self._caller, self._server):
            moment = self._network.events.now + self._network.delay(self._caller, self._server)
            self._network.events.at(moment, self._caller, self._epoch, self._answer, self._ask())

    def _answer(self, answer: Any) -> None:
        if not self._is_done and self._network.is_joined(self._caller, self._server):
            self._is_done = True
            self._answered(answer)

    def fail(self, why: str) -> None:
        if not self._is_done:
            self._is_done = True
            self._failed(why)
