"""A file is old or new, whatever happens while it is written."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spes_peer.files import making_folder, replacing, write_whole


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
        assert process.wait(10) == -signal.SIGKILL
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
