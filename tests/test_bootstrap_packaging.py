"""The bootstrap node's systemd unit and container file: what they start is what the program takes."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bootstrap.cli import DEFAULT_PORT, _parser
from spes_peer.errors import BadConfiguration, NotAdmitted, TooOld

HERE = Path(__file__).parent.parent / "bootstrap"
UNIT = HERE / "spes-bootstrap.service"
CONTAINER = HERE / "Containerfile"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def instructions() -> list[tuple[str, str]]:
    """Of the container file, continued lines joined, comments left out."""
    lines = [line for line in CONTAINER.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def test_the_unit_starts_the_node_with_options_that_it_takes_and_starts_it_again_but_for_mistakes() -> None:
    service = unit()["Service"]
    program, *arguments = shlex.split(service["ExecStart"].replace("$SPES_OPTIONS", "--announce run.example.org:4510"))
    assert Path(program).name == "spes-bootstrap"
    options = _parser().parse_args(arguments)
    assert str(options.folder).startswith(f"/var/lib/{service['StateDirectory']}/")
    codes = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert codes == {BadConfiguration.exit_code, TooOld.exit_code, NotAdmitted.exit_code}
    assert service["Restart"] == "on-failure"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_reads_the_unit_without_a_complaint(tmp_path: Path) -> None:
    program = tmp_path / "spes-bootstrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/spes-peer/bin/spes-bootstrap", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line and "User=" not in line]
    assert not about_it


def test_the_container_copies_what_the_build_needs_and_starts_the_node_with_options_that_it_takes() -> None:
    found = instructions()
    copied = {source for word, rest in found if word == "COPY" for source in rest.split()[:-1]}
    root = HERE.parent
    assert all((root / source).exists() for source in copied)
    assert {"pyproject.toml", "README.md", "spes_peer", "tui", "bootstrap"} <= copied
    program, *arguments = json.loads(dict(found)["ENTRYPOINT"])
    assert program == "spes-bootstrap"
    options = _parser().parse_args([*arguments, "--announce", "run.example.org:4510", "--web", "0.0.0.0:8080"])
    assert options.listen == ("0.0.0.0", DEFAULT_PORT)
    assert dict(found)["EXPOSE"].split() == [str(DEFAULT_PORT + number) for number in range(3)]
    assert dict(found)["VOLUME"] == str(options.folder)


def test_the_container_does_not_run_as_root() -> None:
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert dict(instructions())["USER"] == "spes"
