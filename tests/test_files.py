"""A file is old or new, whatever happens while it is written."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spes_peer import files, troubles
from spes_peer.blobs import BlobStore
from spes_peer.errors import BadMessage, DiskTrouble
from spes_peer.files import (
    making_folder,
    remove_litter,
    replacing,
    with_checksum,
    without_checksum,
    write_whole,
)


@pytest.fixture(autouse=True)
def board(monkeypatch: pytest.MonkeyPatch) -> troubles.Troubles:
    """A board of this test alone, and no trouble before it."""
    fresh = troubles.Troubles()
    monkeypatch.setattr(troubles, "board", fresh)
    monkeypatch.setattr(files, "_troubled_at", -1e9)
    return fresh


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_whole(path, b"old")
    write_whole(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_while_writing_leaves_the_old_content_and_no_litter(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "state"
    write_whole(path, b"old")

    def write_and_fail() -> None:
        with replacing(path) as file:
            file.write(b"half of the n")
            raise error

    with pytest.raises(error):
        write_and_fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_content_stands_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_whole(path, b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


HALF_WAY = """
import sys
from pathlib import Path
from spes_peer.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"n" * (1 << 20))
    file.flush()
    print("half way", flush=True)
    sys.stdin.read()
"""


def test_a_kill_half_way_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_whole(path, b"old")
    with subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "half way\n"
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


FOR_EVER = """
import sys
from pathlib import Path
from spes_peer.files import write_whole
while True:
    for letter in (b"a", b"b"):
        write_whole(Path(sys.argv[1]), letter * (1 << 20))
        print(letter.decode(), flush=True)
"""


def test_a_kill_at_any_instant_leaves_one_of_two_contents(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for num_writes in range(1, 7):
        with subprocess.Popen([sys.executable, "-c", FOR_EVER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout
            for _ in range(num_writes):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        content = path.read_bytes()
        assert content in (b"a" * (1 << 20), b"b" * (1 << 20))


def test_a_folder_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    with making_folder(tmp_path / "made") as building:
        (building / "file").write_text("content")
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "made" / "file").read_text() == "content"
    with pytest.raises(FileNotFoundError), making_folder(tmp_path / "broken") as building:
        (building / "nowhere" / "file").write_text("content")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    """Let the system call fail from now on."""

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "disk quota used up"),
        (errno.EROFS, "disk read-only"),
        (errno.EIO, "disk failing"),
    ],
)
def test_a_disk_that_refuses_is_named_and_nothing_of_the_new_content_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: troubles.Troubles, number: int, words: str
) -> None:
    path = tmp_path / "state"
    write_whole(path, b"old")
    refuse(monkeypatch, "fsync", number)
    with pytest.raises(DiskTrouble, match=rf"^{words}: .* free at {tmp_path}$") as caught:
        write_whole(path, b"new")
    assert caught.value.errno == number
    assert isinstance(caught.value, OSError)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    (said,) = board.texts
    assert said == f"{caught.value}; training goes on, but nothing can be kept"


def test_an_error_that_is_not_the_disks_passes_as_it_is(tmp_path: Path, board: troubles.Troubles) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "nowhere" / "state", b"new")
    assert not isinstance(caught.value, DiskTrouble)
    assert not board.texts


def test_the_trouble_has_passed_when_writing_has_worked_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: troubles.Troubles
) -> None:
    with monkeypatch.context() as context:
        refuse(context, "fsync", errno.ENOSPC)
        with pytest.raises(DiskTrouble):
            write_whole(tmp_path / "state", b"new")
    write_whole(tmp_path / "state", b"small")
    assert board.texts  # a small file may fit where a large one did not
    monkeypatch.setattr(files, "_QUIET_SECONDS", 0.0)
    write_whole(tmp_path / "state", b"new")
    assert not board.texts


def test_a_slow_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: troubles.Troubles) -> None:
    monkeypatch.setattr(files, "SLOW_SECONDS", -1.0)
    write_whole(tmp_path / "state", b"new")
    assert board.texts == (f"disk slow: 0 s for one file at {tmp_path}",)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 256 KiB."""
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", name]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("only root can mount a file system")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)


def test_a_really_full_disk_keeps_what_it_had_and_takes_more_when_there_is_room(small_disk: Path) -> None:
    write_whole(small_disk / "state", b"old" * 1000)
    store = BlobStore(small_disk / "blobs")
    kept = store.put(b"k" * 50_000)
    for _ in range(3):
        with pytest.raises(DiskTrouble, match="disk full: 0 of 0 MB free"):
            write_whole(small_disk / "state", b"n" * 300_000)
        with pytest.raises(DiskTrouble):
            store.put(os.urandom(300_000))
    assert (small_disk / "state").read_bytes() == b"old" * 1000
    assert store.read(kept.name) == b"k" * 50_000
    assert list(store.names()) == [kept.name]
    assert not list(small_disk.rglob(f".*{files.UNFINISHED}"))
    store.put(b"n" * 50_000)


def test_what_a_kill_has_left_is_removed_but_not_what_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    left, fresh = (tmp_path / "blobs" / f".{name}.data.12345678{files.UNFINISHED}" for name in ("left", "fresh"))
    for path in (left, fresh, tmp_path / "state"):
        path.write_bytes(b"half")
    os.utime(left, (time.time() - 100, time.time() - 100))
    os.utime(tmp_path / "state", (0, 0))
    assert remove_litter(tmp_path) == 1
    assert not left.exists()
    assert fresh.exists()
    assert (tmp_path / "state").exists()


def test_a_file_with_a_checksum_is_read_only_as_it_was_written() -> None:
    written = with_checksum(b"a ballot")
    assert without_checksum(written) == b"a ballot"
    for damaged in (b"", written[:-1], written + b"x", written[:40] + b"?" + written[41:], b"a ballot"):
        with pytest.raises(BadMessage, match="the disk has changed"):
            without_checksum(damaged)


def test_a_name_that_lasts_is_on_disk_before_the_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut behind it finds the folder with the new name; without `lasts` it may find the old one."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def note_replace(*paths: Path) -> None:
        done.append("name")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_whole(tmp_path / "ballot", b"")
    write_whole(tmp_path / "blob", b"", lasts=False)
    assert done == ["file", "name", "folder", "file", "name"]
