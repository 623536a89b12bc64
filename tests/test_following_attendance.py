"""The stream to the coordinator, over real gRPC: who is attended, when that ends, and what is left of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from exchange_nodes import Node, eventually, running

from spes_peer.exchange import limits
from spes_peer.exchange.holdings import Holdings
from spes_peer.following import attendance
from spes_peer.following.attendance import Attendance
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import Beat, CoordinatorBeat
from spes_peer.run.signed import Signed

BEAT = CoordinatorBeat(0, 1, "training", 0.0, (), 0.0, "why")
Attend = Callable[[PeerId, AsyncIterator[Signed], Callable[[Signed], None]], Any]


class Scene:
    """The last of three nodes attends; the first coordinates by a test's own function, the second declines."""

    def __init__(self, nodes: list[Node]) -> None:
        self.coordinator, self.bystander, self.member = nodes
        self.heard: list[Any] = []
        self.lost: list[str] = []
        self.target: PeerId | None = self.coordinator.peer_id
        self.attendance = Attendance(self.member.connections, self.member.signer, lambda: self.target, 60.0)
        self.attendance.on_message = lambda _sender, message: self.heard.append(message)
        self.attendance.on_lost = self.lost.append
        self.attendance.on_open = lambda: [Beat(0, "training", 0)]

        async def decline(*_: Any) -> None:
            pass

        self.let(self.bystander, decline)

    def let(self, node: Node, attend: Attend) -> None:
        node.attend = attend  # type: ignore[method-assign]

    def coordinate(self, node: Node) -> list[str]:
        """Let the node say a beat and hear what it is told; the kinds of that."""
        told: list[str] = []

        async def coordinate(_caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
            send(node.signer.sign(BEAT))
            async for message in incoming:
                told.append(message.kind)

        self.let(node, coordinate)
        return told

    def name(self, node: Node | None) -> None:
        """Attend another from now on."""
        self.target = node.peer_id if node else None
        self.attendance.look_again()

    @contextlib.asynccontextmanager
    async def attending(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.attendance.run())
        try:
            yield
        finally:
            task.cancel()
            async with asyncio.timeout(30.0):
                await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(attendance, "_FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(attendance, "_LONGEST_RETRY_SECONDS", 0.05)
    async with running(tmp_path, Holdings, Holdings, Holdings) as nodes:
        yield Scene(nodes)


async def test_who_is_named_is_attended_and_told_what_still_matters(scene: Scene) -> None:
    told = scene.coordinate(scene.coordinator)
    async with scene.attending():
        await eventually(lambda: scene.heard == [BEAT] and told == ["Beat"])
        assert scene.attendance.attended == scene.coordinator.peer_id


async def test_who_has_said_nothing_is_not_attended_yet(scene: Scene) -> None:
    is_called = asyncio.Event()

    async def say_nothing(*_: Any) -> None:
        is_called.set()
        await asyncio.Event().wait()

    scene.let(scene.coordinator, say_nothing)
    async with scene.attending():
        await eventually(is_called.is_set)
        assert scene.attendance.attended is None


async def test_when_another_is_named_the_stream_ends_and_that_one_is_attended_at_once(scene: Scene) -> None:
    scene.coordinate(scene.coordinator)
    told = scene.coordinate(scene.bystander)
    async with scene.attending():
        await eventually(lambda: scene.attendance.attended == scene.coordinator.peer_id)
        scene.name(scene.bystander)
        await eventually(lambda: scene.attendance.attended == scene.bystander.peer_id)
        assert told == ["Beat"]
        assert scene.lost == []  # nobody was lost, it was left


async def test_looking_again_without_another_name_leaves_the_stream_alone(scene: Scene) -> None:
    told = scene.coordinate(scene.coordinator)
    async with scene.attending():
        await eventually(lambda: told == ["Beat"])
        for _ in range(3):
            scene.attendance.look_again()
            await asyncio.sleep(0)
        scene.attendance.send(Beat(7, "training", 0))
        await eventually(lambda: told == ["Beat", "Beat"])
        assert scene.heard == [BEAT]


async def test_a_new_name_ends_the_wait_before_the_next_try(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "_FIRST_RETRY_SECONDS", 60.0)
    scene.target = scene.bystander.peer_id
    scene.coordinate(scene.coordinator)
    async with scene.attending():
        await eventually(lambda: len(scene.lost) == 1)
        scene.name(scene.coordinator)
        await eventually(lambda: scene.attendance.attended == scene.coordinator.peer_id)


async def test_without_anybody_named_the_wait_says_so_and_ends_with_a_name(scene: Scene) -> None:
    scene.target = None
    scene.coordinate(scene.coordinator)
    async with scene.attending():
        await eventually(lambda: len(scene.lost) > 1)
        assert scene.lost[0] == "the record names nobody to coordinate"
        scene.attendance.send(Beat(0, "training", 0))  # to nobody
        scene.name(scene.coordinator)
        await eventually(lambda: scene.heard == [BEAT])


async def test_what_is_sent_while_there_is_no_stream_is_dropped(scene: Scene) -> None:
    scene.attendance.send(Beat(1, "training", 0))
    told = scene.coordinate(scene.coordinator)
    async with scene.attending():
        await eventually(lambda: told == ["Beat"])
        scene.attendance.send(Beat(2, "training", 0))
        await eventually(lambda: told == ["Beat", "Beat"])


async def test_a_message_of_somebody_else_is_dropped(scene: Scene) -> None:
    async def coordinate(_caller: PeerId, incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        send(scene.bystander.signer.sign(BEAT))
        send(scene.coordinator.signer.sign(BEAT))
        async for _ in incoming:
            pass

    scene.let(scene.coordinator, coordinate)
    async with scene.attending():
        await eventually(lambda: scene.attendance.attended is not None)
        assert len(scene.heard) == 1


async def test_a_coordinator_that_floods_is_read_at_a_pace_however_often_it_hangs_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BURST", 50.0)
    monkeypatch.setattr(limits, "MESSAGES_PER_SECOND", 0.01)
    num_streams = 0

    async def flood(_caller: PeerId, _incoming: AsyncIterator[Signed], send: Callable[[Signed], None]) -> None:
        nonlocal num_streams
        num_streams += 1
        for _ in range(20):
            send(scene.coordinator.signer.sign(BEAT))

    scene.let(scene.coordinator, flood)
    for num_before in range(5):
        async with scene.attending():  # once for each start of it: a pause ends with the stream
            await eventually(lambda num_before=num_before: num_streams > num_before, 20)
            await eventually(lambda: len(scene.heard) >= min(50, 20 * num_streams), 20)
    assert 50 <= len(scene.heard) <= 50 + num_streams
    scene.coordinate(scene.bystander)
    scene.heard.clear()
    scene.name(scene.bystander)
    async with scene.attending():
        await eventually(lambda: scene.heard == [BEAT], 20)


async def test_a_node_that_does_not_coordinate_keeps_its_link_and_is_asked_again(scene: Scene) -> None:
    scene.let(scene.coordinator, scene.bystander.attend)
    async with scene.attending():
        await eventually(lambda: len(scene.lost) > 3)
        link = await scene.member.connections.to(scene.coordinator.peer_id)
        tries = len(scene.lost)
        await eventually(lambda: len(scene.lost) > tries + 3)
        assert await scene.member.connections.to(link.peer_id) is link
        assert "ended the stream" in scene.lost[-1]
        assert scene.attendance.attended is None


async def test_a_silent_coordinator_is_left_and_its_link_given_up(scene: Scene) -> None:
    scene.attendance._silence_seconds = 1.0
    scene.coordinate(scene.coordinator)  # which says one beat and no more
    async with scene.attending():
        await eventually(lambda: scene.attendance.attended is not None)
        link = await scene.member.connections.to(scene.coordinator.peer_id)
        await eventually(lambda: bool(scene.lost))
        assert "said nothing for 1 s" in scene.lost[0]
        await eventually(lambda: len(scene.heard) > 1)  # attended again
        assert await scene.member.connections.to(scene.coordinator.peer_id) is not link


async def test_a_channel_that_is_closed_under_it_does_not_end_the_attendance(scene: Scene) -> None:
    scene.coordinate(scene.coordinator)
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
