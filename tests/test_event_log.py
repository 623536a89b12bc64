"""The event log on disk: what a daemon shows is what can be read again, whatever happens to disk, clock and files."""

import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tui_statuses import NOW, closed_round, log_line, status

from spes_peer import troubles
from spes_peer.errors import UserError
from spes_peer.events import journal
from spes_peer.events.folder import files_in, last_event
from spes_peer.events.journal import EventLog
from spes_peer.events.picture import Picture
from spes_peer.events.recording import Recording
from spes_peer.wire.control_pb2 import Status
from spes_peer.wire.event_pb2 import Event


class Daemon:
    """Facts that change as a test says, the picture of them, and its log."""

    def __init__(self, folder: Path, most_bytes: int = 1 << 20, num_files: int = 4) -> None:
        self.folder = folder
        self.facts = status(5)
        self.at = NOW
        self.shown: dict[float, Status] = {}
        self.log = EventLog(folder / "events", most_bytes, num_files, clock=lambda: self.at)
        self.picture = Picture(self.build, self.log, clock=lambda: self.at, ticks=lambda: self.at)

    def build(self) -> Status:
        built = Status()
        built.CopyFrom(self.facts)
        return built

    def look(self, seconds: float = 100.0) -> Status:
        """So much later."""
        self.at += seconds
        self.shown[self.at] = self.picture.look()
        return self.shown[self.at]

    def live_a_round(self) -> None:
        number = self.facts.rounds[-1].round + 1
        self.facts.round, self.facts.training.loss = number + 1, number / 7
        self.facts.rounds.append(closed_round(number))
        del self.facts.rounds[:-8]
        self.facts.log.append(log_line(self.facts.log[-1].sequence + 1))
        for peer in self.facts.peers:
            peer.seen_at += 100
        self.look()

    def end(self, why: str = "left the run") -> Status:
        self.at += 100
        self.picture.end(why, 0)
        self.picture.close()
        self.shown[self.at] = self.picture.status
        return self.picture.status


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    daemon.look()
    yield daemon
    daemon.log.close()


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in files_in(folder / "events") for line in path.read_text().splitlines()]


def test_what_was_shown_can_be_read_again_at_every_moment(daemon: Daemon) -> None:
    for _ in range(20):
        daemon.live_a_round()
    daemon.end()
    with Recording(daemon.folder) as recording:
        for at in [*daemon.shown, *reversed(daemon.shown)]:
            assert recording.status_at(at) == daemon.shown[at]
            assert recording.status_at(at + 99) == daemon.shown[at]
        assert recording.started_at == NOW + 100
        assert recording.ended_at == daemon.at
        assert recording.status_at(0) == daemon.shown[NOW + 100]
        assert recording.status_at(1e12).phase.name == "finished"
        assert recording.rounds_at == list(daemon.shown)[:-1]
        assert dict(recording) == daemon.shown
        assert recording.num_events == len(list(recording.events()))


def test_sequences_rise_by_one_over_all_starts(tmp_path: Path) -> None:
    for _ in range(3):
        daemon = Daemon(tmp_path)
        daemon.look()
        daemon.live_a_round()
        daemon.end()
    with Recording(tmp_path) as recording:
        events = list(recording.events())
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.WhichOneof("kind") for event in events].count("started") == 3


def test_the_newest_files_stay_and_each_can_be_read_alone(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, most_bytes=20_000, num_files=3)
    daemon.look()
    for _ in range(120):
        daemon.live_a_round()
    daemon.end()
    files = files_in(tmp_path / "events")
    assert len(files) == 3
    assert all(path.stat().st_size >= 20_000 for path in files[:-1])
    for path in (*files, tmp_path):
        with Recording(path) as recording:
            assert recording.started_at > NOW + 200
            assert recording.status_at(recording.ended_at) == daemon.shown[recording.ended_at]


def test_pictures_come_again_and_again_so_that_nobody_reads_it_all(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BYTES_BETWEEN_PICTURES", 5_000)
    for _ in range(50):
        daemon.live_a_round()
    daemon.end()
    kinds = [[*line][2] for line in lines_of(daemon.folder)]
    places = [number for number, kind in enumerate(kinds) if kind in ("picture", "started")]
    assert len(places) > 5
    with Recording(daemon.folder) as recording:
        assert all(recording.status_at(at) == shown for at, shown in sorted(daemon.shown.items(), reverse=True))


def test_figures_that_move_all_the_time_are_written_now_and_then_and_all_else_at_once(daemon: Daemon) -> None:
    for number in range(100):
        daemon.facts.training.steps_done = 14 + number
        daemon.facts.peers[1].seen_at += 0.1
        daemon.facts.phase.why = f"step {number}"
        shown = daemon.look(0.1)
        assert shown.training.steps_done <= 14 + number
    daemon.facts.is_paused, daemon.facts.phase.name = True, "paused"
    shown = daemon.look(0.1)
    assert shown.is_paused
    assert shown.phase.name == "paused"
    daemon.end()
    kinds = [[*line][2] for line in lines_of(daemon.folder)]
    assert kinds.count("training_sample") in range(4, 8)
    assert kinds.count("peers_sample") in (1, 2)
    assert kinds.count("phase_changed") in range(5, 9)
    assert kinds.count("pause_changed") == 1


def test_a_moment_that_trembles_with_the_clocks_is_no_event(daemon: Daemon) -> None:
    for tremble in (0.001, -0.002, 0.3):
        daemon.facts.round_phase.until_at = status(5).round_phase.until_at + tremble
        daemon.look()
    daemon.facts.round_phase.until_at += 2
    assert daemon.look().round_phase.until_at == daemon.facts.round_phase.until_at
    daemon.facts.ClearField("round_phase")
    assert not daemon.look().HasField("round_phase")
    daemon.end()
    kinds = [[*line][2] for line in lines_of(daemon.folder)]
    assert kinds.count("round_phase_changed") == 3


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    first = Daemon(tmp_path)
    first.look()
    first.log.close()  # as if killed
    (path,) = files_in(tmp_path / "events")
    with path.open("ab") as file:
        file.write(b'{"sequence":8000,"at":%d.5,"picture":{"pid":47' % NOW)
    assert last_event(tmp_path / "events") is not None
    with Recording(tmp_path) as recording:
        assert recording.status_at(1e12) == first.picture.status
    second = Daemon(tmp_path)
    second.facts.pid = 2
    second.look(1000)
    second.end()
    with Recording(tmp_path) as recording:
        assert recording.status_at(NOW + 500) == first.picture.status
        assert recording.status_at(1e12) == second.picture.status


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Fills up half a line later, or has room again."""
    is_full, write = [False], os.write

    def limited(descriptor: int, content: bytes) -> int:
        if is_full[0]:
            write(descriptor, bytes(content)[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", limited)

    def be(full: bool) -> None:
        is_full[0] = full

    yield be
    troubles.board.clear("disk")


def test_a_full_disk_is_a_trouble_and_the_log_goes_on_afterwards(daemon: Daemon, disk: Callable[[bool], None]) -> None:
    daemon.live_a_round()
    daemon.log.close()
    daemon.log = EventLog(daemon.folder / "events", clock=lambda: daemon.at)
    disk(True)
    events = [Event(sequence=daemon.log.next_sequence, at=daemon.at, logged={})]
    with pytest.raises(OSError, match="disk full"):
        daemon.log._write(journal._Batch(events, daemon.picture.status, False))
    assert any("disk full" in text for text in troubles.board.texts)
    daemon.log._needs_picture = True
    disk(False)
    daemon.log._write(journal._Batch(events, daemon.facts, False))
    with Recording(daemon.folder) as recording:
        assert recording.status_at(1e12) == daemon.facts


def test_what_a_slow_disk_had_no_time_for_is_made_good_by_a_picture(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.close()  # nobody writes now
    before = status(5)
    for number in range(journal._BACKLOG + 5):
        log.append([Event(sequence=1 + number, at=NOW + number, logged={})], before)
    assert log._has_lost
    while not log._batches.empty():
        log._batches.get()
    log.append([Event(sequence=900, at=NOW + 900, logged={})], before)
    batch = log._batches.get()
    assert batch is not None
    log._write(batch)
    with Recording(tmp_path) as recording:
        assert recording.status_at(1e12) == before


class SlowDisk:
    """Takes a batch when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_asked = threading.Event()
        self.may_write = threading.Event()
        self._append = journal._append
        monkeypatch.setattr(journal, "_append", self._write)

    def _write(self, path: Path, lines: bytes) -> None:
        self.is_asked.set()
        assert self.may_write.wait(30)
        self._append(path, lines)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.may_write.set()


def test_why_a_daemon_ended_is_written_also_where_the_disk_had_no_time_for_all_of_it(
    slow_disk: SlowDisk, tmp_path: Path
) -> None:
    daemon = Daemon(tmp_path)
    daemon.look()
    assert slow_disk.is_asked.wait(30)
    for _ in range(journal._BACKLOG):
        daemon.live_a_round()
    daemon.picture.end("no disk", 0)
    slow_disk.may_write.set()
    daemon.picture.close()
    with Recording(tmp_path) as recording:
        assert recording.status_at(1e12) == daemon.picture.status
        assert recording.status_at(1e12).phase.why == "no disk"


def test_of_what_waits_for_a_slow_disk_the_newest_is_written_when_there_is_no_more_time(
    slow_disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_CLOSE_SECONDS", 0.01)
    monkeypatch.setattr(journal, "_NEWEST_SECONDS", 30.0)
    daemon = Daemon(tmp_path)
    daemon.look()
    assert slow_disk.is_asked.wait(30)
    for _ in range(10):
        daemon.live_a_round()
    daemon.picture.end("no disk", 0)
    closing = threading.Thread(target=daemon.picture.close)
    closing.start()
    deadline = time.monotonic() + 10
    while daemon.log._batches.qsize() != 2 and time.monotonic() < deadline:  # the newest, and the end
        time.sleep(0.01)
    slow_disk.may_write.set()
    closing.join(30)
    with Recording(tmp_path) as recording:
        assert recording.status_at(1e12) == daemon.picture.status
        kinds = [event.WhichOneof("kind") for event in recording.events()]
    assert kinds.count("round_closed") == len(status(5).rounds)  # those of the first look


def test_a_clock_that_was_set_back_does_not_hide_what_came_after(daemon: Daemon) -> None:
    daemon.live_a_round()
    daemon.look(-5000)
    daemon.live_a_round()
    daemon.end()
    with Recording(daemon.folder) as recording:
        assert recording.ended_at == NOW + 200  # the newest that it ever was
        assert recording.status_at(recording.ended_at) == daemon.picture.status


@pytest.mark.parametrize(
    ("seconds", "moments"),
    [
        ([1, 2, 3, 9e8, 5, 6, 7], [1, 2, 3, 5, 6, 7]),  # ahead before the network set it
        ([1, 2, 3, -9e8, 5, 6, 7], [1, 2, 3, 5, 6, 7]),  # as when a machine starts
        ([9e8, 2, 3, 4], [2, 3, 4]),
        ([1, 2, 3, 4, 9e8], [1, 2, 3, 4, 9e8]),  # nobody knows
        ([1, 2, 3], [1, 2, 3]),
    ],
)
def test_a_clock_that_was_wrong_for_a_moment_moves_that_moment_alone(
    tmp_path: Path, seconds: list[float], moments: list[float]
) -> None:
    daemon = Daemon(tmp_path)
    daemon.picture = Picture(daemon.build, daemon.log, clock=lambda: daemon.at, ticks=itertools.count().__next__)
    for number, second in enumerate(seconds):
        daemon.at, daemon.facts.round = NOW + second, 50 + number
        daemon.picture.look()
    daemon.log.close()
    with Recording(tmp_path) as recording:
        shown = dict(recording)
        assert [at - NOW for at in shown] == moments
        assert shown[recording.ended_at] == recording.status_at(recording.ended_at) == daemon.picture.status
        assert all(recording.status_at(at) == one for at, one in reversed(shown.items()))


def test_what_is_no_event_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "has a daemon run"), (tmp_path / "none", "No such file")):
        with pytest.raises(UserError, match=words):
            Recording(path)
    (tmp_path / "text").write_text("hello\n\n{}x\n")
    with pytest.raises(UserError, match="no events are in"):
        Recording(tmp_path / "text")


def test_other_users_cannot_read_it(daemon: Daemon) -> None:
    daemon.end()
    (path,) = files_in(daemon.folder / "events")
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
