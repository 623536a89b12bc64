"""docs/REFERENCE.md is what the code says, wherever it is made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def made(**environment: str) -> str:
    """The page as `make reference` writes it."""
    return subprocess.run(
        [sys.executable, ROOT / "docs" / "reference.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.fixture(scope="module")
def page() -> str:
    return made()


def test_the_reference_is_the_same_in_any_terminal_and_home(page: str, tmp_path: Path) -> None:
    assert made(COLUMNS="40", HOME=str(tmp_path), LANG="C", PYTHONHASHSEED="7") == page


def test_every_row_of_the_reference_has_a_meaning(page: str) -> None:
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 250
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_reference_has_keys_commands_exit_codes_events_and_figures(page: str) -> None:
    for expected in (
        "| `merge_interval_steps` | whole number of steps, ≥ 1, ≤ 2^40 | `300` | T_i:",
        "#### `spes-peer identity export FILE`",
        "| `--follow",
        "| 130 | interrupted |",
        "| `round_closed` | ",
        "| `spes_peer_held_out_loss` | gauge | ",
    ):
        assert expected in page.replace("`-f, --follow", "`--follow"), expected


def test_the_reference_is_fresh(page: str) -> None:
    assert (ROOT / "docs" / "REFERENCE.md").read_text() == page, "run `make reference`"
