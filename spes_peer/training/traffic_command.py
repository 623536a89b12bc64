"""`spes-peer plan --traffic`: what a round costs a volunteer's line, written for people and for programs."""

import argparse
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from spes_peer.measures import above_zero, amount, duration
from spes_peer.run.encodings import Encoding
from spes_peer.run.manifest import RunFile
from spes_peer.training.traffic import (
    Encodings,
    Line,
    TrafficPlan,
    owners_of_subsets,
    round_seconds,
    traffic_plan,
    utilisation,
)

_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kMG]?)(?:b(?:it)?)?(?:/s|ps)?")
_BITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_MOST_BITS = 1e15
_UP, _DOWN = 20e6, 100e6  # a home's, where fibre has not come yet
TRAFFIC_ONLY = (
    "peers", "up", "down", "shared_offers", "shared_updates", "experts", "round_seconds", "tokens_per_second",
)  # fmt: skip
"""Options that say nothing about memory; None where they were not given."""


def add_traffic_options(parser: Any) -> None:
    group = parser.add_argument_group("with --traffic")
    group.add_argument("--peers", type=int, metavar="N", help="in a round (the run's min_peers)")
    group.add_argument(
        "--up", type=speed, metavar="SPEED", help="of everybody's line, from it (20Mb: megabits a second)"
    )
    group.add_argument("--down", type=speed, metavar="SPEED", help="of everybody's line, to it (100Mb)")
    for name, what in (
        ("--shared-offers", "of what peers offer of shared parameters, in place of the run's"),
        ("--shared-updates", "of what is made of it"),
        ("--experts", "of experts' offers and updates"),
    ):
        group.add_argument(name, choices=get_args(Encoding), help=f"encoding {what}")
    pace = group.add_mutually_exclusive_group()
    pace.add_argument(
        "--round-seconds", type=above_zero, metavar="S", help="that a round's steps take, without exchange"
    )
    pace.add_argument("--tokens-per-second", type=above_zero, metavar="T", help="… or how fast each peer trains")


@dataclass(frozen=True)
class Forecast:
    """A run's traffic, beside that of the same exchange in fp32."""

    run: RunFile
    plan: TrafficPlan
    fp32: TrafficPlan
    line: Line
    training_seconds: float | None
    """Of a round's steps, if that was asked for."""

    @property
    def exchange_seconds(self) -> float:
        return self.line.exchange_seconds(self.plan)

    @property
    def utilisation(self) -> float | None:
        if self.training_seconds is None:
            return None
        return utilisation(self.run, self.training_seconds, self.exchange_seconds)

    def as_json(self) -> dict[str, Any]:
        """All of it, in bytes and seconds."""
        pace = {"round_seconds": self.training_seconds, "utilisation": self.utilisation}
        return {
            **dataclasses.asdict(self.plan),
            "received_bytes": self.plan.received_bytes,
            "sent_bytes": self.plan.sent_bytes,
            "fp32_sent_bytes": self.fp32.sent_bytes,
            "times_fewer_than_fp32": self.plan.times_fewer_than(self.fp32),
            "encodings": dataclasses.asdict(Encodings.of(self.run)),
            "exchange_seconds": self.exchange_seconds,
            "snapshot_seconds": self.line.snapshot_seconds(self.plan),
            **(pace if self.training_seconds is not None else {}),
        }


def forecast(run: RunFile, options: argparse.Namespace) -> Forecast:
    """By the options above; `BadConfiguration` for a run or a number of peers that cannot be."""
    given = {name: getattr(options, name) for name in ("shared_offers", "shared_updates", "experts")}
    encodings = dataclasses.replace(Encodings.of(run), **{name: value for name, value in given.items() if value})
    run = encodings.in_place_of(run)
    num_peers = run.run.min_peers if options.peers is None else options.peers
    plan, fp32 = traffic_plan(run, num_peers), traffic_plan(Encodings().in_place_of(run), num_peers)
    seconds = options.round_seconds
    if options.tokens_per_second is not None:
        seconds = round_seconds(run, num_peers, options.tokens_per_second)
    return Forecast(run, plan, fp32, Line(options.up or _UP, options.down or _DOWN), seconds)


def page(one: Forecast) -> str:
    """One run, in full."""
    plan, kinds = one.plan, Encodings.of(one.run)
    received = (
        f"{amount(plan.fetched_update_bytes)} of updates, {amount(plan.fetched_offer_bytes)} of offers to average"
    )
    exchanged = [
        ("sends", plan.sent_bytes, "on average: peers serve each other"),
        ("receives", plan.received_bytes, received),
        ("the same in fp32", one.fp32.sent_bytes, f"each way, {_times(plan.times_fewer_than(one.fp32))} as much"),
    ]
    counted_once = [
        (
            "its own offers",
            plan.offered_bytes,
            f"shared parameters in {kinds.shared_offers}, experts in {kinds.experts}",
        ),
        ("all updates", plan.applied_bytes, f"shared parameters in {kinds.shared_updates}, experts in {kinds.experts}"),
        ("a snapshot", plan.snapshot_bytes, "what a newcomer fetches"),
    ]
    is_alone = plan.num_peers == 1
    lines = [_heading(one), *([] if is_alone else ["", *map(_row, exchanged)])]
    return "\n".join([*lines, "", "  counted once", *map(_row, counted_once), "", *_verdict(one)])


def overview(forecasts: Mapping[str, Forecast]) -> str:
    """Several runs, a line each."""
    head = ["", "peers", "offers", "updates", "each way", "in fp32", "fewer", "exchange", "snapshot"]
    paced = any(one.utilisation is not None for one in forecasts.values())
    rows = [[*head, "trains"] if paced else head]
    for name, one in forecasts.items():
        plan = one.plan
        sizes = (plan.offered_bytes, plan.applied_bytes, plan.sent_bytes, one.fp32.sent_bytes)
        row = [name, str(plan.num_peers), *map(amount, sizes), _times(plan.times_fewer_than(one.fp32))]
        row += [duration(one.exchange_seconds), amount(plan.snapshot_bytes)]
        rows.append(row if one.utilisation is None else [*row, f"{one.utilisation:.0%}"])
    some = next(iter(forecasts.values()))
    return "\n".join(
        [
            "One average peer, each round:",
            "",
            *_columns(rows),
            "",
            "offers     its own, counted once",
            "updates    all that it applies, counted once",
            "each way   what it sends, and what it receives: on average the same, for peers serve each other",
            f"exchange   how long that takes where all have {_on(some.line)}",
            "snapshot   what a newcomer fetches",
        ]
    )


def speed(text: str) -> float:
    """Bits per second: "20Mb", "100 Mbit/s", "1G"."""
    found = _SPEED.fullmatch(text.strip())
    if found is None or not 1 <= (bits := float(found[1]) * _BITS[found[2]]) <= _MOST_BITS:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a speed such as 20Mb (b for bits) or 1Gbit/s")
    return bits


def _heading(one: Forecast) -> str:
    num_peers, training = one.plan.num_peers, one.run.training
    owners = owners_of_subsets(training.num_subsets, num_peers)
    if num_peers <= training.num_subsets:
        share = _between(training.num_subsets / num_peers, "subset") + " of experts each"
    else:
        share = _between(sum(owners) / len(owners), "owner") + " for each subset of experts"
    if num_peers == 1:
        return f"{one.run.run.name}: one peer alone, each round of {training.steps_per_round} steps"
    return f"{one.run.run.name}: one of {num_peers} peers ({share}), each round of {training.steps_per_round} steps"


def _between(number: float, what: str) -> str:
    low, high = math.floor(number), math.ceil(number)
    return f"{low} {what}{'s' if low > 1 else ''}" if low == high else f"{low} or {high} {what}s"


def _row(row: tuple[str, int, str]) -> str:
    what, size_bytes, note = row
    return f"  {what:<20}{amount(size_bytes):>8}   {note}"


def _verdict(one: Forecast) -> list[str]:
    if one.plan.num_peers == 1:
        return ["Alone it sends and receives nothing."]
    exchange, snapshot = duration(one.exchange_seconds), duration(one.line.snapshot_seconds(one.plan))
    lines = [f"Where all have {_on(one.line)}, the exchange takes {exchange}, a newcomer's snapshot {snapshot}."]
    if one.utilisation is None or one.training_seconds is None:
        return lines
    overlap = one.run.sync.overlap_steps
    how = f"the first {overlap} steps of the next round meanwhile" if overlap else "waiting for the exchange"
    steps = duration(one.training_seconds)
    return [*lines, f"With {steps} of steps, {how}, a peer trains {one.utilisation:.1%} of the time."]


def _on(line: Line) -> str:
    return f"{_speed(line.up)} up and {_speed(line.down)} down"


def _speed(bits_per_second: float) -> str:
    for unit, bits in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits_per_second >= bits:
            return f"{bits_per_second / bits:g} {unit}b/s"
    return f"{bits_per_second:g} b/s"


def _times(factor: float) -> str:
    return f"{factor:.1f}×" if factor < 9.95 else f"{factor:.0f}×"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["   ".join([row[0].ljust(widths[0]), *padded[1:]]) for row, padded in zip(rows, cells, strict=True)]
