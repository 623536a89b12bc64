"""The run for Prometheus, from the same view as the page. Names of volunteers are no labels: strangers choose them, and
each would be a series for ever."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bootstrap.web.view import RunView
from spes_peer import __version__

CONTENT_TYPE = CONTENT_TYPE_LATEST


def metrics_text(run: RunView) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Of(run))
    return generate_latest(registry)


def metrics_of(run: RunView) -> Iterator[Metric]:
    """All that there are, by names that say their units. What is not known is left out."""
    progress = run.progress
    yield InfoMetricFamily("spes_run", "The run.", value={"version": __version__, "name": run.name, "id": run.run_id})
    held_out, training = run.held_out_curve, run.training_curve
    for name, about, value in (
        ("round", "The open round.", run.round),
        ("record", "Newest record.", len(run.rows) - 1),
        ("certified_record", "Newest record that counts as certified.", run.certified_round),
        ("record_timestamp_seconds", "Unix seconds of the newest record.", run.rows[-1].opened_at),
        ("steps", "Local steps finished.", progress.step),
        ("planned_steps", "Local steps of the schedule.", progress.planned_steps),
        ("planned_tokens", "Tokens of the schedule.", progress.planned_tokens),
        ("done_ratio", "Part of the run that is done.", progress.fraction),
        ("tokens_per_second", "Of all together, over the newest rounds.", progress.tokens_per_second),
        ("round_seconds", "What the newest rounds took, on average.", progress.round_seconds),
        ("left_seconds", "Until the end, by the newest rounds.", progress.seconds_left),
        ("held_out_loss", "Newest loss on held-out text, nats per token.", held_out[-1].loss if held_out else None),
        ("training_loss", "Newest loss in training, nats per token.", training[-1].loss if training else None),
        ("awaited_volunteers", "Whom the round waits for, as far as they are named.", len(run.phase.waiting_for)),
        ("checkpoint_record", "After which the newest whole state is.", run.checkpoint_round),
        ("checkpoint_bytes", "Its size.", run.checkpoint_bytes),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"spes_run_{name}", about, value=float(value))
    yield CounterMetricFamily("spes_run_tokens", "Tokens trained.", value=float(progress.tokens))
    phase = GaugeMetricFamily("spes_run_phase", "1 for the phase that the run is in.", labels=["phase"])
    phase.add_metric([run.phase.name], 1.0)
    yield phase
    yield _counted("volunteers", "Volunteers by what they do.", "state", Counter(one.state for one in run.volunteers))
    owned = Counter("owned" if one.owners else "free" for one in run.subsets)
    yield _counted("subsets", "Parts of the experts by whether somebody trains them.", "state", owned)
    idle = max(one.rounds_idle for one in run.subsets)
    yield GaugeMetricFamily("spes_run_longest_untrained_rounds", "Of any part of the experts.", value=float(idle))


def _counted(name: str, about: str, label: str, counts: Counter[str]) -> Metric:
    family = GaugeMetricFamily(f"spes_run_{name}", about, labels=[label])
    for value, number in sorted(counts.items()):
        family.add_metric([value], float(number))
    return family


class _Of(Collector):
    def __init__(self, run: RunView) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        return metrics_of(self._run)
