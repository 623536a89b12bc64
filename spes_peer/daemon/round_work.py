"""What a member does in one round besides training: reduce what it was given, fetch what will be applied, test it.

Made anew for each round, so that nothing of an old round can leak into the next. What was said is remembered, to be
said again to a coordinator that may have missed it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from spes_peer.blobs import BlobName
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.errors import ChildFailed, DiskTrouble, SpesError
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.member import Own
from spes_peer.rounds.messages import (
    Contribution,
    Excuse,
    Footing,
    Holding,
    MissingOffers,
    ReduceInput,
    ReduceOrder,
    ReduceTask,
    UpdateNotice,
    UpdateReport,
    Verdict,
)
from spes_peer.rounds.verdicts import MEMBER_PART, digest_of, who_tests
from spes_peer.run.layout import Block
from spes_peer.run.records import BlockId, RosterEntry, SealedRecord
from spes_peer.training.work import ExpertTried, TryExpert

logger = logging.getLogger(__name__)

_PARALLEL_OFFERS = 8
_PARALLEL_OFFERS_OF_ONE = 2
_PARALLEL_REDUCES = 4
_ATTEMPT_PART = 1 / 4
"""Of the grace: after so long others have their turn, and the coordinator hears that an offer is missing."""
_AGAIN_SECONDS = 1.0
_HOLDING_PAUSE_SECONDS = 0.05
_LONGEST_REASON = 200  # characters
_MOST_NAMED = 64  # updates of a block in a round; an honest coordinator names a few, when reducers die or disagree


class RoundWork:
    """One member's exchange in the round that `record` opened."""

    def __init__(
        self,
        record: SealedRecord,
        entry: RosterEntry,
        node: Node,
        trainer: TrainerHost,
        send: Callable[[Any], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.record = record
        self.entry = entry
        """This member's place in it."""
        self.until_at = node.now() + max(0.0, record.record.deadline_at - record.record.opened_at)
        """The round's deadline in the run's time, counted from when the record came."""
        self.closed = asyncio.Event()
        """The round is over: what is still under way ends without a word."""
        self.contribution: Contribution | None = None
        self.excuse: Excuse | None = None
        """Said where this member cannot train for now: nobody waits for it, and it goes on trying."""
        self.reports: dict[BlockId, UpdateReport] = {}
        self.holdings: set[str] = set()
        self.verdicts: dict[int, Verdict] = {}
        """Of the experts that this member was drawn to test."""
        self._node = node
        self._trainer = trainer
        self._send = send
        self._spawn = spawn
        self._inputs: dict[BlockId, tuple[ReduceInput, ...]] = {}
        """What it was asked last to average of each block."""
        self._averaged: dict[BlockId, tuple[ReduceInput, ...]] = {}
        """Of what it has reported."""
        self._missing: dict[BlockId, MissingOffers] = {}
        """What it has said that it cannot get."""
        self._notices_started: set[str] = set()
        self._named: defaultdict[BlockId, set[str | bytes]] = defaultdict(set)
        """Updates of each block, and sets of offers to average of it, that the coordinator has named."""
        self._fetching = asyncio.Semaphore(_PARALLEL_OFFERS)
        self._fetching_of: defaultdict[PeerId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_PARALLEL_OFFERS_OF_ONE)
        )
        self._reducing = asyncio.Semaphore(_PARALLEL_REDUCES)
        self._testing = asyncio.Semaphore(1)
        self._unsaid_holdings: set[str] = set()
        testers = who_tests(record.record, node.layout)
        self._to_test: dict[int, dict[BlockId, BlobName]] = {
            expert: {} for expert, peers in testers.items() if node.peer_id in peers
        }
        """By expert what is known of its updates, all of which are here."""
        self._may_test = True
        self._is_testing = False

    @property
    def round(self) -> int:
        return self.record.round

    async def unless_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` until it is done or the round is over; it is cancelled then."""
        doing, over = asyncio.create_task(work), asyncio.create_task(self.closed.wait())
        try:
            await asyncio.wait((doing, over), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
        finally:
            doing.cancel()
            over.cancel()
            await asyncio.gather(doing, over, return_exceptions=True)

    def said(self) -> Iterable[Any]:
        """What a coordinator must know of this member's round so far; of what it has averaged the order asks anew."""
        if self.contribution is not None:
            yield self.contribution
            yield Footing(self.round, self.contribution.state_root)
        elif self.excuse is not None:
            yield self.excuse
        if self.holdings:
            yield self._holding(self.holdings)
        yield from self.verdicts.values()

    def facts(self) -> Own:
        """What this member knows itself, to judge a proposal by."""
        reports = {block: report.blob for block, report in self.reports.items()}
        return Own(
            self._node.peer_id,
            self.contribution,
            reports,
            self._node.signer.incarnation,
            dict(self._averaged),
            dict(self.verdicts),
            self.excuse is not None,
        )

    def ask_not_to_be_awaited(self, why: str) -> None:
        """Once a round; the first reason counts."""
        if self.excuse is None and self.contribution is None:
            self.excuse = Excuse(self.round, why)
            self._send(self.excuse)

    def contribute(self, contribution: Contribution) -> None:
        self._name("offer", ((offer.block, offer.blob) for offer in contribution.offers))
        offers = {offer.blob for offer in contribution.offers}
        self.contribution = contribution
        self.holdings |= offers
        self._send(contribution)
        self._send(Footing(self.round, contribution.state_root))
        self._send(self._holding(offers))

    def on_reduce_order(self, order: ReduceOrder) -> None:
        if order.round != self.round:
            return
        for task in order.tasks:
            if self._node.peer_id in task.reducers and task.block in self._node.layout.by_id:
                self._on_task(task)

    def _on_task(self, task: ReduceTask) -> None:
        if self._inputs.get(task.block) != task.inputs:
            makers = [one.peer_id for one in task.inputs]
            if not self.record.record.members.issuperset(makers) or len(set(makers)) < len(makers):
                logger.warning("refused to average what is not one offer each of members block=%s", task.block)
                return
            if not self._may_name(task.block, task.digest):
                return
            self._inputs[task.block] = task.inputs
            self._name("offer", ((task.block, one.blob) for one in task.inputs))
            self._missing.pop(task.block, None)
            self._spawn(self._reduce(task))
        elif said := self._missing.get(task.block) or self.reports.get(task.block):
            self._send(said)  # who asks again has not heard it: another coordinator, by now

    def on_notice(self, notice: UpdateNotice) -> None:
        block = self._node.layout.by_id.get(notice.block)
        if block is None or notice.round != self.round:
            return
        if block.expert in self._to_test and not self._is_testing:
            self._is_testing = True
            self._spawn(self._end_tests())
        if notice.blob in self.holdings:  # as above
            self._hold_now(notice.blob)
            self._consider(block, notice.blob)
            return
        if notice.blob in self._notices_started:
            return
        if notice.size_bytes not in (self._node.layout.offer_bytes(block), self._node.layout.mean_bytes(block)):
            logger.warning("refused an update of a wrong size block=%s bytes=%d", notice.block, notice.size_bytes)
            return
        if not self._may_name(notice.block, notice.blob):
            return
        self._notices_started.add(notice.blob)
        self._name("update", ((notice.block, notice.blob),))
        self._spawn(self.unless_closed(self._hold(notice)))

    def _name(self, kind: str, blobs: Iterable[tuple[BlockId, str]]) -> None:
        """For whoever watches these blobs, each with its block's id, travel."""
        self._node.blob_words.note_of_blocks(kind, blobs, self._node.layout.by_id)

    def _may_name(self, block: BlockId, named: str | bytes) -> bool:
        """Whether the coordinator has not named too many for one block: each is fetched, and fills the disk."""
        if named not in self._named[block] and len(self._named[block]) >= _MOST_NAMED:
            logger.warning("refused one more update of a block that has had too many block=%s", block)
            return False
        self._named[block].add(named)
        return True

    async def _reduce(self, task: ReduceTask) -> None:
        """Fetch the offers, average them, report. Offers that cannot be had are named, and tried again until the round
        is over or the block is to be averaged without them."""
        try:
            while makers := await self._fetch_offers(task):
                if not self._is_wanted(task):
                    return
                said = MissingOffers(self.round, task.block, makers)
                if self._missing.get(task.block) != said:
                    logger.warning("offers are missing block=%s of=%s", task.block, ", ".join(makers))
                    self._missing[task.block] = said
                    self._send(said)
                await asyncio.sleep(_AGAIN_SECONDS)
            async with self._reducing:
                reduced = await self._trainer.get().reduce_block(task)
        except SpesError as error:
            logger.warning("could not reduce block=%s reason=%s", task.block, error)
            self._inputs.pop(task.block, None)
            return
        if not self._is_wanted(task):
            return
        self._averaged[task.block] = task.inputs
        self._missing.pop(task.block, None)
        self.reports[task.block] = UpdateReport(
            self.round, task.block, reduced.blob, reduced.size_bytes, reduced.rejected, task.digest
        )
        self._send(self.reports[task.block])
        if reduced.blob:
            self._name("update", ((task.block, reduced.blob),))
            self._hold_now(reduced.blob)

    def _is_wanted(self, task: ReduceTask) -> bool:
        return not self.closed.is_set() and self._inputs.get(task.block) == task.inputs

    async def _fetch_offers(self, task: ReduceTask) -> tuple[PeerId, ...]:
        """Whose offers are still missing after one attempt at each."""
        size = self._node.layout.offer_bytes(self._node.layout.by_id[task.block])
        attempt_seconds = _ATTEMPT_PART * self._node.manifest.timing.round_grace_seconds
        troubles: list[DiskTrouble] = []

        async def is_missing(one: ReduceInput) -> bool:
            try:
                # one that trickles its offers must not hold all places, nor they who wait for a task that is over
                places = self._node.transfers.place(self._fetching_of[one.peer_id], self._fetching)
                async with places, asyncio.timeout(attempt_seconds):
                    if not self._is_wanted(task):
                        return True
                    await self._node.fetcher.fetch(one.blob, size, [one.peer_id, *self._node.others()])
            except DiskTrouble as error:
                troubles.append(error)
            except (SpesError, TimeoutError) as error:
                logger.info("no offer yet block=%s of=%s reason=%s", task.block, one.peer_id, error)
                return True
            return False

        async with asyncio.TaskGroup() as group:
            attempts = {one.peer_id: group.create_task(is_missing(one)) for one in task.inputs}
        if troubles:
            raise troubles[0]
        return tuple(sorted(peer for peer, attempt in attempts.items() if attempt.result()))

    async def _hold(self, notice: UpdateNotice) -> None:
        try:
            await self._node.fetcher.fetch(notice.blob, notice.size_bytes, [*notice.holders, *self._node.others()])
        except SpesError as error:
            logger.warning("could not fetch an update block=%s reason=%s", notice.block, error)
            self._notices_started.discard(notice.blob)
            return
        self._hold_now(notice.blob)
        self._consider(self._node.layout.by_id[notice.block], notice.blob)

    def _consider(self, block: Block, blob: BlobName) -> None:
        """An update is here. Once all of an expert are that this member was drawn to test, it tests them."""
        if block.expert is None or block.expert not in self._to_test:
            return
        known = self._to_test[block.expert]
        known[block.id] = blob
        blobs = tuple(known[one.id] for one in self._node.layout.expert_blocks(block.expert) if one.id in known)
        if len(blobs) == len(self._node.layout.expert_blocks(block.expert)):
            self._spawn(self._test(block.expert, blobs))

    async def _test(self, expert: int, blobs: tuple[BlobName, ...]) -> None:
        peers = [entry.peer_id for entry in self.record.record.roster]
        task = TryExpert(self.round, expert, blobs, peers.index(self._node.peer_id), len(peers))
        async with self._testing:
            before = self.verdicts.get(expert)
            if before is not None and before.updates == digest_of(blobs):
                self._say(before)  # who tells us again has not heard it: another coordinator, by now
                return
            if not self._may_test or self.closed.is_set():
                return
            try:
                if self.contribution is None:
                    raise ChildFailed("the trainer is busy with the round")
                tested = await self._trainer.get().try_expert(task)
            except SpesError as error:
                logger.warning("could not test an expert expert=%d reason=%s", expert, error)
                self._say(Verdict(self.round, expert, b"", False, False, str(error)[:_LONGEST_REASON]))
                return
        if self._may_test:  # or it is too late, and has been said to be untested
            self._say(self._judged(task, tested))

    def _judged(self, task: TryExpert, tested: ExpertTried) -> Verdict:
        rise = tested.loss_after / tested.loss_before - 1 if tested.loss_before > 0 else 0.0
        is_harmful = bool(tested.fault) or rise > self._node.manifest.sync.most_harm
        why = tested.fault or f"held-out loss {rise:+.2%}"
        if is_harmful:
            logger.warning("objecting to an expert expert=%d reason=%s", task.expert, why)
        return Verdict(self.round, task.expert, digest_of(task.blobs), True, is_harmful, why[:_LONGEST_REASON])

    def _say(self, verdict: Verdict) -> None:
        self.verdicts[verdict.expert] = verdict
        if not self.closed.is_set():
            self._send(verdict)

    async def _end_tests(self) -> None:
        """What has not been tested in time is said to be untested, so that nobody waits for it."""
        await asyncio.sleep(self._node.manifest.timing.round_grace_seconds * MEMBER_PART)
        self._may_test = False
        for expert in self._to_test.keys() - self.verdicts.keys():
            self._say(Verdict(self.round, expert, b"", False, False, "no time"))

    def _hold_now(self, blob: str) -> None:
        """Tell the coordinator soon, many blobs in one message."""
        self.holdings.add(blob)
        is_first = not self._unsaid_holdings
        self._unsaid_holdings.add(blob)
        if is_first:
            self._spawn(self._say_holdings())

    async def _say_holdings(self) -> None:
        await asyncio.sleep(_HOLDING_PAUSE_SECONDS)
        unsaid, self._unsaid_holdings = self._unsaid_holdings, set()
        if not self.closed.is_set():
            self._send(self._holding(unsaid))

    def _holding(self, blobs: Iterable[str]) -> Holding:
        return Holding(self.round, tuple(sorted(blobs)))  # type: ignore[arg-type]
