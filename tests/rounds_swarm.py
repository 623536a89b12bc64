"""A coordinator's core and made-up members in one process, one message at a time, under a virtual clock.

The blobs are invented: an update's name is a hash of what it is made of, so that honest reducers agree and a state
root says what was applied.
"""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

from spes_peer.blobs import BlobName
from spes_peer.identity import Identity, PeerId
from spes_peer.rounds import coordinator
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.election import fault_in_owner
from spes_peer.rounds.footings import fault_in_root
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Contribution,
    Excuse,
    Footing,
    Holding,
    MissingOffers,
    Offer,
    PendingAmendment,
    Proposal,
    RecordSignature,
    ReduceInput,
    ReduceOrder,
    ReduceTask,
    Refusal,
    UpdateNotice,
    UpdateReport,
    Verdict,
)
from spes_peer.rounds.phases import Fixed, Step
from spes_peer.rounds.verdicts import digest_of, fault_in_verdicts, who_tests
from spes_peer.run.certificates import Checks, check_record, sign_genesis
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest, Timing
from spes_peer.run.norms import Norms
from spes_peer.run.records import (
    BlockName,
    CertifiedRecord,
    Record,
    RosterEntry,
    SealedRecord,
    first_record,
)
from spes_peer.run.rules import Change, Rules, sign_amendment
from spes_peer.run.signed import Signed, Signer

RUN_ID = bytes(range(32))
ORGANIZER = Identity.from_seed(b"\1" * 32)
BOOTSTRAP_IDENTITY = Identity.from_seed(b"\2" * 32)
BOOTSTRAP = BOOTSTRAP_IDENTITY.peer_id
CHECKS = Checks(RUN_ID, Rules((ORGANIZER.peer_id,), Timing().round_seconds))


def invented(*parts: object) -> BlobName:
    return BlobName(hashlib.sha256(repr(parts).encode()).hexdigest())


def genesis(layout: Layout) -> Record:
    blocks = tuple(
        BlockName(block.id, invented("genesis", block.id), layout.state_bytes(block)) for block in layout.state_blocks
    )
    return first_record(RUN_ID, blocks, (BOOTSTRAP,), now=0.0)


def contribution_of(entry: RosterEntry, record: Record, layout: Layout, root: str, steps: int) -> Contribution:
    offers = tuple(
        Offer(block.id, invented(record.round, entry.peer_id, block.id), layout.offer_bytes(block), 1.0)
        for block in layout.blocks_offered_by(entry.subsets)
    )
    tokens = entry.sequences_in(steps) * layout.manifest.model.sequence_length
    return Contribution(record.round, offers, tokens, steps, root, 4.0, 500.0, 100, 1000.0)


class Member:
    """A volunteer without a trainer. Tests change what it does by setting its attributes."""

    def __init__(self, number: int, subsets: tuple[int, ...], swarm: "Swarm", incarnation: int = 1) -> None:
        self.number = number
        self.identity = Identity.from_seed(bytes([number]) * 32)
        self.peer_id = self.identity.peer_id
        self.subsets = subsets
        self.swarm = swarm
        self.incarnation = incarnation
        self.signer = Signer(self.identity, RUN_ID, incarnation)
        self.ballots: dict[bytes, Ballot] = {}
        self.is_alive = True
        self.contributes = True
        self.holds = True
        self.lacks: set[PeerId] = set()
        """Cannot fetch what those offer."""
        self.steps: int | None = None
        """Makes so many in each round; None for all."""
        self.change: Callable[[Contribution], Contribution] = lambda contribution: contribution
        self.reduces: Callable[[ReduceTask], UpdateReport | None] = self.honest_report
        self.contribution: Contribution | None = None
        self.reports: dict[Any, str] = {}
        self.inputs: dict[Any, tuple[ReduceInput, ...]] = {}
        """Of what it reported."""
        self.past = Norms()
        self.judges: Callable[[int], bool | None] = lambda _expert: False
        """Whether it objects to an expert that it is to test; None: it says nothing of it."""
        self.updates: dict[Any, BlobName] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.is_excused = False
        self.store: set[str] = set()
        self.refusals: list[str] = []
        self.objections: list[str] = []
        self.head = swarm.zero
        self.root = swarm.zero.record.state_root
        for certified in swarm.certified:
            self.follow(certified)

    def say(self, message: Any) -> None:
        self.is_excused = self.is_excused or isinstance(message, Excuse)
        if self.is_alive:
            self.swarm.inbox.append((self.signer.sign(message), message))

    def apply(self, certified: CertifiedRecord) -> None:
        if certified.sealed.round != self.head.round + 1:
            return
        self.follow(certified)
        entry = self.head.record.entry_of(self.peer_id)
        if entry is None:
            self.say(AdmissionRequest(self.subsets, 1000.0, PROTOCOL_VERSION))
        elif not self.head.record.trains:
            self.say(Footing(self.head.round, self.root))
        elif self.contributes:
            self.contribute()

    def follow(self, certified: CertifiedRecord) -> None:
        """The state after the next record."""
        self.head = check_record(certified, self.head, CHECKS).sealed
        record = self.head.record
        self.past = self.past.after(record)
        assert record.state_root in ("", self.root) or self.contribution is None
        if record.updates or record.merge_alpha:
            self.root = invented(self.root, [update.blob for update in record.updates], record.merge_alpha)
        self.contribution, self.reports, self.inputs = None, {}, {}
        self.updates, self.verdicts, self.is_excused = {}, {}, False

    def contribute(self) -> None:
        record = self.head.record
        entry = record.entry_of(self.peer_id)
        assert entry is not None
        steps = self.steps or self.swarm.layout.manifest.training.steps_per_round_at(record.step)
        honest = contribution_of(entry, record, self.swarm.layout, self.root, steps)
        self.contribution = self.change(honest)
        self.store |= {offer.blob for offer in self.contribution.offers}
        self.say(self.contribution)
        self.say(Footing(record.round, self.contribution.state_root))

    def honest_report(self, task: ReduceTask) -> UpdateReport:
        size = self.swarm.layout.mean_bytes(self.swarm.layout.by_id[task.block])
        blob = invented([(part.blob, part.tokens, part.clip) for part in task.inputs])
        return UpdateReport(self.head.round, task.block, blob, size, (), task.digest)

    def on_message(self, message: Any) -> None:
        match message:
            case CertifiedRecord():
                self.apply(message)
            case ReduceOrder() if message.round == self.head.round:
                for task in message.tasks:
                    if self.peer_id in task.reducers and task.block not in self.reports:
                        self.reduce(task)
            case UpdateNotice() if self.holds and self.swarm.has(message.blob):
                self.store.add(message.blob)
                self.say(Holding(message.round, (message.blob,)))
                self.test(message)
            case Proposal():
                self.sign(message)
            case Refusal():
                self.refusals.append(message.why)

    def reduce(self, task: ReduceTask) -> None:
        if missing := self.lacks.intersection(part.peer_id for part in task.inputs):
            self.say(MissingOffers(self.head.round, task.block, tuple(sorted(missing))))
        else:
            self.report(task)

    def report(self, task: ReduceTask) -> None:
        report = self.reduces(task)
        if report is not None:
            self.reports[task.block], self.inputs[task.block] = report.blob, task.inputs
            self.store.add(report.blob)
            self.say(report)

    def test(self, notice: UpdateNotice) -> None:
        """Once all of an expert is there that is this member's to test, it says what it makes of it."""
        expert = self.swarm.layout.by_id[notice.block].expert
        if expert is None or self.peer_id not in who_tests(self.head.record, self.swarm.layout).get(expert, ()):
            return
        self.updates[notice.block] = notice.blob
        blocks = [block.id for block in self.swarm.layout.expert_blocks(expert)]
        objects = self.judges(expert) if all(block in self.updates for block in blocks) else None
        if objects is not None:
            digest = digest_of(tuple(self.updates[block] for block in blocks))
            self.verdicts[expert] = Verdict(self.head.round, expert, digest, True, objects, "tried it")
            self.say(self.verdicts[expert])

    def facts(self) -> Own:
        return Own(
            self.peer_id,
            self.contribution,
            self.reports,
            self.incarnation,
            self.inputs,
            self.verdicts,
            self.is_excused,
            self.root,
        )

    def sign(self, proposal: Proposal) -> None:
        sealed, own, layout = SealedRecord.from_bytes(proposal.record), self.facts(), self.swarm.layout
        reason = fault_in_owner(BOOTSTRAP, proposal.term, self.head.record)
        reason = reason or objections(sealed, self.head, own, layout, self.past)
        reason = reason or fault_in_verdicts(proposal.verdicts, sealed.record, self.head, layout, own.objections())
        now = self.swarm.now
        reason = reason or fault_in_root(sealed.record, self.head.record, own, proposal.footings, now)
        if reason:
            self.objections.append(reason)
            return
        ballot = self.ballots.get(self.head.hash, Ballot.behind(self.head))
        self.ballots[self.head.hash] = Ballot.from_bytes(ballot.signed(proposal.term, sealed).to_bytes())
        self.say(RecordSignature(sealed.round, proposal.term, sealed.hash))


class Swarm:
    """Everything between the members and the coordinator: an inbox, streams that break, a clock."""

    def __init__(self, manifest: Manifest, subsets: list[tuple[int, ...]]) -> None:
        self.layout = Layout(manifest)
        self.now = 1_000_000.0
        self.zero = self.head = genesis(self.layout).seal()
        certified = sign_genesis(self.head.record, ORGANIZER, RUN_ID)
        check_record(certified, None, CHECKS)
        self.records = [self.head.record]
        self.certified: list[CertifiedRecord] = []
        self.moments = [self.now]
        self.inbox: deque[tuple[Any, Any]] = deque()
        self.signer = Signer(BOOTSTRAP_IDENTITY, RUN_ID, 1)
        self.state = coordinator.start(Fixed(self.layout), self.head, BOOTSTRAP, self.now)
        self.members: dict[PeerId, Member] = {}
        for number, wanted in enumerate(subsets, start=10):
            self.join(number, wanted)

    @property
    def round(self) -> int:
        return self.state.head.round

    @property
    def phase(self) -> str:
        return self.state.phase.name

    def __getitem__(self, number: int) -> Member:
        """By place in the roster's order."""
        return self.members[sorted(self.members)[number]]

    def has(self, blob: str) -> bool:
        """Whether anybody could fetch it."""
        return any(member.is_alive and blob in member.store for member in self.members.values())

    def waiting(self) -> Any:
        return coordinator.waiting(self.state, self.now)

    def join(self, number: int, subsets: tuple[int, ...], incarnation: int = 1) -> Member:
        member = Member(number, subsets, self, incarnation)
        self.members[member.peer_id] = member
        self.take(coordinator.on_connected(self.state, member.peer_id, self.now))
        member.say(AdmissionRequest(subsets, 1000.0, PROTOCOL_VERSION))
        return member

    def die(self, member: Member, is_noticed: bool = True) -> None:
        member.is_alive = False
        if is_noticed:
            self.take(coordinator.on_gone(self.state, member.peer_id, self.now))

    def take(self, step: Step) -> None:
        self.state = step.state
        if step.certified is not None:
            self.head = check_record(step.certified, self.head, CHECKS).sealed
            self.records.append(self.head.record)
            self.certified.append(step.certified)
            self.moments.append(self.now)
        for out in step.outgoing:
            if out.to == BOOTSTRAP and isinstance(out.message, Proposal):  # behind an empty roster its word counts
                self.sign_as_bootstrap(out.message)
            for member in list(self.members.values()):
                if member.is_alive and out.to in (None, member.peer_id):
                    member.on_message(out.message)

    def sign_as_bootstrap(self, proposal: Proposal) -> None:
        sealed = SealedRecord.from_bytes(proposal.record)
        signature = RecordSignature(sealed.round, proposal.term, sealed.hash)
        self.inbox.append((self.signer.sign(signature), signature))

    def ask(self, member: Member, message: Any) -> str:
        """The coordinator's refusal of a message that overtakes all others; empty if it takes it."""
        num_before = len(member.refusals)
        self.take(coordinator.on_message(self.state, member.signer.sign(message), message, self.now))
        return member.refusals[-1] if len(member.refusals) > num_before else ""

    def amend(self, change: Change, organizer: Identity = ORGANIZER) -> Signed:
        """One of the members hands an amendment behind the newest record to the coordinator."""
        record = self.head.record
        rules = change.of(self.state.rules, self.now)
        amendment = sign_amendment(rules, record.amendment, organizer, RUN_ID, self.now)
        self[0].say(PendingAmendment(amendment))
        return amendment

    def deliver_one(self) -> None:
        signed, message = self.inbox.popleft()
        self.take(coordinator.on_message(self.state, signed, message, self.now))

    def until(self, condition: Callable[[], bool], seconds: float = 600.0) -> None:
        """Deliver, and let a second pass whenever nothing is left to deliver, until `condition` holds."""
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"not within {seconds} s: {self.waiting()}"
            if self.inbox:
                self.deliver_one()
            else:
                self.pass_second()

    def pass_second(self) -> None:
        self.now += 1.0
        for member in self.members.values():
            member.say(Beat(member.head.round, "training", 0))
        self.take(coordinator.on_time(self.state, self.now))

    def settle(self) -> None:
        """Deliver all there is, without time."""
        while self.inbox:
            self.deliver_one()


def changed(manifest: Manifest, section: str, **values: Any) -> Manifest:
    raw = manifest.model_dump(mode="json")
    raw[section].update(values)
    return Manifest.model_validate(raw)


def roots(swarm: Swarm) -> set[str]:
    """The state roots of all that live, once everybody has the newest record."""
    living = [member for member in swarm.members.values() if member.is_alive]
    assert all(member.head == swarm.head for member in living)
    return {member.root for member in living}


replaced = dataclasses.replace
