"""A peer's part in the rounds of a run: trains what the records give it, contributes, judges what is proposed.

One task (`live`) brings this peer to what the newest record asks of it, again after everything that changes; messages
of the coordinator are taken as they come (`_on_message`). The records, the coordinator and this peer's own turn as one
are `following`'s matter. What a round needs besides training is in `round_work`. Every
fault of a peer costs that one message or transfer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from spes_peer.daemon.accounts import NOT_MEASURED, Accounts
from spes_peer.daemon.data_ahead import SoundShards
from spes_peer.daemon.held_out import slice_of
from spes_peer.daemon.joining import Claiming
from spes_peer.daemon.organizers_word import moment
from spes_peer.daemon.parts import part_of
from spes_peer.daemon.phases import PhaseKeeper
from spes_peer.daemon.replica import Replica
from spes_peer.daemon.round_work import RoundWork
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.data.ranges import Shuffle
from spes_peer.errors import BlobMissing, ChildFailed, DiskTrouble, PeerError
from spes_peer.exchange.transfers import Gathering
from spes_peer.following.follower import Follower
from spes_peer.guest.rules import Reason, in_words, until_at
from spes_peer.identity import PeerId
from spes_peer.logs import plain
from spes_peer.node import Node
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Contribution,
    CoordinatorBeat,
    Departure,
    Footing,
    ReduceOrder,
    Refusal,
    UpdateNotice,
)
from spes_peer.run.chain import Switch
from spes_peer.run.data import Shard
from spes_peer.run.invitations import InvitationProof
from spes_peer.run.manifest import PROTOCOL_VERSION
from spes_peer.run.peers import PeerState
from spes_peer.run.records import RosterEntry, SealedRecord
from spes_peer.training.work import TrainAhead, TrainProgress, TrainRound

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_STOP_MARGIN_SECONDS = 2.0  # a step may be under way when the deadline comes
_LONGEST_REASON = 200  # characters of others' words in ours
_LONGEST_PHASE = 20
_MOST_AWAITED = 64  # whom a coordinator names as awaited


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
        reasons: Sequence[Reason] = (),
    ) -> None:
        """`spawn` runs something beside; `end` ends the daemon; `reasons` are those to rest. `node` has record 0."""
        self.node = node
        self.trainer = trainer
        self.replica = replica
        self.claiming = claiming
        self.follower = Follower(node, spawn)
        self.accounts = Accounts(node)
        self.progress: TrainProgress | None = None
        self.round_phase: CoordinatorBeat | None = None
        self.speed = 0.0
        self.router_choices: tuple[int, ...] = ()
        """How often the router chose each expert, in this peer's last round of training."""
        self.reasons = tuple(reasons)
        """Why it takes no part, or will not from the next round on; none when it does."""
        self.proof: InvitationProof | None = None
        """That this peer has been invited, where it has."""
        self._phases = phases
        self._say = phases.say
        self._spawn = spawn
        self._end = end
        self._is_leaving = False
        self._is_training = False
        self._changed = asyncio.Event()
        self._opened: SealedRecord | None = None
        self._work: RoundWork | None = None
        self._shards = SoundShards(node)
        self._held_out = NOT_MEASURED
        self._measured_round = -1
        self.follower.on_message = self._on_message
        self.follower.on_lost = self._on_lost
        self.follower.still_to_say = self._still_to_say
        self.follower.own_facts = self._facts
        node.on_chain.append(self._on_chain)
        node.on_time.append(self._on_time)
        replica.on_applied = self._on_applied
        replica.measuring = phases.measuring
        phases.on_say = self._account
        trainer.on_progress = self._on_progress
        trainer.on_restart = self._on_trainer_restart

    # ---- following the records ----

    async def live(self) -> None:
        """Do what the newest record asks of this peer, again after every change; for ever."""
        self._open_work()
        self._spawn(self.follower.run())
        trouble = ""
        while True:
            self._changed.clear()
            try:
                await self._follow(self.head)
            except (PeerError, ChildFailed, BlobMissing, DiskTrouble) as error:
                if self.reasons and self._may_rest:  # it was interrupted for that
                    continue
                if trouble and self._work is not None:  # more than a moment's
                    self._work.ask_not_to_be_awaited(str(error)[:_LONGEST_REASON])
                if trouble != (trouble := str(error)):
                    logger.warning("trying again reason=%s", error)
                self._say("syncing", f"trying again: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                trouble = ""
                await self._changed.wait()

    async def _follow(self, record: SealedRecord) -> None:
        """Bring the state to `record`; then take part in the round it opened, or seek a place in the next."""
        if self.reasons and self._may_rest:
            await self._rest()
            return
        self.trainer.wake()
        if self.trainer.is_waking:
            self._say("syncing", "starting the trainer again")
            return
        await self._bring_state_to(record)
        work = self._work
        if record.record.is_final:
            self._say("finished", f"the run ended with round {record.round - 1}; thank you")
        elif work is None:
            await self._seek_a_place()
        elif not record.record.trains:
            self._sit_out(record)
        elif work.record.hash == record.hash and work.contribution is None:
            await work.unless_closed(self._train(work))
        elif self._rests_at_once:
            self._say_paused()

    def _sit_out(self, record: SealedRecord) -> None:
        """Nobody trains in this round: say on which state we stand, for no contribution does."""
        self._say("waiting", self._why_it_rests)
        self.follower.send(Footing(record.round, self.replica.state_root))

    @property
    def _why_it_rests(self) -> str:
        rules = self.node.rules
        if rules.is_paused:
            return f"the run is paused by its organizer since {moment(rules.paused_at)}"
        return f"for members: a round takes {rules.quorum}, and {len(self.head.record.roster)} are here"

    @property
    def _is_sitting_out(self) -> bool:
        return self._work is not None and not self.head.record.trains and not self.head.record.is_final

    @property
    def head(self) -> SealedRecord:
        assert self.node.chain.head is not None
        return self.node.chain.head

    @property
    def _place(self) -> RosterEntry | None:
        """This peer's place in the open round: given to this start of it, or to an earlier one."""
        entry = self.head.record.entry_of(self.node.peer_id)
        return entry if entry is not None and entry.incarnation <= self.node.signer.incarnation else None

    async def _bring_state_to(self, record: SealedRecord) -> None:
        """Apply what is missing, and measure what came of it."""
        applied = self.replica.applied
        if applied < 0:
            self._say("syncing", "loading the public state")
        elif applied < record.round:
            self._say("applying", f"record {applied + 1}")
            if self.replica.differs_from(self.node.chain.record(applied + 1).sealed):
                logger.warning("our state is not the run's, loading it again round=%d", applied)
                self.replica.forget()
        await self.replica.catch_up(lambda why: self._say(self._phases.name, why))
        if self._measured_round != self.replica.applied:
            await self._measure(self.replica.applied)
        self.accounts.measured(self._measured_round, self._held_out)

    async def _measure(self, round: int) -> None:
        """Held-out loss on this peer's slice of this round."""
        await self._have([self.node.manifest.data.held_out])
        chain = self.node.chain
        roster = chain.record(round).sealed.record.roster
        if not roster and round:
            roster = chain.record(round - 1).sealed.record.roster
        peers = [entry.peer_id for entry in roster]
        self._held_out = NOT_MEASURED
        if self.node.peer_id in peers:
            length = self.node.manifest.model.sequence_length
            num_sequences = self.node.manifest.data.held_out.num_sequences(length)
            part = slice_of(peers.index(self.node.peer_id), len(peers), round, num_sequences, length)
            self._held_out = await self.trainer.get().measure_held_out(*part)
        self._measured_round = round

    async def _train(self, work: RoundWork) -> None:
        """Train the round and contribute."""
        manifest, record, entry = self.node.manifest, work.record.record, work.entry
        if len(entry.subsets) > (room := self.trainer.opened.max_subsets):
            why = f"there is memory for {room} of {len(entry.subsets)} subsets; the next record takes the others away"
            work.ask_not_to_be_awaited(why)
            self._say("waiting", why)
            return
        self._say("training", "fetching the data of the round")
        needed = Shuffle.of(manifest).shards_of((*entry.ranges, *entry.ahead))
        self.accounts.parts.enter("exchange")
        index = await self.node.shard_index.get()
        await self._have([index.shard(at) for at in sorted(needed)])
        if self._rests_at_once:  # since the data was asked for
            return
        stop_at = work.until_at - _STOP_MARGIN_SECONDS
        now = self.node.now()
        if stop_at < now:  # late, and no record has overtaken us: the others cannot go on without us
            stop_at = now + self.node.rules.round_seconds
        stop_at = self.node.clock.wall_at(stop_at)
        num_steps = manifest.training.steps_per_round_at(record.step)
        self._say("training", f"{num_steps} local steps", until_at=stop_at)
        task = TrainRound.of(record, entry, num_steps, stop_at)
        self._is_training = True
        try:
            with self.accounts.given.training():
                trained = await self.trainer.get().train_round(task)
        finally:
            self._is_training = False
        self.accounts.parts.encoded(trained.encode_seconds)
        self.speed, self.router_choices = trained.tokens_per_second, trained.router_choices
        self._say("contributing", "sending what was trained")
        work.contribute(
            Contribution(
                round=record.round,
                offers=trained.offers,
                tokens=entry.sequences_in(trained.steps) * manifest.model.sequence_length,
                steps=trained.steps,
                state_root=self.replica.state_root,
                train_loss=trained.train_loss,
                held_out_loss_sum=self._held_out.loss_sum,
                held_out_tokens=self._held_out.tokens,
                tokens_per_second=trained.tokens_per_second,
            )
        )
        self._say("closing", "others still train or reduce", until_at=self.node.clock.wall_at(work.until_at))
        if entry.ahead and not (self.is_paused or self._is_leaving):  # or the next round is not this peer's
            self._spawn(self._train_ahead(work))

    async def _train_ahead(self, work: RoundWork) -> None:
        """Go on with the next round's first steps while the exchange runs; the record that closes the round ends it."""
        manifest = self.node.manifest
        stop_at = self.node.clock.wall() + self.node.rules.round_seconds
        task = TrainAhead.of(work.record.record, work.entry, manifest.training, manifest.sync.overlap_steps, stop_at)

        async def train() -> None:
            with self.accounts.given.training():
                await self.trainer.get().train_ahead(task)

        try:
            await work.unless_closed(train())
        except ChildFailed as error:  # its steps are made in the round then
            logger.warning("could not train ahead round=%d reason=%s", work.round + 1, error)

    async def _have(self, shards: Sequence[Shard]) -> None:
        gathering = Gathering(self.node.transfers)
        with self._phases.measuring(
            "fetching data", "bytes", lambda: gathering.done_bytes, lambda: gathering.whole_bytes
        ):
            await self._shards.have(shards, gathering=gathering)

    async def _seek_a_place(self) -> None:
        if not self._wants_a_place:
            return
        if not self.claiming.subsets:
            await self.claiming.claim(self.node.max_subsets, lambda why: self._say("joining", why))
        self._say("waiting", "to be admitted to the next round")
        if self._wants_a_place:
            self.follower.send(self._admission_request())

    async def reconsider(self) -> None:
        """Ask for other subsets where the newest record and claims give a reason; call it when either has changed."""
        wanted = await self.claiming.reconsider(self.node.max_subsets) if self._may_reconsider else None
        if wanted and self._may_reconsider:  # a request takes back a departure
            self.follower.send(self._admission_request())

    @property
    def _may_reconsider(self) -> bool:
        return self._work is not None and not (self.is_paused or self._is_leaving)

    @property
    def _wants_a_place(self) -> bool:
        return self._work is None and not (self.is_paused or self._is_leaving)

    def _open_work(self) -> None:
        """The newest record's round is this peer's to work in, if it has a place there. Called again without need, it
        does nothing."""
        if self._opened is not None and self._opened.hash == self.head.hash:
            return
        self._opened = self.head
        self.accounts.parts.begin(self.head.round)
        had_a_place, place = self._work is not None, self._place
        if self._work is not None:
            self._work.closed.set()
        self._work = None
        self.progress = None
        if place is not None:
            self._work = RoundWork(self.head, place, self.node, self.trainer, self.follower.send, self._spawn)
            if place.subsets != self.claiming.subsets:
                self._spawn(self.claiming.keep(place.subsets))
            self._spawn(self.reconsider())
        elif self._is_leaving:
            self._end()
        elif had_a_place:
            self.claiming.subsets = ()  # by the time this peer comes back they may be another's
        self._show_state()
        self._changed.set()

    # ---- the coordinator's messages ----

    def _candidates(self) -> Sequence[PeerId]:
        return [peer for peer in self.head.record.candidates if peer != self.node.peer_id]

    def _on_message(self, sender: PeerId, message: Any) -> None:
        match message:
            case CoordinatorBeat():
                self._on_beat(message)
            case ReduceOrder() if self._work:
                self._work.on_reduce_order(message)
            case UpdateNotice() if self._work:
                self._work.on_notice(message)
            case Refusal():
                logger.warning("the coordinator refused a message why=%s", plain(message.why, _LONGEST_REASON))

    def _facts(self) -> Own:
        own = self._work.facts() if self._work else Own(self.node.peer_id, incarnation=self.node.signer.incarnation)
        return replace(own, state_root=self.replica.state_root) if self.replica.applied == self.head.round else own

    def _on_chain(self, switch: Switch | None) -> None:
        if switch is not None and switch.lost:
            self.replica.rewind(switch.first_round)
            self.accounts.rewind(switch.first_round)
            self._measured_round = min(self._measured_round, switch.first_round - 1)
        self._open_work()

    def _on_time(self, seconds: float) -> None:
        if self._work is not None:
            self._work.until_at += seconds

    def _on_beat(self, beat: CoordinatorBeat) -> None:
        beat = self._to_be_shown(beat)
        self.round_phase = beat
        if self._phases.name in ("closing", "waiting") and beat.why and not self._is_sitting_out:
            self._say(self._phases.name, beat.why, beat.waiting_for, beat.until_at)
        self._phases.touch()

    def _to_be_shown(self, beat: CoordinatorBeat) -> CoordinatorBeat:
        """For watchers: by the wall clock, for they know no other (0 stays "without an end"); and no more of another's
        words than an honest one needs."""
        wall_at = self.node.clock.wall_at
        return replace(
            beat,
            phase=plain(beat.phase, _LONGEST_PHASE),
            since_at=wall_at(beat.since_at),
            waiting_for=tuple(peer for peer in beat.waiting_for[:_MOST_AWAITED] if self.node.names(peer)),
            until_at=wall_at(beat.until_at) if beat.until_at else 0.0,
            why=plain(beat.why, _LONGEST_REASON),
        )

    def _on_lost(self, why: str) -> None:
        """Nobody coordinates whom this peer can reach."""
        self.round_phase = None
        if self._phases.name in ("closing", "waiting"):
            self._say(self._phases.name, f"for a coordinator: {why[:_LONGEST_REASON]}", self._candidates())
        self.node.announce_soon.set()  # which also looks where the others are now

    def _still_to_say(self) -> Iterable[Any]:
        """What a coordinator that just met us must know."""
        if self._is_leaving or self.is_paused:
            yield Departure("leaving" if self._is_leaving else "paused")
        elif self.claiming.subsets:  # also of a member: it may have heard us depart, and not that we stay
            yield self._admission_request()
        else:
            yield self._beat()
        if self._work is not None:
            yield from self._work.said()
        if self._is_sitting_out and self.replica.applied == self.head.round:
            yield Footing(self.head.round, self.replica.state_root)

    def _admission_request(self) -> AdmissionRequest:
        speed = self.speed or self.trainer.opened.tokens_per_second
        return AdmissionRequest(self.claiming.subsets, speed, PROTOCOL_VERSION, self.proof)

    # ---- what its owner wants ----

    @property
    def is_paused(self) -> bool:
        return bool(self.reasons)

    def rest_for(self, reasons: Sequence[Reason]) -> None:
        """From now on there are these reasons to rest, instead of those before.

        With a first one this peer takes no part from the next round on, or from the next step on where a reason says
        so; what was trained by then is contributed. Without any it takes part again, with the same subsets if the round
        is still open, else with what is free then."""
        before, self.reasons = self.reasons, tuple(reasons)
        if self.reasons and not before and not self._is_leaving:
            self.follower.send(Departure("paused"))
        elif before and self._may_reconsider:  # a request takes back a departure
            self.follower.send(self._admission_request())
        if not any(reason.ends_serving for reason in self.reasons):
            self.node.serve_blobs(True)
        if self._rests_at_once and self.reasons != before:
            self._spawn(self._stop_at_once())
        self._show_state()
        self._changed.set()

    @property
    def _rests_at_once(self) -> bool:
        return any(reason.at_once for reason in self.reasons)

    @property
    def _may_rest(self) -> bool:
        """Whether the open round has nothing more of this peer, or must do without."""
        if self._work is None or self.trainer.is_resting:
            return True
        if any(reason.frees_device for reason in self.reasons):
            return True
        return self._rests_at_once and self._work.contribution is None

    async def _rest(self) -> None:
        """Nothing is trained or applied, and the device is free. What others ask is answered as before."""
        self._say_paused()
        why = in_words(self.reasons)
        if self._work is not None:
            self._work.ask_not_to_be_awaited(why[:_LONGEST_REASON])
        self.node.serve_blobs(self._work is not None or not any(reason.ends_serving for reason in self.reasons))
        await self.trainer.rest(why)

    def _say_paused(self) -> None:
        self._say("paused", in_words(self.reasons), until_at=until_at(self.reasons))

    async def _stop_at_once(self) -> None:
        """After the step that is under way, of this round or of the next; if the device is to be free, in the middle of
        whatever brings this round no offers."""
        if any(reason.frees_device for reason in self.reasons) and not self._is_training:
            await self.trainer.rest(in_words(self.reasons))
            return
        with contextlib.suppress(ChildFailed):  # one that has ended makes no step
            await self.trainer.get().stop_training()

    def leave(self) -> float:
        """End with the open round, or with the next if that is decided already: without one of two members a round
        cannot close. The seconds after which this ends come what may."""
        assert self._work is not None
        self._is_leaving = True
        self.follower.send(Departure("leaving"))
        self._show_state()
        timing = self.node.manifest.timing
        seconds = (
            max(0.0, self._work.until_at - self.node.now()) + self.node.rules.round_seconds + timing.round_grace_seconds
        )
        self._spawn(self._end_in(seconds))
        return seconds

    async def _end_in(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._end()

    def say_goodbye(self) -> None:
        """End now: the others need not wait."""
        self._is_leaving = True
        self.accounts.given.keep()
        self.follower.send(Departure("leaving"))
        self.follower.coordinating.resign()

    @property
    def is_in_a_round(self) -> bool:
        """Whether there is a round to finish."""
        return self._work is not None and self.head.record.trains

    def _show_state(self) -> None:
        """Tell the others what this peer is, soon."""
        before = self.node.state
        if self._is_leaving:
            self.node.state = PeerState.LEAVING
        elif self.is_paused:
            self.node.state = PeerState.PAUSED
        else:
            self.node.state = PeerState.ONLINE if self._work is not None else PeerState.JOINING
        if self.node.state != before:
            self.node.announce_soon.set()
        self._phases.touch()

    # ---- signs of life ----

    async def beat(self) -> None:
        """Tell the coordinator every heartbeat that this member lives; for ever."""
        while True:
            await asyncio.sleep(self.node.manifest.timing.heartbeat_seconds)
            self.follower.send(self._beat())

    def _beat(self) -> Beat:
        steps = self.progress.steps_done if self.progress else 0
        return Beat(max(0, self.node.head_round), self._phases.name, steps)

    def _on_progress(self, progress: TrainProgress) -> None:
        if progress.round == self.head.round:  # not of the next one, ahead, nor late of one that is closed
            self.progress = progress
            self._phases.touch()

    def _on_applied(self, record: SealedRecord) -> None:
        self.accounts.applied(record, self.replica.state_root)

    def _account(self) -> None:
        self.accounts.parts.enter(part_of(self._phases.name, self.round_phase.phase if self.round_phase else ""))

    def _on_trainer_restart(self) -> None:
        """The new process holds no state, and may hold fewer subsets."""
        self.node.max_subsets = self.trainer.max_subsets
        self.replica.forget()
        self._changed.set()
        self._spawn(self.reconsider())
