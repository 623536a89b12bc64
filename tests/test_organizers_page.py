"""docs/ORGANIZERS.md keeps its word: its commands are typed in their order, with real processes, in a small run."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from console import Console, Step, is_shown, steps_in

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ORGANIZERS.md").read_text()

# What a person would do to run.toml, and what makes rounds take a second on one core.
_EDITS = {
    "min_peers": "2",
    "d_model": "32",
    "num_layers": "2",
    "expert_hidden": "32",
    "sequence_length": "64",
    "steps_per_round": "4",
    "total_steps": "4000",
    "batch_sequences": "8",
    "block_elements": "4096",
    "mode": '"invitation"',
}
_EDITOR = f"""\
#!{sys.executable}
import re, sys
from pathlib import Path
path = Path(sys.argv[1])
text = path.read_text()
for key, value in {_EDITS!r}.items():
    text, changed = re.subn(rf"(?m)^(?:# )?{{key}} = .*$", f"{{key}} = {{value}}", text)
    assert changed == 1, key
path.write_text(text)
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A home whose folders can hold sockets: their paths have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="home-") as folder:
        yield Path(folder)


@pytest.fixture
def console(tmp_path: Path, short_path: Path) -> Iterator[Console]:
    texts = tmp_path / "texts"
    texts.mkdir()
    for file in Path(os.__file__).parent.joinpath("email").glob("*.py"):
        shutil.copy(file, texts / f"{file.stem}.txt")
    editor = tmp_path / "editor"
    editor.write_text(_EDITOR)
    editor.chmod(0o700)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = {name: str(short_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    console = Console(
        tmp_path,
        {"EDITOR": str(editor), "PATH": programs, "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": "", **home},
        words={
            "--run my-run --web 8080": "--run my-run --listen 127.0.0.1:0 --web 127.0.0.1:0",
            "spes-peer join ": "spes-peer join --host 127.0.0.1 --device cpu --threads 1 ",
        },
        only_looks=("spes-peer status", "curl", "spes-peer run show"),
    )
    yield console
    for name in ("first", "second"):
        console.take(Step(f"spes-peer leave --at-once --data-dir {name} || true", ()))
    console.close()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_ten_minutes_go_as_the_page_says(console: Console) -> None:
    steps = list(steps_in(PAGE))
    assert len(steps) > 15
    for step in steps:
        output = console.take(step)
        console.learn("ADDRESS", r"--bootstrap (/\S+/p2p/\w+)", output)
        console.learn("PAGE", r"web page: (http://[\w.:]+)", output)


def test_what_a_page_shows_is_looked_for_line_by_line() -> None:
    assert is_shown(("run … in my-run", "a b"), "run 1a2b\nin my-run\n\na   b\n")
    assert not is_shown(("a b", "run"), "run\na b")
    assert list(steps_in("```console\n$ one \\\n  two  # why\nshown\n\n$ three &\n```\n")) == [
        Step("one    two", ("shown",)),
        Step("three &", ()),
    ]
