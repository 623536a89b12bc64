"""The coordinator's role, played by a node: the rim around the pure core in `rounds.coordinator`.

Members' streams come in through `attend`; their messages are verified here, once. What the core decides is signed,
kept (a certified record on disk before it is told to anybody) and sent. One task at a time changes the state: all of it
runs between two awaits.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.coordinator import on_connected, on_gone, on_message, on_time, start, waiting
from spes_peer.rounds.messages import FROM_MEMBER, CoordinatorBeat
from spes_peer.rounds.phases import Outgoing, Rules, Step
from spes_peer.run.records import CertifiedRecord
from spes_peer.run.signed import ReplayGuard, Signed, open_any

logger = logging.getLogger(__name__)

Send = Callable[[Signed], None]


class Coordinating:
    """Coordinates for as long as `run` runs."""

    def __init__(self, node: Node, finish_after: int | None = None) -> None:
        assert node.chain.head is not None
        self._node = node
        self._members: dict[PeerId, Send] = {}
        self._replays = ReplayGuard()
        self._last_beat: CoordinatorBeat | None = None
        term = node.folder.next_number("term")  # members sign once in each
        self._state = start(Rules(node.layout, finish_after), node.chain.head, time.time(), term)

    async def run(self) -> None:
        """Let time pass and tell members every heartbeat what the round waits for; ends by cancellation."""
        while True:
            self._do(on_time(self._state, time.time()))
            self._beat()
            await asyncio.sleep(self._node.manifest.timing.heartbeat_seconds)

    async def attend(self, caller: PeerId, incoming: AsyncIterator[Signed], send: Send) -> None:
        """Talk with one member until its stream ends. A newer stream of a member replaces the older one."""
        self._members[caller] = send
        logger.info("a member attends peer=%s", self._node.name_of(caller))
        try:
            send(self._node.signer.sign(self._node.chain.record(self._node.head_round)))
            self._do(on_connected(self._state, caller, time.time()))
            self._beat()
            async for signed in incoming:
                self._take(caller, signed)
        finally:
            if self._members.get(caller) is send:
                del self._members[caller]
                logger.info("a member is gone peer=%s", self._node.name_of(caller))
                self._do(on_gone(self._state, caller, time.time()))
                self._beat()

    def _take(self, caller: PeerId, signed: Signed) -> None:
        """One message; one that is not the caller's own, sound and new is dropped."""
        try:
            if signed.peer_id != caller:
                raise PeerError(f"a message of {signed.peer_id[:64]!r} from another peer")
            message = open_any(signed, FROM_MEMBER, self._node.run_id)
            self._replays.accept(signed)
        except PeerError as error:
            logger.warning("dropped a message peer=%s reason=%s", self._node.name_of(caller), error)
            return
        self._do(on_message(self._state, signed, message, time.time()))

    def _do(self, step: Step) -> None:
        """Take the core's decision: disk first, then state, then words."""
        if step.certified is not None:
            self._keep(step.certified)
        phase_before = self._state.phase.name
        self._state = step.state
        for outgoing in step.outgoing:
            self._send(outgoing)
        if self._state.phase.name != phase_before:
            self._beat()

    def _keep(self, certified: CertifiedRecord) -> None:
        sealed = self._node.chain.append(certified)
        logger.info(
            "record certified round=%d signatures=%d roster=%d updates=%d",
            sealed.round,
            len(certified.signatures),
            len(sealed.record.roster),
            len(sealed.record.updates),
        )

    def _send(self, outgoing: Outgoing) -> None:
        signed = self._node.signer.sign(outgoing.message)
        receivers = list(self._members.values()) if outgoing.to is None else [self._members.get(outgoing.to)]
        for send in receivers:
            if send is not None:
                send(signed)

    def _beat(self) -> None:
        beat = waiting(self._state, time.time())
        if self._last_beat is None or beat.why != self._last_beat.why:
            logger.info("%s: %s", beat.phase, beat.why)
        self._last_beat = beat
        self._send(Outgoing(None, beat))
