"""Shells complete commands, options and values: tried by running bash's completion, and read by the other shells."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from spes_peer.cli import main

_COMPLETE = """\
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
$(complete -p spes-peer | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "complete.sh").write_text(_COMPLETE)
    for shell in ("bash", "zsh", "fish"):
        with (folder / shell).open("w") as file, contextlib.redirect_stdout(file), pytest.raises(SystemExit) as ended:
            main(["completion", shell])
        assert ended.value.code == 0
    return folder


def completed(scripts: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words, behind spes-peer."""
    done = subprocess.run(
        ["bash", scripts / "complete.sh", scripts / "bash", "spes-peer", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=scripts,
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_values_and_files(scripts: Path) -> None:
    assert completed(scripts, "jo") == ["join"]
    assert {"pause", "plan"} <= set(completed(scripts, "p"))
    assert completed(scripts, "join", "--boot") == ["--bootstrap"]
    assert completed(scripts, "identity", "ex") == ["export"]
    assert completed(scripts, "logs", "--of", "tr") == ["trainer"]
    assert completed(scripts, "identity", "import", "complete") == ["complete.sh"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_what_is_printed_for_it(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    assert "spes-peer" in (scripts / shell).read_text()
    subprocess.run([shell, "-n", scripts / shell], check=True)
