"""`spes-peer plan`: what a run asks of a machine's memory, or of its line, before anything is downloaded. No torch."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.measures import size
from spes_peer.run.manifest import RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.training.choices import add_memory_choices
from spes_peer.training.plan import Plan, choices_for, memory_plan
from spes_peer.training.traffic_command import TRAFFIC_ONLY, add_traffic_options, forecast, overview, page

_MEMORY_ONLY = ("gpu_memory", "subsets", "resident", "checkpointing", "optimizer_bits", "cpu")


def add_plan_command(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="how much of a run fits into this machine's memory, and what a round sends",
        description="Show where memory goes when a run's model is trained, and how many subsets of experts fit;"
        " or, with --traffic, what one peer sends and receives per round.",
        epilog="examples:\n"
        "  spes-peer plan --preset spes-2b --gpu-memory 16GB --resident int8 --optimizer-bits 8\n"
        "  spes-peer plan --traffic\n"
        "  spes-peer plan --traffic --preset spes-7b --peers 16 --experts int4",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--preset", choices=sorted(PRESETS), help="a model that comes with the program")
    which.add_argument("--run-file", type=Path, metavar="FILE", help="a run.toml")
    parser.add_argument("--traffic", action="store_true", help="plan the exchange; without a run, of every preset")
    parser.add_argument("--json", action="store_true", help="print it for programs")
    memory = parser.add_argument_group("for memory")
    memory.add_argument("--gpu-memory", type=size, metavar="SIZE", help="of the device, such as 24GB")
    memory.add_argument("--subsets", type=int, default=0, metavar="N", help="plan for N subsets (as many as fit)")
    add_memory_choices(memory)
    memory.add_argument("--cpu", action="store_true", help="plan for a CPU, which computes in fp32 (for a GPU)")
    add_traffic_options(parser)
    memory_only = {name: parser.get_default(name) for name in _MEMORY_ONLY}
    parser.set_defaults(run=lambda options: _run(options, memory_only), log_level="WARNING")


def table(plan: Plan) -> str:
    """For a person."""
    rows = [*plan.rows, ("on the device", plan.total_bytes), None, *plan.host_rows, ("on the host", plan.host_bytes)]
    lines = []
    for row in rows:
        if row is None:
            lines.append("")
            continue
        what, size_bytes = (row.what, row.size_bytes) if not isinstance(row, tuple) else row
        lines.append(f"{what:<22}{size_bytes / 1e9:>9.2f} GB")
    return "\n".join([*lines, "", _verdict(plan)])


def _run(options: argparse.Namespace, memory_only: Mapping[str, Any]) -> int:
    """`memory_only` are the options that have no say in traffic, with their defaults."""
    if options.traffic:
        _refuse(options, memory_only, "says nothing about traffic: leave it out, or leave out --traffic")
        return _run_traffic(options)
    _refuse(options, dict.fromkeys(TRAFFIC_ONLY), "says nothing about memory: it needs --traffic")
    if not (options.preset or options.run_file):
        raise BadConfiguration("plan what? Name a --preset or a --run-file; only --traffic does without")
    if options.gpu_memory is None:
        raise BadConfiguration(
            "how much memory has the device? Say --gpu-memory 24GB, for example, or ask for --traffic"
        )
    choices = choices_for(not options.cpu, options.resident, options.checkpointing, options.optimizer_bits)
    run = _run_file(options)
    if not 0 <= options.subsets <= run.training.num_subsets:
        raise BadConfiguration(f"the run has {run.training.num_subsets} subsets, not {options.subsets}")
    plan = memory_plan(run, options.gpu_memory, choices, options.subsets)
    print(json.dumps(as_json(plan), indent=2) if options.json else table(plan))
    return 0 if plan.fits else 1


def _run_traffic(options: argparse.Namespace) -> int:
    if options.preset or options.run_file:
        one = forecast(_run_file(options), options)
        print(json.dumps(one.as_json(), indent=2) if options.json else page(one))
        return 0
    forecasts = {name: forecast(parse_run_file(text, name), options) for name, text in PRESETS.items()}
    as_json = {name: one.as_json() for name, one in forecasts.items()}
    print(json.dumps(as_json, indent=2) if options.json else overview(forecasts))
    return 0


def _refuse(options: argparse.Namespace, defaults: Mapping[str, Any], why: str) -> None:
    """Options that were given, that is, differ from their default, for nothing."""
    for name, default in defaults.items():
        if getattr(options, name) != default:
            raise BadConfiguration(f"--{name.replace('_', '-')} {why}")


def as_json(plan: Plan) -> dict[str, Any]:
    """All of it, in bytes, sequences and subsets."""
    return {
        "fits": plan.fits,
        "num_subsets": plan.num_subsets if plan.fits else 0,
        "micro_batch_sequences": plan.micro_batch,
        "checkpointing": plan.checkpoints,
        "memory_bytes": plan.memory_bytes,
        "needed_bytes": plan.needed_bytes,
        "total_bytes": plan.total_bytes,
        "host_bytes": plan.host_bytes,
        "device": {row.what: row.size_bytes for row in plan.rows},
        "host": {row.what: row.size_bytes for row in plan.host_rows},
    }


def _run_file(options: argparse.Namespace) -> RunFile:
    if options.preset:
        return parse_run_file(PRESETS[options.preset], options.preset)
    try:
        return parse_run_file(options.run_file.read_text(), options.run_file.name)
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read {options.run_file}: {error}") from None


def _verdict(plan: Plan) -> str:
    spare = (plan.memory_bytes - plan.needed_bytes) / 1e9
    how = f"micro-batches of {plan.micro_batch} sequence{'s' if plan.micro_batch > 1 else ''}"
    how += ", activations made again in the backward pass" if plan.checkpoints else ""
    if not plan.fits:
        return f"Does not fit: {-spare:.1f} GB too little, even with {how}."
    subsets = f"{plan.num_subsets} subset{'s' if plan.num_subsets > 1 else ''}"
    return f"{subsets} would fit, in {how}; {spare:.1f} GB to spare."
