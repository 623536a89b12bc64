"""What lm-evaluation-harness is asked and what it answers. Only the process that runs it imports this."""

import hashlib
import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer.errors import SpesError
from spes_peer.evaluating.local_data import LocalData
from spes_peer.evaluating.suite import Entry
from spes_peer.evaluating.table import Score

SEED = 1234
"""The harness's own for examples; with it the scores are those of its command."""


@dataclass(frozen=True)
class Found:
    """The harness's tasks of an entry, one or the parts of a group."""

    entry: Entry
    tasks: dict[str, Any]
    split: str
    examples: str


def find(entries: Sequence[Entry], data: LocalData, is_online: bool) -> tuple[list[Found], dict[str, str]]:
    """Those whose data are there, and of the others why not."""
    import lm_eval.api.task
    from lm_eval.tasks import TaskManager

    if not is_online:
        lm_eval.api.task.datasets.load_dataset = data.load  # in this process, by which it would download
    manager, found, missing = TaskManager(), [], {}
    for entry in entries:
        try:
            found.append(_found(manager, entry, data))
        except (LookupError, OSError, ValueError) as error:
            missing[entry.name] = str(error).strip("'\"").splitlines()[0][:200] or type(error).__name__
    return found, missing


def _found(manager: Any, entry: Entry, data: LocalData) -> Found:
    data.stood_in.clear()
    loaded = manager.load([entry.task])["tasks"]
    stand_in = next(iter(data.stood_in.values()), "")
    examples = ""
    if stand_in and entry.draws_from_questions:
        for task in loaded.values():
            task.fewshot_cfg.split = task.config.test_split  # the harness then leaves out the question itself
        examples = "no train split is there, so the examples are other questions of the same split"
    for task in loaded.values():
        task.set_config("num_fewshot", entry.shots)
        task.set_fewshot_seed(SEED)
    first = next(iter(loaded.values())).config
    return Found(entry, loaded, stand_in or first.test_split or first.validation_split, examples)


def measure(
    folder: Path, found: Sequence[Found], limit: int | None, batch: int, device: str | None
) -> tuple[dict[str, Score], dict[str, str], dict[str, Any]]:
    """The scores; of entries that this model cannot be asked, why not; and what must be known to have them again."""
    from spes_peer.evaluating.model import CannotBeAsked, Model

    model = Model(folder, device, batch)
    scores: dict[str, Score] = {}
    refused: dict[str, str] = {}
    facts: dict[str, Any] = {"versions": _versions(), "seed": SEED, "task_versions": {}, "task_hashes": {}}
    for one in found:
        model.num_asked = model.num_cut = 0
        try:
            results = _evaluated(model, one, limit)
        except CannotBeAsked as error:
            refused[one.entry.name] = str(error)
            continue
        scores[one.entry.name] = _score(one, results, model.num_cut / max(1, model.num_asked))
        facts["task_versions"] |= results["versions"]
        facts["task_hashes"] |= {name: _hash_of(samples) for name, samples in results["samples"].items()}
    return scores, refused, facts


def _evaluated(model: Any, one: Found, limit: int | None) -> dict[str, Any]:
    from lm_eval import simple_evaluate

    print(f"asking {one.entry.title}", flush=True)
    results: dict[str, Any] | None = simple_evaluate(
        model=model,
        tasks=list(one.tasks.values()),
        limit=limit,
        random_seed=0,
        numpy_random_seed=SEED,
        torch_random_seed=SEED,
        fewshot_random_seed=SEED,
        bootstrap_iters=0,
    )
    if results is None:
        raise SpesError("the harness gave no results")
    return results


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("lm_eval", "transformers", "datasets", "torch")}


def _score(one: Found, results: Any, cut: float) -> Score:
    """Of a group: over the questions of all its parts."""
    counts = {name: results["n-samples"][name] for name in one.tasks}
    asked = {name: int(count["effective"]) for name, count in counts.items()}
    rows = {name: results["results"][name] for name in one.tasks}
    accuracy = _mean({name: row["acc,none"] for name, row in rows.items()}, asked)
    normalized = None
    if all("acc_norm,none" in row for row in rows.values()):
        normalized = _mean({name: row["acc_norm,none"] for name, row in rows.items()}, asked)
    number = sum(asked.values())
    return Score(
        accuracy=accuracy,
        accuracy_error=_error(accuracy, number),
        normalized=normalized,
        normalized_error=None if normalized is None else _error(normalized, number),
        questions=number,
        of=sum(int(count["original"]) for count in counts.values()),
        split=one.split,
        shots=one.entry.shots,
        examples=one.examples,
        cut=cut,
    )


def _mean(values: dict[str, float], weights: dict[str, int]) -> float:
    return sum(values[name] * weights[name] for name in values) / max(1, sum(weights.values()))


def _error(accuracy: float, number: int) -> float:
    """Of a mean of zeros and ones."""
    return math.sqrt(accuracy * (1 - accuracy) / max(1, number - 1))


def _hash_of(samples: Sequence[Any]) -> str:
    """Over questions, prompts and answers in order: as the harness hashes a task in its own results."""
    text = "".join(one["doc_hash"] + one["prompt_hash"] + one["target_hash"] for one in samples)
    return hashlib.sha256(text.encode()).hexdigest()
