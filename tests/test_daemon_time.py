"""A member whose wall clock does not show the time of the run: its trainer and its owner hear of moments by that clock,
and it decides by the other."""

import time
from pathlib import Path

import pytest
from daemon_parts import QUICK, Scene, make_node
from exchange_nodes import eventually
from rounds_swarm import BOOTSTRAP

from spes_peer.identity import Identity
from spes_peer.rounds.messages import AdmissionRequest, CoordinatorBeat
from spes_peer.run.manifest import Manifest

HOUR = 3600.0
ROUND_SECONDS = 100.0


@pytest.fixture(params=[-HOUR, HOUR], ids=["behind", "ahead"])
def scene(
    tmp_path: Path,
    manifest: Manifest,
    organizer: Identity,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Scene:
    """Of a peer whose wall clock is an hour off, with nothing to do but to train."""
    timing = manifest.timing.model_copy(update={**QUICK, "round_seconds": ROUND_SECONDS})
    node = make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing}), organizer)
    node.take_time(node.now() - request.param)
    scene = Scene(node, monkeypatch)
    scene.trainer.may_finish.clear()
    return scene


async def test_the_trainer_and_the_owner_are_told_the_end_of_a_round_by_the_wall_clock(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.trainer.trained))
        assert scene.trainer.trained[0].stop_at == pytest.approx(time.time() + ROUND_SECONDS, abs=60)
        assert scene.phases.message.until_at == scene.trainer.trained[0].stop_at
        now = scene.node.now()
        said = CoordinatorBeat(0, scene.member.head.round, "training", now - 5, (), now + 50, "", now)
        scene.member.follower.attendance.on_message(BOOTSTRAP, said)
        assert scene.member.round_phase is not None
        assert scene.member.round_phase.since_at == pytest.approx(time.time() - 5, abs=20)
        assert scene.member.round_phase.until_at == pytest.approx(time.time() + 50, abs=20)


async def test_what_is_left_of_a_round_stays_when_the_time_is_set(scene: Scene) -> None:
    async with scene.living():
        await eventually(lambda: bool(scene.sent_of(AdmissionRequest)))
        scene.tell(scene.next_record(scene.node.identity))
        await eventually(lambda: bool(scene.trainer.trained))
        scene.node.take_time(time.time())
        assert scene.node.now() == pytest.approx(time.time(), abs=20)
        assert scene.member.leave() == pytest.approx(2 * ROUND_SECONDS, abs=60)
