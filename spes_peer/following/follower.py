"""Follows a run for a node, volunteer or bootstrap: the chain, the coordinator of the open round, and its own turn.

What the node holds against a proposal, and what it does with a coordinator's other messages, is its owner's matter; the
rest is alike for all. While nobody coordinates whom it can hear, or its chain has an uncertified end, it asks others
where they stand; that heals a partition, and finds the coordinator that was elected without us.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from spes_peer.clock import sleep_awake
from spes_peer.coordinating import Coordinating
from spes_peer.errors import BlobMissing, DiskTrouble, PeerError
from spes_peer.exchange.link import blaming
from spes_peer.following.attendance import Attendance
from spes_peer.following.records import fetch_from, fetch_records
from spes_peer.following.voting import Voter
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.ballot import MOST_TERMS_AHEAD
from spes_peer.rounds.election import Allegiance, owner_of
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import (
    Appeal,
    CoordinatorBeat,
    PendingAmendment,
    Proposal,
    RecordSignature,
    Referral,
    VoteRequest,
)
from spes_peer.rounds.set_clock import moved_allegiance
from spes_peer.run.certificates import stalled_at
from spes_peer.run.chain import Switch
from spes_peer.run.peers import Standing
from spes_peer.run.records import CertifiedRecord, SealedRecord
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import StandingRequest

logger = logging.getLogger(__name__)

_ASK_SECONDS = 5.0
_ASKED_AT_ONCE = 16  # peers that are asked where they stand

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Follower:
    """Follows for as long as `run` runs. `node` has record 0."""

    def __init__(self, node: Node, spawn: Spawn) -> None:
        """`spawn` runs something beside, and takes the errors of peers in it."""
        self.node = node
        self.on_message: Callable[[PeerId, Any], None] = lambda _sender, _message: None
        """What a coordinator says and is not handled here."""
        self.on_lost: Callable[[str], None] = lambda _why: None
        """Called with the reason whenever the coordinator cannot be attended."""
        self.still_to_say: Callable[[], Iterable[Any]] = lambda: ()
        """What a coordinator must know that meets this node."""
        self.own_facts: Callable[[], Own] = lambda: Own(node.peer_id, incarnation=node.signer.incarnation)
        """By which a proposal is judged."""
        self.coordinating = Coordinating(node)
        self.allegiance = Allegiance(self.head.round, 0, node.now())
        self._timing = node.manifest.timing
        self._voter = Voter(node.folder.ballots, node.layout)
        self._spawn = spawn
        self._sources: set[PeerId] = set()
        """From whom records are being read."""
        self.attendance = Attendance(
            node.connections, node.signer, self._owner, self._timing.coordinator_timeout_seconds
        )
        self.attendance.on_message = self._on_message
        self.attendance.on_open = self._on_open
        self.attendance.on_lost = self._on_lost
        self.coordinating.on_behind = lambda peer: self._fetch_from(peer)
        node.standing = self._standing
        node.amendments.on_taken = self._pass_amendment_on
        node.on_chain.append(self._on_chain)
        node.on_time.append(self._on_time)

    @property
    def head(self) -> SealedRecord:
        assert self.node.chain.head is not None
        return self.node.chain.head

    @property
    def coordinator(self) -> PeerId | None:
        """Whom this node hears coordinate."""
        return self.attendance.attended if self.allegiance.hears(self.node.now(), self._timing) else None

    def send(self, message: Any) -> None:
        """To whoever is attended; dropped when there is nobody."""
        self.attendance.send(message)

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for loop in (self.attendance.run(), self.coordinating.run(), self._keep_time(), self._look_around()):
                tasks.create_task(loop)

    def _owner(self) -> PeerId | None:
        return owner_of(self.head.record, self.allegiance.term)

    # ---- the chain ----

    async def fetch_records(self, sources: Sequence[PeerId]) -> None:
        await fetch_records(self.node, sources)

    def _fetch_from(self, peer: PeerId) -> None:
        """Beside everything else; not twice from one peer at a time, and from strangers only a few at a time."""
        record = self.head.record
        is_stranger = peer not in record.members and peer not in record.candidates
        if peer not in self._sources and not (is_stranger and len(self._sources) >= _ASKED_AT_ONCE):
            self._sources.add(peer)
            self._spawn(self._fetching(peer))

    async def _fetching(self, peer: PeerId) -> None:
        try:
            await fetch_from(self.node, peer)
        except (BlobMissing, DiskTrouble) as error:
            logger.info("no records from a peer peer=%s reason=%s", peer[-8:], error)
        finally:
            self._sources.discard(peer)

    def _on_chain(self, _switch: Switch | None) -> None:
        if self.allegiance.round != self.head.round or _switch is not None:
            self.allegiance = Allegiance(self.head.round, 0, self.node.now())
            self.attendance.look_again()
            self._voter.forget_before(self.node.chain.certified_round)

        self._pass_amendment_on()  # a coordinator that follows another chain now may have dropped it

    def _pass_amendment_on(self) -> None:
        for message in self._pending_amendment():
            self.send(message)

    def _pending_amendment(self) -> Iterable[PendingAmendment]:
        if (waiting := self.node.amendments.waiting) is not None:
            yield PendingAmendment(waiting)

    def _on_time(self, seconds: float) -> None:
        self.allegiance = moved_allegiance(self.allegiance, seconds)

    def _on_record(self, sender: PeerId, certified: CertifiedRecord) -> None:
        round, head = certified.sealed.round, self.head
        try:
            if round == head.round + 1 and certified.sealed.record.previous_hash == head.hash:
                self.node.take_record(certified)
            elif round > self.node.chain.certified_round and certified.sealed.hash != head.hash:
                self._fetch_from(sender)
            elif round > self.node.chain.certified_round:
                self.node.improve_record(certified)
        except PeerError as error:
            logger.warning("refused a record reason=%s", error)
        except DiskTrouble as error:  # it is fetched once there is room
            logger.warning("cannot keep a record round=%d reason=%s", round, error)

    # ---- whom to follow ----

    async def _keep_time(self) -> None:
        """Give up on a term whose owner is silent; that we slept is no silence of his."""
        while True:
            if slept_seconds := await sleep_awake(self._timing.heartbeat_seconds / 2):
                self.allegiance = moved_allegiance(self.allegiance, slept_seconds)
            is_unreachable = self.attendance.attended is None
            record = self.head.record
            stalls_at = stalled_at(record, self._timing.stall_timeout_seconds) if record.roster else math.inf
            overdue_at = self.allegiance.overdue_at(is_unreachable, self._timing, stalls_at)
            if not record.is_final and self.node.now() >= overdue_at:
                self._follow_term(self.allegiance.next_term(self.node.now()))

    def _follow_term(self, allegiance: Allegiance) -> None:
        owner_before = self._owner()
        self.allegiance = allegiance
        self.coordinating.hears(None)
        if self._owner() != owner_before:
            self.attendance.look_again()
        else:
            for message in self._on_open():
                self.send(message)

    def _on_open(self) -> Iterable[Any]:
        term = self.allegiance.term
        if term > 0:
            yield Appeal(self.head.round, term)
            yield from self._voter.vote_again(term, self.head)
        yield from self._pending_amendment()
        yield from self.still_to_say()

    def _on_lost(self, why: str) -> None:
        self.coordinating.hears(None)
        self.on_lost(why)

    def _on_message(self, sender: PeerId, message: Any) -> None:
        match message:
            case CertifiedRecord():
                self._on_record(sender, message)
            case CoordinatorBeat():
                self._on_beat(sender, message)
            case VoteRequest():
                self._vote(sender, message)
            case Proposal():
                self._sign(sender, message)
            case Referral() if message.round == self.head.round and message.term < self.allegiance.term:
                self._follow_term(self.allegiance.referred(message.term, self.node.now()))
            case _:
                self.on_message(sender, message)

    def _on_beat(self, sender: PeerId, beat: CoordinatorBeat) -> None:
        now, head = self.node.now(), self.head
        self.node.hears_time(sender, beat.sent_at)
        if beat.round > head.round:
            self._fetch_from(sender)
        elif beat.round < head.round or owner_of(head.record, beat.term) != sender:
            pass
        elif beat.phase == "resigned":
            self.coordinating.hears_resignation(sender)
            self._follow_term(self.allegiance.next_term(now))
        elif beat.phase != "electing":
            self.allegiance = self.allegiance.heard(head.round, beat.term, now)
            self.coordinating.hears(beat.term if sender != self.node.peer_id else None)
        self.on_message(sender, beat)

    # ---- votes ----

    def _vote(self, sender: PeerId, request: VoteRequest) -> None:
        """In the open round, or in the last certified one if what follows it is not certified."""
        for base in (self.head, self._last_certified):
            if request.round == base.round and base.record.entry_of(self.node.peer_id) is not None:
                appeal = self._voter.appeal(request.term, sender, base)
                for message in [appeal] if appeal else self._voter.vote(request, sender, base):
                    self.send(message)
                return

    def _sign(self, sender: PeerId, proposal: Proposal) -> None:
        answer: RecordSignature | Appeal | None
        chain = self.node.chain
        standing = chain.first_uncertified()
        if standing is not None and _follows(proposal, self._last_certified):
            past = chain.norms_at(chain.certified_round)
            answer = self._voter.sign_late(proposal, sender, standing.sealed, self._last_certified, past)
        else:
            past = chain.norms_at(self.head.round)
            known = chain.leases.by_peer.keys()
            answer = self._voter.sign(proposal, sender, self.head, self.own_facts(), self.node.now(), past, known)
            answer = answer or self._voter.appeal(proposal.term, sender, self.head)
        if answer is not None:
            self.send(answer)

    @property
    def _last_certified(self) -> SealedRecord:
        return self.node.chain.record(self.node.chain.certified_round).sealed

    # ---- where others stand ----

    def _standing(self) -> Standing:
        hears = self.allegiance.hears(self.node.now(), self._timing)
        return Standing(self.head.round, self.head.hash, self.node.chain.certified_round, self.allegiance.term, hears)

    @property
    def _is_settled(self) -> bool:
        """Whether there is nothing to learn from others: the coordinator of the run is heard, and counts."""
        if self.node.chain.certified_round < self.head.round:
            return False
        if self.coordinator == self.node.peer_id:
            return self.coordinating.has_quorum
        return self.coordinator is not None or self.head.record.is_final

    async def _look_around(self) -> None:
        """Ask others where they stand: every half of the coordinator time-out while something may be amiss, and more
        often at first, before anything is decided that ignores what went on without us."""
        longest_seconds = self._timing.coordinator_timeout_seconds / 2
        pause_seconds = self._timing.heartbeat_seconds
        while True:
            if pause_seconds < longest_seconds or not self._is_settled:
                await asyncio.gather(*(self._learn_from(peer) for peer in self._others()))
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, longest_seconds)

    def _others(self) -> list[PeerId]:
        """Some to ask: those who may coordinate first, then anybody."""
        record = self.head.record
        first = [peer for peer in record.candidates if peer != self.node.peer_id][: _ASKED_AT_ONCE // 2]
        rest = [peer for peer in self.node.entries if peer not in first and peer != self.node.peer_id]
        random.shuffle(rest)
        return [*first, *rest][:_ASKED_AT_ONCE]

    async def _learn_from(self, peer: PeerId) -> None:
        try:
            link = await self.node.connections.to(peer)
            with blaming(peer):
                answer = await link.call(link.stub.Stand, StandingRequest(), timeout_seconds=_ASK_SECONDS)
                self._learn(peer, convert.from_message(Standing, answer))
        except (PeerError, BlobMissing, DiskTrouble) as error:
            logger.debug("a peer does not say where it stands peer=%s reason=%s", peer[-8:], error)

    def _learn(self, peer: PeerId, standing: Standing) -> None:
        if self._is_worth_reading(standing):
            self._fetch_from(peer)
        elif self._is_ahead_in_term(standing):
            logger.info("others follow a later coordinator term=%d", standing.term)
            self._follow_term(Allegiance(self.head.round, standing.term, self.node.now()))

    def _is_worth_reading(self, standing: Standing) -> bool:
        """Whether the chain there may rank above ours."""
        chain = self.node.chain
        if standing.certified_round != chain.certified_round:
            return standing.certified_round > chain.certified_round
        if standing.head_hash == self.head.hash:
            return False
        return standing.head_round > self.head.round or chain.certified_round < self.head.round

    def _is_ahead_in_term(self, standing: Standing) -> bool:
        is_same = standing.head_hash == self.head.hash and standing.hears_coordinator
        return is_same and 0 < standing.term - self.allegiance.term <= MOST_TERMS_AHEAD


def _follows(proposal: Proposal, base: SealedRecord) -> bool:
    """Whether the proposed record has its place behind `base`; one that cannot be read has none."""
    with contextlib.suppress(PeerError):
        return SealedRecord.from_bytes(proposal.record).record.previous_hash == base.hash
    return False
