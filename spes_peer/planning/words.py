"""A forecast as a person reads it, and as programs do."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from spes_peer.measures import amount, duration
from spes_peer.planning.explaining import num_active, num_parameters
from spes_peer.planning.forecast import CHOICES, DAY, Forecast, GroupForecast, PhaseForecast
from spes_peer.planning.lines import count, folded, number, percent, wrapped
from spes_peer.training.plan import Plan
from spes_peer.training.traffic import Line

_LABEL_WIDTH = 20


def in_words(one: Forecast, part: float) -> str:
    """`part` is what training was assumed to use of a card."""
    run = one.run
    heading = (
        f"{run.run.name}: {number(num_parameters(run))} parameters, {number(num_active(run))} at work on a token,"
        f" {number(one.length.num_tokens)} tokens, with {count(one.num_peers, 'volunteer')}"
    )
    lines = [
        wrapped(heading),
        "",
        *(folded(f"  {label}", text, _LABEL_WIDTH) for label, text in _results(one)),
    ]
    for group in one.groups:
        lines += ["", *_of_group(one, group)]
    if notes := list(_notes(one, part)):
        lines += ["", *map(wrapped, notes)]
    return "\n".join(lines)


def as_json(one: Forecast) -> dict[str, Any]:
    """In bytes, tokens and seconds."""
    return {
        "num_peers": one.num_peers,
        "num_rounds": one.length.num_rounds,
        "num_tokens": one.length.num_tokens,
        "seconds": one.seconds,
        "tokens_per_second": one.tokens_per_second,
        "utilisation": one.utilisation,
        "part_of_subsets_held": one.part_trained,
        "sent_bytes_per_round": one.traffic.sent_bytes,
        "sent_bytes_per_day": one.bytes_per_day,
        "snapshot_bytes": one.traffic.snapshot_bytes,
        "phases": [_phase_as_json(phase) for phase in one.phases],
        "groups": [_group_as_json(group) for group in one.groups],
        "bootstrap_node": dataclasses.asdict(one.node),
    }


# ---- for a person ----


def _results(one: Forecast) -> Iterator[tuple[str, str]]:
    yield "time to the end", f"{duration(one.seconds)}, {number(one.tokens_per_second)} tokens/s"
    for index, phase in enumerate(one.phases):
        label = "each round" if len(one.phases) == 1 else ("each round", "in the final phase")[index]
        yield label, _round(phase)
    yield "peers train", f"{one.utilisation:.1%} of the time"
    per_round, per_day = amount(one.traffic.sent_bytes), amount(one.bytes_per_day)
    yield "a volunteer", f"sends {per_round} a round, {per_day} a day, and receives as much"
    yield "a newcomer", f"receives {amount(one.traffic.snapshot_bytes)} first"
    node = one.node
    sent, received = amount(node.sent_bytes_per_day), amount(node.received_bytes_per_day)
    whose = "data and all" if node.data_is_known else "with as much data as the schedule needs"
    yield (
        "the bootstrap node",
        (
            f"needs {amount(node.disk_bytes)} of disk, {whose}; sends {sent} a day and newcomers' snapshots,"
            f" receives {received}; no GPU"
        ),
    )


def _round(phase: PhaseForecast) -> str:
    return (
        f"{count(phase.phase.num_rounds, 'round')} of {phase.phase.steps_per_round} steps:"
        f" {duration(phase.training_seconds)} of training, {duration(phase.exchange_seconds)} of exchange"
    )


def _of_group(one: Forecast, found: GroupForecast) -> Iterator[str]:
    group = found.group
    who = count(group.count, "volunteer")
    yield f"{who} with a card of {amount(group.memory_bytes)}, {_line(group.line)}"
    if not found.fits:
        least = min(found.plans, key=lambda plan: plan.needed_bytes)
        text = f"not even one subset fits: the smallest part needs {amount(least.needed_bytes)}; left out of the rest"
        yield folded("  memory", text, _LABEL_WIDTH)
        return
    assumed = ", assumed" if found.is_assumed else ""
    yield folded("  speed", f"{number(found.tokens_per_second)} tokens/s each{assumed}", _LABEL_WIDTH)
    for index, (choices, plan) in enumerate(zip(CHOICES, found.plans, strict=True)):
        options = f"--resident {choices.resident} --optimizer-bits {choices.optimizer_bits}"
        chosen = "  ← planned with" if index == found.chosen else ""
        yield folded("  memory" if not index else "", f"{options:<38}{_fit(one, plan)}{chosen}", _LABEL_WIDTH)


def _fit(one: Forecast, plan: Plan) -> str:
    if not plan.fits:
        return f"does not fit, needs {amount(plan.needed_bytes)}"
    again = ", activations made again" if plan.checkpoints else ""
    subsets = f"{plan.num_subsets} of {count(one.run.training.num_subsets, 'subset')}"
    return f"{subsets}, {amount(plan.needed_bytes)}{again}"


def _notes(one: Forecast, part: float) -> Iterator[str]:
    timing = one.run.timing
    if one.part_trained < 1:
        yield (
            f"Together they hold {percent(one.part_trained)} of the subsets at a time: experts take turns, every"
            f" {one.run.training.rotation_rounds} rounds, and each is trained on so much fewer tokens."
        )
    longest = max(phase.round_seconds for phase in one.phases)
    if longest > timing.round_seconds:
        yield (
            f"A round would take {duration(longest)}, and round_seconds ({timing.round_seconds:g}) ends it after"
            f" {duration(timing.round_seconds)}: raise it, or peers contribute only the steps they have made."
        )
    if (grace := max(phase.exchange_seconds for phase in one.phases)) > timing.round_grace_seconds:
        yield (
            f"The exchange would take {duration(grace)}, and reducing may take round_grace_seconds"
            f" ({timing.round_grace_seconds:g}): raise it, or slow lines lose their part."
        )
    if one.num_peers < one.run.run.min_peers:
        yield f"Round 1 waits for {count(one.run.run.min_peers, 'volunteer')} (min_peers): these are too few."
    if any(group.is_assumed for group in one.groups):
        yield (
            f"Nobody has measured the speeds marked as assumed: they are {part:.0%} of what the slowest common card of"
            " that size computes in bf16. Measure one (spes-peer doctor --bootstrap ADDRESS says tokens/s on a machine"
            " that would join) and give it with --tokens-per-second, or change the part with --part."
        )
    yield "Memory and traffic are counted, not assumed; they are checked against measured steps and rounds by tests."


def _line(line: Line) -> str:
    return f"{_speed(line.down)} down, {_speed(line.up)} up"


def _speed(bits_per_second: float) -> str:
    for unit, bits in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits_per_second >= bits:
            return f"{bits_per_second / bits:g} {unit}b/s"
    return f"{bits_per_second:g} b/s"


# ---- for programs ----


def _phase_as_json(one: PhaseForecast) -> dict[str, Any]:
    return {
        **dataclasses.asdict(one.phase),
        "training_seconds": one.training_seconds,
        "exchange_seconds": one.exchange_seconds,
        "utilisation": one.utilisation,
        "rounds_per_day": DAY / one.round_seconds,
    }


def _group_as_json(one: GroupForecast) -> dict[str, Any]:
    return {
        **dataclasses.asdict(one.group),
        "tokens_per_second": one.tokens_per_second,
        "is_assumed": one.is_assumed,
        "fits": one.fits,
        "memory": [
            {
                "resident": choices.resident,
                "optimizer_bits": choices.optimizer_bits,
                "fits": plan.fits,
                "num_subsets": plan.num_subsets if plan.fits else 0,
                "needed_bytes": plan.needed_bytes,
                "checkpointing": plan.checkpoints,
                "is_chosen": index == one.chosen,
            }
            for index, (choices, plan) in enumerate(zip(CHOICES, one.plans, strict=True))
        ],
    }
