"""The coordinator's role, played by a node: the rim around the pure core in `rounds.coordinator`.

Every node can play it. Members' streams come in through `attend`; their messages are verified here, once. What the core
decides is signed, kept (a certified record and this node's own proposals on disk before they are told to anybody) and
sent. One task at a time changes the state: all of it runs between two awaits.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from spes_peer.errors import BlobMissing, DiskTrouble, PeerError
from spes_peer.exchange.limits import BAD_MESSAGES, Paces
from spes_peer.files import with_checksum, without_checksum, write_whole
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.coordinator import (
    leads,
    on_connected,
    on_gone,
    on_head,
    on_heard,
    on_message,
    on_resigned,
    on_time,
    start,
    waiting,
)
from spes_peer.rounds.mandates import supporters
from spes_peer.rounds.messages import (
    FROM_MEMBER,
    Appeal,
    Beat,
    CoordinatorBeat,
    Proposal,
    RecordSignature,
    SignedBefore,
    Vote,
)
from spes_peer.rounds.ownership import Past
from spes_peer.rounds.phases import Fixed, Outgoing, Step
from spes_peer.rounds.recertifying import (
    Recertifying,
    begin,
    certificate,
    certifiers,
    chosen,
    requests,
    tried_again,
    with_appeal,
    with_signature,
    with_signed_before,
    with_vote,
)
from spes_peer.rounds.set_clock import moved_state
from spes_peer.run.certificates import is_more_than_half
from spes_peer.run.chain import Switch
from spes_peer.run.records import CertifiedRecord, SealedRecord
from spes_peer.run.signed import ReplayGuard, Signed, open_any
from spes_peer.wire import convert

logger = logging.getLogger(__name__)

Send = Callable[[Signed], None]


class Coordinating:
    """Coordinates, whenever it is this node's turn, for as long as `run` runs. `node` has record 0."""

    def __init__(self, node: Node) -> None:
        assert node.chain.head is not None
        self.on_behind: Callable[[PeerId], None] = lambda _peer: None
        """Called when a member turns out to have newer records than this node."""
        self._node = node
        self._members: dict[PeerId, Send] = {}
        self._replays = ReplayGuard()
        self._faults = Paces()
        """How often members said what was dropped."""
        self._last_why = ""
        self._recertifying: Recertifying | None = None
        self._proposed = self._last_proposal()
        self._state = start(
            Fixed(node.layout),
            node.chain.head,
            node.peer_id,
            node.now(),
            self._past(),
            self._proposed,
        )
        node.on_attend = self.attend
        node.on_chain.append(self._on_chain)
        node.on_time.append(self._on_time)

    @property
    def leads(self) -> bool:
        """Whether this node coordinates the open round."""
        return leads(self._state, self._node.now())

    @property
    def has_quorum(self) -> bool:
        """Whether more than half of the roster attend this node: who is only expected does not, nor who has fallen
        silent on a stream of which nobody has said that it is over."""
        record = self._state.head.record
        attending = record.members & self._heard
        return not record.roster or is_more_than_half(len(attending), of=len(record.roster))

    @property
    def num_attending(self) -> int:
        """Who attends this node now, also without a place in the roster."""
        return len(self._members)

    @property
    def present(self) -> AbstractSet[PeerId] | None:
        """Who attends and is heard while this node coordinates; None while it does not, for then it cannot know."""
        return self._heard if self.leads else None

    @property
    def _heard(self) -> AbstractSet[PeerId]:
        """Who attends and is heard: a stream of somebody frozen stays open."""
        return self._state.crowd.links.keys() & self._members.keys()

    def hears(self, term: int | None) -> None:
        """As a member this node hears another coordinate in this term, or nobody."""
        self._state = on_heard(self._state, term)

    def hears_resignation(self, peer: PeerId) -> None:
        """As a member this node hears that the coordinator leaves the run."""
        self._state = on_resigned(self._state, peer)

    async def run(self) -> None:
        """Let time pass and tell members every heartbeat what the round waits for; ends by cancellation."""
        while True:
            try:
                self._do(on_time(self._state, self._node.now()))
                self._beat()
                self._recertify()
            except BlobMissing as error:  # of a chain that the disk has damaged
                logger.error("cannot coordinate as it should be reason=%s", error)
            await asyncio.sleep(self._node.manifest.timing.heartbeat_seconds)

    async def attend(self, caller: PeerId, incoming: AsyncIterator[Signed], send: Send) -> None:
        """Talk with one member until its stream ends. A newer stream of a member replaces the older one."""
        self._members[caller] = send
        logger.debug("a member attends peer=%s", self._node.name_of(caller))
        try:
            send(self._node.signer.sign(self._node.chain.record(self._node.head_round)))
            self._do(on_connected(self._state, caller, self._node.now()))
            self._beat(caller)  # the others hear of it with the next one: all may come at once
            async for signed in incoming:
                if not self._take(caller, signed):
                    await asyncio.sleep(self._faults.pause_seconds(caller, BAD_MESSAGES))
        finally:
            if self._members.get(caller) is send:
                del self._members[caller]
                logger.debug("a member is gone peer=%s", self._node.name_of(caller))
                self._do(on_gone(self._state, caller, self._node.now()))

    def resign(self) -> None:
        """Stop: members need not wait to find out. What was certified is theirs already."""
        if self.leads:
            beat = waiting(self._state, self._node.now())
            self._send(Outgoing(None, replace(beat, phase="resigned", why="the coordinator leaves the run")))

    def _on_chain(self, _switch: Switch | None) -> None:
        head = self._node.chain.head
        assert head is not None
        is_new = head.hash != self._state.head.hash
        self._state = on_head(self._state, head, self._past(), self._node.now())
        if is_new:  # who attends here may not have it, and may have to go elsewhere now
            self._send(Outgoing(None, self._node.chain.record(head.round)))

    def _on_time(self, seconds: float) -> None:
        self._state = moved_state(self._state, seconds)
        self._recertifying = None  # it begins anew

    def _past(self) -> Past:
        chain = self._node.chain
        base = chain.record(chain.certified_round).sealed.record if chain.first_uncertified() else None
        able = certifiers(base) if base else frozenset()
        norms = chain.norms_at(chain.num_records - 1)
        return Past(chain.last_trained(self._node.layout), chain.leases, able, norms, chain.marks)

    def _take(self, caller: PeerId, signed: Signed) -> bool:
        """One message; whether it is the caller's own, sound and new. Another is dropped."""
        try:
            if signed.peer_id != caller:
                raise PeerError(f"a message of {signed.peer_id[:64]!r} from another peer")
            message = open_any(signed, FROM_MEMBER, self._node.run_id)
            self._replays.accept(signed)
        except PeerError as error:
            logger.warning("dropped a message peer=%s reason=%s", self._node.name_of(caller), error)
            return False
        if isinstance(message, Beat) and message.round > self._node.head_round:
            self.on_behind(caller)
        if self._is_for_recertifying(message):
            try:
                self._take_late(signed, message)
            except (PeerError, DiskTrouble) as error:
                logger.warning("nothing is certified late peer=%s reason=%s", self._node.name_of(caller), error)
        else:
            self._do(on_message(self._state, signed, message, self._node.now()))
        return True

    # ---- a record that went on uncertified ----

    def _recertify(self) -> None:
        """Ask the old roster to sign what stands uncertified, while this node coordinates and they attend it."""
        chain, now = self._node.chain, self._node.now()
        standing = chain.first_uncertified() if self.leads else None
        state = self._recertifying
        if standing is None:
            state = None
        elif state is None or state.standing.hash != standing.sealed.hash:
            state = begin(chain.record(chain.certified_round).sealed, standing, self._node.peer_id, now)
        elif now >= state.asked_at + self._node.manifest.timing.round_grace_seconds:
            state = tried_again(state, now)
        self._recertifying = state
        if state is not None:
            self._ask_late(state)

    def _ask_late(self, state: Recertifying) -> None:
        self._recertifying = chosen(state, self._heard)
        for outgoing in requests(self._recertifying, self._heard):
            self._send(outgoing)

    def _is_for_recertifying(self, message: Any) -> bool:
        state = self._recertifying
        if state is None:
            return False
        if isinstance(message, RecordSignature):
            return message.round == state.standing.round
        return isinstance(message, Appeal | Vote | SignedBefore) and message.round == state.base.round

    def _take_late(self, signed: Signed, message: Any) -> None:
        """An answer of the old roster."""
        before = self._recertifying
        assert before is not None
        match message:
            case Appeal():
                state = with_appeal(before, message)
            case Vote():
                state = with_vote(before, signed, message)
            case SignedBefore():
                state = with_signed_before(before, message, SealedRecord.from_bytes(message.record))
            case _:
                state = with_signature(before, signed, message)
        self._recertifying = state
        if (certified := certificate(state)) is not None:
            self._recertifying = None
            self._node.settle_late(certified)
            self._send(Outgoing(None, certified))
        elif chosen(state, self._heard) != state:
            self._ask_late(state)

    # ---- decisions ----

    def _do(self, step: Step) -> None:
        """Take the core's decision: disk first, then state, then words. What cannot be kept has not happened."""
        phase_before = self._state.phase.name
        try:
            self._keep_proposal(step)
            if step.certified is not None:
                self._keep(step.certified)
        except DiskTrouble as error:
            logger.error("cannot go on as coordinator reason=%s", error)
            return
        self._state = step.state
        self._send(*step.outgoing)
        if step.certified is not None:
            self._node.chain_changed(None)
        if self._state.phase.name != phase_before:
            self._beat()

    def _keep(self, certified: CertifiedRecord) -> None:
        sealed = self._node.chain.append(certified)
        is_certified = self._node.chain.certified_round == sealed.round
        logger.info(
            "record %s round=%d signatures=%d roster=%d updates=%d",
            "certified" if is_certified else "goes on uncertified",
            sealed.round,
            len(certified.signatures),
            len(sealed.record.roster),
            len(sealed.record.updates),
        )

    def _keep_proposal(self, step: Step) -> None:
        """In one term this node proposes one record, also when it starts again."""
        proposals = [out.message for out in step.outgoing if isinstance(out.message, Proposal)]
        if proposals and proposals[0] != self._proposed:
            write_whole(self._node.folder.proposal, with_checksum(convert.encode(proposals[0])))
            self._proposed = proposals[0]

    def _last_proposal(self) -> Proposal | None:
        """Without it this node may propose a second record in its term; nobody who has signed the first signs that."""
        try:
            return convert.decode(Proposal, without_checksum(self._node.folder.proposal.read_bytes()))
        except FileNotFoundError:
            return None
        except PeerError as error:
            logger.warning("the last proposal on disk cannot be read reason=%s", error)
            return None

    def _send(self, *outgoing: Outgoing) -> None:
        """In their order. What is said to one after the other is signed once: a proposal is large, and goes to all."""
        for _, group in itertools.groupby(outgoing, key=lambda one: id(one.message)):
            same = list(group)
            present = [send for one in same for send in self._receivers(one.to)]
            if present:
                signed = self._node.signer.sign(same[0].message)
                for send in present:
                    send(signed)

    def _receivers(self, to: PeerId | None) -> list[Send]:
        if to is None:
            return list(self._members.values())
        return [self._members[to]] if to in self._members else []

    def _beat(self, to: PeerId | None = None) -> None:
        """Say what the round waits for, to one member or to all; a node that neither coordinates nor is asked to is
        silent."""
        now = self._node.now()
        if not leads(self._state, now) and not supporters(self._state):
            return
        beat: CoordinatorBeat = waiting(self._state, now)
        if beat.why != self._last_why:
            logger.info("%s: %s", beat.phase, beat.why)
        self._last_why = beat.why
        self._send(Outgoing(to, beat))
