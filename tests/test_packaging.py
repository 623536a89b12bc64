"""What the house promises: light commands, a reason for every dependency, pins for all, and nothing of one machine."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import spes_peer

ROOT = Path(__file__).parent.parent
PYPROJECT_TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT: dict[str, Any] = tomllib.loads(PYPROJECT_TEXT)["project"]
PINS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    "module",
    [
        "spes_peer.cli",
        "spes_peer.chaos.program",
        "spes_peer.demo",
        "spes_peer.daemon.program",
        "bootstrap.cli",
        "bootstrap.node",
        "tui",
    ],
)
def test_what_a_person_starts_loads_no_heavy_library(module: str) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.split(".")[0] for name in json.loads(output.stdout)}
    assert loaded & {"torch", "hivemind", "libp2p", "trio", "multiaddr", "textual"} == set()


def test_a_daemon_is_asked_without_what_other_commands_stand_on(tmp_path: Path) -> None:
    arguments = ["status", "--data-dir", str(tmp_path)]
    program = (
        f"import json, sys, spes_peer.cli as cli; code = cli.run_command(cli._parser('status'), {arguments});"
        " print(json.dumps([code, sorted(sys.modules)]))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    code, loaded = json.loads(output.stdout)
    assert "no daemon runs" in output.stderr
    assert code == 1
    assert {name.split(".")[0] for name in loaded} & {"numpy", "pydantic", "cryptography", "textual"} == set()


def test_the_version_is_said_once_in_code_and_once_in_the_package() -> None:
    assert spes_peer.__version__ == PROJECT["version"]


def test_every_command_exists() -> None:
    for place in PROJECT["scripts"].values():
        module, function = place.split(":")
        assert callable(getattr(importlib.import_module(module), function))


def dependencies() -> list[str]:
    """Also those of extras that are tested, and not that `dev` takes in one of them."""
    extras = PROJECT["optional-dependencies"]
    every = [*PROJECT["dependencies"], *extras["dev"], *extras["data"], *extras["eval"]]
    return [one for one in every if one != "spes-peer[data]"]


def test_every_dependency_says_why_it_is_there() -> None:
    for dependency in dependencies():
        assert re.search(rf'"{re.escape(dependency)}",\s+# \w+', PYPROJECT_TEXT), dependency


def test_every_dependency_is_pinned_to_what_is_tested() -> None:
    pinned = {pin.split("==")[0].lower().replace("-", "_") for pin in PINS}
    for dependency in dependencies():
        assert re.split(r"[=<>!~\[;]", dependency)[0].lower().replace("-", "_") in pinned


def test_pins_are_plain_so_that_any_registry_can_serve_them() -> None:
    for pin in PINS:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", pin), pin


def test_python_of_the_lint_and_types_is_the_oldest_admitted() -> None:
    tools = tomllib.loads(PYPROJECT_TEXT)["tool"]
    assert PROJECT["requires-python"] == ">=3.11"
    assert tools["ruff"]["target-version"] == "py311"
    assert tools["mypy"]["python_version"] == "3.11"


def test_make_lists_its_targets_with_a_line_of_help_each() -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    output = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout
    listed = {line.split()[1] for line in output.splitlines() if len(line.split()) > 2}
    assert listed == targets
    assert {"demo", "test"} <= targets


def test_the_daemons_side_of_the_dht_imports_neither_hivemind_nor_torch() -> None:
    code = "import sys, spes_peer.membership.directory, spes_peer.membership.claims; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"hivemind", "torch", "libp2p", "trio"} & set(modules)
