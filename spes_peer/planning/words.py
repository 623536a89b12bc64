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


def too_late(one: Forecast) -> str:
    """What the run's deadline does to a round that takes longer; nothing where all have time."""
    longest, allowed = one.longest_round_seconds, one.run.timing.round_seconds
    if longest <= allowed:
        return ""
    return f"would take {duration(longest)}, and round_seconds ({allowed:g}) ends it after {duration(allowed)}"


def as_json(one: Forecast) -> dict[str, Any]:
    """In bytes, tokens and seconds."""
    return {
        "num_peers": one.num_peers,
        "num_rounds": one.length.num_rounds,
        "num_tokens": one.length.num_tokens,
        "seconds": one.seconds,
        "tokens_per_second": one.tokens_per_second,
        "is_unforeseeable": one.is_unforeseeable,
        "utilisation": one.utilisation,
        "part_of_subsets_held": one.part_trained,
        "sent_bytes_per_round": one.traffic.sent_bytes,
        "sent_bytes": one.sent_bytes,
        "sent_bytes_per_day": one.bytes_per_day,
        "snapshot_bytes": one.traffic.snapshot_bytes,
        "phases": [_phase_as_json(phase) for phase in one.phases],
        "groups": [_group_as_json(group) for group in one.groups],
        "bootstrap_node": dataclasses.asdict(one.node),
    }


# ---- for a person ----


def _results(one: Forecast) -> Iterator[tuple[str, str]]:
    wish = ", if rounds were given the time (see below)" if too_late(one) else ""
    wish = ", if steps so short waited for nothing (see below)" if one.is_unforeseeable else wish
    yield "time to the end", f"{duration(one.seconds)}, {number(one.tokens_per_second)} tokens/s{wish}"
    for index, phase in enumerate(one.phases):
        label = "each round" if len(one.phases) == 1 else ("each round", "in the final phase")[index]
        yield label, _round(phase)
    yield "peers train", f"{one.utilisation:.1%} of the time"
    sent = _in_time(one, one.bytes_per_day)
    yield "a volunteer", f"sends {amount(one.traffic.sent_bytes)} a round, {sent}, and receives as much"
    yield "a newcomer", f"receives {amount(one.traffic.snapshot_bytes)} first"
    node = one.node
    sent, received = _in_time(one, node.sent_bytes_per_day), _in_time(one, node.received_bytes_per_day)
    whose = "data and all" if node.data_is_known else "with as much data as the schedule needs"
    yield (
        "the bootstrap node",
        (
            f"needs {amount(node.disk_bytes)} of disk, {whose}; sends {sent} and newcomers' snapshots,"
            f" receives {received}; no GPU"
        ),
    )


def _in_time(one: Forecast, bytes_per_day: float) -> str:
    """A day's bytes, or all of a run that is over before."""
    if one.seconds < DAY:
        return f"{amount(bytes_per_day * one.seconds / DAY)} in all"
    return f"{amount(bytes_per_day)} a day"


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
    if late := too_late(one):
        yield f"A round {late}: raise it, or peers contribute only the steps they have made."
    if (grace := max(phase.exchange_seconds for phase in one.phases)) > timing.round_grace_seconds:
        yield (
            f"The exchange would take {duration(grace)}, and reducing may take round_grace_seconds"
            f" ({timing.round_grace_seconds:g}): raise it, or slow lines lose their part."
        )
    if one.num_peers < one.run.run.min_peers:
        yield f"Round 1 waits for {count(one.run.run.min_peers, 'volunteer')} (min_peers): these are too few."
    if one.is_unforeseeable:
        yield (
            "This model is so small that its steps wait for the machine more than for arithmetic, of which alone the"
            " speed is assumed: it will be far less, and how much less nobody has measured. On two CPU cores the four"
            " volunteers of the demo train some 8,000 tokens/s together, which is a round in ten seconds."
        )
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
