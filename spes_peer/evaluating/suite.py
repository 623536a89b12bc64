"""The paper's tasks (SPES, arXiv 2602.11543), as lm-evaluation-harness calls them. Pure.

The paper's own scores are not here: no copy of its tables could be checked. Scores of its published models, measured by
this very command, can be put beside ours instead (`--beside`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spes_peer.errors import BadConfiguration

PAPER = "arXiv 2602.11543"


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    name: str
    """As a person types it."""
    title: str
    task: str
    """Of the harness: a task, or a group of them."""
    shots: int = 0
    draws_from_questions: bool = False
    """Without a train split its examples are other questions of those that are asked."""


SUITE = (
    Entry("siqa", "SIQA", "social_iqa"),
    Entry("arc-e", "ARC-E", "arc_easy"),
    Entry("arc-c", "ARC-C", "arc_challenge", shots=25, draws_from_questions=True),
    Entry("sciq", "SciQ", "sciq"),
    Entry("piqa", "PIQA", "piqa"),
    Entry("openbookqa", "OpenBookQA", "openbookqa"),
    Entry("winogrande", "WinoGrande", "winogrande"),
    Entry("logiqa", "LogiQA", "logiqa"),
    Entry("boolq", "BoolQ", "boolq"),
    Entry("mmlu", "MMLU", "mmlu", shots=5),
    Entry("c-eval", "C-Eval", "ceval-valid"),
)

_OTHER_NAMES = {
    "siqa": ("social_i_qa", "social_iqa"),
    "super_glue": ("boolq",),
    "mmlu": ("mmlu_no_train",),
    "ceval-exam": ("ceval",),
}


def entries(names: Iterable[str]) -> Sequence[Entry]:
    """Those named, in the table's order; all when none is. `BadConfiguration` for one that there is not."""
    wanted = {name.strip().lower() for given in names for name in given.split(",") if name.strip()}
    strange = sorted(wanted - {entry.name for entry in SUITE})
    if strange:
        raise BadConfiguration(f"no task is called {strange[0]!r}; there are: {', '.join(one.name for one in SUITE)}")
    return [entry for entry in SUITE if not wanted or entry.name in wanted]


def folders_for(path: str, name: str | None) -> list[str]:
    """Under which names the data of a dataset may lie in a folder, such as `ai2_arc-ARC-Easy`: the dataset's own
    without its owner, or what it was called before, and its configuration."""
    own = path.rpartition("/")[2]
    found = []
    for dataset in (own, *_OTHER_NAMES.get(own, ())):
        configurations = dict.fromkeys((name, *(("none", "default", "plain_text") if name in (None, dataset) else ())))
        for configuration in configurations:
            found += [f"{dataset}-{configuration}", f"{dataset}/{configuration}"] if configuration else [dataset]
    return found
