"""One start of a simulated node: the program's `Node` and `Follower` on a made-up machine, and for a volunteer the work
of a round with made-up blobs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spes_peer.blobs import BlobName
from spes_peer.clock import SwarmClock
from spes_peer.errors import PeerError
from spes_peer.files import without_checksum
from spes_peer.following.follower import Follower
from spes_peer.identity import PeerId
from spes_peer.membership.claims import Ground, choose_subsets, conflicts, wish
from spes_peer.node import Node
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Contribution,
    CoordinatorBeat,
    Departure,
    Excuse,
    Footing,
    Holding,
    MissingOffers,
    Offer,
    Proposal,
    ReduceInput,
    ReduceOrder,
    ReduceTask,
    Refusal,
    UpdateNotice,
    UpdateReport,
    Verdict,
)
from spes_peer.rounds.phases import Coordinator
from spes_peer.rounds.verdicts import MEMBER_PART, digest_of, who_tests
from spes_peer.run.chain import Switch
from spes_peer.run.manifest import PROTOCOL_VERSION
from spes_peer.run.peers import Claim
from spes_peer.run.pending import Pending
from spes_peer.run.records import BlockId, CertifiedRecord, Record, RosterEntry, SealedRecord
from spes_peer.wire import convert

from .coroutines import Task
from .disk import AmendmentFile, Ballots, DiskChain, File, Folder
from .network import Action
from .streams import Attending, Connections

if TYPE_CHECKING:
    from .machine import Machine

_STOP_MARGIN_SECONDS = 2.0
_CLOCK_SECONDS = 5.0  # between two looks at others' clocks; the program looks every second
_LOOK_SECONDS = 1.0  # between two looks at claims
_MAX_LOOKS = 30
_HOLDING_PAUSE_SECONDS = 0.05
_AGAIN_SECONDS = 2.0


def invented(*parts: object) -> BlobName:
    """The name of a blob that nobody ever made."""
    return BlobName(hashlib.sha256(repr(parts).encode()).hexdigest())


def root_after(root: str, record: Record) -> str:
    """The made-up state root when `record` is applied: it names all that came into the state, in order."""
    if not record.updates and not record.merge_alpha:
        return root
    return invented(root, [update.blob for update in record.updates], record.merge_alpha)


class SimulatedNode(Node):
    """Follows and can coordinate, and trains nothing: a bootstrap node."""

    attending: Attending

    def __init__(self, machine: Machine) -> None:
        """Not the program's: without sockets, files and children."""
        world, disk = machine.world, machine.disk
        self.machine, self.world = machine, world
        self.layout, self.manifest = world.layout, world.layout.manifest
        self.timing = self.manifest.timing
        self.epoch = machine.epoch
        self.identity = world.identity_of(machine.name)
        self.signer = world.signer_of(machine.name, disk.num_starts)
        self.chain = DiskChain(disk.records, world.checks, self._write_record)
        self.folder = Folder(  # type: ignore[assignment]
            Ballots(disk.ballots, self._write_ballot, self._on_signed), File(disk, self._write_proposal)
        )
        self.amendments = Pending(AmendmentFile(disk, self._write_amendment), self.chain)  # type: ignore[arg-type]
        self.connections = Connections(self)  # type: ignore[assignment]
        self.entries = {peer: None for peer in world.machines if peer != machine.peer_id}  # type: ignore[misc]
        self.clock = SwarmClock(machine.clock, lambda: world.events.now)
        self.directory = None
        self.on_attend = None
        self.on_chain, self.on_time = [], []
        self.lost: list[Switch] = []
        """What it has reported as lost."""
        self.refusals: list[str] = []
        self.beat: CoordinatorBeat | None = None
        """The coordinator's last."""
        self._forget_roots()
        self.follower = Follower(self, self.spawn)
        self.follower.on_message = self.on_word
        self.follower.on_lost = lambda why: self.note(f"attends nobody: {why}")
        self.follower.still_to_say = self.still_to_say
        self.follower.own_facts = self.facts
        self.on_chain.append(self.chain_has_changed)

    def begin(self) -> None:
        self.note(f"starts, incarnation {self.signer.incarnation}, at", self.head)
        self.world.watch.on_start(self)
        if introducer := self.world.any_reached_by(self.machine):
            self.take_time(introducer.now())
        self.spawn(self.follower.run())
        self._beat()
        self._look_at_clock()

    def _beat(self) -> None:
        self.follower.send(Beat(self.head.round, "following", 0))
        self.after(self.timing.heartbeat_seconds, self._beat)

    def _look_at_clock(self) -> None:
        if seconds := self.clock.follow():
            self._time_was_set(seconds)
        self.after(_CLOCK_SECONDS, self._look_at_clock)

    def _time_was_set(self, seconds: float) -> None:
        self.note(f"sets its clock by {seconds:+.0f} s")
        super()._time_was_set(seconds)

    # ---- what the simulation sees ----

    @property
    def is_current(self) -> bool:
        """Whether this start still runs."""
        return self.machine.epoch == self.epoch

    @property
    def head(self) -> SealedRecord:
        head = self.chain.head
        assert head is not None
        return head

    @property
    def state(self) -> Coordinator:
        """Of its coordinator's core."""
        return self.follower.coordinating._state

    @property
    def leads(self) -> bool:
        """Whether it coordinates, as it sees it."""
        return self.follower.coordinating.leads

    def note(self, what: str, sealed: SealedRecord | None = None) -> None:
        if self.world.trace:
            self.world.trace.note(self.world.events.now, self.machine.name, what, sealed)

    def after(self, seconds: float, action: Action) -> None:
        self.world.events.after(seconds, self.machine, action)

    # ---- what the program's parts ask of a node ----

    @property
    def run_id(self) -> bytes:
        return self.world.run_id

    def name_of(self, peer_id: PeerId) -> str:
        return peer_id

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        Task(self.machine, self._guarded(work)).resume()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PeerError as error:
            self.note(f"gives up: {error}")

    def take_branch(self, branch: Sequence[CertifiedRecord]) -> Switch | None:
        before = self.world.watch.chain_of(self)
        switch = super().take_branch(branch)
        if switch is not None:
            self.world.watch.on_switch(self, before, switch)
            if switch.lost:
                self.lost.append(switch)
        return switch

    def chain_has_changed(self, switch: Switch | None) -> None:
        self.note("has" if self.chain.certified_round == self.head.round else "has, uncertified,", self.head)
        self.world.watch.on_chain(self)
        if switch is not None:
            lost = " ".join(str(one.round) for one in switch.lost)
            self.note(f"follows another chain from round {switch.first_round} on; lost: {lost or 'nothing'}")
            self._forget_roots()

    # ---- the disk: a dead process changes nothing on it ----

    def _write_record(self, certified: CertifiedRecord) -> None:
        if self.is_current:
            self.machine.disk.records[certified.sealed.round] = certified
            self.world.watch.on_certificate(self, certified)
            self.machine.reached("kept a record")

    def _write_ballot(self, ballot: Ballot) -> None:
        if self.is_current:
            self.machine.disk.ballots[ballot.previous_hash] = ballot
            self.machine.reached("kept a ballot")

    def _write_proposal(self, content: bytes) -> None:
        if self.is_current:
            self.machine.disk.proposal = content
            if self.world.trace:
                self.note(
                    "proposes", SealedRecord.from_bytes(convert.decode(Proposal, without_checksum(content)).record)
                )
            self.machine.reached("kept a proposal")

    def _write_amendment(self, content: bytes | None) -> None:
        if self.is_current:
            self.machine.disk.amendment = content

    def _on_signed(self, sealed: SealedRecord, signature: Any) -> None:
        kind = "signs, to go on with it," if signature.uncertified else "signs"
        self.note(f"{kind} in term {signature.term}", sealed)
        self.world.watch.on_signature(self, sealed, signature)

    def _forget_roots(self) -> None:
        """Forget states that other records made than those of the chain."""
        roots = self.machine.disk.roots
        while len(roots) > self.chain.num_records or roots[-1][0] != self.chain.record(len(roots) - 1).sealed.hash:
            roots.pop()

    # ---- what its owner does with a coordinator's words ----

    def facts(self) -> Own:
        return Own(self.peer_id, incarnation=self.signer.incarnation)

    def still_to_say(self) -> Iterable[Any]:
        return ()

    def on_word(self, _sender: PeerId, message: Any) -> None:
        match message:
            case CoordinatorBeat():
                self.beat = message
            case Refusal():
                self.note(f"is refused: {message.why}")
                self.refusals.append(message.why)


@dataclass(eq=False)
class Work:
    """What `daemon.round_work.RoundWork` knows of a round."""

    record: SealedRecord
    entry: RosterEntry
    until_at: float
    """True seconds."""
    is_training: bool = False
    contribution: Contribution | None = None
    excuse: Excuse | None = None
    reports: dict[BlockId, UpdateReport] = field(default_factory=dict)
    holdings: set[BlobName] = field(default_factory=set)
    inputs: dict[BlockId, tuple[ReduceInput, ...]] = field(default_factory=dict)
    notices_started: set[BlobName] = field(default_factory=set)
    unsaid: set[BlobName] = field(default_factory=set)
    to_test: dict[int, dict[BlockId, BlobName]] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    tests_until: float = math.inf
    """True seconds; set with the first update that it hears of."""


class Volunteer(SimulatedNode):
    """Does what `daemon.member.Member` does. What a trainer would make is a name, which says what it is made of."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.subsets: tuple[int, ...] = ()
        self.is_leaving = False
        self._work: Work | None = None
        self._opened = b""
        self._is_applying = False
        self._num_looks = 0
        self._own_claim: Claim | None = None

    def begin(self) -> None:
        super().begin()
        self._open_work()

    @property
    def root(self) -> str:
        return self.machine.disk.roots[-1][1]

    @property
    def applied(self) -> int:
        return len(self.machine.disk.roots) - 1

    # ---- the state ----

    def chain_has_changed(self, switch: Switch | None) -> None:
        super().chain_has_changed(switch)
        self._open_work()

    def _follow(self) -> None:
        if self._is_applying or self.head.record.is_final:
            return
        if self.applied < self.head.round:
            record = self.chain.record(self.applied + 1).sealed
            self._is_applying = True
            seconds = self.world.dice.uniform(0.1, 1.0) * self.machine.slowness
            self.after(seconds, lambda: self._apply(record))
        elif self._work is None:
            self._seek_a_place()
        elif not self.head.record.trains:
            self.follower.send(Footing(self.head.round, self.root))
        elif self._work.contribution is None and not self._work.is_training:
            self._train(self._work)

    def _apply(self, sealed: SealedRecord) -> None:
        self._is_applying = False
        is_next = sealed.round == self.applied + 1 < self.chain.num_records
        if is_next and self.chain.record(sealed.round).sealed.hash == sealed.hash:
            self.machine.disk.roots.append((sealed.hash, root_after(self.root, sealed.record)))
            self.world.watch.on_applied(self, sealed, self.root)
        self._follow()

    # ---- a round ----

    def _open_work(self) -> None:
        if self._opened == self.head.hash:
            return
        self._opened = self.head.hash
        had_a_place = self._work is not None
        record = self.head.record
        entry = record.entry_of(self.peer_id)
        self._work = None
        if entry is not None and entry.incarnation <= self.signer.incarnation:
            seconds = max(0.0, record.deadline_at - record.opened_at)
            testers = who_tests(record, self.layout)
            to_test: dict[int, dict[BlockId, BlobName]] = {
                expert: {} for expert, peers in testers.items() if self.peer_id in peers
            }
            self._work = Work(self.head, entry, self.world.events.now + seconds, to_test=to_test)
            self.subsets = entry.subsets
            self._publish(Claim(entry.subsets, self.now()))
        elif self.is_leaving:
            self.after(0.0, lambda: self.world.stop(self.machine))
            return
        elif had_a_place:
            self.subsets = ()
        self._follow()
        self._reconsider()

    def _train(self, work: Work) -> None:
        if self.machine.cannot_train:
            work.excuse = Excuse(work.record.round, "no trainer")
            self.note(f"cannot train in round {work.record.round}")
            self.follower.send(work.excuse)
            return
        now, num_steps = self.world.events.now, self.world.num_steps(work.record.record)
        stop_at = work.until_at - _STOP_MARGIN_SECONDS
        if stop_at < now:
            stop_at = now + self.timing.round_seconds
        per_step = self.machine.train_seconds * self.world.dice.uniform(0.9, 1.1) / num_steps
        steps = max(1, min(num_steps, int((stop_at - now) / per_step)))
        work.is_training = True
        self.after(steps * per_step, lambda: self._trained(work, steps))

    def _trained(self, work: Work, steps: int) -> None:
        if self._work is not work:
            return
        record, entry, layout = work.record.record, work.entry, self.layout
        offers = tuple(
            Offer(
                block.id,
                invented(work.record.hash, self.peer_id, self.signer.incarnation, block.id),
                layout.offer_bytes(block),
                1.0,
            )
            for block in layout.blocks_offered_by(entry.subsets)
        )
        tokens = entry.sequences_in(steps) * self.manifest.model.sequence_length
        speed = tokens / self.machine.train_seconds
        work.contribution = Contribution(record.round, offers, tokens, steps, self.root, 4.0, 500.0, 100, speed)
        blobs = {offer.blob for offer in offers}
        for blob in sorted(blobs):
            self.world.hold(self.machine, blob)
        work.holdings |= blobs
        self.note(f"contributes {tokens} tokens to round {record.round}")
        self.follower.send(work.contribution)
        self.follower.send(Footing(record.round, self.root))
        self.follower.send(Holding(record.round, tuple(sorted(blobs))))

    def _on_order(self, work: Work, order: ReduceOrder) -> None:
        if order.round != work.record.round:
            return
        for task in order.tasks:
            if self.peer_id not in task.reducers:
                continue
            if work.inputs.get(task.block) != task.inputs:
                work.inputs[task.block] = task.inputs
                self._fetch(lambda task=task: self._reduce(work, task))  # type: ignore[misc]
            elif task.block in work.reports:
                self.follower.send(work.reports[task.block])

    def _reduce(self, work: Work, task: ReduceTask) -> None:
        if self._work is not work or work.inputs.get(task.block) != task.inputs:
            return
        missing = [one.peer_id for one in task.inputs if not self.world.can_fetch(self.machine, one.blob)]
        if missing:
            self.follower.send(MissingOffers(work.record.round, task.block, tuple(sorted(missing))))
            self.after(_AGAIN_SECONDS, lambda: self._reduce(work, task))
        else:
            blob = invented(*((one.blob, one.tokens, one.clip) for one in task.inputs))
            size = self.layout.mean_bytes(self.layout.by_id[task.block])
            work.reports[task.block] = UpdateReport(work.record.round, task.block, blob, size, (), task.digest)
            self.follower.send(work.reports[task.block])
            self._hold(work, blob)

    def _on_notice(self, work: Work, notice: UpdateNotice) -> None:
        if notice.round != work.record.round:
            return
        if self.layout.by_id[notice.block].expert in work.to_test and work.tests_until == math.inf:
            seconds = self.timing.round_grace_seconds * MEMBER_PART
            work.tests_until = self.world.events.now + seconds
            self.after(seconds, lambda: self._end_tests(work))
        if notice.blob in work.holdings:
            self._hold(work, notice.blob)
            self._consider(work, notice)
        elif notice.blob not in work.notices_started:
            work.notices_started.add(notice.blob)
            self._fetch(lambda: self._fetched(work, notice))

    def _fetched(self, work: Work, notice: UpdateNotice) -> None:
        if self.world.can_fetch(self.machine, notice.blob):
            self._hold(work, notice.blob)
            self._consider(work, notice)
        else:
            work.notices_started.discard(notice.blob)

    def _consider(self, work: Work, notice: UpdateNotice) -> None:
        expert = self.layout.by_id[notice.block].expert
        if expert is None or expert not in work.to_test:
            return
        known, blocks = work.to_test[expert], self.layout.expert_blocks(expert)
        known[notice.block] = notice.blob
        if all(block.id in known for block in blocks):
            digest = digest_of(tuple(known[block.id] for block in blocks))
            self._fetch(lambda: self._tested(work, expert, digest))

    def _tested(self, work: Work, expert: int, digest: bytes) -> None:
        if self._work is not work or self.world.events.now >= work.tests_until:
            return
        if expert not in work.verdicts or work.verdicts[expert].updates != digest:
            objects = self.world.dice.random() < self.world.objecting
            work.verdicts[expert] = Verdict(work.record.round, expert, digest, True, objects, "made up")
            self.follower.send(work.verdicts[expert])

    def _end_tests(self, work: Work) -> None:
        for expert in work.to_test.keys() - work.verdicts.keys() if self._work is work else ():
            work.verdicts[expert] = Verdict(work.record.round, expert, b"", False, False, "no time")
            self.follower.send(work.verdicts[expert])

    def _fetch(self, then: Action) -> None:
        self.after(self.world.dice.uniform(0.1, 0.9) * self.machine.slowness, then)

    def _hold(self, work: Work, blob: BlobName) -> None:
        self.world.hold(self.machine, blob)
        work.holdings.add(blob)
        is_first = not work.unsaid
        work.unsaid.add(blob)
        if is_first:
            self.after(_HOLDING_PAUSE_SECONDS, lambda: self._say_holdings(work))

    def _say_holdings(self, work: Work) -> None:
        blobs, work.unsaid = tuple(sorted(work.unsaid)), set()
        if self._work is work:
            self.follower.send(Holding(work.record.round, blobs))

    # ---- a place ----

    @property
    def _wants_a_place(self) -> bool:
        return self._work is None and not (self.machine.is_paused or self.is_leaving)

    def _seek_a_place(self) -> None:
        if not self._wants_a_place or self._num_looks:
            return
        if self.subsets:
            self.follower.send(self._request())
        else:
            self._own_claim = None
            self._look()

    def _look(self) -> None:
        """Choose, claim, look again, as `daemon.joining.Claiming.claim`."""
        if not self._wants_a_place:
            self._num_looks = 0
            return
        self._num_looks += 1
        others, ground, own = self.world.claims_seen_by(self.machine), self._ground(), self._own_claim
        now, capacity = self.now(), self.machine.capacity
        lost = conflicts(self.peer_id, own, others, ground, now) if own else ()
        if own and (not lost or self._num_looks > _MAX_LOOKS):
            self.subsets, self._num_looks = own.subsets, 0
            self.note(f"asks for subsets {self.subsets}")
            self.follower.send(self._request())
            return
        known = {**others, self.peer_id: own} if own else others
        self._own_claim = Claim(choose_subsets(self.peer_id, capacity, ground, known, now), now)
        self._publish(self._own_claim)
        self.after(_LOOK_SECONDS, self._look)

    def _publish(self, claim: Claim) -> None:
        self.world.claims[self.peer_id] = (claim, self.world.events.now)

    def _ground(self) -> Ground:
        record, num_subsets, now = self.head.record, self.world.num_subsets, self.now()
        members = {entry.peer_id for entry in record.roster}
        return Ground(
            num_subsets,
            {subset: record.owners_of(subset) for subset in range(num_subsets)},
            self.chain.leases.standing(members, now, self.timing.lease_seconds),
            self.chain.rounds_trained(self.layout),
        )

    def _wish(self, claims: dict[PeerId, Claim]) -> tuple[int, ...]:
        now = self.now()
        is_cooling = self.chain.leases.of(self.peer_id).is_cooling(now, self.timing.lease_seconds)
        return wish(self.peer_id, self.machine.capacity, self._ground(), claims, is_cooling, now)

    def _reconsider(self) -> None:
        """Ask for other subsets where there is a reason, as `daemon.joining.Claiming.reconsider`."""
        if self._work is None or self.machine.is_paused or self.is_leaving or not self.world.reconsiders:
            return
        wanted, opened = self._wish(self.world.claims_seen_by(self.machine)), self._opened
        if wanted != self._work.entry.subsets:
            own = Claim(wanted, self.now())
            self._publish(own)
            self.after(_LOOK_SECONDS, lambda: self._decide(opened, own))

    def _decide(self, opened: bytes, own: Claim) -> None:
        if self._work is None or self._opened != opened or self.machine.is_paused or self.is_leaving:
            return
        if self._wish({**self.world.claims_seen_by(self.machine), self.peer_id: own}) == own.subsets:
            self.note(f"wishes to change to subsets {own.subsets}")
            self.subsets = own.subsets
            self.follower.send(self._request())
        else:
            self._publish(Claim(self._work.entry.subsets, self.now()))

    def _request(self) -> AdmissionRequest:
        self.world.watch.on_request(self.peer_id, self.subsets)
        return AdmissionRequest(self.subsets, 1000.0, PROTOCOL_VERSION)

    # ---- what its owner wants ----

    def train_again(self) -> None:
        self.machine.cannot_train = False
        self._follow()

    def pause(self) -> None:
        self.machine.is_paused = True
        self.follower.send(Departure("paused"))

    def resume(self) -> None:
        self.machine.is_paused = False
        if self._work is not None:
            self.follower.send(self._request())
        self._follow()

    def leave(self) -> None:
        """Drain: it ends with the record that has no place for it."""
        self.is_leaving = True
        self.follower.send(Departure("leaving"))
        if self._work is None:
            self.after(0.0, lambda: self.world.stop(self.machine))

    # ---- words ----

    def facts(self) -> Own:
        if self._work is None:
            return super().facts()
        reports = {block: report.blob for block, report in self._work.reports.items()}
        return Own(
            self.peer_id,
            self._work.contribution,
            reports,
            self.signer.incarnation,
            verdicts=self._work.verdicts,
            is_excused=self._work.excuse is not None,
            state_root=self.root if self.applied == self.head.round else "",
        )

    def still_to_say(self) -> Iterable[Any]:
        work = self._work
        if self.is_leaving or self.machine.is_paused:
            yield Departure("leaving" if self.is_leaving else "paused")
        elif self.subsets:
            yield self._request()
        else:
            yield Beat(self.head.round, "here", 0)
        if work is not None:
            if word := work.contribution or work.excuse:
                yield word
            if work.contribution is not None:
                yield Footing(work.record.round, work.contribution.state_root)
            yield from work.reports.values()
            if work.holdings:
                yield Holding(work.record.round, tuple(sorted(work.holdings)))
            yield from work.verdicts.values()
            if not self.head.record.trains and self.applied == self.head.round:
                yield Footing(self.head.round, self.root)

    def on_word(self, sender: PeerId, message: Any) -> None:
        match message:
            case ReduceOrder() if self._work is not None:
                self._on_order(self._work, message)
            case UpdateNotice() if self._work is not None:
                self._on_notice(self._work, message)
            case _:
                super().on_word(sender, message)
