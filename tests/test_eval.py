"""Scores: which tasks, from which files, shown how; and, where the harness is installed, as it counts them itself."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from spes_peer.errors import BadConfiguration
from spes_peer.evaluating.command import add_eval_command
from spes_peer.evaluating.suite import SUITE, entries, folders_for
from spes_peer.evaluating.table import Score, as_json, score_from, table

DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "eval"


def score(accuracy: float = 0.25, **values: Any) -> Score:
    known: dict[str, Any] = {"normalized": None, "normalized_error": None, "questions": 50, "of": 50, "shots": 0}
    known |= {"accuracy": accuracy, "accuracy_error": 0.06, "split": "test", "examples": ""}
    return Score(**{**known, **values})


def run(*arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    add_eval_command(parser.add_subparsers())
    options = parser.parse_args(["eval", *arguments])
    return options.run(options)


def test_all_tasks_of_the_paper_are_there_and_each_can_be_named() -> None:
    assert len(SUITE) == 11
    assert {entry.name: entry.shots for entry in SUITE if entry.shots} == {"arc-c": 25, "mmlu": 5}
    assert entries([]) == list(SUITE)
    assert [entry.name for entry in entries(["PIQA, arc-e", "mmlu"])] == ["arc-e", "piqa", "mmlu"]
    with pytest.raises(BadConfiguration, match="no task is called 'arc'; there are: siqa"):
        entries(["arc"])


def test_a_dataset_is_looked_for_under_the_names_that_it_has_or_had() -> None:
    assert "ai2_arc-ARC-Easy" in folders_for("allenai/ai2_arc", "ARC-Easy")
    assert "social_i_qa-none" in folders_for("lighteval/siqa", None)
    assert folders_for("aps/super_glue", "boolq")[:4] == [  # under its own name, then under another it has had
        "super_glue-boolq", "super_glue/boolq", "boolq-boolq", "boolq/boolq",
    ]  # fmt: skip
    assert {"boolq-none", "boolq/none"} <= set(folders_for("aps/super_glue", "boolq"))
    assert "piqa-plain_text" in folders_for("baber/piqa", None)
    assert "mmlu_no_train/anatomy" in folders_for("cais/mmlu", "anatomy")


def test_the_table_has_ours_beside_others_and_invents_nothing() -> None:
    ours = {"piqa": score(0.5), "arc-c": score(0.25, normalized=0.3, shots=25, examples="other questions")}
    shown = table([("ours", ours), ("theirs", {"piqa": score(0.75)})], {"mmlu": "no folder mmlu-anatomy"})
    lines = shown.splitlines()
    assert next(line for line in lines if line.startswith("PIQA")).split() == [
        *("PIQA", "test", "0", "50.0", "±", "6.0", "75.0", "±", "6.0", "–")
    ]
    assert "25*" in next(line for line in lines if line.startswith("ARC-C"))
    assert next(line for line in lines if line.startswith("average")).split()[1:3] == ["50.0", "75.0"]
    assert "not run: MMLU: no folder mmlu-anatomy" in shown
    assert lines[0].split() == ["task", "split", "shots", "ours", "acc", "theirs", "acc", "norm"]
    assert "2602.11543" in shown


def test_a_part_of_the_questions_is_said_to_compare_with_nothing() -> None:
    assert "compare with nothing" in table([("ours", {"piqa": score(of=1838)})], {})
    assert "compare with nothing" not in table([("ours", {"piqa": score()})], {})


def test_questions_that_a_model_could_not_see_whole_are_told_of() -> None:
    assert "PIQA: with 25% of the answers the question did not fit" in table([("ours", {"piqa": score(cut=0.25)})], {})
    assert "PIQA: with less than 1% of" in table([("ours", {"piqa": score(cut=0.001)})], {})
    assert "did not fit" not in table([("ours", {"piqa": score()})], {})


def test_scores_are_read_back_as_written_and_others_refused(tmp_path: Path) -> None:
    assert {name: score_from(one) for name, one in as_json({"piqa": score()}).items()} == {"piqa": score()}
    for content in (b"[" * 10**5, b"{}", b"\xff", b'{"model": "m", "scores": {"piqa": {"accuracy": 1}}}', b"[]"):
        (tmp_path / "other.json").write_bytes(content)
        with pytest.raises(BadConfiguration):
            run("model", "--data", str(tmp_path), "--beside", str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--online"),
        (["--data", "nowhere-at-all"], "no folder nowhere-at-all"),
        (["--online", "--limit", "0"], "--limit"),
        (["--online", "--batch", "-1"], "--batch"),
        (["--online", "--json", "nowhere-at-all/out"], "make it first"),
        (["--online", "--tasks", "hellaswag"], "no task is called"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(flags: list[str], said: str) -> None:
    with pytest.raises(BadConfiguration, match=said):
        run("model", *flags)


@pytest.mark.parametrize("document", ["README.md", "docs/REPRODUCE.md"])
def test_what_the_documents_say_to_type_says_where_the_questions_are(document: str) -> None:
    text = (Path(__file__).parent.parent / document).read_text()
    typed = re.findall(r"^    spes-peer (eval [^#\n]*)", text, re.MULTILINE)
    assert typed
    parser = argparse.ArgumentParser()
    add_eval_command(parser.add_subparsers())
    for line in typed:
        options = parser.parse_args(line.split())
        assert options.online or options.data, line


def test_without_the_harness_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(BadConfiguration, match=r"pip install 'spes-peer\[eval\]'"):
        run("model", "--data", str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="no datasets here")
def test_scores_are_those_of_the_harness_called_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two processes each: their settings of libraries are for a whole process."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")
    import datasets
    import lm_eval
    from huggingface_runs import run_file_of, write_run

    from spes_peer.training.export import export

    write_run(tmp_path / "run", run_file_of("olmoe"))
    export(tmp_path / "run", tmp_path / "out")
    results = tmp_path / "results.json"
    run(str(tmp_path / "out"), "--data", str(DATA), "--tasks", "piqa,sciq", "--limit", "20", "--json", str(results))
    ours = json.loads(results.read_text())
    assert ours["not_run"]["piqa"].endswith("and the model sees 64 at a time")
    assert ours["scores"]["sciq"]["cut"] > 0
    held = datasets.load_from_disk(str(DATA / "sciq-none"))
    dataset = datasets.DatasetDict(train=held, test=held)
    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", lambda *_names, **_settings: dataset)
    theirs = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tmp_path / "out")},
        device="cpu",
        tasks=["sciq"],
        limit=20,
        bootstrap_iters=0,
    )
    assert ours["scores"]["sciq"]["accuracy"] == theirs["results"]["sciq"]["acc,none"]
    with pytest.raises(BadConfiguration, match="piqa was not run: an answer has"):
        run(str(tmp_path / "out"), "--data", str(DATA), "--tasks", "piqa", "--limit", "20")
