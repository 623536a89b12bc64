"""Logs stay small, whoever writes them, and a dead peer does not flood them."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from exchange_nodes import eventually

from spes_peer.logs import RepeatFilter, bound, following, keep_bounded, last_lines, last_words, said_last

WRITER = """
import os, sys, time
for line in range(int(sys.argv[1])):
    print(f"line {line:06d}", flush=line % 100 == 0)
    while os.fstat(1).st_size > 1_000_000:  # or it would be done before anybody looks, on a machine that is busy
        time.sleep(0.001)
"""


def start_writing(path: Path, num_lines: int) -> "subprocess.Popen[bytes]":
    with path.open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(num_lines)], stdout=log)


def test_a_log_that_has_grown_is_moved_aside_and_its_writer_goes_on_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    with path.open("ab") as log:
        log.write(b"x" * 1000)
        log.flush()
        bound(path, most_bytes=1000)
        assert path.stat().st_size == 1000
        log.write(b"y")
        log.flush()
        bound(path, most_bytes=1000)
        log.write(b"after")
    assert path.read_bytes() == b"after"
    assert (tmp_path / "child.log.old").read_bytes() == b"x" * 1000 + b"y"


def test_a_log_that_cannot_be_moved_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    (tmp_path / "child.log.old").mkdir()
    path.write_bytes(b"x" * 1001)
    bound(path, most_bytes=1000)
    assert path.read_bytes() == b""
    bound(tmp_path / "none.log")


async def test_a_child_that_prints_for_ever_keeps_its_log_bounded(tmp_path: Path) -> None:
    path, most = tmp_path / "child.log", 100_000
    process = start_writing(path, 200_000)
    keeping = asyncio.create_task(keep_bounded(tmp_path, most, look_seconds=0.001))
    await eventually(lambda: process.poll() is not None)
    await eventually(lambda: path.stat().st_size <= most)
    keeping.cancel()
    old = tmp_path / "child.log.old"
    assert most < old.stat().st_size < 1_100_000  # of 2.4 MB that were printed
    assert b"\0" not in path.read_bytes() + old.read_bytes()


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


def warn(filter: RepeatFilter, text: str, *args: object, level: int = logging.WARNING) -> str | None:
    record = logging.LogRecord("spes_peer.test", level, "", 0, text, args, None)
    return record.getMessage() if filter.filter(record) else None


def test_the_same_warning_is_shown_once_a_minute_with_a_count(clock: list[float]) -> None:
    filter = RepeatFilter(lambda: clock[0])
    template = "lost a peer peer=%s reason=%s"
    assert warn(filter, template, "alder", "timed out") == "lost a peer peer=alder reason=timed out"
    assert [warn(filter, template, "alder", f"reset {number}") for number in range(50)] == [None] * 50
    assert warn(filter, template, "birch", "timed out")
    assert warn(filter, "something else peer=%s", "alder")
    clock[0] += 61
    assert warn(filter, template, "alder", "gone") == "lost a peer peer=alder reason=gone (50 more like this in 61 s)"


def test_what_differs_is_shown_and_so_is_all_that_warns_of_nothing(clock: list[float]) -> None:
    filter = RepeatFilter(lambda: clock[0])
    assert warn(filter, "trying again reason=%s", "a")
    assert warn(filter, "trying again reason=%s", "b")
    assert warn(filter, "trying again reason=%s", "a") is None
    assert warn(filter, "round closed", level=logging.INFO)
    assert warn(filter, "round closed", level=logging.INFO)


def test_a_million_different_warnings_are_not_remembered(clock: list[float]) -> None:
    filter = RepeatFilter(lambda: clock[0])
    for number in range(5000):
        assert warn(filter, f"warning {number}")
    assert len(filter._seen) < 1000


def test_two_handlers_hold_back_the_same(clock: list[float]) -> None:
    filters = [RepeatFilter(lambda: clock[0]) for _ in range(2)]
    shown: list[list[str]] = [[], []]
    for _ in range(30):
        record = logging.makeLogRecord({"levelno": logging.WARNING, "msg": "no answer peer=%s", "args": ("abc",)})
        for one, lines in zip(filters, shown, strict=True):
            if one.filter(record):
                lines.append(record.getMessage())
        clock[0] += 10.0
    assert shown[0] == shown[1]
    assert len(shown[0]) == 5


# ---- read again ----


def test_the_newest_lines_are_read_from_what_was_moved_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    path.write_text("c\nd\n")
    assert last_lines(path, 9) == (["c", "d"], 4)
    (tmp_path / "daemon.log.old").write_text("a\nb\n")
    assert last_lines(path, 3) == (["b", "c", "d"], 4)
    assert last_lines(path, 1) == (["d"], 4)
    assert last_lines(path, 0) == ([], 4)


def test_what_is_written_later_follows_also_when_the_log_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    path.write_text("old\n")
    pieces = following(path, 4, look_seconds=0.0)
    with path.open("a") as log:
        log.write("new\n")
    assert next(pieces) == "new\n"
    path.write_text("")
    path.write_text("z\n")
    assert next(pieces) == "z\n"


def test_what_a_command_ends_with_moves_no_cursor() -> None:
    """Some of an error's words are another's: of a manifest, or of a node that refuses."""
    hostile = "the key '\x1b]0;owned\x07\x1b[2J\nspes-peer: run this' is no organizer's"
    for line_format in ("text", "json"):
        said = said_last(["before", last_words("spes-peer", hostile, line_format)])
        assert said.startswith("spes-peer: the key '")
        assert said.endswith("is no organizer's")
        assert said.isprintable()
