"""Following a run over real gRPC: coordinators that die or are superseded, chains that lose, members that see less.

The nodes are real, with short time-outs; what members train is invented.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from exchange_nodes import eventually
from rounds_swarm import contribution_of, invented
from run_nodes import RunNodes, run_nodes

from spes_peer.clock import ClockWatch, SwarmClock
from spes_peer.errors import BlobMissing, DiskTrouble, PeerError
from spes_peer.exchange import server
from spes_peer.following.follower import Follower
from spes_peer.identity import Identity, PeerId
from spes_peer.node import Node
from spes_peer.rounds.election import Allegiance, owner_of
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Contribution,
    CoordinatorBeat,
    Holding,
    Proposal,
    ReduceOrder,
    ReduceTask,
    Referral,
    Refusal,
    UpdateNotice,
    UpdateReport,
)
from spes_peer.run.chain import Chain, Switch
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.peers import Role, Standing
from spes_peer.run.records import CertifiedRecord, SealedRecord

HOUR = 3600.0
PATIENCE_SECONDS = 60.0  # the machine is shared
UNHURRIED = {"round_grace_seconds": 5.0, "coordinator_timeout_seconds": 6.0, "stall_timeout_seconds": 60.0}
"""For a run in which nobody may be given up because the machine is slow."""
CALM = {
    "heartbeat_seconds": 0.25,
    "round_grace_seconds": 2.5,
    "coordinator_timeout_seconds": 3.0,
    "stall_timeout_seconds": 60.0,
}
"""For one whose coordinator is lost, and whose next must not be on a machine that is slow."""


class Participant:
    """A follower on a node; one that stands on the roster contributes what it has invented, when told to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.contributes = True
        self.switches: list[Switch | None] = []
        self.messages: list[Any] = []
        self.refusals: list[str] = []
        self.lost: list[str] = []
        self._contribution: Contribution | None = None
        self._reports: dict[Any, str] = {}
        self._opened = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self.follower = Follower(node, self._spawn)
        self.follower.on_message = self._on_message
        self.follower.on_lost = self.lost.append
        self.follower.still_to_say = self._still_to_say
        self.follower.own_facts = lambda: Own(node.peer_id, self._contribution, self._reports, node.signer.incarnation)
        node.on_chain.append(self._on_chain)

    @property
    def peer_id(self) -> PeerId:
        return self.node.peer_id

    @property
    def round(self) -> int:
        return self.node.head_round

    @property
    def head(self) -> SealedRecord:
        return self.follower.head

    @property
    def term(self) -> int:
        return self.follower.allegiance.term

    @property
    def coordinator(self) -> PeerId | None:
        return self.follower.coordinator

    def start(self) -> "Participant":
        self._open_round()
        self._spawn(self.follower.run())
        self._spawn(self._beat())
        return self

    async def stop(self) -> None:
        """As if its process were killed: nothing is said any more."""
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        assert not [one for one in results if isinstance(one, Exception)]

    def contribute(self) -> None:
        """In the open round, and in those to come."""
        self.contributes = True
        self._open_round()
        if self._contribution is not None:
            self.follower.send(self._contribution)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            with contextlib.suppress(PeerError, BlobMissing, DiskTrouble):
                await work

        self._tasks.add(asyncio.create_task(guarded()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.node.manifest.timing.heartbeat_seconds)
            self.follower.send(Beat(self.round, "training", 0))

    def _on_chain(self, switch: Switch | None) -> None:
        self.switches.append(switch)
        if self._opened == self.head.hash:  # late signatures came, and no other record
            return
        self._contribution, self._reports = None, {}
        self._open_round()
        for message in self._still_to_say():
            self.follower.send(message)

    def _open_round(self) -> None:
        record, self._opened = self.head.record, self.head.hash
        entry = record.entry_of(self.peer_id)
        if entry is not None and self.contributes and record.trains and self._contribution is None:
            steps = self.node.manifest.training.steps_per_round_at(record.step)
            root = invented("the state after", self.head.hash)
            self._contribution = contribution_of(entry, record, self.node.layout, root, steps)

    def _still_to_say(self) -> Iterable[Any]:
        if self.node.settings.role == Role.BOOTSTRAP:
            return
        if self.head.record.entry_of(self.peer_id) is None:
            yield AdmissionRequest((0,), 1000.0, PROTOCOL_VERSION)
        elif self._contribution is not None:
            yield self._contribution

    def _on_message(self, _sender: PeerId, message: Any) -> None:
        self.messages.append(message)
        match message:
            case ReduceOrder() if message.round == self.round:
                for task in message.tasks:  # another coordinator may ask for an average of other offers
                    if self.peer_id in task.reducers:
                        self.follower.send(self._report(task))
            case UpdateNotice() if self.head.record.entry_of(self.peer_id):
                self.follower.send(Holding(message.round, (message.blob,)))
            case Refusal():
                self.refusals.append(message.why)

    def _report(self, task: ReduceTask) -> UpdateReport:
        blob = invented([(part.blob, part.tokens, part.clip) for part in task.inputs])
        self._reports[task.block] = blob
        size = self.node.layout.mean_bytes(self.node.layout.by_id[task.block])
        return UpdateReport(self.round, task.block, blob, size, (), task.digest)


class Run:
    """A run whose first node is the bootstrap node, all others on the roster of round 1."""

    def __init__(self, nodes: RunNodes) -> None:
        self.nodes = nodes
        self.all = [Participant(node) for node in nodes.nodes]

    @property
    def bootstrap(self) -> Participant:
        return self.all[0]

    @property
    def members(self) -> list[Participant]:
        return self.all[1:]

    def owner(self, term: int, head: SealedRecord | None = None) -> Participant:
        """Who owns this term of the open round, as the first member sees it, or of another."""
        owner = owner_of((head or self.members[0].head).record, term)
        return next(one for one in self.all if one.peer_id == owner)

    def start(self, *participants: Participant) -> None:
        for one in participants or self.all:
            one.start()

    def another_coordinates(self) -> bool:
        """Whether all members hear one and the same of them coordinate."""
        heard = {one.coordinator for one in self.members}
        return len(heard) == 1 and heard <= {one.peer_id for one in self.members}

    async def kill(self, one: Participant) -> None:
        await one.stop()
        await self.nodes.stop(one.node)

    async def stop(self) -> None:
        for one in self.all:
            await one.stop()


def record_behind(run: RunNodes, head: SealedRecord, members: Sequence[int], **changes: Any) -> CertifiedRecord:
    """Signed by the bootstrap node and all members; with the roster of `run_nodes`, open long enough."""
    node = run.nodes[0]
    record = run.opened(head, members, node.layout, **changes)
    return run.signed(record, (0, *members))


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    manifest: Manifest,
    organizer: Identity,
    count: int,
    timing: dict[str, float] | None = None,
    **changes: Any,
) -> AsyncIterator[Run]:
    """Round 1 of all but the first of so many nodes is open; nobody follows yet."""
    async with run_nodes(folder, manifest, organizer, count, timing) as nodes:
        zero = nodes.nodes[0].chain.head
        assert zero is not None
        first = record_behind(nodes, zero, range(1, count), **changes)
        for node in nodes.nodes:
            node.chain.append(first)
        run = Run(nodes)
        try:
            yield run
        finally:
            await run.stop()


Open = Callable[..., contextlib.AbstractAsyncContextManager[Run]]


@pytest.fixture
def opened(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Open:
    def open_with(count: int, **changes: Any) -> contextlib.AbstractAsyncContextManager[Run]:
        return running(tmp_path, manifest, organizer, count, **changes)

    return open_with


async def soon(condition: Callable[[], bool]) -> None:
    await eventually(condition, PATIENCE_SECONDS)


# ---- all is well ----


async def test_rounds_follow_each_other_and_everybody_has_them_certified(opened: Open) -> None:
    async with opened(4, timing=UNHURRIED) as run:
        run.start()
        await soon(lambda: min(one.round for one in run.all) >= 4)
        assert all(one.node.chain.certified_round >= 4 for one in run.all)
        assert {one.node.chain.record(4).sealed.hash for one in run.all} == {
            run.all[0].node.chain.record(4).sealed.hash
        }
        assert min(one.head.record.tokens for one in run.all) > 0


async def test_a_peer_alone_goes_round_by_round_and_what_it_says_to_itself_is_no_traffic(opened: Open) -> None:
    async with opened(2) as run:
        alone = run.members[0]
        zero = alone.node.chain.record(0).sealed
        record = dataclasses.replace(alone.head.record, candidates=(alone.peer_id, run.bootstrap.peer_id))
        for name in alone.node.chain.folder.iterdir():
            name.unlink()
        chain = alone.node.chain
        Chain.__init__(chain, chain.folder.parent, chain.checks)
        alone.node.chain.append(run.bootstrap.node.chain.record(0))
        assert record.previous_hash == zero.hash
        alone.node.chain.append(run.nodes.signed(record, (0, 1)))
        await run.kill(run.bootstrap)
        one = Participant(alone.node).start()
        run.all[1] = one
        await soon(lambda: one.round >= 4)
        assert one.node.chain.certified_round >= 4
        await soon(lambda: one.coordinator == one.peer_id)
        assert one.node.traffic.flows() == ()


# ---- a coordinator that is lost ----


async def test_when_the_coordinator_dies_the_next_is_elected_and_makes_the_next_record(opened: Open) -> None:
    async with opened(4, timing=CALM) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        await run.kill(run.bootstrap)
        for one in run.members:
            one.contribute()
        await soon(lambda: min(one.round for one in run.members) >= 2)
        made = run.members[0].node.chain.record(2)
        assert made.term > 0
        assert made.sealed.record.candidates[0] == owner_of(
            run.members[0].node.chain.record(1).sealed.record, made.term
        )
        assert run.bootstrap.peer_id in made.sealed.record.candidates
        assert made.sealed.record.tokens > 0
        assert min(one.node.chain.certified_round for one in run.members) >= 2
        await soon(lambda: any(record.term == 0 for record in run.members[0].node.chain.from_round(3)))
        # there was no need to elect again


async def test_a_coordinator_that_is_frozen_is_replaced_too(opened: Open) -> None:
    """Its machine holds the connections, and says nothing."""
    async with opened(4, timing=CALM) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        run.bootstrap.follower.coordinating._send = lambda *_outgoing: None  # type: ignore[method-assign,assignment]
        await soon(lambda: run.another_coordinates())
        for one in run.members:
            one.contribute()
        await soon(lambda: min(one.round for one in run.members) >= 2)
        assert run.members[0].node.chain.record(2).term > 0


async def test_a_coordinator_that_resigns_is_not_waited_for(opened: Open) -> None:
    async with opened(4) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        run.bootstrap.follower.coordinating.resign()
        await run.kill(run.bootstrap)
        await soon(lambda: run.another_coordinates())


async def test_a_bootstrap_node_that_comes_back_coordinates_again(opened: Open) -> None:
    async with opened(4) as run:
        run.start(*run.members)
        await run.nodes.stop(run.bootstrap.node)
        await soon(lambda: min(one.round for one in run.members) >= 3)
        back = await run.nodes.start(run.nodes.make(0))
        run.all[0] = Participant(back).start()
        await soon(lambda: run.bootstrap.round >= 4)
        await soon(lambda: run.members[0].head.record.candidates[0] == run.bootstrap.peer_id)
        await soon(lambda: any(one.coordinator == run.bootstrap.peer_id for one in run.members))
        reached = run.bootstrap.round
        await soon(lambda: min(one.round for one in run.all) > reached + 1)


async def test_a_member_that_alone_has_lost_the_coordinator_disturbs_nobody_and_is_referred_back(
    opened: Open,
) -> None:
    async with opened(4, timing=UNHURRIED) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        lonely = next(one for one in run.members if one is not run.owner(1))
        terms: list[int] = []
        referred: list[Referral] = []
        hear = lonely.follower.attendance.on_message

        def listen(sender: PeerId, message: Any) -> None:
            terms.append(lonely.term)
            if isinstance(message, Referral):
                referred.append(message)
            hear(sender, message)

        lonely.follower.attendance.on_message = listen
        await run.nodes.separate(lonely.node, run.bootstrap.node)
        await soon(lambda: bool(referred))
        assert referred[0] == Referral(1, 0)
        assert 1 in terms
        run.nodes.reconnect(lonely.node, run.bootstrap.node)
        await soon(lambda: lonely.coordinator == run.bootstrap.peer_id)
        assert lonely.term == 0
        assert {one.term for one in run.all} == {0}
        assert not any(one.follower.coordinating.leads for one in run.members)
        for one in run.members:
            one.contribute()
        await soon(lambda: min(one.round for one in run.all) >= 2)
        assert run.bootstrap.node.chain.record(2).term == 0


async def test_a_superseded_coordinator_learns_of_it_and_follows(opened: Open) -> None:
    """Nobody can reach it any more, but it reaches others."""
    async with opened(4, timing=CALM) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        for one in run.members:
            await run.nodes.separate(one.node, run.bootstrap.node)
        await soon(lambda: run.another_coordinates())
        await soon(lambda: run.bootstrap.coordinator == run.members[0].coordinator is not None)
        assert run.bootstrap.term > 0
        for one in run.members:
            one.contribute()
        await soon(lambda: min(one.round for one in run.all) >= 3)
        assert run.bootstrap.node.chain.certified_round >= 2
        assert run.members[0].node.chain.record(2).term > 0


async def test_a_node_that_was_away_fetches_what_was_certified_meanwhile(opened: Open) -> None:
    async with opened(4) as run:
        late = run.members[-1]
        run.start(run.bootstrap, *run.members[:-1])
        await soon(lambda: run.bootstrap.round >= 4)
        late.start()
        await soon(lambda: late.round >= 5)
        assert late.node.chain.certified_round >= 5


async def test_a_coordinator_that_was_away_learns_from_a_members_beat_that_it_is_behind(opened: Open) -> None:
    async with opened(4) as run:
        ahead = record_behind(run.nodes, run.members[0].head, (1, 2, 3))
        for one in run.members:
            one.node.chain.append(ahead)
            one.contributes = False
        run.start()
        await soon(lambda: run.bootstrap.round == 2)


# ---- chains ----


async def test_a_chain_that_ranks_above_our_uncertified_end_is_found_and_followed(opened: Open) -> None:
    """One that went on alone, uncertified, comes back to the others."""
    async with opened(4) as run:
        alone = run.members[0]
        lost = run.nodes.signed(run.nodes.opened(alone.head, (1,), alone.node.layout, tokens=7), (1,), uncertified=True)
        alone.node.chain.append(lost)
        run.start(run.bootstrap, *run.members[1:])
        await soon(lambda: run.bootstrap.round >= 3)
        assert alone.node.chain.certified_round == 1
        alone.start()
        await soon(lambda: alone.node.chain.certified_round >= 3)
        assert [one.lost for one in alone.switches if one is not None] == [(lost.sealed,)]
        assert alone.node.chain.record(2).sealed.hash == run.bootstrap.node.chain.record(2).sealed.hash
        await soon(lambda: alone.head.record.entry_of(alone.peer_id) is not None)  # and is taken in again


async def test_a_minority_that_has_stalled_goes_on_uncertified_and_comes_back(opened: Open) -> None:
    async with opened(5, deadline_in_seconds=0.5) as run:
        minority, majority = run.members[:1], run.members[1:]
        for one in minority:
            for other in (run.bootstrap, *majority):
                run.nodes.cut(one.node, other.node)
                run.nodes.cut(other.node, one.node)
        for one in (run.bootstrap, *majority):
            one.contributes = False
        run.start()
        await soon(lambda: minority[0].round >= 3)
        assert minority[0].node.chain.certified_round == 1
        assert [entry.peer_id for entry in minority[0].head.record.roster] == [minority[0].peer_id]
        for one in majority:
            one.contribute()
        await soon(lambda: min(one.node.chain.certified_round for one in majority) >= 3)
        for one in minority:
            for other in (run.bootstrap, *majority):
                run.nodes.reconnect(one.node, other.node)
                run.nodes.reconnect(other.node, one.node)
        await soon(lambda: minority[0].node.chain.certified_round >= 4)
        losses = [one for one in minority[0].switches if one is not None and one.lost]
        assert losses[0].first_round == 2
        assert {one.node.chain.record(2).sealed.hash for one in run.all} == {
            run.bootstrap.node.chain.record(2).sealed.hash
        }


async def test_what_went_on_uncertified_is_certified_when_the_others_come_back_with_nothing_of_their_own(
    opened: Open,
) -> None:
    """Two of four were away, with the bootstrap node gone: no record competes, so what two made counts after all."""
    async with opened(5, deadline_in_seconds=0.5) as run:
        await run.nodes.stop(run.bootstrap.node)
        here, away = run.members[:2], run.members[2:]
        run.start(*here)
        await soon(lambda: min(one.round for one in here) >= 3)
        assert {one.node.chain.certified_round for one in here} == {1}
        run.start(*away)
        await soon(lambda: min(one.node.chain.certified_round for one in run.members) >= 3)
        assert not [one for member in here for one in member.switches if one is not None and one.lost]
        first = here[0].node.chain.record(2)
        assert len(first.signatures) >= 3
        await soon(lambda: all(member.head.record.entry_of(one.peer_id) for member in run.members for one in away))


async def test_a_record_that_more_than_half_have_signed_is_certified_although_others_went_on(opened: Open) -> None:
    """The coordinator died with their signatures; what the third made alone meanwhile is lost, and reported."""
    async with opened(4, deadline_in_seconds=0.5) as run:
        here, *away = run.members
        record = run.nodes.opened(here.head, (1, 2, 3), here.node.layout)
        record = dataclasses.replace(record, deadline_at=record.opened_at + here.node.manifest.timing.round_seconds)
        for one in away:
            one.contributes = False
            proposal = Proposal(0, record.seal().content, ())
            signature = one.follower._voter.sign(
                proposal, run.bootstrap.peer_id, one.head, one.follower.own_facts(), 0.0
            )
            assert signature is not None
        await run.nodes.stop(run.bootstrap.node)
        run.start(here)
        await soon(lambda: here.round >= 3)
        run.start(*away)
        await soon(lambda: min(one.node.chain.certified_round for one in run.members) >= 2)
        assert {one.node.chain.record(2).sealed.content for one in run.members} == {record.seal().content}
        assert here.switches[-1] is not None
        assert here.switches[-1].lost


async def test_who_comes_back_looks_around_before_making_a_record_of_its_own(opened: Open) -> None:
    """Two of three were away: they could certify a record that competes with what the third made alone."""
    async with opened(4, deadline_in_seconds=0.5) as run:
        await run.nodes.stop(run.bootstrap.node)
        here, *away = run.members
        run.start(here)
        await soon(lambda: here.round >= 3)
        run.start(*away)
        await soon(lambda: min(one.node.chain.certified_round for one in run.members) >= 3)
        assert not [one for one in here.switches if one is not None and one.lost]


async def test_one_that_claims_a_longer_chain_and_sends_it_slowly_keeps_nobody_from_asking_the_others(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    liars, times_read, times_asked = set[str](), 0, 0
    honest = server._Service.Records

    async def records(self: server._Service, request: Any, context: Any) -> None:
        nonlocal times_read
        if self._host.peer_id in liars:
            times_read += 1
            await asyncio.sleep(60)
        await honest(self, request, context)

    monkeypatch.setattr(server._Service, "Records", records)
    async with opened(4) as run:
        asker, liar, other = run.members
        liars.add(liar.peer_id)
        monkeypatch.setattr(liar.node, "standing", lambda: Standing(50, b"x" * 32, 50, 0, True))

        def standing() -> Standing:
            nonlocal times_asked
            times_asked += times_read > 0
            return other.follower._standing()

        monkeypatch.setattr(other.node, "standing", standing)
        timing = asker.node.manifest.timing.model_copy(update={"fetch_stall_seconds": 60.0})
        monkeypatch.setattr(asker.node, "manifest", asker.node.manifest.model_copy(update={"timing": timing}))
        asker.start()
        await soon(lambda: times_asked >= 3)
        assert times_read == 1


async def test_an_early_uncertified_record_is_refused(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(4) as run:
        member = run.members[0]
        early = run.nodes.signed(run.nodes.opened(member.head, (1, 2), member.node.layout), (1, 2), uncertified=True)
        member.follower.attendance.on_message(run.bootstrap.peer_id, early)
        assert member.round == 1
        assert "refused a record reason=record 2 is not certified, and the run has not stalled" in caplog.text


async def test_late_signatures_that_the_coordinator_tells_make_our_uncertified_head_count(opened: Open) -> None:
    async with opened(4) as run:
        member = run.members[0]
        record = run.nodes.opened(member.head, (1, 2), member.node.layout)
        member.node.chain.append(run.nodes.signed(record, (1,), uncertified=True))
        member.follower.attendance.on_message(run.bootstrap.peer_id, run.nodes.signed(record, (1, 2, 3), term=6))
        assert member.node.chain.certified_round == 2


# ---- single decisions ----


def beat(term: int, round: int = 1, phase: str = "training") -> CoordinatorBeat:
    return CoordinatorBeat(term, round, phase, 0.0, (), 0.0, "why")


async def test_only_the_owner_of_a_term_is_heard_to_coordinate_it(opened: Open) -> None:
    async with opened(4) as run:
        member = run.members[0]
        hear = member.follower.attendance.on_message
        hear(run.owner(1).peer_id, beat(0))
        hear(run.owner(0).peer_id, beat(0, phase="electing"))
        hear(run.owner(0).peer_id, beat(0, round=0))
        assert member.follower.allegiance.heard_at is None
        hear(run.owner(0).peer_id, beat(0))
        assert member.follower.allegiance.heard_at is not None


async def test_a_later_coordinator_that_is_heard_is_followed_and_an_earlier_one_no_more(opened: Open) -> None:
    async with opened(4) as run:
        member = run.members[0]
        hear = member.follower.attendance.on_message
        hear(run.owner(2).peer_id, beat(2))
        hear(run.owner(0).peer_id, beat(0))
        assert member.term == 2


async def test_a_referral_leads_back_once_and_is_no_reason_to_appeal_again(opened: Open) -> None:
    """Were it one, two nodes would go on to say the same to each other as fast as they can."""
    async with opened(4) as run:
        member = run.members[0]
        sent: list[Any] = []
        member.follower.attendance.send = sent.append  # type: ignore[method-assign,assignment]
        hear = member.follower.attendance.on_message
        for later in (3, 5):
            member.follower.allegiance = Allegiance(1, 3, 0.0)
            hear(run.owner(3).peer_id, Referral(1, later))
            assert sent == []
        hear(run.owner(3).peer_id, Referral(0, 1))  # of another round
        assert member.term == 3
        hear(run.owner(3).peer_id, Referral(1, 1))
        assert member.term == 1


async def test_a_full_disk_ends_neither_a_look_at_others_nor_the_follower(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(4) as run:
        for one in run.members:
            one.contributes = False
        source, member = run.bootstrap, run.members[0]
        source.node.chain.append(record_behind(run.nodes, source.head, (1, 2, 3)))
        tries: list[CertifiedRecord] = []

        def full(certified: CertifiedRecord) -> None:
            tries.append(certified)
            raise DiskTrouble(28, "disk full")

        with monkeypatch.context() as patch:
            patch.setattr(member.node.chain, "_write", full)
            member.start()
            await soon(lambda: len(tries) > 3)
        await soon(lambda: member.round == 2)


async def test_a_record_that_cannot_be_kept_when_it_is_told_is_fetched_later(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(4) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        member = run.members[0]
        await soon(lambda: member.coordinator is not None)
        tries: list[CertifiedRecord] = []

        def full(certified: CertifiedRecord) -> None:
            tries.append(certified)
            raise DiskTrouble(28, "disk full")

        with monkeypatch.context() as patch:
            patch.setattr(member.node.chain, "_write", full)
            run.bootstrap.node.take_record(record_behind(run.nodes, member.head, (1, 2, 3)))
            await soon(lambda: len(tries) > 1)
            assert member.round == 1
        await soon(lambda: member.round == 2)


async def test_it_is_asked_where_a_node_stands(opened: Open) -> None:
    async with opened(4) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        member = run.members[0]
        assert member.node.standing() == Standing(1, member.head.hash, 1, 0, False)
        await soon(lambda: member.coordinator is not None)
        assert member.node.standing() == Standing(1, member.head.hash, 1, 0, True)


async def test_what_is_not_the_followers_matter_comes_to_its_owner(opened: Open) -> None:
    async with opened(4) as run:
        member = run.members[0]
        for message in (Refusal("no"), beat(0)):
            member.follower.attendance.on_message(run.bootstrap.peer_id, message)
        assert member.messages == [Refusal("no"), beat(0)]


# ---- what time it is ----


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, ahead_seconds: float) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + ahead_seconds)


async def some_beats(run: Run) -> None:
    """Time enough for whoever believes that its time is over to say so."""
    heard = [len(one.messages) + 10 for one in run.members]
    await soon(lambda: all(len(one.messages) > count for one, count in zip(run.members, heard, strict=True)))


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_a_step_of_the_wall_clock_in_the_middle_of_a_round_fires_no_time_out(
    opened: Open, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    async with opened(4, timing=UNHURRIED) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        set_wall_clock(monkeypatch, step)
        await some_beats(run)
        assert [(one.round, one.term) for one in run.all] == [(1, 0)] * 4
        assert all(one.coordinator == run.bootstrap.peer_id for one in run.members)
        assert [one.node.clock.follow() for one in run.all] == [0.0] * 4
        for one in run.members:
            one.contribute()
        await soon(lambda: min(one.round for one in run.all) >= 2)
        made = run.bootstrap.node.chain.record(2)
        assert made.term == 0
        assert len(made.sealed.record.roster) == 3
        assert {part.peer_id for update in made.sealed.record.updates for part in update.contributors} == {
            one.peer_id for one in run.members
        }
        assert not [one.lost for one in run.all if one.lost]


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
async def test_a_node_that_is_set_to_another_time_waits_for_others_as_long_as_before(
    opened: Open, seconds: float
) -> None:
    async with opened(4, timing=UNHURRIED, deadline_in_seconds=10 * HOUR) as run:
        for one in run.members:
            one.contributes = False
        run.start()
        await soon(lambda: all(one.coordinator == run.bootstrap.peer_id for one in run.members))
        await soon(lambda: len(run.bootstrap.follower.coordinating._members) == 4)
        for one in run.all:
            one.node.take_time(one.node.now() + seconds)
        state, now = run.bootstrap.follower.coordinating._state, run.bootstrap.node.now()
        assert not state.crowd.silent(now, UNHURRIED["coordinator_timeout_seconds"])
        assert all(one.coordinator == run.bootstrap.peer_id for one in run.members)
        await some_beats(run)
        assert [(one.round, one.term) for one in run.all] == [(1, 0)] * 4
        assert run.bootstrap.follower.coordinating._state.present == {one.peer_id for one in run.members}
        await run.kill(run.bootstrap)
        await soon(lambda: run.another_coordinates())


async def test_a_member_that_slept_does_not_take_that_for_the_coordinators_silence(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = iter([HOUR])

    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return next(sleeps, 0.0)

    monkeypatch.setattr("spes_peer.following.follower.sleep_awake", sleep)
    async with opened(3, timing=UNHURRIED) as run:
        follower = run.members[0].follower
        woken_at = follower.node.now()
        follower.allegiance = Allegiance(1, 0, woken_at - HOUR)
        keeping = asyncio.create_task(follower._keep_time())
        await soon(lambda: follower.allegiance.since_at > woken_at - 1.0)
        keeping.cancel()
        assert follower.allegiance.term == 0


@pytest.mark.parametrize("ahead_seconds", [-HOUR, HOUR])
async def test_a_coordinator_that_starts_with_a_wrong_clock_takes_the_time_of_its_members(
    opened: Open, monkeypatch: pytest.MonkeyPatch, ahead_seconds: float
) -> None:
    monkeypatch.setattr("spes_peer.clock.LOOK_SECONDS", 0.05)
    async with opened(4) as run:
        node = run.bootstrap.node
        node.clock = SwarmClock(lambda: time.time() + ahead_seconds)
        watching = asyncio.create_task(ClockWatch(node.clock, on_time=node._time_was_set).run())
        try:
            run.start()
            await soon(lambda: abs(node.now() - time.time()) < 5)
            await soon(lambda: all(one.round >= 3 and one.coordinator is not None for one in run.all))
        finally:
            watching.cancel()


async def test_a_strangers_time_does_not_count(opened: Open) -> None:
    async with opened(3) as run:
        member, other = (one.node for one in run.members)
        stranger = Identity.from_seed(b"\x63" * 32).peer_id
        for peer in (stranger, member.peer_id):
            member.hears_time(peer, member.now() + HOUR)
        assert member.clock.follow() == 0.0
        member.hears_time(other.peer_id, member.now() + HOUR)
        assert member.clock.follow() == pytest.approx(HOUR)


async def test_an_entry_is_newer_than_the_last_where_the_wall_clock_was_set_back(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(2) as run:
        node, other = run.bootstrap.node, run.members[0].node
        other.take_entry(node.entry())
        set_wall_clock(monkeypatch, -HOUR)
        node.max_subsets = 7
        other.take_entry(node.entry())
        assert other.entries[node.peer_id].max_subsets == 7
