"""The stream to the coordinator, over real gRPC: who is attended, when that ends, and what is left of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from exchange_nodes import Node, eventually, running

from spes_peer.daemon import attendance
from spes_peer.daemon.attendance import Attendance
from spes_peer.exchange.holdings import Holdings
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import Beat, CoordinatorBeat
from spes_peer.run.signed import Signed

BEAT = CoordinatorBeat(0, 1, "training", 0.0, (), 0.0, "why")
Attend = Callable[[PeerId, AsyncIterator[Signed], Callable[[Signed], None]], Any]


class Scene:
    """The last of three nodes attends; the first coordinates by a test's own function, the second does not."""

    def __init__(self, nodes: list[Node]) -> None:
        self.coordinator, self.bystander, self.member = nodes
        self.heard: list[Any] = []
        self.lost: list[str] = []
        candidates = [self.bystander.peer_id, self.coordinator.peer_id]
        self.attendance = Attendance(self.member.connections, self.member.signer, lambda: candidates, 1.0)
        self.attendance.on_message = lambda _sender, message: self.heard.append(message)
        self.attendance.on_lost = self.lost.append
        self.attendance.on_open = lambda: [Beat(0, "training", 0)]

        async def decline(*_: Any) -> None:
            pass

        self.let(self.bystander, decline)

    def let(self, node: Node, attend: Attend) -> None:
        node.attend = attend  # type: ignore[method-assign]

    @contextlib.asynccontextmanager
    async def attending(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.attendance.run())
        try:
            yield
        finally:
            task.cancel()
            async with asyncio.timeout(2.0):
                await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(attendance, "_FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(attendance, "_LONGEST_RETRY_SECONDS", 0.05)
    async with running(tmp_path, Holdings, Holdings, Holdings) as nodes:
        yield Scene(nodes)


async def test_the_first_candidate_that_coordinates_is_attended_and_told_what_still_matters(scene: Scene) -> None:
    told: list[str] = []

    async def coordinate(_caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        send(scene.coordinator.signer.sign(BEAT))
        async for message in incoming:
            told.append(message.kind)

    scene.let(scene.coordinator, coordinate)
    async with scene.attending():
        await eventually(lambda: scene.heard == [BEAT] and told == ["Beat"])
        assert scene.attendance.coordinator == scene.coordinator.peer_id


async def test_a_message_of_somebody_else_is_dropped(scene: Scene) -> None:
    async def coordinate(_caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        send(scene.bystander.signer.sign(BEAT))
        send(scene.coordinator.signer.sign(BEAT))
        async for _ in incoming:
            pass

    scene.let(scene.coordinator, coordinate)
    async with scene.attending():
        await eventually(lambda: scene.attendance.coordinator is not None)
        assert len(scene.heard) == 1


async def test_nodes_that_do_not_coordinate_keep_their_links(scene: Scene) -> None:
    scene.let(scene.coordinator, scene.bystander.attend)  # nobody coordinates
    async with scene.attending():
        await eventually(lambda: len(scene.lost) > 3)
        links = [await scene.member.connections.to(node.peer_id) for node in (scene.coordinator, scene.bystander)]
        tries = len(scene.lost)
        await eventually(lambda: len(scene.lost) > tries + 3)
        assert [await scene.member.connections.to(link.peer_id) for link in links] == links
        assert "ended the stream" in scene.lost[-1]


async def test_a_silent_coordinator_is_left_and_its_link_given_up(scene: Scene) -> None:
    async def fall_silent(_caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        send(scene.coordinator.signer.sign(BEAT))
        async for _ in incoming:
            pass

    scene.let(scene.coordinator, fall_silent)
    async with scene.attending():
        await eventually(lambda: scene.attendance.coordinator is not None)
        link = await scene.member.connections.to(scene.coordinator.peer_id)
        await eventually(lambda: bool(scene.lost))
        assert "said nothing for 1 s" in scene.lost[0]
        await eventually(lambda: len(scene.heard) > 1)  # attended again
        assert await scene.member.connections.to(scene.coordinator.peer_id) is not link


async def test_a_channel_that_is_closed_under_it_does_not_end_the_attendance(scene: Scene) -> None:
    async def coordinate(_caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        send(scene.coordinator.signer.sign(BEAT))
        async for _ in incoming:
            pass

    scene.let(scene.coordinator, coordinate)
    async with scene.attending():
        await eventually(lambda: len(scene.heard) == 1)
        link = await scene.member.connections.to(scene.coordinator.peer_id)
        scene.member.connections.drop(link.peer_id)
        await link.channel.close(None)
        await eventually(lambda: len(scene.heard) == 2)


@pytest.mark.parametrize("num_ticks", range(6))
async def test_a_cancellation_that_comes_with_a_message_is_not_swallowed(scene: Scene, num_ticks: int) -> None:
    async def flood(_caller: PeerId, _incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        while True:
            send(scene.coordinator.signer.sign(BEAT))
            await asyncio.sleep(0)

    scene.let(scene.coordinator, flood)
    async with scene.attending():
        await eventually(lambda: len(scene.heard) > 10)
        for _ in range(num_ticks):
            await asyncio.sleep(0)
