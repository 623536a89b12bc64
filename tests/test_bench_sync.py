"""The benchmark of the synchronization runs the code that synchronizes, on one thread."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from spes_peer.bench.command import add_bench_command, add_report_arguments
from spes_peer.bench.sync import run_bench
from spes_peer.errors import BadConfiguration


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_report_arguments(parser)
    return parser.parse_args(["--quick", *arguments])


def test_the_report_has_every_rate_and_the_table_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    num_threads = torch.get_num_threads()
    report = run_bench(options("--report", str(path)))
    assert torch.get_num_threads() == num_threads
    assert json.loads(path.read_text()) == report
    rates = report["gigabytes_per_second"]
    encodings = ("fp32", "bf16", "int8", "int4", "topk")
    whole = {"copy", "numpy to float16", "name as a blob (sha256)", "outer step, nesterov"}
    whole |= {"merge 16 experts", "state root"}
    assert set(rates) == whole | {f"{verb} {each}" for verb in ("encode", "decode", "reduce") for each in encodings}
    assert all(rate > 0 for rate in rates.values())
    assert report["bytes_ratio"]["topk"] > 100
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == list(encodings)
    for name in ("average 4 offers", *whole):
        assert any(line.startswith(name) for line in lines), name


def test_a_report_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="No such file"):
        run_bench(options("--report", str(tmp_path / "absent" / "report.json")))


def test_the_command_line_knows_the_options() -> None:
    parser = argparse.ArgumentParser()
    add_bench_command(parser.add_subparsers())
    parsed = parser.parse_args(["bench", "sync", "--quick", "--report", "figures.json"])
    assert (parsed.subject, parsed.quick, parsed.report) == ("sync", True, "figures.json")
    assert callable(parsed.run)
