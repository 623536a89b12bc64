"""A peer's part in the rounds of a run: follows the records, trains, contributes, judges what is proposed.

One task follows the records (`live`); messages of the coordinator are taken as they come (`on_message`). What a round
needs besides training is in `round_work`. Every fault of a peer costs that one message or transfer.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from spes_peer.daemon.attendance import Attendance
from spes_peer.daemon.joining import Claiming, fetch_records
from spes_peer.daemon.replica import Replica
from spes_peer.daemon.round_work import RoundWork
from spes_peer.daemon.status import PhaseKeeper, RoundHistory
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import BlobMissing, ChildFailed, PeerError
from spes_peer.files import write_whole
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Contribution,
    CoordinatorBeat,
    Departure,
    Proposal,
    RecordSignature,
    ReduceOrder,
    Refusal,
    UpdateNotice,
)
from spes_peer.run.manifest import PROTOCOL_VERSION
from spes_peer.run.peers import PeerState
from spes_peer.run.records import CertifiedRecord, RosterEntry, SealedRecord
from spes_peer.training.work import HeldOut, TrainProgress, TrainRound

logger = logging.getLogger(__name__)

_RECORDS_SECONDS = 60.0
_RETRY_SECONDS = 2.0
_STOP_MARGIN_SECONDS = 2.0  # a step may be under way when the deadline comes


class Member:
    """One start of one peer, from its first look at the records to the last."""

    def __init__(
        self,
        node: Node,
        trainer: TrainerHost,
        replica: Replica,
        claiming: Claiming,
        phases: PhaseKeeper,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        end: Callable[[], None],
        is_paused: bool,
    ) -> None:
        self.node = node
        self.trainer = trainer
        self.replica = replica
        self.claiming = claiming
        self.attendance = Attendance(
            node.connections, node.signer, self._candidates, node.manifest.timing.coordinator_timeout_seconds
        )
        self.history = RoundHistory(node.traffic)
        self.progress: TrainProgress | None = None
        self.round_phase: CoordinatorBeat | None = None
        self.speed = 0.0
        self.is_paused = is_paused
        self._phases = phases
        self._say = phases.say
        self._spawn = spawn
        self._end = end
        self._is_leaving = False
        self._is_refused = False
        self._record_came = asyncio.Event()
        self._work: RoundWork | None = None
        self._held_out: HeldOut | None = None
        ballot = node.folder.ballot
        self._ballot = Ballot.from_bytes(ballot.read_bytes()) if ballot.exists() else Ballot()
        self.attendance.on_message = self._on_message
        self.attendance.on_open = self._still_to_say
        trainer.on_progress = self._on_progress
        trainer.on_restart = self._on_trainer_restart

    # ---- following the records ----

    async def live(self) -> None:
        """Bring the state to the newest record, take part in the round it opened, wait for the next; for ever."""
        await self._first_records()
        self._open_work(self.head)  # after a quick restart there may be a place to take up
        self._spawn(self.attendance.run())
        if not self.is_paused:
            await self._claim()
            self._request_admission()
        while True:
            try:
                await self._one_round()
            except (PeerError, ChildFailed, BlobMissing) as error:
                logger.warning("trying again reason=%s", error)
                self._say("syncing", f"trying again: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
                await self.trainer.until_ready()

    async def _first_records(self) -> None:
        while True:
            self._say("syncing", "fetching the records of the run")
            try:
                await fetch_records(self.node.chain, self.node.connections, self.node.others()[::-1], _RECORDS_SECONDS)
                return
            except PeerError as error:
                if self.node.chain.head is not None:
                    return
                self._say("syncing", f"no records yet: {error}")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _one_round(self) -> None:
        record = self.head
        await self._bring_state_to(record)
        if record.record.is_final:
            await self._finish(record)
        entry = record.record.entry_of(self.node.peer_id)
        if entry is not None and self.is_member:
            await self._train(record, entry)
        else:
            self._wait_for_a_place(record)
        await self._next_record(record)

    @property
    def head(self) -> SealedRecord:
        assert self.node.chain.head is not None
        return self.node.chain.head

    async def _bring_state_to(self, record: SealedRecord) -> None:
        """Apply what is missing, measure the new state, and note the round that it closed."""
        if self.replica.applied >= 0 and self.replica.applied < record.round:
            self._say("applying", f"record {self.replica.applied + 1}")
            following = self.node.chain.record(self.replica.applied + 1).sealed
            if self.replica.differs_from(following):
                logger.warning("our state is not the run's, loading it again round=%d", self.replica.applied)
                self.replica.forget()
        elif self.replica.applied < 0:
            self._say("syncing", "loading the public state")
        before = self.replica.applied
        await self.replica.catch_up(lambda why: self._say(self._phases.name, why))
        if self.replica.applied == before:
            return
        self._held_out = await self._measure(record)
        self._note_round(record)

    async def _measure(self, record: SealedRecord) -> HeldOut | None:
        """Held-out loss on this peer's slice; the slices of a roster together are the whole split."""
        await self._fetch_shards({self.node.manifest.data.held_out.blob: self.node.manifest.data.held_out.num_tokens})
        roster = record.record.roster
        if not roster and record.round:
            roster = self.node.chain.record(record.round - 1).sealed.record.roster
        peers = [entry.peer_id for entry in roster]
        if self.node.peer_id not in peers:
            return None
        return await self.trainer.get().measure_held_out(peers.index(self.node.peer_id), len(peers))

    def _note_round(self, record: SealedRecord) -> None:
        """Remember what the record closed, for whoever watches."""
        self.history.held_out(record.round, record.record.held_out_loss)
        if record.record.updates:
            opened_at = self.node.chain.record(record.round - 1).sealed.record.opened_at
            self.history.close(record.record, opened_at, self.replica.state_root, self._held_out)

    async def _train(self, record: SealedRecord, entry: RosterEntry) -> None:
        """Train the round and contribute; a record that comes meanwhile ends it."""
        manifest = self.node.manifest
        self.node.state = PeerState.ONLINE
        self._say("training", "fetching the data of the round")
        needed = Shuffle.of(manifest).shards_of(entry.ranges)
        await self._fetch_shards({manifest.data.shards[i].blob: manifest.data.shards[i].num_tokens for i in needed})
        # the deadline is by the coordinator's clock; what counts for us is how long it leaves
        until_at = time.time() + max(0.0, record.record.deadline_at - record.record.opened_at) - _STOP_MARGIN_SECONDS
        num_steps = manifest.training.steps_per_round_at(record.record.step)
        self._say("training", f"{num_steps} local steps", until_at=until_at)
        work = TrainRound(
            round=record.round,
            first_step=record.record.step,
            num_steps=num_steps,
            subsets=entry.subsets,
            ranges=entry.ranges,
            sequences_per_step=entry.sequences_per_step,
            stop_at=until_at,
        )
        trained = await self.trainer.get().train_round(work)
        self.speed = trained.tokens_per_second
        if self._work is None or self._work.round != record.round:
            return
        self._say("contributing", "sending what was trained")
        held_out = self._held_out or HeldOut(0.0, 0)
        self._work.contribute(
            Contribution(
                round=record.round,
                offers=trained.offers,
                tokens=trained.tokens,
                steps=trained.steps,
                state_root=self.replica.state_root,
                train_loss=trained.train_loss,
                held_out_loss_sum=held_out.loss_sum,
                held_out_tokens=held_out.tokens,
                tokens_per_second=trained.tokens_per_second,
            )
        )
        self._say("closing", "others still train or reduce", until_at=record.record.deadline_at)

    async def _fetch_shards(self, num_tokens_by_blob: dict[str, int]) -> None:
        bytes_per_token = {"uint16": 2, "uint32": 4}[self.node.manifest.data.token_dtype]
        await self.node.fetcher.fetch_all(
            [(blob, count * bytes_per_token, self.node.others()) for blob, count in num_tokens_by_blob.items()]
        )

    def _wait_for_a_place(self, record: SealedRecord) -> None:
        if self.is_paused:
            self._say("paused", "paused by its owner; resume with: spes-peer resume")
        elif not self._is_refused:
            self._say("waiting", "to be admitted to the next round")
        self._request_admission()

    async def _next_record(self, record: SealedRecord) -> None:
        """Until the chain is longer; asks for records itself when the coordinator's word may have been missed."""
        patience_seconds = self.node.manifest.timing.coordinator_timeout_seconds
        while self.head.round <= record.round:
            self._record_came.clear()
            try:
                async with asyncio.timeout(patience_seconds):
                    await self._record_came.wait()
            except TimeoutError:
                with contextlib.suppress(PeerError):
                    await fetch_records(self.node.chain, self.node.connections, self._candidates(), _RECORDS_SECONDS)
            if self._is_leaving and (self.head.round > record.round or not self.is_member):
                self._end()

    async def _finish(self, record: SealedRecord) -> None:
        """The run is over: keep serving what others may still lack, until asked to leave."""
        self._say("finished", f"the run ended with round {record.round - 1}; thank you")
        if self._is_leaving:
            self._end()
        await asyncio.Future()

    @property
    def is_member(self) -> bool:
        """Whether the open round has a place for this peer: given to this start of it, or to an earlier one."""
        entry = self.head.record.entry_of(self.node.peer_id) if self.node.chain.head else None
        return entry is not None and entry.incarnation <= self.node.signer.incarnation

    # ---- the coordinator's messages ----

    def _candidates(self) -> Sequence[PeerId]:
        return [peer for peer in self.head.record.candidates if peer != self.node.peer_id]

    def _on_message(self, sender: PeerId, message: Any) -> None:
        match message:
            case CertifiedRecord():
                self._on_record(message)
            case CoordinatorBeat():
                self._on_beat(message)
            case ReduceOrder() if self._work:
                self._work.on_reduce_order(message)
            case UpdateNotice() if self._work:
                self._work.on_notice(message)
            case Proposal():
                self._on_proposal(sender, message)
            case Refusal():
                self._is_refused = True
                logger.warning("the coordinator refused a message why=%s", message.why)

    def _on_record(self, certified: CertifiedRecord) -> None:
        try:
            if certified.sealed.round <= self.head.round:
                return
            if certified.sealed.round > self.head.round + 1:
                self._spawn(self._fetch_missed())
                return
            sealed = self.node.chain.append(certified)
        except PeerError as error:
            logger.warning("refused a record reason=%s", error)
            return
        self._open_work(sealed)
        self._record_came.set()

    async def _fetch_missed(self) -> None:
        await fetch_records(self.node.chain, self.node.connections, self._candidates(), _RECORDS_SECONDS)
        self._open_work(self.head)
        self._record_came.set()

    def _open_work(self, record: SealedRecord) -> None:
        """The round that `record` opened is this member's to work in, if it is in the roster."""
        if self._work is not None:
            self._work.close()
        self._is_refused = False
        self.progress = None
        self._work = None
        if self.is_member:
            self._work = RoundWork(record, self.node, self.trainer, self.attendance.send, self._spawn)
        self._phases.touch()

    def _on_beat(self, beat: CoordinatorBeat) -> None:
        self.round_phase = beat
        if self._phases.name in ("closing", "waiting") and beat.why:
            self._say(self._phases.name, beat.why, beat.waiting_for, beat.until_at)
        self._phases.touch()

    def _on_proposal(self, sender: PeerId, proposal: Proposal) -> None:
        """Sign what follows from the rules and from what we know; the vote is on disk before it is sent."""
        try:
            sealed = SealedRecord.from_bytes(proposal.record)
        except PeerError as error:
            logger.warning("refused a proposal reason=%s", error)
            return
        own = self._work.facts() if self._work else Own(self.node.peer_id, incarnation=self.node.signer.incarnation)
        reason = objections(sealed, self.head, own, self.node.layout, sender) or self._ballot.objection(
            sealed.round, proposal.term, sealed.hash
        )
        if reason:
            logger.warning("not signing a record round=%d reason=%s", sealed.round, reason)
            return
        self._ballot = self._ballot.signed(sealed.round, proposal.term, sealed.hash)
        write_whole(self.node.folder.ballot, self._ballot.to_bytes())
        self.attendance.send(RecordSignature(sealed.round, proposal.term, sealed.hash))

    def _still_to_say(self) -> Iterable[Any]:
        """What a coordinator that just met us must know."""
        if self._is_leaving or self.is_paused:
            yield Departure("leaving" if self._is_leaving else "paused")
        elif not self.is_member and self.claiming.subsets:
            yield self._admission_request()
        else:
            yield self._beat()
        if self._work is not None:
            yield from self._work.said()

    def _request_admission(self) -> None:
        if not (self.is_paused or self._is_leaving or self.is_member) and self.claiming.subsets:
            self.attendance.send(self._admission_request())

    def _admission_request(self) -> AdmissionRequest:
        speed = self.speed or self.trainer.opened.tokens_per_second
        return AdmissionRequest(self.claiming.subsets, speed, PROTOCOL_VERSION)

    # ---- what its owner wants ----

    def pause(self) -> None:
        """Take no part from the next round on."""
        self.is_paused = True
        self.node.state = PeerState.PAUSED
        self.attendance.send(Departure("paused"))

    def resume(self) -> None:
        """Take part again, with the same subsets if the round is still open, else with what is free then."""
        self.is_paused = False
        if self.is_in_a_round:
            self.node.state = PeerState.ONLINE
            self.attendance.send(self._admission_request())
        else:
            self.node.state = PeerState.JOINING
            self._spawn(self._claim_again())

    async def _claim_again(self) -> None:
        await self._claim()
        self._say("waiting", "to be admitted to the next round")
        self._request_admission()

    async def _claim(self) -> None:
        await self.claiming.claim(self.node.max_subsets, lambda why: self._say("joining", why))

    def leave(self) -> None:
        """Finish the open round, then end."""
        self._is_leaving = True
        self.node.state = PeerState.LEAVING
        self.attendance.send(Departure("leaving"))

    def say_goodbye(self) -> None:
        """End now: the others need not wait."""
        self.node.state = PeerState.LEAVING
        self.attendance.send(Departure("leaving"))

    @property
    def is_in_a_round(self) -> bool:
        """Whether there is a round to finish."""
        return self.node.chain.head is not None and self.is_member and not self.head.record.is_final

    # ---- signs of life ----

    async def beat(self) -> None:
        """Tell the coordinator every heartbeat that this member lives; for ever."""
        while True:
            await asyncio.sleep(self.node.manifest.timing.heartbeat_seconds)
            self.attendance.send(self._beat())

    def _beat(self) -> Beat:
        steps = self.progress.steps_done if self.progress else 0
        return Beat(max(0, self.node.head_round), self._phases.name, steps)

    def _on_progress(self, progress: TrainProgress) -> None:
        self.progress = progress
        self._phases.touch()

    def _on_trainer_restart(self) -> None:
        """The new process holds no state: load it again, which also ends what waits for the old one."""
        self.replica.forget()
        self._record_came.set()
