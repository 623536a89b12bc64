"""Numbers over seeds. Differences are paired: between cells of the same seed, which share first weights and data."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from spes_peer.experiment.results import CellResult


@dataclass(frozen=True)
class Spread:
    """Of a few values: mean, extremes, and the sample's standard deviation, 0 for one value."""

    mean: float
    least: float
    most: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), min(values), max(values), deviation)


def final_losses(results: Sequence[CellResult]) -> Spread:
    return Spread.of([result.final.held_out_loss for result in results])


def paired_differences(results: Sequence[CellResult], baseline: Sequence[CellResult]) -> Spread | None:
    """Final held-out loss against the baseline's with the same seed, as a part of it: 0.01 is 1 % worse.

    None where no seed has both."""
    by_seed = {result.seed: result.final.held_out_loss for result in baseline}
    differences = [
        result.final.held_out_loss / by_seed[result.seed] - 1 for result in results if result.seed in by_seed
    ]
    return Spread.of(differences) if differences else None
