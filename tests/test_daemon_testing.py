"""What a member says of the experts that it was drawn to test."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from daemon_parts import OTHER, QUICK, Scene, make_node
from exchange_nodes import eventually
from rounds_swarm import BOOTSTRAP, invented

from spes_peer.daemon import round_work
from spes_peer.errors import ChildFailed
from spes_peer.identity import Identity
from spes_peer.rounds.messages import Contribution, UpdateNotice, Verdict
from spes_peer.rounds.verdicts import digest_of
from spes_peer.run.manifest import Manifest
from spes_peer.training.work import ExpertTried, TryExpert

UNHURRIED = {"round_grace_seconds": 60.0, "coordinator_timeout_seconds": 70.0, "stall_timeout_seconds": 80.0}
Try = Callable[[TryExpert], Awaitable[ExpertTried]]


class Judge(Scene):
    """A member of a round in which another owns experts; its contribution is made."""

    async def begin(self, tries: Try) -> None:
        async def nothing_to_fetch(*_wanted: object) -> None:
            pass

        self.node.fetcher.fetch = nothing_to_fetch  # type: ignore[method-assign,assignment]
        self.trainer.try_expert = tries  # type: ignore[attr-defined]
        self.tell(self.next_record(self.node.identity, OTHER))
        await eventually(lambda: bool(self.sent_of(Contribution)))
        entry = self.member.head.record.entry_of(OTHER.peer_id)
        assert entry is not None
        self.experts = self.node.manifest.experts_of(entry.subsets[0])

    def blobs(self, expert: int) -> tuple[str, ...]:
        return tuple(invented(expert, block.id) for block in self.node.layout.expert_blocks(expert))

    def notice(self, expert: int, num_blocks: int | None = None) -> None:
        """The coordinator tells of the expert's updates, or the first of them."""
        blocks = self.node.layout.expert_blocks(expert)
        for block, blob in list(zip(blocks, self.blobs(expert), strict=True))[:num_blocks]:
            size = self.node.layout.offer_bytes(block)
            notice = UpdateNotice(1, block.id, blob, size, (OTHER.peer_id,))  # type: ignore[arg-type]
            self.member.follower.attendance.on_message(BOOTSTRAP, notice)

    async def verdict(self) -> Verdict:
        await eventually(lambda: bool(self.sent_of(Verdict)))
        verdict: Verdict = self.sent_of(Verdict)[0]
        return verdict


@pytest.fixture
def tester(tmp_path: Path, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch) -> Judge:
    timing = manifest.timing.model_copy(update={**QUICK, **UNHURRIED})
    sync = manifest.sync.model_copy(update={"most_harm": 0.03})
    node = make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing, "sync": sync}), organizer)
    return Judge(node, monkeypatch)


def finding(before: float, after: float, fault: str = "") -> Try:
    async def tries(_task: TryExpert) -> ExpertTried:
        return ExpertTried(before, after, fault)

    return tries


@pytest.mark.parametrize(
    ("found", "objects", "why"),
    [
        ((2.0, 2.05), False, "held-out loss +2.50%"),
        ((2.0, 2.07), True, "held-out loss +3.50%"),
        ((2.0, 1.0), False, "held-out loss -50.00%"),
        ((0.0, 0.0, "values that are not finite"), True, "values that are not finite"),
    ],
)
async def test_it_objects_to_what_raises_the_loss_by_more_than_the_manifest_bears(
    tester: Judge, found: tuple[float, float], objects: bool, why: str
) -> None:
    async with tester.living():
        await tester.begin(finding(*found))
        expert = tester.experts[0]
        tester.notice(expert)
        digest = digest_of(tester.blobs(expert))  # type: ignore[arg-type]
        assert await tester.verdict() == Verdict(1, expert, digest, True, objects, why)
        own = tester.member.follower.own_facts()
        assert set(own.objections()) == ({expert} if objects else set())
        assert tester.sent_of(Verdict)[0] in list(tester.member.follower.still_to_say())


async def test_it_tests_when_all_of_an_expert_is_there_and_once(tester: Judge) -> None:
    tried = []

    async def tries(task: TryExpert) -> ExpertTried:
        tried.append((task.expert, task.blobs, task.num_slices))
        return ExpertTried(2.0, 2.0, "")

    async with tester.living():
        await tester.begin(tries)
        expert = tester.experts[1]
        tester.notice(expert, num_blocks=1)
        await asyncio.sleep(0)
        assert not tried
        tester.notice(expert)
        tester.notice(expert)
        await tester.verdict()
        assert tried == [(expert, tester.blobs(expert), 2)]


async def test_what_it_cannot_test_or_not_in_time_it_says_so_of_and_objects_to_nothing(
    tester: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_work, "MEMBER_PART", 2.0 / UNHURRIED["round_grace_seconds"])

    async def fails_then_hangs(task: TryExpert) -> ExpertTried:
        if task.expert == tester.experts[0]:
            raise ChildFailed("no memory")
        await asyncio.Event().wait()
        raise AssertionError

    async with tester.living():
        await tester.begin(fails_then_hangs)
        for expert in tester.experts:
            tester.notice(expert)
        await eventually(lambda: len(tester.sent_of(Verdict)) == 2)
        first, second = tester.sent_of(Verdict)
        assert first == Verdict(1, tester.experts[0], b"", False, False, "no memory")
        assert second == Verdict(1, tester.experts[1], b"", False, False, "no time")


async def test_its_own_experts_are_others_to_test(tester: Judge) -> None:
    async with tester.living():
        await tester.begin(finding(2.0, 9.0))
        entry = tester.member.head.record.entry_of(tester.node.peer_id)
        assert entry is not None
        tester.notice(tester.node.manifest.experts_of(entry.subsets[0])[0])
        tester.notice(tester.experts[0])
        assert (await tester.verdict()).expert == tester.experts[0]


async def test_what_it_cannot_get_of_a_round_is_not_fetched_beyond_it(tester: Judge) -> None:
    running: set[str] = set()

    async def never(name: str, *_wanted: object) -> None:
        running.add(name)
        try:
            await asyncio.Event().wait()
        finally:
            running.discard(name)

    async with tester.living():
        await tester.begin(finding(2.0, 2.0))
        tester.node.fetcher.fetch = never  # type: ignore[method-assign,assignment]
        expert = tester.experts[0]
        tester.notice(expert)
        await eventually(lambda: running == set(tester.blobs(expert)))
        tester.tell(tester.next_record(tester.node.identity, OTHER))
        await eventually(lambda: not running)
