"""A daemon that starts with the machine: what the system is told, and what a person is."""

import asyncio
import os
import plistlib
import subprocess
import sys
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from tui_statuses import status

from spes_peer import service
from spes_peer.errors import BadConfiguration, UserError
from spes_peer.identity import Identity

ADDRESS = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.from_seed(b'n' * 32).peer_id}"
COMMAND = ["/opt/python", "-m", "spes_peer", "join", "--name", 'a "b" $c %d \\e']


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every call of systemctl and launchctl, a line each; a file `fails` beside makes them fail."""
    programs, log = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    for name in ("systemctl", "launchctl"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\necho "{name} $*" >> {log}\n[ ! -e {tmp_path}/fails ] || {{ echo broken >&2; exit 1; }}\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return log


def test_a_unit_runs_the_command_to_the_letter_and_again_unless_a_person_must_mend_it() -> None:
    lines = service.unit_text(COMMAND).splitlines()
    assert r'ExecStart="/opt/python" "-m" "spes_peer" "join" "--name" "a \"b\" $$c %%d \\e"' in lines
    assert {"Restart=on-failure", "KillMode=mixed", "RestartPreventExitStatus=2 4 5", "WantedBy=default.target"} <= set(
        lines
    )


def test_a_service_is_started_at_once_and_removed_with_its_file(tmp_path: Path, asked: Path) -> None:
    said = service.install(COMMAND, tmp_path, "linux")
    path = tmp_path / ".config/systemd/user/spes-peer.service"
    assert path.read_text() == service.unit_text(COMMAND)
    assert str(path) in said
    assert "loginctl enable-linger" in said
    service.install(COMMAND, tmp_path, "linux")  # with other options, say
    assert "state are still there" in service.remove(tmp_path, "linux")
    assert not path.exists()
    calls = [line.removeprefix("systemctl --user ") for line in asked.read_text().splitlines()]
    installed = ["daemon-reload", "enable spes-peer.service", "restart spes-peer.service"]
    assert calls == [*installed, *installed, "disable --now spes-peer.service", "daemon-reload"]
    with pytest.raises(UserError, match="no service is installed"):
        service.remove(tmp_path, "linux")


def test_on_macos_an_agent_is_loaded(tmp_path: Path, asked: Path) -> None:
    assert "untested" in service.install(COMMAND, tmp_path, "darwin")
    path = tmp_path / "Library/LaunchAgents/org.spes-peer.daemon.plist"
    assert plistlib.loads(path.read_bytes())["ProgramArguments"] == COMMAND
    service.remove(tmp_path, "darwin")
    assert not path.exists()
    assert asked.read_text().splitlines() == [f"launchctl load -w {path}", f"launchctl unload -w {path}"]


def test_what_the_system_says_is_passed_on(tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails").touch()
    with pytest.raises(UserError, match=r"^systemctl --user daemon-reload: broken$"):
        service.install(COMMAND, tmp_path, "linux")
    said = service.remove(tmp_path, "linux")  # what cannot be asked cannot keep the file
    assert "may still run (systemctl --user disable --now spes-peer.service: broken)" in said
    assert not service.unit_path(tmp_path, "linux").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"this system has no systemctl; start the daemon with: .* --detach"):
        service.install(COMMAND, tmp_path, "linux")
    with pytest.raises(BadConfiguration, match="not for win32"):
        service.install(COMMAND, tmp_path, "win32")


def calls_in(asked: Path) -> list[str]:
    return asked.read_text().splitlines()


def installed(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "spes_peer", "service", "install", *arguments],
        env={**os.environ, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_a_service_joins_with_the_options_that_were_typed_from_wherever_it_starts(tmp_path: Path, asked: Path) -> None:
    (tmp_path / "own.toml").write_text('max_upload = "2MB"\n')
    given = (
        "--yes",
        "--bootstrap",
        ADDRESS,
        "--data-dir",
        "lent",
        "--config",
        "own.toml",
        "--detach",
        "--name",
        "attic",
    )
    done = installed(tmp_path, *given)
    assert (done.returncode, done.stderr) == (0, "")
    unit = (tmp_path / ".config/systemd/user/spes-peer.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart")]
    words = line.removeprefix("ExecStart=").strip('"').split('" "')
    assert words[:5] == [sys.executable, "-m", "spes_peer", "join", "--no-tui"]
    assert words[-4:] == ["--data-dir", f"{tmp_path}/lent", "--config", f"{tmp_path}/own.toml"]
    assert "--detach" not in words
    assert "attic" in words


def test_a_service_that_could_not_start_is_not_installed(tmp_path: Path, asked: Path) -> None:
    for arguments, reason in (
        (("--data-dir", "new"), "no run is known yet"),
        (("--bootstrap", "127.0.0.1:4510"), "bootstrap address '127.0.0.1:4510' cannot be used"),
        (("--bootstrap", ADDRESS, "--no-inbound", "--relay"), "--no-inbound forbids it"),
        (("--bootstrap", ADDRESS, "--max-upload", "fast"), "'fast' is not a size"),
    ):
        done = installed(tmp_path, *arguments)
        assert done.returncode == 2
        assert reason in done.stderr
    assert not asked.exists()


async def test_a_daemon_that_runs_already_is_to_end_first(asked: Path, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()  # systemd says that it is not its own
    with short_folder() as folder:
        async with served(Program(status()), folder):
            given = ("--bootstrap", ADDRESS, "--data-dir", str(folder))
            done = await asyncio.to_thread(installed, tmp_path, *given)
    assert done.returncode == 1
    assert "end it first: spes-peer leave" in done.stderr
    assert calls_in(asked) == ["systemctl --user is-active --quiet spes-peer.service"]
