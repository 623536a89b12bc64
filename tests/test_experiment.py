"""Experiments: what a file means, what modes do, and the folder that a whole one leaves."""

import csv
import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from spes_peer.data.sampler import Batch, Sampler
from spes_peer.errors import BadConfiguration, BlobMissing, SpesError, UserError
from spes_peer.experiment import runner
from spes_peer.experiment.cell import run_cell
from spes_peer.experiment.config import Cell, Experiment, parse_experiment
from spes_peer.experiment.curves import draw_curves
from spes_peer.experiment.examples import EXAMPLE, QUICK
from spes_peer.experiment.memory import MemoryBlobs
from spes_peer.experiment.report import COLUMNS, write_results
from spes_peer.experiment.results import CellResult, Point, load_result, save_result
from spes_peer.experiment.statistics import final_losses, paired_differences
from spes_peer.experiment.swarm import Swarm, open_swarm
from spes_peer.experiment.texts import read_texts
from spes_peer.model.decoder import Decoder
from spes_peer.run.records import DataRange
from spes_peer.training.schedule import lr_at

ARMS = QUICK.split("[[arms]]")[0].replace('baseline = "centralized"\n', "")
"""The quick experiment without its arms: one that is called "base"."""


def parsed(source: str, **settings: str) -> Experiment:
    """`source` with lines replaced: by key, the whole value."""
    lines = source.splitlines()
    for key, value in settings.items():
        at = next(index for index, line in enumerate(lines) if line.startswith(f"{key} ="))
        lines[at] = f"{key} = {value}"
    return parse_experiment("\n".join(lines), "x.toml")


def arm_cell(arms: str, **settings: str) -> Cell:
    return parsed(ARMS + arms, **settings).cells[0]


# ---- the file ----


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("[experiment", "x.toml: not TOML"),
        (
            ARMS.replace("steps_per_round", "steps_per_rund"),
            "unknown key training.steps_per_rund; did you mean steps_per",
        ),
        (ARMS.replace("seeds", "seed"), "unknown key experiment.seed; did you mean seeds"),
        (ARMS.replace("peers = 2", "peers = 3"), r"arm 'base': num_subsets \(3\) must divide num_experts \(4\)"),
        (
            ARMS.replace("total_steps = 40", "total_steps = 45"),
            r"total_steps \(45\) must be a multiple of steps_per_round",
        ),
        (ARMS.replace("batch_sequences = 8", "batch_sequences = 1"), "less than one for each of 2 peers"),
        (ARMS + "overlap_steps = 11", r"overlap_steps \(11\) exceeds the 10 steps of a round"),
        (ARMS + '[[arms]]\nmode = "spes"', "every arm needs a name"),
        (ARMS + '[[arms]]\nname = "a"\nmode = "dilocco"', "arm 'a': mode: Input should be 'spes', 'diloco'"),
        (ARMS + '[[arms]]\nname = "a"\n[[arms]]\nname = "a"', "two arms are called 'a'"),
        (ARMS + '[[arms]]\nname = "a"\nsync.shared_offer_encoding = "int9"', "arm 'a': sync.shared_offer_encoding"),
        (ARMS + '[[arms]]\nname = "a"\nmode = "centralized"\npeers = 4', "one peer that owns everything"),
        (ARMS + '[[arms]]\nname = "a"\nmode = "fedavg"\ntraining.num_subsets = 2', "leave num_subsets out"),
        (QUICK.replace('"centralized"\n\n[base]', '"none"\n\n[base]'), "experiment.baseline: no arm is called 'none'"),
        (ARMS + "[sweep]\npeers = 2", "sweep.peers: a list of values is needed"),
        (
            ARMS + '[sweep]\n"training.batch_sequences" = [8, 16]',
            "equally many tokens, and 'batch_sequences=8' trains 10240",
        ),
        (ARMS.replace("[1, 2]", "[1, 1]"), "a seed stands there twice"),
    ],
)
def test_a_wrong_file_is_refused_by_name(source: str, complaint: str) -> None:
    with pytest.raises(BadConfiguration, match=complaint):
        parse_experiment(source, "x.toml")


def test_the_example_and_the_quick_experiment_are_right() -> None:
    example = parse_experiment(EXAMPLE, "example")
    assert list(example.arms) == ["spes", "spes-int8", "diloco", "centralized"]
    assert example.arms["spes-int8"].sync.expert_encoding == "int8"
    assert example.arms["spes"].sync.expert_encoding == "fp32"
    assert [cell.seed for cell in example.cells[:4]] == [1, 1, 1, 1]
    assert list(parse_experiment(QUICK, "quick").arms) == ["spes", "diloco", "centralized"]


def test_modes_settle_who_owns_what_and_the_outer_step() -> None:
    modes = "".join(
        f'[[arms]]\nname = "{mode}"\nmode = "{mode}"\n' for mode in ("spes", "diloco", "fedavg", "centralized")
    )
    arms = parsed(ARMS + modes, peers="4").arms
    assert [arms["spes"].subsets_of(peer) for peer in range(4)] == [(0,), (1,), (2,), (3,)]
    for mode in ("diloco", "fedavg"):
        assert arms[mode].training.num_subsets == 1
        assert [arms[mode].subsets_of(peer) for peer in range(4)] == [(0,)] * 4
    assert (arms["diloco"].sync.shared_outer, arms["diloco"].sync.expert_outer) == ("nesterov", "nesterov")
    assert (arms["diloco"].sync.outer_lr, arms["diloco"].sync.outer_momentum) == (0.7, 0.9)
    assert (arms["fedavg"].sync.shared_outer, arms["fedavg"].sync.expert_outer) == ("mean", "mean")
    central = arms["centralized"]
    assert (central.peers, central.subsets_of(0), central.sync.shared_offer_encoding) == (1, (0,), "fp32")
    assert {arm.training.batch_sequences for arm in arms.values()} == {8}


def test_subsets_have_owners_when_there_are_more_or_fewer_than_peers() -> None:
    arms = parsed(ARMS + "[sweep]\npeers = [1, 4]", steps_per_round="10\nnum_subsets = 2").arms
    assert arms["peers=1"].subsets_of(0) == (0, 1)
    assert [arms["peers=4"].subsets_of(peer) for peer in range(4)] == [(0,), (1,), (0,), (1,)]


def test_a_sweep_makes_every_combination_and_an_arms_own_settings_win() -> None:
    arms = '[[arms]]\nname = "a"\n[[arms]]\nname = "b"\npeers = 1\n'
    experiment = parsed(ARMS + arms + '[sweep]\npeers = [2, 4]\n"training.steps_per_round" = [10, 20]')
    assert list(experiment.arms)[:4] == [
        "a peers=2 steps_per_round=10",
        "a peers=2 steps_per_round=20",
        "a peers=4 steps_per_round=10",
        "a peers=4 steps_per_round=20",
    ]
    assert experiment.arms["a peers=4 steps_per_round=20"].peers == 4
    assert experiment.arms["b peers=4 steps_per_round=20"].peers == 1
    assert experiment.arms["b peers=4 steps_per_round=20"].num_rounds == 2


def test_a_result_is_known_by_all_that_decides_it() -> None:
    before = arm_cell("")
    assert arm_cell("", name='"other"', seeds="[1]").hash == before.hash
    for key, value in {"lr": "2e-2", "seeds": "[3]", "text_bytes": "100_000", "held_out_tokens": "1024"}.items():
        assert arm_cell("", **{key: value}).hash != before.hash


# ---- text ----


def test_a_table_without_a_blank_line_is_cut_at_its_lines(tmp_path: Path) -> None:
    table = "".join(f"{number} = {number * number}\n" for number in range(20_000))
    (tmp_path / "table.txt").write_text(table)
    documents = read_texts((str(tmp_path / "table.txt"),), 1 << 20).documents
    assert len(documents) > 10
    assert max(len(document) for document in documents) < 20_000
    assert sorted("".join(documents).splitlines()) == sorted(table.splitlines())


def test_a_book_in_one_file_is_cut_so_that_a_part_is_held_out(tmp_path: Path) -> None:
    paragraph = "All the world's a stage, and all the men and women merely players.\n" * 20
    (tmp_path / "book.txt").write_text("\n\n".join(f"{number} {paragraph}" for number in range(40)))
    corpus = read_texts((str(tmp_path / "book.txt"),), 1 << 20)
    assert len(corpus) > 5
    assert len("".join(corpus.documents)) == (tmp_path / "book.txt").stat().st_size
    both = read_texts((str(tmp_path / "book.txt"), "standard-library"), 100_000)
    assert 40_000 < sum(len(document.encode()) for document in both.documents) <= 100_000
    assert both.source.startswith("book.txt + standard library")
    with pytest.raises(BadConfiguration, match=r"cannot read the text .*none\.txt"):
        read_texts((str(tmp_path / "none.txt"),), 1000)


# ---- a cell ----


def without_seconds(result: CellResult) -> list[Point]:
    return [dataclasses.replace(point, seconds=0.0) for point in result.points]


def test_the_same_cell_gives_the_same_numbers() -> None:
    cell = arm_cell('[[arms]]\nname = "a"\nsync.merge_alpha = 0.05\nsync.merge_interval_steps = 10\n')
    first, second = run_cell(cell), run_cell(cell)
    assert without_seconds(first) == without_seconds(second)
    assert first.final.tokens == 40 * 8 * 32
    assert [point.round for point in first.points] == [0, 1, 2, 3, 4]
    assert first.points[-1].held_out_loss < first.points[0].held_out_loss - 1.5


def test_overlap_trains_and_sends_as_much() -> None:
    blocking, late = run_cell(arm_cell("")), run_cell(arm_cell("overlap_steps = 10\n"))
    assert late.final.tokens == blocking.final.tokens
    assert late.final.bytes_received == blocking.final.bytes_received
    assert late.final.held_out_loss != blocking.final.held_out_loss
    assert late.final.held_out_loss < late.points[0].held_out_loss - 1.5


def test_cells_of_a_seed_share_first_weights_and_other_seeds_do_not() -> None:
    experiment = parse_experiment(QUICK, "quick", quick=True)
    firsts = {cell.name: _opened(cell).held_out_loss() for cell in experiment.cells}
    assert firsts["spes seed 1"] == firsts["diloco seed 1"] == firsts["centralized seed 1"]
    assert firsts["spes seed 1"] != firsts["spes seed 2"]


def _opened(cell: Cell) -> Swarm:
    return open_swarm(cell, read_texts(cell.texts, cell.about.text_bytes))


def test_centralized_is_plain_training() -> None:
    """The reference knows no rounds and no exchange. 1e-4: its sums run in another order, and steps multiply that."""
    cell = next(cell for cell in parse_experiment(QUICK, "quick").cells if cell.arm.mode == "centralized")
    swarm = _opened(cell)
    manifest, trainer = swarm.layout.manifest, next(iter(swarm.trainers.values()))
    decoder = Decoder(manifest.model, "cpu", manifest.training)
    decoder.own(tuple(range(manifest.model.num_experts)))
    decoder.load_group(None, trainer._public.group(None))
    for expert in range(manifest.model.num_experts):
        decoder.load_master(expert, trainer._public.group(expert))
    parameters = [*decoder.shared_parameters(), *decoder.owned_parameters()]
    plain = torch.optim.AdamW(parameters, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    sampler, training = Sampler(manifest, swarm.blobs), manifest.training
    for step, batch in enumerate(sampler.training([DataRange(0, 40 * 8)], [8] * 40)):
        plain.param_groups[0]["lr"] = lr_at(step, training)
        decoder(batch.tokens_BT, batch.targets_BT).total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        plain.step()
        plain.zero_grad()

    def loss(batch: Batch) -> float:
        with torch.no_grad():
            return float(decoder(batch.tokens_BT, batch.targets_BT).ce) * batch.num_tokens

    held_out = list(sampler.held_out(0, 1, 16))
    expected = sum(loss(batch) for batch in held_out) / sum(batch.num_tokens for batch in held_out)
    assert step == 39
    assert run_cell(cell).final.held_out_loss == pytest.approx(expected, abs=1e-4)


def test_one_peer_that_owns_every_expert_is_centralized_training() -> None:
    fp32 = {f"{name}_encoding": '"fp32"' for name in ("shared_offer", "shared_update", "expert")}
    alone = run_cell(arm_cell("", peers="1", **fp32))
    central = run_cell(next(cell for cell in parse_experiment(QUICK, "quick").cells if cell.arm.mode == "centralized"))
    assert alone.final.held_out_loss == central.final.held_out_loss
    assert alone.final.bytes_sent == alone.final.bytes_received == 0
    assert alone.times_fewer_bytes is None


def test_bytes_are_what_reducers_and_everybody_fetch() -> None:
    """Two peers, both reduce every shared block: each fetches the other's shared offer, and the other's experts; the
    mean both have made."""
    fp32 = {f"{name}_encoding": '"fp32"' for name in ("shared_offer", "shared_update", "expert")}
    in_fp32 = run_cell(arm_cell("", **fp32))
    a_round = 4 * in_fp32.num_shared + 4 * in_fp32.num_expert_parameters / 2
    assert in_fp32.num_rounds == 4
    assert in_fp32.final.bytes_sent == in_fp32.final.bytes_received == 4 * a_round
    assert in_fp32.times_fewer_bytes == 1.0
    assert run_cell(arm_cell("")).times_fewer_bytes == pytest.approx(2.0)  # bf16
    # four peers, two of which reduce a shared block. Each reducer fetches three offers, the others the mean; whoever
    # made it sends its one first copy. Experts: each of four owners sends its own, and fetches three others.
    of_four = run_cell(arm_cell("", peers="4", **fp32))
    shared, experts = 4 * of_four.num_shared, 4 * of_four.num_expert_parameters
    assert of_four.final.bytes_received == pytest.approx(4 * (shared * (2 * 3 + 2) / 4 + experts * 3 / 4))
    assert of_four.final.bytes_sent == pytest.approx(4 * (shared * (2 * 3 + 1) / 4 + experts / 4))


def test_a_run_that_diverges_ends_with_the_reason() -> None:
    with pytest.raises(SpesError, match="not finite"):
        run_cell(arm_cell("", lr="1e30"))


def test_blobs_in_memory_are_kept_by_name_until_they_are_dropped() -> None:
    blobs = MemoryBlobs()
    one, other = blobs.put(b"one"), blobs.put(b"other")
    assert (blobs.read(one.name), blobs.size_bytes(other.name), bytes(blobs.map(other.name)[:])) == (
        b"one",
        5,
        b"other",
    )
    blobs.keep_only({other.name})
    assert (blobs.has(one.name), blobs.has(other.name)) == (False, True)
    with pytest.raises(BlobMissing):
        blobs.read(one.name)


# ---- numbers over seeds ----


def made_up(arm: str, seed: int, *losses: float) -> CellResult:
    points = tuple(
        Point(round, 10 * round, 1000 * round, 50.0 * round, 70.0 * round, loss, None, float(round))
        for round, loss in enumerate(losses)
    )
    seconds = {"training": 1.0, "exchange": 1.0, "evaluation": 1.0}
    return CellResult(arm, seed, "h", {}, points, len(losses) - 1, 1200.0, 100, 200, "a text", 0.5, seconds)


def test_differences_are_paired_by_seed() -> None:
    arm = [made_up("a", 1, 5.0, 2.02), made_up("a", 2, 5.0, 4.0), made_up("a", 3, 5.0, 9.0)]
    baseline = [made_up("b", 2, 5.0, 4.0), made_up("b", 1, 5.0, 2.0)]
    found = paired_differences(arm, baseline)
    assert found is not None
    assert (found.least, found.most) == (0.0, pytest.approx(0.01))
    assert found.mean == pytest.approx(0.005)
    assert found.deviation == pytest.approx(0.01 / 2**0.5)
    assert paired_differences(arm, []) is None
    assert final_losses(baseline).mean == 3.0
    assert made_up("a", 1, 5.0, 4.0, 3.0).times_fewer_bytes == 5.0
    assert made_up("a", 1, 5.0, 4.0, 3.0).tokens_per_second == 1000.0


def test_a_result_comes_back_from_its_file_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    result = made_up("a", 1, 5.0, 4.0)
    assert load_result(tmp_path / "a.json") is None
    save_result(tmp_path / "a.json", result)
    assert load_result(tmp_path / "a.json") == result
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(BadConfiguration, match=r"a\.json is damaged"):
        load_result(tmp_path / "a.json")


def test_a_report_names_what_is_missing(tmp_path: Path) -> None:
    experiment = parse_experiment(QUICK, "quick")
    results = (made_up("spes", 1, 5.0, 2.02, 2.02), made_up("centralized", 1, 5.0, 3.0, 2.0))
    write_results(tmp_path, experiment, results, {"diloco seed 1": "it diverged"})
    text = (tmp_path / "results.md").read_text()
    assert (
        "| spes | 2 | 10 | 1 | 2.0200 | 2.0200–2.0200 | 0.0000 | +1.00% (+1.00% … +1.00%) | 0.1 | 0.1 | 5.00× |" in text
    )
    assert "4 of 6 cells have no result" in text
    assert "- diloco seed 1: it diverged" in text
    assert "- 3 were not run to their end" in text


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'spes-peer\[experiment\]'"):
        draw_curves(tmp_path, "x", ())


# ---- the command ----


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "spes_peer", "experiment", *map(str, arguments)]


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=100, check=False)


def invocations(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "environment.json").read_text())["invocations"]
    return found


def test_quick_writes_all_of_an_experiments_folder_and_is_not_run_twice(tmp_path: Path) -> None:
    done = run("--quick", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "[6/6]" in done.stderr
    assert "| spes | 2 | 10 | 2 |" in done.stdout
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {
        *("cells", "environment.json", "experiment.toml", "results.csv", "results.md"),
        *("loss-tokens.png", "loss-bytes.png"),
    }
    assert (tmp_path / "out" / "experiment.toml").read_text() == QUICK
    assert (tmp_path / "out" / "loss-bytes.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 6 * 5
    assert {row["tokens"] for row in rows if row["round"] == "4"} == {"10240"}
    assert {row["mode"] for row in rows} == {"spes", "diloco", "centralized"}
    (first,) = invocations(tmp_path / "out")
    assert (first["cells_run"], first["threads_per_cell"]) == (6, 1)

    cells = sorted((tmp_path / "out" / "cells").iterdir())
    cells[0].unlink()
    written = {path: path.stat().st_mtime_ns for path in cells[1:]}
    again = run("--quick", "--out", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert "5 of 6 cells are finished already" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in cells[1:]} == written
    assert [one["cells_run"] for one in invocations(tmp_path / "out")] == [6, 1]


def test_a_failed_cell_is_named_and_does_not_end_the_others(tmp_path: Path) -> None:
    arms = '[[arms]]\nname = "wild"\ntraining.lr = 1e30\n[[arms]]\nname = "tame"\n'
    (tmp_path / "x.toml").write_text(ARMS.replace("[1, 2]", "[1]") + arms)
    done = run(tmp_path / "x.toml", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "wild seed 1: failed: the last" in done.stderr
    assert "| tame | 2 |" in done.stdout
    assert "- wild seed 1: the last" in (tmp_path / "out" / "results.md").read_text()


def test_a_wrong_command_is_one_line(tmp_path: Path) -> None:
    for arguments, complaint in (
        ((), "name a file, or try --quick"),
        ((tmp_path / "none.toml",), f"cannot read {tmp_path}/none.toml"),
    ):
        done = run(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert complaint in done.stderr
    assert run("--example").stdout == EXAMPLE


class _Nobody:
    """Is told how it goes and does not care."""

    def started(self, cell: Cell) -> None: ...

    def went_on(self, cell: Cell, rounds_done: int, held_out_loss: float) -> None: ...

    def finished(self, cell: Cell, result: CellResult) -> None: ...

    def failed(self, cell: Cell, reason: str) -> None: ...


def test_an_interruption_in_the_middle_of_a_start_ends_the_process_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = [], runner._start

    def interrupted(*arguments: Any) -> Any:
        one = start(*arguments)
        started.append(one.process)
        signal.raise_signal(signal.SIGINT)  # before anybody has noted the process
        return one

    monkeypatch.setattr(runner, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run_cells((arm_cell(""),), tmp_path, 1, _Nobody())
    assert [process.is_alive() for process in started] == [False]


@pytest.mark.slow
def test_an_interruption_keeps_what_is_finished_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(ARMS.replace("[1, 2]", str(list(range(200)))))
    process = subprocess.Popen(
        command(tmp_path / "x.toml", "--out", tmp_path / "out", "--jobs", "1"), stderr=subprocess.PIPE, text=True
    )
    deadline_at = time.monotonic() + 240
    while not list((tmp_path / "out" / "cells").glob("base-seed0-*.json")):
        assert time.monotonic() < deadline_at
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "of 200 cells are finished, the same command goes on" in said
    assert "Traceback" not in said
    assert (tmp_path / "out" / "results.csv").exists()
    assert children
    assert not psutil.wait_procs(children, timeout=60)[1]
