"""Scores as a person reads them: the paper's tasks, ours and others side by side. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.evaluating.suite import PAPER, SUITE

_NONE = "–"


@dataclass(frozen=True)
class Score:
    """Of one task, in parts of 1."""

    accuracy: float
    accuracy_error: float
    """Standard error."""
    normalized: float | None
    """Accuracy where answers are compared by their likelihood for each byte; not every task has it."""
    normalized_error: float | None
    questions: int
    of: int
    """Questions that there are."""
    split: str
    shots: int
    examples: str
    """Where those came from; empty without any."""
    cut: float = 0.0
    """The part of the answers whose question lost its begin, for the model sees too little at a time."""


Column = tuple[str, Mapping[str, Score]]


def score_from(values: Any) -> Score:
    """As `asdict` has written it; `BadConfiguration` for anything else."""
    try:
        return Score(**values)
    except TypeError:
        raise BadConfiguration("a file of results with scores that this version does not read") from None


def table(columns: Sequence[Column], not_run: Mapping[str, str]) -> str:
    """`columns` are models and their scores by the tasks' names, ours first; `not_run` says why by task."""
    ours = columns[0][1]
    head = ["task", "split", "shots", *(f"{name} acc" for name, _ in columns), "norm"]
    rows = [head]
    for entry in SUITE:
        if entry.name not in ours:
            continue
        mine = ours[entry.name]
        cells = [entry.title, mine.split, f"{mine.shots}{'*' if mine.examples else ''}"]
        cells += [_percent(scores.get(entry.name)) for _, scores in columns]
        rows.append([*cells, _NONE if mine.normalized is None else f"{100 * mine.normalized:.1f}"])
    if len(rows) > 2:
        rows.append(_average(columns))
    return "\n".join([*_aligned(rows), "", *_notes(ours, not_run)])


def _percent(score: Score | None) -> str:
    return _NONE if score is None else f"{100 * score.accuracy:.1f} ± {100 * score.accuracy_error:.1f}"


def _average(columns: Sequence[Column]) -> list[str]:
    """Over the tasks that all of them have, or it would compare different things."""
    common = [name for name in columns[0][1] if all(name in scores for _, scores in columns)]
    means = [
        f"{100 * sum(scores[name].accuracy for name in common) / len(common):.1f}" if common else _NONE
        for _, scores in columns
    ]
    return ["average", "", "", *means, ""]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return [lines[0], "─" * len(lines[0]), *lines[1:]]


def _notes(ours: Mapping[str, Score], not_run: Mapping[str, str]) -> list[str]:
    notes = ["acc: % of questions answered right, ± standard error; norm: the same by likelihood for each byte"]
    if any(score.questions < score.of for score in ours.values()):
        notes.append("a part of the questions only: these scores compare with nothing")
    notes += [
        f"* {entry.title}: {score.examples}" for entry in SUITE if (score := ours.get(entry.name)) and score.examples
    ]
    notes += [
        f"{entry.title}: with {_part(score.cut)} of the answers the question did not fit into the model's window, and"
        " lost its begin"
        for entry in SUITE
        if (score := ours.get(entry.name)) and score.cut
    ]
    notes.append(
        f"the paper's figures are in {PAPER} and not in this program; to compare, evaluate its models with this command"
        " and give the results with --beside"
    )
    notes += [f"not run: {entry.title}: {not_run[entry.name]}" for entry in SUITE if entry.name in not_run]
    return notes


def _part(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 else "less than 1%"


def as_json(scores: Mapping[str, Score]) -> dict[str, Any]:
    return {name: asdict(score) for name, score in scores.items()}
