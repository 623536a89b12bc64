"""The benchmark of the exchange measures real nodes, says what it could not measure, and does what it is told."""

import argparse
import json
from pathlib import Path

import pytest

from spes_peer.bench import exchange
from spes_peer.bench.command import add_bench_command, add_report_arguments
from spes_peer.chaos.network import missing
from spes_peer.errors import BadConfiguration
from spes_peer.run.manifest import Timing

HEARTBEAT_SECONDS = Timing().heartbeat_seconds


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_report_arguments(parser)
    return parser.parse_args(["--quick", *arguments])


def test_what_cannot_be_measured_here_is_skipped_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exchange, "missing", lambda: "no namespaces today")
    path = tmp_path / "report.json"
    report = exchange.run_bench(options("--report", str(path)))
    assert json.loads(path.read_text()) == report
    assert report["skipped"] == dict.fromkeys(["grpc_link", "relay_link", "swarm", "beats"], "no namespaces today")
    assert report["loopback_ratio"] == report["loopback_mb_s"] / report["loopback_plain_mb_s"] > 0
    assert "swarm_factor" not in report
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("loopback: loopback_mb_s ")
    assert "swarm: skipped: no namespaces today" in shown


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.skipif(bool(missing()), reason=missing() or "it can")
def test_every_figure_is_measured_in_networks_of_their_own() -> None:
    report = exchange.run_bench(options())
    assert set(report["skipped"]) <= ({"grpc_link", "relay_link"} if exchange._needs_iperf() else set())
    assert report["swarm_factor"] > 0.9  # nobody has a blob before one has
    assert 0.9 < report["swarm_origin_copies"] < 1.01 * report["swarm_num_peers"]
    for name in {"grpc_link", "relay_link"} - set(report["skipped"]):
        assert 0.1 < report[f"{name}_ratio"] < 1.2
    for name in ("grpc_attended", "grpc_attending", "relay_attended", "relay_attending"):
        assert report[f"beats_{name}_worst_seconds"] < HEARTBEAT_SECONDS  # while a line is full of blobs


def test_a_report_that_cannot_be_written_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_PARTS", [])
    with pytest.raises(BadConfiguration, match="No such file"):
        exchange.run_bench(options("--report", str(tmp_path / "absent" / "report.json")))


def test_the_command_line_knows_the_options() -> None:
    parser = argparse.ArgumentParser()
    add_bench_command(parser.add_subparsers())
    parsed = parser.parse_args(["bench", "exchange", "--quick", "--report", "figures.json"])
    assert (parsed.subject, parsed.quick, parsed.report) == ("exchange", True, "figures.json")
