"""The accounts of a daemon: parts of rounds, what it gave, closed rounds, and how far it is with what takes long."""

import contextlib
import dataclasses
import logging
from pathlib import Path

import pytest
from daemon_parts import OTHER, QUICK, Scene, closing, following, make_node, status_of
from exchange_nodes import eventually

from spes_peer.daemon import phases as phases_module
from spes_peer.daemon.given import GivenKeeper
from spes_peer.daemon.history import MAX_ROUNDS_SHOWN, Closed, RoundHistory, merge_words
from spes_peer.daemon.parts import PARTS, RoundParts, part_of
from spes_peer.daemon.phases import PhaseKeeper
from spes_peer.exchange.traffic import Traffic
from spes_peer.exchange.transfers import Gathering, Transfers
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.rounds.messages import Contribution
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import Record
from spes_peer.run.tallies import Tallies, Tally
from spes_peer.training.work import HeldOut
from spes_peer.wire.control_pb2 import RoundPart


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    timing = manifest.timing.model_copy(update=QUICK)
    return make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing}), organizer)


@pytest.fixture
def scene(node: Node, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(node, monkeypatch)


def seconds_of(parts: list[RoundPart]) -> dict[str, float]:
    return {part.name: part.seconds for part in parts}


# ---- parts of a round ----


@pytest.mark.parametrize(
    ("phase", "round_phase", "part"),
    [
        ("applying", "training", "apply"),
        ("syncing", "", "apply"),
        ("training", "training", "train"),
        ("contributing", "training", "exchange"),
        ("closing", "training", "wait"),  # done, and others still train
        ("closing", "reducing", "exchange"),
        ("closing", "closing", "exchange"),
        ("closing", "electing", "wait"),
        ("closing", "", "wait"),
        ("waiting", "training", "wait"),
        ("paused", "training", "wait"),
        ("joining", "", "wait"),
    ],
)
def test_each_phase_is_part_of_a_round(phase: str, round_phase: str, part: str) -> None:
    assert part_of(phase, round_phase) == part
    assert part in PARTS


def test_the_parts_of_a_round_are_together_the_time_that_it_took(clock: Clock) -> None:
    parts = RoundParts(clock)
    parts.begin(7)
    for part, seconds in (("apply", 3.0), ("train", 20.0), ("exchange", 4.0), ("wait", 5.0), ("exchange", 1.0)):
        parts.enter(part)
        clock.now += seconds
        if part == "train":
            parts.encoded(2.0)
    assert seconds_of(parts.so_far) == {"apply": 3.0, "train": 18.0, "encode": 2.0, "exchange": 5.0, "wait": 5.0}
    assert list(seconds_of(parts.so_far)) == list(PARTS)
    parts.begin(8)
    clock.now += 1.5
    assert seconds_of(parts.so_far) == {"apply": 0.0, "train": 0.0, "encode": 0.0, "exchange": 1.5, "wait": 0.0}
    parts.begin(8)  # nothing new
    assert sum(seconds_of(parts.so_far).values()) == 1.5
    assert sum(seconds_of(parts.take(7)).values()) == 33.0
    assert parts.take(7) == []
    assert parts.take(6) == []


def test_no_more_was_encoded_than_trained(clock: Clock) -> None:
    parts = RoundParts(clock)
    parts.begin(1)
    parts.enter("train")
    clock.now += 2.0
    parts.encoded(5.0)
    assert seconds_of(parts.so_far)["encode"] == 2.0
    assert seconds_of(parts.so_far)["train"] == 0.0


def test_accounts_of_rounds_that_nobody_asks_for_are_forgotten(clock: Clock) -> None:
    parts = RoundParts(clock)
    for number in range(1_000):
        parts.begin(number)
    assert len(parts._closed) == 64
    assert parts.take(998)


# ---- what was given ----


def test_hours_and_bytes_given_are_those_of_all_starts(tmp_path: Path, clock: Clock) -> None:
    path, traffic = tmp_path / "given.json", Traffic()
    given = GivenKeeper(path, lambda: traffic.sent_bytes, clock)
    with given.training():
        clock.now += 30.0
    traffic.sent(OTHER.peer_id, "grpc", 500)
    message = given.message(Tally(6_000, 2))
    assert (message.tokens, message.rounds, message.seconds, message.bytes_sent) == (6_000, 2, 30.0, 500)
    given.keep()
    again = GivenKeeper(path, lambda: 0, clock)
    with contextlib.suppress(ZeroDivisionError), again.training():  # a trainer that died trained, too
        clock.now += 5.0
        raise ZeroDivisionError
    assert (again.message(Tally()).seconds, again.message(Tally()).bytes_sent) == (35.0, 500)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 99_999,
        b'{"training_seconds": "x"}',
        b'{"bytes_sent": 1}',
        b'{"training_seconds": 1, "bytes_sent": 1e999}',
        b'{"training_seconds": 1, "bytes_sent": 1e23}',
        b'{"training_seconds": 1, "bytes_sent": -1}',
        b'{"training_seconds": NaN, "bytes_sent": 1}',
        b'{"training_seconds": 1e999, "bytes_sent": 1}',
    ],
)
def test_a_damaged_file_of_what_was_given_costs_its_figures_and_nothing_else(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        given = GivenKeeper(path, lambda: 7)
    assert (given.message(Tally()).seconds, given.message(Tally()).bytes_sent) == (0.0, 7)
    assert "counted from 0" in caplog.text
    given.keep()
    assert GivenKeeper(path, lambda: 0).message(Tally()).bytes_sent == 7


def test_what_everybody_gave_follows_from_the_records(node: Node) -> None:
    node.chain.append(following(node, node.identity, OTHER))
    node.chain.append(closing(node, self=3_000, other=1_000))
    node.chain.append(closing(node, self=500))
    assert node.chain.tallies.of(node.peer_id) == Tally(3_500, 2)
    assert node.chain.tallies.of(OTHER.peer_id) == Tally(1_000, 1)
    assert Tallies().of(OTHER.peer_id) == Tally()
    assert node.chain.__class__(node.folder.path, node.chain.checks).tallies == node.chain.tallies  # read anew


async def test_a_member_tells_what_it_gave_and_keeps_it(scene: Scene) -> None:
    node = scene.node
    async with scene.living():
        node.chain.append(following(node, node.identity, OTHER))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        node.traffic.sent(OTHER.peer_id, "grpc", 123)
        scene.tell(closing(node, self=3_000, other=1_000))
        await eventually(lambda: bool(scene.member.accounts.history.rounds))
    given = status_of(scene).given
    assert (given.tokens, given.rounds, given.bytes_sent) == (3_000, 1, 123)
    assert given.seconds > 0
    kept = GivenKeeper(node.folder.path / "given.json", lambda: 0).message(Tally())
    assert (kept.seconds, kept.bytes_sent) == (pytest.approx(given.seconds, abs=30), 123)


# ---- closed rounds ----


async def test_a_closed_round_says_what_came_of_everybody_that_had_a_place(scene: Scene) -> None:
    node = scene.node
    async with scene.living():
        node.chain.append(following(node, node.identity, OTHER))
        await eventually(lambda: bool(scene.sent_of(Contribution)))
        record = closing(node, 40.0, self=3_000)
        scene.tell(record)
        await eventually(lambda: bool(scene.member.accounts.history.rounds))
    (entry,) = status_of(scene).rounds
    opening = node.chain.record(1).sealed.record
    assert {one.peer_id: (one.tokens, one.num_updates, one.is_missing) for one in entry.contributions} == {
        node.peer_id: (3_000, 2, False),
        OTHER.peer_id: (0, 0, True),
    }
    assert {one.peer_id: tuple(one.subsets) for one in entry.contributions} == {
        place.peer_id: place.subsets for place in opening.roster
    }
    assert (entry.num_updates, entry.update_bytes, entry.num_contributors) == (2, 2_000, 1)
    assert entry.coordinator == opening.candidates[record.term]
    assert entry.opened_at == pytest.approx(node.clock.wall_at(opening.opened_at), abs=30)
    assert entry.seconds == 40.0
    assert entry.merge == ""
    assert sum(part.seconds for part in entry.parts) > 0


def test_a_merge_is_said_in_words() -> None:
    assert merge_words(0.05) == "every expert moved 5.0% towards those most like it"
    assert merge_words(0.0) == ""


def closed(opening: Record) -> Closed:
    parts = [RoundPart(name=part, seconds=1.0) for part in PARTS]
    return Closed(opening, 1000.0, OTHER.peer_id, "root", HeldOut(0.0, 0), parts)


def test_of_older_rounds_less_is_kept(node: Node) -> None:
    """The last is the newest. Each has two who contributed."""
    node.chain.append(following(node, node.identity, OTHER))
    opening, template = node.chain.record(1).sealed.record, closing(node, self=3_000, other=1_000).sealed.record
    history = RoundHistory(Traffic())
    for number in range(2, MAX_ROUNDS_SHOWN + 52):
        history.close(dataclasses.replace(template, round=number), closed(opening))
    rounds = list(reversed(history.rounds))
    assert len(rounds) == MAX_ROUNDS_SHOWN
    assert [len(one.contributions) for one in rounds[:33]] == [2] * 32 + [0]
    assert not any(one.contributions for one in rounds[32:])
    assert [len(one.parts) for one in rounds[:65]] == [5] * 64 + [0]
    assert [bool(one.coordinator) for one in rounds[:65]] == [True] * 64 + [False]
    assert not any(one.parts or one.coordinator for one in rounds[64:])
    assert all(one.tokens == 4_000 and one.num_updates == 3 and one.state_root == "root" for one in rounds)


def test_in_a_large_swarm_who_contributed_is_kept_for_fewer_rounds(node: Node) -> None:
    node.chain.append(following(node, node.identity, OTHER))
    opening, template = node.chain.record(1).sealed.record, closing(node, self=3_000).sealed.record
    large = dataclasses.replace(opening, roster=opening.roster * 60)
    history = RoundHistory(Traffic())
    for number in range(2, 22):
        history.close(dataclasses.replace(template, round=number), closed(large))
    assert [len(one.contributions) for one in reversed(history.rounds)][:5] == [120, 120, 120, 0, 0]
    history.close(
        dataclasses.replace(template, round=22), closed(dataclasses.replace(opening, roster=opening.roster * 500))
    )
    assert [len(one.contributions) for one in reversed(history.rounds)][:2] == [1_000, 0]


# ---- what takes long ----


def test_what_takes_longer_than_a_moment_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(phases_module.time, "time", clock)
    phases, done = PhaseKeeper(lambda: None), 3.0
    with phases.measuring("replaying records", "records", lambda: done, lambda: 20.0):
        assert phases.progress is None
        clock.now += 1.5
        progress = phases.progress
        assert progress is not None
        assert (progress.what, progress.unit, progress.done, progress.whole, progress.since_at) == (
            "replaying records",
            "records",
            3.0,
            20.0,
            100.0,
        )
        with phases.measuring("fetching data", "bytes", lambda: 0.0, lambda: 0.0):
            clock.now += 1.5
            done = 4.0
            assert phases.progress is not None
            assert (phases.progress.what, phases.progress.done) == ("replaying records", 4.0)
    assert phases.progress is None


def test_of_blobs_that_are_gathered_those_that_are_here_count_and_the_parts_that_have_come() -> None:
    board = Transfers()
    gathering = Gathering(board)
    for name, size in (("a", 100), ("b", 200), ("c", 300), ("c", 300)):
        gathering.expect(name, size)
    assert (gathering.done_bytes, gathering.whole_bytes) == (0, 600)
    gathering.have("a")
    with board.fetching("b", 200) as move, board.fetching("another", 999) as another:
        move.add(50, OTHER.peer_id, "grpc")
        another.add(999, OTHER.peer_id, "grpc")
        assert gathering.done_bytes == 150
        gathering.have("b")
        assert gathering.done_bytes == 300
    gathering.have("c")
    gathering.have("c")
    assert (gathering.done_bytes, gathering.whole_bytes) == (600, 600)


async def test_a_member_that_comes_late_measures_its_load_and_its_replay(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, measured = scene.node, list[tuple[str, str, float]]()
    for _ in range(3):
        node.chain.append(following(node, OTHER))
    measuring = scene.phases.measuring

    def measuring_too(what, unit, done, whole):  # type: ignore[no-untyped-def]
        measured.append((what, unit, whole()))
        return measuring(what, unit, done, whole)

    monkeypatch.setattr(scene.replica, "measuring", measuring_too)
    monkeypatch.setattr(scene.phases, "measuring", measuring_too)
    async with scene.living():
        await eventually(lambda: scene.replica.applied == 3)
        await eventually(lambda: len(measured) >= 3)
    assert [(what, unit) for what, unit, _whole in measured[:3]] == [
        ("fetching the snapshot", "bytes"),
        ("replaying records", "records"),
        ("fetching data", "bytes"),
    ]
    assert measured[1][2] == 3
