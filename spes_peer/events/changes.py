"""What events lead from one status to another, and what an event makes of a status: the two undo each other.

Rows have a key that only one of them has: subsets their index, peers their id, closed rounds their number, which
rises. A field of Status belongs to one kind of event; whoever adds a field gives it to one, and a test asks for it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from spes_peer.wire.control_pb2 import PeerStatus, Phase, Status
from spes_peer.wire.event_pb2 import (
    Ended,
    Event,
    ExchangeSample,
    HeldOutKnown,
    Logged,
    PeerOrder,
    PeerSample,
    PeersChanged,
    PeersSample,
    RoundClosed,
    RoundRevised,
    RoundsForgotten,
    RoundsRewound,
    SubsetsChanged,
)

_REPLACING = (
    "run_known",
    "phase_changed",
    "round_phase_changed",
    "round_opened",
    "held_out_at_start",
    "state_changed",
    "pause_changed",
    "troubles_changed",
    "services_changed",
    "reachability_changed",
    "training_sample",
    "parts_sample",
    "progress_sample",
    "traffic_sample",
    "device_sample",
    "disk_sample",
    "given_changed",
)
"""Kinds whose fields take the place of those of the same names in the status."""

_MOVING = tuple(field.name for field in PeerSample.DESCRIPTOR.fields if field.name != "row")
"""Fields of a peer that move all the time."""

Row = TypeVar("Row", bound=Message)


def events_between(before: Status, after: Status) -> list[Event]:
    """What must have happened between them: applied to `before` one after the other, the events make `after`. They have
    neither a sequence nor a time."""
    events: list[Event] = []
    if (started := _replaced("started", before, after)) is not None:
        events.append(started)
        before = applied(Status(), started)
    events += [event for kind in _REPLACING if (event := _replaced(kind, before, after)) is not None]
    for changes in (_of_rounds, _of_subsets, _of_peers, _of_exchange, _of_log):
        events += changes(before, after)
    return events


def applied(status: Status, event: Event) -> Status:
    """The status after the event."""
    after = Status()
    after.CopyFrom(status)
    apply(after, event)
    return after


def apply(status: Status, event: Event) -> None:
    """Change `status` into the one after the event. Never fails: what an event of a newer program, or after a damaged
    line, says of rows that are not there is passed over, and what it says of the others holds: of more rounds to forget
    than there are, all that are there go, and of an order of peers those stay that it names."""
    kind = event.WhichOneof("kind")
    if kind in _REPLACING:
        _replace(status, getattr(event, kind))
    elif kind is not None:
        _APPLYING[kind](status, event)


# ---- fields in place of fields ----


def _present(source: Message, kind: Message) -> dict[str, Any]:
    """What `source` has in the fields that `kind` is made of."""
    return {
        field.name: getattr(source, field.name)
        for field in kind.DESCRIPTOR.fields
        if not field.has_presence or source.HasField(field.name)
    }


def _replaced(kind: str, before: Status, after: Status) -> Event | None:
    event, old = _taken(kind, after), _taken(kind, before)
    return None if _same(event, old) else event


def _taken(kind: str, status: Status) -> Event:
    """The event that makes these fields what they are in `status`."""
    event = Event()
    message = getattr(event, kind)
    message.MergeFrom(type(message)(**_present(status, message)))
    message.SetInParent()  # also where all of them are empty
    return event


def _replace(status: Status, kind: Message) -> None:
    for field in kind.DESCRIPTOR.fields:
        status.ClearField(field.name)
    status.MergeFrom(Status(**_present(kind, kind)))


def _same(one: Message, other: Message) -> bool:
    """Also where a figure is not a number."""
    return one == other or one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


def _start(status: Status, event: Event) -> None:
    status.Clear()
    _replace(status, event.started)


def _show(status: Status, event: Event) -> None:
    status.CopyFrom(event.picture)


def _end(status: Status, event: Event) -> None:
    ended: Ended = event.ended
    name = "failed" if ended.exit_code else "finished"
    status.phase.CopyFrom(Phase(name=name, since_at=event.at, why=ended.why))


# ---- rounds ----


def _of_rounds(before: Status, after: Status) -> Iterator[Event]:
    old, new = before.rounds, after.rounds
    first = new[0].round if new else None
    num_forgotten = 0 if first is None else sum(row.round < first for row in old)
    kept = old[num_forgotten:]
    num_common = next(
        (n for n, (was, row) in enumerate(zip(kept, new, strict=False)) if was.round != row.round),
        min(len(kept), len(new)),
    )
    if num_common < len(kept):
        yield Event(rounds_rewound=RoundsRewound(first_gone=kept[num_common].round))
    if num_forgotten:
        yield Event(rounds_forgotten=RoundsForgotten(number=num_forgotten))
    for was, row in zip(kept[:num_common], new[:num_common], strict=True):
        if not _same(was, row):
            yield _revision(was, row)
    for row in new[num_common:]:
        yield Event(round_closed=RoundClosed(round=row))


def _revision(was: Any, row: Any) -> Event:
    guess = type(row)()
    guess.CopyFrom(was)
    guess.held_out_loss = row.held_out_loss
    if _same(guess, row):
        return Event(held_out_known=HeldOutKnown(round=row.round, loss=row.held_out_loss))
    return Event(round_revised=RoundRevised(round=row))


def _close_round(status: Status, event: Event) -> None:
    status.rounds.append(event.round_closed.round)


def _rewind(status: Status, event: Event) -> None:
    while status.rounds and status.rounds[-1].round >= event.rounds_rewound.first_gone:
        status.rounds.pop()


def _forget_rounds(status: Status, event: Event) -> None:
    del status.rounds[: event.rounds_forgotten.number]


def _revise_round(status: Status, event: Event) -> None:
    revised = event.round_revised.round
    for row in status.rounds:
        if row.round == revised.round:
            row.CopyFrom(revised)


def _know_held_out(status: Status, event: Event) -> None:
    for row in status.rounds:
        if row.round == event.held_out_known.round:
            row.held_out_loss = event.held_out_known.loss


# ---- subsets ----


def _of_subsets(before: Status, after: Status) -> Iterator[Event]:
    old, new = before.subsets, after.subsets
    changed = [row for number, row in enumerate(new) if number >= len(old) or not _same(old[number], row)]
    if changed or len(old) != len(new):
        yield Event(subsets_changed=SubsetsChanged(subsets=changed, num_subsets=len(new)))


def _change_subsets(status: Status, event: Event) -> None:
    change = event.subsets_changed
    del status.subsets[change.num_subsets :]
    for row in change.subsets:
        if row.subset < len(status.subsets):
            status.subsets[row.subset].CopyFrom(row)
        elif row.subset == len(status.subsets):
            status.subsets.append(row)


# ---- peers ----


def _of_peers(before: Status, after: Status) -> Iterator[Event]:
    old = {row.peer_id: row for row in before.peers}
    changed: list[PeerStatus] = []
    samples: list[PeerSample] = []
    for number, row in enumerate(after.peers):
        was = old.get(row.peer_id)
        if was is not None and _same(was, row):
            continue
        if was is None or not _same(_moved(was, row), row):
            changed.append(row)
        else:
            samples.append(PeerSample(row=number, **{name: getattr(row, name) for name in _MOVING}))
    ids = [row.peer_id for row in after.peers]
    order = None if list(old) == ids else PeerOrder(peer_ids=ids)
    if changed or order is not None:
        yield Event(peers_changed=PeersChanged(peers=changed, order=order))
    if samples:
        yield Event(peers_sample=PeersSample(peers=samples))


def _moved(row: PeerStatus, figures: Any) -> PeerStatus:
    """The row with other figures in what moves all the time."""
    moved = PeerStatus()
    moved.CopyFrom(row)
    for name in _MOVING:
        moved.ClearField(name)
    moved.MergeFrom(PeerStatus(**{name: getattr(figures, name) for name in _MOVING}))
    return moved


def _change_peers(status: Status, event: Event) -> None:
    change = event.peers_changed
    rows = {row.peer_id: row for row in (*status.peers, *change.peers)}
    order = change.order.peer_ids if change.HasField("order") else [row.peer_id for row in status.peers]
    after = Status(peers=[rows[peer_id] for peer_id in order if peer_id in rows])
    del status.peers[:]
    status.MergeFrom(after)


def _sample_peers(status: Status, event: Event) -> None:
    for sample in event.peers_sample.peers:
        if sample.row < len(status.peers):
            status.peers[sample.row].CopyFrom(_moved(status.peers[sample.row], sample))


# ---- what new rows come to ----


def _appended(old: Sequence[Row], new: Sequence[Row]) -> tuple[int, Sequence[Row]]:
    """How many of the oldest went, and what came behind the newest."""
    for num_gone in range(len(old)):
        num_kept = len(old) - num_gone
        if num_kept <= len(new) and all(map(_same, old[num_gone:], new)):
            return num_gone, new[num_kept:]
    return len(old), new


def _of_log(before: Status, after: Status) -> Iterator[Event]:
    num_forgotten, lines = _appended(before.log, after.log)
    if num_forgotten or lines:
        yield Event(logged=Logged(lines=lines, num_forgotten=num_forgotten))


def _log(status: Status, event: Event) -> None:
    del status.log[: event.logged.num_forgotten]
    status.log.extend(event.logged.lines)


def _of_exchange(before: Status, after: Status) -> Iterator[Event]:
    if not after.HasField("exchange"):
        if before.HasField("exchange"):
            yield Event(exchange_sample=ExchangeSample())
        return
    if before.HasField("exchange") and _same(before.exchange, after.exchange):
        return
    num_forgotten, ended = _appended(before.exchange.ended[::-1], after.exchange.ended[::-1])
    sample = ExchangeSample(exchange=after.exchange, num_forgotten=num_forgotten)
    del sample.exchange.ended[:]
    sample.exchange.ended.extend(ended[::-1])
    yield Event(exchange_sample=sample)


def _sample_exchange(status: Status, event: Event) -> None:
    sample = event.exchange_sample
    if not sample.HasField("exchange"):
        status.ClearField("exchange")
        return
    ended = list(status.exchange.ended)
    after = Status(exchange=sample.exchange)
    after.exchange.ended.extend(ended[: max(0, len(ended) - sample.num_forgotten)])
    status.exchange.CopyFrom(after.exchange)


_APPLYING: dict[str, Callable[[Status, Event], None]] = {
    "picture": _show,
    "started": _start,
    "ended": _end,
    "round_closed": _close_round,
    "rounds_rewound": _rewind,
    "rounds_forgotten": _forget_rounds,
    "round_revised": _revise_round,
    "held_out_known": _know_held_out,
    "subsets_changed": _change_subsets,
    "peers_changed": _change_peers,
    "peers_sample": _sample_peers,
    "exchange_sample": _sample_exchange,
    "logged": _log,
}
