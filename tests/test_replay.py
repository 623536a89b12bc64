"""What a person reads of an event log: replay, and why the last daemon of a folder ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tui_statuses import NOW, closed_round, status

from spes_peer.cli import main
from spes_peer.events.folder import files_in, last_event
from spes_peer.events.journal import EventLog
from spes_peer.events.picture import Picture
from spes_peer.events.recording import Recording
from spes_peer.events.words import in_words, last_end
from spes_peer.wire.control_pb2 import LogLine
from spes_peer.wire.event_pb2 import Ended, Event, Logged

DEAD = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWS9Rq2ungJfDFpAGrhcuoDnhprTcJErqAxCJW2bqtbenm"


def record(folder: Path, is_ended: bool = True) -> None:
    """Two rounds of a daemon's life, 100 seconds each."""
    now, facts = NOW, status(5)
    log = EventLog(folder / "events")
    picture = Picture(lambda: facts, log, clock=lambda: now, ticks=lambda: now)
    picture.look()
    for number in (5, 6):
        now += 100
        facts = status(5)
        facts.round = number + 1
        facts.rounds.extend(closed_round(one) for one in range(5, number + 1))
        picture.look()
    if is_ended:
        picture.end("the disk is full", 1)
    log.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """What a command prints, and its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    return int(str(ended.value.code)), printed.out, printed.err


def test_without_a_terminal_a_log_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path)
    code, words, _ = said(capsys, "replay", str(tmp_path))
    lines = words.splitlines()
    assert code == 0
    assert "started, pid 4711" in lines[0]
    assert any("round 5 closed" in line and "peers" in line for line in lines)
    assert lines[-1].endswith("ended with exit code 1: the disk is full")
    assert said(capsys, "replay", "--data-dir", str(tmp_path))[1] == words


def test_what_replay_prints_as_json_is_a_log_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path)
    copy = tmp_path / "copy"
    copy.write_text(said(capsys, "replay", "--json", str(tmp_path))[1])
    assert json.loads(copy.read_text().splitlines()[0])["sequence"] == 1
    with Recording(copy) as one, Recording(tmp_path) as other:
        assert list(one) == list(other)
        assert [at - NOW for at in one.rounds_at] == [0, 100, 200]


def test_nothing_to_replay_is_a_persons_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, words, error = said(capsys, "replay", str(tmp_path / "none"))
    assert (code, words) == (1, "")
    assert "cannot read" in error


def test_log_lines_are_told_with_their_own_times_and_cannot_draw() -> None:
    lines = [LogLine(at=NOW, level="INFO", text="one"), LogLine(at=NOW + 1, level="WARNING", text="two\x1b[2J")]
    first, second = in_words(Event(at=NOW + 9, logged=Logged(lines=lines))).splitlines()
    assert first.endswith("log INFO: one")
    assert second.endswith("log WARNING: two [2J")
    assert in_words(Event(at=1e300, ended=Ended(why="x"))).startswith("at no known time")


def test_a_folder_without_a_daemon_says_how_the_last_one_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, before = said(capsys, "status", "--data-dir", str(tmp_path))
    assert before.rstrip().endswith(f"no daemon runs on this state folder ({tmp_path}); start one with: spes-peer join")
    record(tmp_path)
    for command in ("status", "pause", "leave"):
        _, _, error = said(capsys, command, "--data-dir", str(tmp_path))
        assert "; start one with: spes-peer join; the last one ended 20" in error
        assert error.endswith("(exit code 1): the disk is full\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "daemon.log").write_text("a line\n")
    _, words, error = said(capsys, "logs", "--data-dir", str(tmp_path))
    assert words == "a line\n"
    assert error.startswith("no daemon runs now; the last one ended 20")


def test_a_daemon_that_was_killed_has_not_said_why(tmp_path: Path) -> None:
    record(tmp_path, is_ended=False)
    assert last_end(tmp_path).startswith("the last one was killed, or its machine went off, some time after 20")
    (path,) = files_in(tmp_path / "events")
    path.write_bytes(b"\x00damaged")
    assert last_end(tmp_path) == ""


def join(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "spes_peer", "join", "--yes", "--no-tui", "--data-dir", str(folder), *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_start_that_fails_says_why_in_both_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = join(tmp_path, "--log-format", "json")
    _, stderr = daemon.communicate(timeout=60)
    assert daemon.returncode == 2
    assert "no run is known yet" in json.loads(stderr.splitlines()[-1])["text"]
    event = last_event(tmp_path / "events")
    assert event is not None
    assert event.ended.exit_code == 2
    assert "no run is known yet" in event.ended.why
    written = (tmp_path / "logs" / "daemon.log").read_text()
    assert "no run is known yet" in json.loads(written.splitlines()[-1])["text"]
    _, words, _ = said(capsys, "logs", "--data-dir", str(tmp_path))
    assert words.splitlines()[-1].startswith("20")
    assert "ERROR   ended: no run is known yet" in words


def test_a_signal_while_starting_is_the_reason_for_the_end(tmp_path: Path) -> None:
    daemon = join(tmp_path, "--bootstrap", DEAD)
    try:
        deadline = time.monotonic() + 60
        while last_event(tmp_path / "events") is None and time.monotonic() < deadline:
            time.sleep(0.02)
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=60)
    finally:
        daemon.kill()
        daemon.wait()
    assert daemon.returncode == os.EX_OK
    event = last_event(tmp_path / "events")
    assert event is not None
    assert event.ended == Ended(why="left the run, as a signal asked")
