"""An experiment's folder: a row for each point in `results.csv`, a table of arms in `results.md`, curves as PNG."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spes_peer.experiment.config import Arm, Experiment
from spes_peer.experiment.results import CellResult, by_arm
from spes_peer.experiment.statistics import Spread, final_losses, paired_differences
from spes_peer.files import write_whole

COLUMNS = (
    "arm",
    "mode",
    "seed",
    "peers",
    "num_subsets",
    "steps_per_round",
    "shared_offer_encoding",
    "shared_update_encoding",
    "expert_encoding",
    "shared_outer",
    "expert_outer",
    "overlap_steps",
    "merge_alpha",
    "merge_interval_steps",
    "merge_warmup_steps",
    "round",
    "step",
    "tokens",
    "bytes_sent",
    "bytes_received",
    "held_out_loss",
    "train_loss",
    "seconds",
)


def write_results(
    folder: Path, experiment: Experiment, results: tuple[CellResult, ...], failed: Mapping[str, str]
) -> None:
    """`results.csv` and `results.md`."""
    write_whole(folder / "results.csv", _csv(experiment, results).encode())
    write_whole(folder / "results.md", _markdown(experiment, results, failed).encode())


def _csv(experiment: Experiment, results: tuple[CellResult, ...]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerows(_rows(experiment.arms[result.arm], result))
    return text.getvalue()


def _rows(arm: Arm, result: CellResult) -> Iterator[dict[str, Any]]:
    settings = {**arm.sync.model_dump(), **arm.training.model_dump(), "mode": arm.mode, "peers": arm.peers}
    cell = {"arm": result.arm, "seed": result.seed}
    for point in result.points:
        found = {
            **vars(point),
            "bytes_sent": round(point.bytes_sent),
            "bytes_received": round(point.bytes_received),
            "seconds": round(point.seconds, 3),
        }
        everything = settings | cell | found
        yield {column: everything[column] for column in COLUMNS}


# ---- for people ----

_EXPLAINED = """\
Held-out loss in nats per token, of the public state after the last round: mean over seeds, its range, the sample's
standard deviation. Differences are paired by seed, as a part of the baseline's loss: mean and range; below 0 is better.
Bytes per round are means over peers, scales and headers of the encodings counted: *received* is all that a peer
fetches, offers as one of a block's reducers and updates as everybody; *sent* is the first copy of all that it makes,
which others spread further. *Fewer* compares both with the same values in fp32. Tokens per
second are the simulation's, of CPU time on one thread, all peers one after the other."""


def _markdown(experiment: Experiment, results: tuple[CellResult, ...], failed: Mapping[str, str]) -> str:
    about = experiment.about
    lines = [f"# {about.name}", ""]
    if results:
        lines += [_setting(experiment, results[0]), ""]
    lines += [*_table(experiment, results), "", _EXPLAINED, ""]
    missing = len(experiment.cells) - len(results)
    if missing:
        lines += [f"{missing} of {len(experiment.cells)} cells have no result:", ""]
        lines += [f"- {name}: {reason}" for name, reason in failed.items()]
        lines += [f"- {missing - len(failed)} were not run to their end"] if missing > len(failed) else []
        lines += [""]
    return "\n".join(lines)


def _setting(experiment: Experiment, one: CellResult) -> str:
    arm = next(iter(experiment.arms.values()))
    model = arm.model
    return (
        f"{one.source}, {one.final.tokens:,} tokens ({one.epochs:.2f} epochs), seeds"
        f" {', '.join(str(seed) for seed in experiment.about.seeds)}. Model: {model.num_layers} layers of width"
        f" {model.d_model}, {model.num_experts} experts of {model.expert_hidden}, top {model.top_k}, sequences of"
        f" {model.sequence_length}; {one.num_shared:,} shared parameters, {one.num_expert_parameters:,} in experts."
        f" {arm.training.total_steps:,} steps of {arm.training.batch_sequences} sequences."
    )


def _table(experiment: Experiment, results: tuple[CellResult, ...]) -> Iterator[str]:
    baseline = experiment.about.baseline
    yield (
        "| arm | peers | H | seeds | held-out loss | range | std |"
        f" against {baseline or 'no baseline'} | KB sent a round | KB received a round | fewer | tokens/s |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    arms = dict(by_arm(results))
    for name, cells in arms.items():
        arm, first = experiment.arms[name], cells[0]
        loss = final_losses(cells)
        against = paired_differences(cells, arms.get(baseline, ()))
        times = first.times_fewer_bytes
        cols = (
            name,
            str(arm.peers),
            str(arm.training.steps_per_round),
            str(len(cells)),
            f"{loss.mean:.4f}",
            f"{loss.least:.4f}–{loss.most:.4f}",
            f"{loss.deviation:.4f}",
            "–" if against is None or name == baseline else _percent(against),
            _kilobytes_a_round(first.final.bytes_sent, first),
            _kilobytes_a_round(first.final.bytes_received, first),
            "–" if times is None else f"{times:.2f}×",
            f"{Spread.of([cell.tokens_per_second for cell in cells]).mean:,.0f}",
        )
        yield f"| {' | '.join(cols)} |"


def _percent(spread: Spread) -> str:
    return f"{spread.mean:+.2%} ({spread.least:+.2%} … {spread.most:+.2%})"


def _kilobytes_a_round(total: float, result: CellResult) -> str:
    return f"{total / max(1, result.num_rounds) / 1000:,.1f}"
