"""The events between two statuses make the one of the other, whatever changed, and survive being written down."""

import math
import random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tui_statuses import status, status_before_the_first_round

from spes_peer.events.changes import applied, events_between
from spes_peer.events.lines import event_of, head_of, line_of
from spes_peer.wire.control_pb2 import LogLine, PeerStatus, Phase, RoundStatus, Status, Traffic
from spes_peer.wire.event_pb2 import (
    Ended,
    Event,
    HeldOutKnown,
    Logged,
    PeerOrder,
    PeerSample,
    PeersChanged,
    PeersSample,
    RoundRevised,
    RoundsForgotten,
    RoundsRewound,
    SubsetsChanged,
)

FIELDS: list[Any] = list(Status.DESCRIPTOR.fields)
_FLOATS = (0.0, -1.0, 2.5, 1e300, math.nan, math.inf, -math.inf)


def same(one: Message, other: Message) -> bool:
    return one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


def folded(before: Status, events: list[Event]) -> Status:
    for event in events:
        before = applied(before, event)
    return before


class Statuses:
    """Random ones, with something in every field that a status has, also in those of later versions."""

    def __init__(self, seed: int, is_full: bool = False) -> None:
        self.random = random.Random(seed)
        self.is_full = is_full
        """Whether nothing is left out."""

    def one(self) -> Status:
        made: Status = self._message(Status())
        self._give_keys(made)
        return made

    def near(self, before: Status) -> Status:
        """Another in which a few fields differ."""
        other, after = self.one(), Status()
        after.CopyFrom(before)
        for field in self.random.sample(FIELDS, 3):
            after.ClearField(field.name)
            part = Status()
            part.CopyFrom(other)
            for different in FIELDS:
                if different.name != field.name:
                    part.ClearField(different.name)
            after.MergeFrom(part)
        return after

    def _give_keys(self, made: Status) -> None:
        """What rows are known by is there once, as in a daemon's."""
        for number, subset in enumerate(made.subsets):
            subset.subset = number
        for peer, name in zip(made.peers, self.random.sample("abcdefgh", len(made.peers)), strict=True):
            peer.peer_id = name
        for rows, key in ((made.rounds, "round"), (made.log, "sequence"), (made.exchange.ended, "id")):
            for row, number in zip(rows, sorted(self.random.sample(range(12), len(rows))), strict=True):
                setattr(row, key, number)
        if not made.exchange.ByteSize():
            made.ClearField("exchange")

    def _message(self, message: Any) -> Any:
        for field in message.DESCRIPTOR.fields:
            if hasattr(getattr(message, field.name), "append") or hasattr(getattr(message, field.name), "add"):
                for _ in range(self.random.randrange(1 if self.is_full else 0, 5)):
                    self._add(message, field)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                if self.is_full or self.random.random() < 0.8:
                    getattr(message, field.name).SetInParent()
                    self._message(getattr(message, field.name))
            else:
                setattr(message, field.name, self._scalar(field))
        return message

    def _add(self, message: Any, field: FieldDescriptor) -> None:
        rows = getattr(message, field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self._message(rows.add())
        else:
            rows.append(self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        value = self._any_scalar(field)
        while self.is_full and not value:
            value = self._any_scalar(field)
        return value

    def _any_scalar(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.random.choice(("", "x", "ψ …\n", "y" * 40))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.random.random() < 0.5
        if field.type == FieldDescriptor.TYPE_DOUBLE:
            return self.random.choice(_FLOATS)
        return self.random.choice((0, 1, 2**32 - 1 if field.type == FieldDescriptor.TYPE_UINT32 else 2**64 - 1))


@pytest.mark.parametrize("seed", range(100))
def test_the_events_between_two_statuses_make_the_one_of_the_other(seed: int) -> None:
    statuses = Statuses(seed)
    before = statuses.one()
    for after in (statuses.one(), statuses.near(before), Status(), statuses.one()):
        events = events_between(before, after)
        written = [event_of(line_of(event)) for event in events]
        assert all(event is not None and same(event, was) for event, was in zip(written, events, strict=True))
        made = folded(before, events)
        differing = [name.name for name, _ in made.ListFields() if name not in dict(after.ListFields())]
        assert same(made, after), f"fields of Status that no event has, or that one has wrongly: {differing}"
        assert not events_between(made, after)
        assert "picture" not in {event.WhichOneof("kind") for event in events}
        before = after


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: str(field.name))
def test_every_field_of_a_status_has_an_event(field: FieldDescriptor) -> None:
    full = Statuses(7, is_full=True).one()
    assert len(full.ListFields()) == len(FIELDS)
    without = Status()
    without.CopyFrom(full)
    without.ClearField(field.name)
    for before, after in ((full, without), (without, full)):
        events = events_between(before, after)
        assert events, f"add Status.{field.name} to an event of proto/event.proto and to spes_peer/events/changes.py"
        assert same(folded(before, events), after)


def kinds(before: Status, after: Status) -> list[str | None]:
    return [event.WhichOneof("kind") for event in events_between(before, after)]


def test_nothing_happened_between_two_equal_statuses() -> None:
    assert kinds(status(), status()) == []


def test_a_daemon_that_starts_again_knows_nothing_of_its_last_life() -> None:
    after = Status(pid=2, started_at=5.0, phase=Phase(name="starting"))
    events = events_between(status(), after)
    assert [event.WhichOneof("kind") for event in events] == ["started", "phase_changed"]
    assert same(folded(status(), events), after)


def test_only_what_changed_is_written_again() -> None:
    before, after = status(), status()
    after.peers[2].state = "PAUSED"
    after.peers[1].seen_at += 3
    after.subsets[3].claimants.append("somebody")
    changed = {event.WhichOneof("kind"): event for event in events_between(before, after)}
    assert [row.name for row in changed["peers_changed"].peers_changed.peers] == ["cedar"]
    assert not changed["peers_changed"].peers_changed.HasField("order")
    assert [sample.row for sample in changed["peers_sample"].peers_sample.peers] == [1]
    assert [row.subset for row in changed["subsets_changed"].subsets_changed.subsets] == [3]
    assert len(changed) == 3


def test_a_round_that_closes_a_loss_that_comes_later_and_a_chain_that_goes_back_are_told_apart() -> None:
    before, after = status(), status()
    after.rounds.append(RoundStatus(round=after.rounds[-1].round + 1, held_out_loss=-1.0))
    assert kinds(before, after) == ["round_closed"]
    later = applied(after, Event())
    later.rounds[-1].held_out_loss = 2.0
    assert kinds(after, later) == ["held_out_known"]
    assert kinds(later, before) == ["rounds_rewound"]
    shorter = applied(before, Event())
    del shorter.rounds[:4]
    assert kinds(before, shorter) == ["rounds_forgotten"]


def test_an_end_is_the_last_phase() -> None:
    event = Event(at=9.0, ended=Ended(why="no node answers", exit_code=3))
    assert applied(status(), event).phase == Phase(name="failed", since_at=9.0, why="no node answers")
    assert applied(status(), Event(ended=Ended(why="left"))).phase.name == "finished"


SHOWN = [Status(), status(), status_before_the_first_round()]


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize(
    "event",
    [
        Event(),
        Event(peers_sample=PeersSample(peers=[PeerSample(row=900, seen_at=1.0)])),
        Event(peers_changed=PeersChanged(peers=[PeerStatus(peer_id="nobody")])),
        Event(subsets_changed=SubsetsChanged(subsets=[{"subset": 4000}], num_subsets=4001)),
        Event(rounds_rewound=RoundsRewound(first_gone=2**32 - 1)),
        Event(round_revised=RoundRevised(round=RoundStatus(round=2**32 - 1))),
        Event(held_out_known=HeldOutKnown(round=2**32 - 1, loss=1.0)),
    ],
)
def test_an_event_of_what_is_not_there_changes_nothing(shown: Status, event: Event) -> None:
    assert same(applied(shown, event), shown)


@pytest.mark.parametrize("shown", SHOWN)
def test_of_what_an_event_takes_away_only_what_is_there_goes(shown: Status) -> None:
    ids = [peer.peer_id for peer in shown.peers]
    for order, left in ((["nobody", *ids[::-1]], ids[::-1]), (["nobody"], [])):
        after = applied(shown, Event(peers_changed=PeersChanged(order=PeerOrder(peer_ids=order))))
        assert [peer.peer_id for peer in after.peers] == left
        del after.peers[:]
        after.peers.extend(shown.peers)
        assert same(after, shown)
    after = applied(shown, Event(rounds_forgotten=RoundsForgotten(number=2**32 - 1)))
    assert not after.rounds
    after.rounds.extend(shown.rounds)
    assert same(after, shown)
    lines = [LogLine(text="new")]
    after = applied(shown, Event(logged=Logged(num_forgotten=2**32 - 1, lines=lines)))
    assert list(after.log) == lines


def test_what_a_newer_program_wrote_is_read_as_far_as_it_is_known() -> None:
    line = b'{"sequence":7,"at":5.5,"phase_changed":{"phase":{"name":"training","mood":"good"}},"weather":{}}\n'
    event = event_of(line)
    assert event is not None
    assert event.phase_changed.phase.name == "training"
    assert event_of(b'{"sequence":7,"at":5.5,"weather":{"rain":1}}\n') == Event(sequence=7, at=5.5)


@pytest.mark.parametrize("line", [b"", b"\n", b'{"sequence":7,"at":5.5,"pha', b"[1]", b"7", b"\xff\x00", b"[" * 99999])
def test_a_damaged_line_is_none(line: bytes) -> None:
    assert event_of(line) is None
    assert head_of(line) is None


@pytest.mark.parametrize(
    "head",
    [
        b'{"sequence":7,"at":1..2,',
        b'{"sequence":7,"at":1e999,',
        b'{"sequence":7,"at":1e12,',
        b'{"sequence":%s,"at":5.5,' % (b"9" * 5000),
        b'{"sequence": 7, "at": Infinity, ',
        b'{"sequence": 7, "at": NaN, ',
        b'{"sequence": 7, "at": -1, ',
        b'{"sequence": 1e999, "at": 1, ',
    ],
)
def test_a_line_whose_number_or_moment_is_damaged_has_no_head(head: bytes) -> None:
    assert head_of(head + b'"logged":{}}\n') is None


def test_a_line_says_its_moment_and_its_kind_first() -> None:
    event = Event(sequence=3, at=1760000000.25, logged={"lines": [LogLine(text="x")]})
    assert head_of(line_of(event)) == (3, 1760000000.25, "logged")
    assert head_of(b' {"at": 2.0, "logged": {}, "sequence": "9"}') == (9, 2.0, "logged")


def test_traffic_of_one_peer_is_a_sample_and_its_name_is_not() -> None:
    before = Status(peers=[PeerStatus(peer_id="a", name="alder")])
    after = Status(peers=[PeerStatus(peer_id="a", name="alder", traffic=[Traffic(transport="grpc", bytes_sent=1)])])
    assert kinds(before, after) == ["peers_sample"]
    after.peers[0].name = "birch"
    assert kinds(before, after) == ["peers_changed"]
