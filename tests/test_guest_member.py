"""What reasons to rest make a member do: at the end of the round or at once, and how it comes back."""

import asyncio
import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_parts import OTHER, QUICK, FakeTrainer, Scene, make_node
from exchange_nodes import eventually

from spes_peer.daemon import program
from spes_peer.daemon.program import Daemon, JoinSettings
from spes_peer.daemon.resting import Resting
from spes_peer.guest.rules import BY_OWNER, Facts, GuestRules, Reason
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.rounds.messages import AdmissionRequest, Contribution, Departure, Excuse
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import PeerState
from spes_peer.run.records import DataRange

HOURS = Reason("hours", "outside 22:00–08:00, goes on at 22:00", until_at=9e9)
BATTERY = Reason("battery", "on battery, goes on when it is plugged in", at_once=True)
GPU = Reason("gpu", "another program uses the GPU", at_once=True, frees_device=True)
UPLOAD = Reason("upload", "used up", until_at=9e9, ends_serving=True)


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    timing = manifest.timing.model_copy(update=QUICK)
    return make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing}), organizer)


@pytest.fixture
def scene(node: Node, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(node, monkeypatch)


async def begin_round(scene: Scene) -> None:
    """It is in the middle of its training."""
    await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
    scene.trainer.may_finish.clear()
    scene.tell(scene.next_record(scene.node.identity, OTHER))
    await eventually(lambda: bool(scene.trainer.trained))


async def test_outside_its_hours_a_member_ends_its_round_rests_and_comes_back_by_itself(scene: Scene) -> None:
    async with scene.living():
        await begin_round(scene)
        scene.member.rest_for((HOURS,))
        assert scene.sent_of(Departure) == [Departure("paused")]
        assert scene.node.state == PeerState.PAUSED
        scene.trainer.may_finish.set()
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert scene.sent_of(Contribution)[0].steps == scene.trainer.trained[0].num_steps
        assert not scene.trainer.is_resting
        scene.tell(scene.next_record(OTHER))
        await eventually(lambda: scene.trainer.is_resting)
        assert (scene.phases.name, scene.phases.message.why) == ("paused", HOURS.why)
        assert scene.phases.message.until_at == HOURS.until_at
        scene.tell(scene.next_record(OTHER))  # the run goes on, and nothing of it is applied here
        before = len(scene.sent_of(AdmissionRequest))

        scene.member.rest_for(())
        await eventually(lambda: scene.trainer.is_waking)
        assert scene.phases.message.why == "starting the trainer again"
        scene.trainer.restart()
        await eventually(lambda: len(scene.sent_of(AdmissionRequest)) > before)
        assert scene.trainer.round == 3
        assert scene.node.state == PeerState.JOINING


@pytest.mark.parametrize("reason", [BATTERY, GPU])
async def test_at_once_it_contributes_the_steps_it_made(scene: Scene, reason: Reason) -> None:
    async with scene.living():
        await begin_round(scene)
        scene.trainer.steps_made = 2
        scene.member.rest_for((reason,))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert scene.sent_of(Contribution)[0].steps == 2
        await eventually(lambda: scene.phases.name == "paused")
        assert not scene.sent_of(Excuse)
        assert scene.trainer.is_resting is reason.frees_device  # the other still averages what others offer
        scene.tell(scene.next_record(OTHER))
        await eventually(lambda: scene.trainer.is_resting)


@pytest.mark.parametrize("reason", [BATTERY, GPU])
async def test_at_once_it_trains_no_further_ahead_either(scene: Scene, reason: Reason) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        (entry,) = scene.next_record(scene.node.identity).sealed.record.roster
        ahead = dataclasses.replace(entry, ahead=(DataRange(9, 12),))
        scene.tell(scene.next_record(scene.node.identity, roster=(ahead,)))
        await eventually(lambda: bool(scene.trainer.trained_ahead))
        scene.member.rest_for((reason,))
        await eventually(lambda: scene.trainer.is_resting or scene.trainer.is_stopped)
        assert scene.trainer.is_stopped is not reason.frees_device


@pytest.mark.parametrize("reason", [BATTERY, GPU])
async def test_at_once_without_a_step_it_contributes_nothing_and_nobody_waits_for_it(
    scene: Scene, reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene.living():
        await begin_round(scene)
        scene.member.rest_for((reason,))
        await eventually(lambda: scene.trainer.is_resting)
        assert scene.sent_of(Departure) == [Departure("paused")]
        assert scene.sent_of(Excuse) == [Excuse(1, reason.why)]
        assert not scene.sent_of(Contribution)
        assert scene.phases.name == "paused"
        assert "trying again" not in caplog.text


async def test_a_round_that_is_still_open_when_the_reason_has_passed_is_trained_after_all(scene: Scene) -> None:
    async with scene.living():
        await begin_round(scene)
        scene.member.rest_for((GPU,))
        await eventually(lambda: scene.trainer.is_resting)
        scene.member.rest_for(())
        await eventually(lambda: scene.trainer.is_waking)
        scene.trainer.restart()
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert [task.round for task in scene.trainer.trained] == [1, 1]


async def test_the_device_is_freed_also_in_the_middle_of_what_is_no_training(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def hang(_round: int, _blocks: object) -> str:
        begun.set()
        await eventually(lambda: scene.trainer.is_dead)
        scene.trainer.get()
        raise AssertionError

    monkeypatch.setattr(scene.trainer, "load_state", hang)
    async with scene.living():
        await begun.wait()
        scene.member.rest_for((GPU,))
        await eventually(lambda: scene.phases.name == "paused")
        assert scene.trainer.is_resting
        assert "trying again" not in caplog.text


async def test_reasons_add_up_and_the_last_one_to_go_lets_it_go_on(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.member.rest_for((BY_OWNER, BATTERY))
        await eventually(lambda: scene.trainer.is_resting)
        assert scene.phases.message.why == f"{BY_OWNER.why}; {BATTERY.why}"
        scene.member.rest_for((BATTERY,))
        await eventually(lambda: scene.phases.message.why == BATTERY.why)
        await eventually(lambda: scene.trainer.why_resting == BATTERY.why)
        assert scene.trainer.is_resting
        assert len(scene.sent_of(Departure)) == 1
        scene.member.rest_for(())
        await eventually(lambda: scene.trainer.is_waking)


async def test_what_it_rests_for_takes_back_no_departure(scene: Scene) -> None:
    async with scene.living():
        await begin_round(scene)
        scene.member.rest_for((HOURS,))
        scene.member.leave()
        asked = len(scene.sent_of(AdmissionRequest))
        scene.member.rest_for(())
        scene.member.rest_for((HOURS,))
        assert len(scene.sent_of(AdmissionRequest)) == asked
        assert scene.sent_of(Departure) == [Departure("paused"), Departure("leaving")]


async def test_with_its_upload_used_up_it_serves_the_round_under_way_and_then_no_more(scene: Scene) -> None:
    async with scene.living():
        await begin_round(scene)
        scene.member.rest_for((UPLOAD,))
        scene.trainer.may_finish.set()
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        assert not scene.node._upload.is_used_up
        scene.tell(scene.next_record(OTHER))
        await eventually(lambda: scene.node._upload.is_used_up)
        scene.member.rest_for(())
        assert not scene.node._upload.is_used_up


async def test_before_the_first_record_is_here_it_rests_and_goes_on_too(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def for_ever(*_: Any) -> None:
        await asyncio.Event().wait()

    async def at_once(*_: Any) -> None:
        pass

    monkeypatch.setattr("spes_peer.daemon.resting._LOOK_SECONDS", 0.001)
    monkeypatch.setattr(program, "refuse_if_online", at_once)
    daemon = Daemon(JoinSettings((), tmp_path))
    monkeypatch.setattr(daemon, "_first_record", for_ever)
    monkeypatch.setattr(node, "upkeep", for_ever)
    monkeypatch.setattr(node, "directory", SimpleNamespace())
    trainer: Any = FakeTrainer(node)
    trainer.supervise = for_ever
    resting = daemon._resting = Resting(tmp_path, GuestRules())
    resting.on_change = daemon._rest_or_go_on
    is_on_battery, seconds = [False], itertools.count(0.0, 5.0)

    async def sense() -> Facts:
        return Facts(1e9, next(seconds), is_on_battery=is_on_battery[0])

    resting.sense = sense
    known: Any = SimpleNamespace()
    resting.pause()  # while trainer and nodes were starting
    living = asyncio.create_task(daemon._take_part(node, trainer, known, for_ever()))
    try:
        await eventually(lambda: trainer.is_resting)
        assert trainer.why_resting == BY_OWNER.why
        resting.resume()
        await eventually(lambda: trainer.is_waking and not trainer.is_resting)
        is_on_battery[0] = True
        await eventually(lambda: trainer.is_resting)
        assert trainer.why_resting == BATTERY.why
        is_on_battery[0] = False
        await eventually(lambda: not trainer.is_resting)
    finally:
        daemon._ending.set()
        await living


async def test_a_machine_that_gets_hot_is_left_alone_until_it_is_cool_again(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.daemon.resting._LOOK_SECONDS", 0.001)
    degrees, seconds = [60.0], itertools.count(0.0, 5.0)
    resting = Resting(tmp_path, GuestRules(max_temperature=80.0))

    async def sense() -> Facts:
        return Facts(1e9, next(seconds), temperature=degrees[0])

    resting.sense = sense
    resting.on_change = lambda: scene.member.rest_for(resting.reasons)
    async with scene.living():
        looking = asyncio.create_task(resting.run())
        try:
            await begin_round(scene)
            scene.trainer.steps_made = 1
            degrees[0] = 91.0
            await eventually(lambda: bool(scene.sent_of(Contribution)))
            assert scene.sent_of(Contribution)[0].steps == 1
            await eventually(lambda: scene.phases.name == "paused")
            assert scene.phases.message.why == "91 °C, too hot for its limit of 80 °C, goes on at 70 °C"
            scene.tell(scene.next_record(OTHER))
            await eventually(lambda: scene.trainer.is_resting)
            before, degrees[0] = len(scene.sent_of(AdmissionRequest)), 65.0
            await eventually(lambda: scene.trainer.is_waking)
            scene.trainer.restart()
            await eventually(lambda: len(scene.sent_of(AdmissionRequest)) > before)
        finally:
            looking.cancel()
