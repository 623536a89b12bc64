"""How a simulated node attends a coordinator, is attended, and asks others: streams and calls of `network` in the shape
in which the program's follower and coordinator know them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from spes_peer.errors import PeerError, Unreachable
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import FROM_COORDINATOR
from spes_peer.run.records import CertifiedRecord
from spes_peer.run.signed import ReplayGuard, Signed, open_any

from .coroutines import Pause, Resume
from .network import Stream

if TYPE_CHECKING:
    from .machine import Machine
    from .node import SimulatedNode

_KINDS = {**FROM_COORDINATOR, "CertifiedRecord": CertifiedRecord}
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 5.0


class Attending:
    """In place of `following.attendance.Attendance`: the same behaviour, as events."""

    def __init__(
        self,
        node: SimulatedNode,
        signer: Any,
        target: Callable[[], PeerId | None],
        silence_seconds: float,
    ) -> None:
        self.on_message: Callable[[PeerId, Any], None] = lambda _sender, _message: None
        self.on_open: Callable[[], Iterable[Any]] = lambda: ()
        self.on_lost: Callable[[str], None] = lambda _why: None
        self.attended: PeerId | None = None
        node.attending = self
        self._node = node
        self._signer = signer
        self._owner = target
        self._silence_seconds = silence_seconds
        self._replays = ReplayGuard()
        self._target: PeerId | None = None
        """Whom it attends or dials."""
        self._stream: Stream | None = None
        self._attempt = 0
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._heard_at = 0.0

    async def run(self) -> None:
        self._try()

    def send(self, message: Any) -> None:
        if self._stream is not None:
            self._stream.send(self._signer.sign(message), to_server=True)

    def look_again(self) -> None:
        target = self._owner()
        if target is None or target != self._target:
            self._give_up("another coordinates now", is_told=True)
            self._try()

    def _try(self) -> None:
        self._attempt += 1
        attempt, world = self._attempt, self._node.world
        self._target = self._owner()
        if self._target not in world.machines:
            self._lost("the record names nobody to coordinate")
            return
        world.network.connect(
            self._node.machine,
            world.machines[self._target],
            lambda stream: self._opened(attempt, stream),
            lambda why: self._failed(attempt, why),
        )

    def _opened(self, attempt: int, stream: Stream) -> None:
        if attempt != self._attempt:
            stream.close(as_server=False, why="another is attended")
            return
        self._stream, self._heard_at = stream, self._node.world.events.now
        for message in self.on_open():
            self.send(message)
        self._watch_silence(attempt)

    def _watch_silence(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        left_seconds = self._heard_at + self._silence_seconds - self._node.world.events.now
        if left_seconds > 1e-6:
            self._node.after(left_seconds, lambda: self._watch_silence(attempt))
        else:
            self._failed(attempt, f"the coordinator said nothing for {self._silence_seconds:g} s", is_told=False)

    def take(self, stream: Stream, signed: Signed) -> None:
        if stream is not self._stream:
            return
        self._heard_at = self._node.world.events.now
        try:
            message = open_any(signed, _KINDS, self._node.run_id)
            self._replays.accept(signed)
        except PeerError as error:
            self._node.note(f"drops a message: {error}")
            return
        assert self._target is not None
        self.attended = self._target
        self.on_message(self._target, message)

    def end(self, stream: Stream, why: str) -> None:
        if stream is self._stream:
            self._failed(self._attempt, why)

    def _failed(self, attempt: int, why: str, is_told: bool = True) -> None:
        if attempt == self._attempt:
            self._give_up(why, is_told)
            self._lost(why)

    def _give_up(self, why: str, is_told: bool) -> None:
        self._attempt += 1
        if self._stream is not None:
            self._stream.close(as_server=False, why=why, is_told=is_told)
        if self.attended is not None:
            self.attended, self._retry_seconds = None, _FIRST_RETRY_SECONDS
        self._stream = self._target = None

    def _lost(self, why: str) -> None:
        self._target = None
        self.on_lost(why)
        attempt = self._attempt
        self._node.after(self._retry_seconds, lambda: self._retry(attempt))
        self._retry_seconds = min(2 * self._retry_seconds, _LONGEST_RETRY_SECONDS)

    def _retry(self, attempt: int) -> None:
        if attempt == self._attempt and self._stream is None:
            self._try()


class Incoming:
    """What one member says to who coordinates, as the asynchronous iterator that the program reads."""

    def __init__(self) -> None:
        self._messages: deque[Signed] = deque()
        self._is_over = False
        self._resume: Resume | None = None

    def put(self, signed: Signed) -> None:
        self._messages.append(signed)
        self._wake()

    def end(self) -> None:
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume()

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> Signed:
        while not self._messages:
            if self._is_over:
                raise StopAsyncIteration
            await Pause(self._wait)
        return self._messages.popleft()

    def _wait(self, resume: Resume) -> None:
        self._resume = resume


class Connections:
    """In place of `exchange.connections.Connections`."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node

    async def to(self, peer: PeerId) -> _Link:
        machine = self.node.world.machines.get(peer)
        if machine is None:
            raise Unreachable(f"{peer} is not known")
        return _Link(self.node, machine)


class _Stub:
    """The calls that a node answers, by name."""

    @staticmethod
    def Stand(node: SimulatedNode, _request: Any) -> Any:
        return node.standing()

    @staticmethod
    def Records(node: SimulatedNode, request: Any) -> Any:
        return list(node.records_from(request.from_round))


class _Link:
    """In place of `exchange.link.Link`; what it gives are values, not protobuf messages."""

    stub = _Stub()

    def __init__(self, node: SimulatedNode, machine: Machine) -> None:
        self._node = node
        self._machine = machine

    async def call(self, ask: Callable[[SimulatedNode, Any], Any], request: Any, timeout_seconds: float) -> Any:
        asked_at = self._node.now()

        def answer() -> Any:
            self._machine.node.hears_time(self._node.peer_id, asked_at)
            return ask(self._machine.node, request)

        def arm(resume: Resume) -> None:
            self._node.world.network.call(
                self._node.machine,
                self._machine,
                answer,
                resume,
                lambda why: resume(error=Unreachable(why)),
                timeout_seconds,
            )

        return await Pause(arm)

    def stream(self, ask: Callable[[SimulatedNode, Any], Any], request: Any, stall_seconds: float) -> _Answers:
        return _Answers(self.call(ask, request, stall_seconds))


class _Answers:
    """What a call gives one by one; they all come at once."""

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call
        self._answers: deque[Any] | None = None

    def __aiter__(self) -> _Answers:
        return self

    async def __anext__(self) -> Any:
        if self._answers is None:
            self._answers = deque(await self._call)
        if not self._answers:
            raise StopAsyncIteration
        return self._answers.popleft()

    async def aclose(self) -> None:
        self._call.close()
