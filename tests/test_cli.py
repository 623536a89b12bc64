"""What a person types and reads: help, mistakes in one line, a status for programs, a join in a terminal."""

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from tui_statuses import status

import tui
from spes_peer import config
from spes_peer.cli import COMMANDS, main
from spes_peer.cli.join import add_join
from spes_peer.cli.parsing import Parser
from spes_peer.daemon import foreground
from spes_peer.identity import Identity
from spes_peer.lock import locked

DEADLINE_SECONDS = 60.0
NOBODY = Identity.from_seed(b"n" * 32).peer_id


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong command ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def in_a_terminal(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command that believes a person looks."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "spes_peer", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(terminal)
    try:
        code = process.wait(DEADLINE_SECONDS)
        return code, os.read(controller, 1 << 16).decode()
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_without_a_command_the_help_is_shown_and_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    for word in ("spes-peer demo", "join", "exit codes", "no node of the run answers"):
        assert word in shown


def test_every_command_is_listed_in_one_group_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    listed = [name for names in COMMANDS.values() for name in names]
    with pytest.raises(SystemExit):
        main(["nonsense"])
    there = capsys.readouterr().err.partition("choose from ")[2].partition(")")[0]
    assert sorted(listed) == sorted(name.strip(" '") for name in there.split(","))
    for name in listed:
        assert len([line for line in shown.splitlines() if line.startswith(f"  {name} ") and len(line) > 20]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("join", "--bootstrap", "x", "--threads", "-1"),
        ("join", "--bootstrap", "x", "--max-subsets", "-2"),
        ("join", "--bootstrap", "x", "--port", "70000"),
        ("demo", "--rounds", "-1"),
        ("demo", "--peers", "0"),
        ("demo", "--peers", "many"),
    ],
)
def test_a_wrong_number_is_named_with_its_option_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    line = refused(capsys, *arguments)
    assert arguments[-2] in line
    assert repr(arguments[-1]) in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--announce", "/ip4/1.2.3.4/tcp/1"), ("--announce", "write HOST:PORT")),
        (("--announce", "1.2.3.4:0"), ("'1.2.3.4:0'", "write HOST:PORT")),
        (("--no-inbound", "--announce", "1.2.3.4:5"), ("--announce", "--no-inbound forbids it")),
        (("--no-inbound", "--relay"), ("--relay", "--no-inbound forbids it")),
    ],
)
def test_what_cannot_be_with_addresses_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    line = refused(capsys, "join", "--bootstrap", "x", *arguments)
    for word in words:
        assert word in line


def test_an_unknown_command_is_answered_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "jion")
    assert "'jion'" in line
    assert "'join'" in line


def test_options_are_not_guessed_from_their_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no-t" in refused(capsys, "demo", "--no-t")


def test_options_may_part_the_words_of_a_command() -> None:
    parser = Parser(prog="spes-peer")
    one = parser.add_subparsers().add_parser("one")
    one.add_argument("folder")
    one.add_argument("texts", nargs="*")
    one.add_argument("--seed", type=int)
    for words in ("--seed 3 a b c", "a --seed 3 b c", "a b --seed=3 c", "a b c --seed 3", "a --seed 3 -- b c"):
        options = parser.parse_args(["one", *words.split()])
        assert (options.folder, options.texts, options.seed) == ("a", ["b", "c"], 3)
    assert parser.parse_args(["one", "a", "--seed", "3"]).texts == []
    for words in ("-- -a -b", "--seed 3 -- -a -b"):
        options = parser.parse_args(["one", *words.split()])
        assert (options.folder, options.texts) == ("-a", ["-b"])


def test_the_version_names_what_a_report_of_a_fault_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["version"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for word in ("spes-peer", "Python", "torch", "hivemind", "libp2p"):
        assert word in said


async def test_a_status_for_programs_has_numbers_and_no_nan(folder: Path) -> None:
    shown = status()
    shown.training.loss = float("nan")
    async with served(Program(shown), folder):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "spes_peer", "status", "--json", "--data-dir", str(folder), stdout=subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
    fields = json.loads(output)
    assert fields["round"] == 24
    assert fields["rounds"][0]["traffic"][0] == {
        "transport": "grpc",
        "bytes_sent": 9_400_000,
        "bytes_received": 14_100_000,
    }
    assert fields["is_paused"] is False
    assert fields["training"]["loss"] is None


def test_watching_a_folder_without_a_daemon_is_refused(folder: Path) -> None:
    code, said = in_a_terminal("watch", "--data-dir", str(folder))
    assert code == 1
    assert said.count("\n") == 1
    assert "no daemon runs" in said


async def test_a_second_join_on_a_folder_is_refused_before_a_dashboard_opens(folder: Path) -> None:
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"
    async with served(Program(status()), folder):
        code, said = await asyncio.to_thread(in_a_terminal, "join", "--bootstrap", address, "--data-dir", str(folder))
    assert code == 2
    assert "already running" in said
    assert "spes-peer watch --data-dir" in said
    assert "\x1b[?1049h" not in said


def test_a_daemon_that_refuses_to_start_gives_its_reason_and_code_in_the_terminal(folder: Path) -> None:
    code, said = in_a_terminal("join", "--bootstrap", "127.0.0.1:4510", "--data-dir", str(folder), "--yes")
    assert code == 2
    assert said.splitlines()[-1].startswith("spes-peer: bootstrap address")


@pytest.mark.parametrize(
    ("reason", "program", "code", "expected"),
    [
        ("detached; the daemon goes on", "import time; time.sleep(60)", 0, "spes-peer leave --data-dir"),
        ("the daemon has left the run", "import time; time.sleep(0.3)", 0, "the daemon has left the run"),
        ("detached; the daemon goes on", "raise SystemExit(0)", 0, "the daemon has ended"),
        ("detached; the daemon goes on", "raise SystemExit(3)", 3, "ended with code 3; see "),
        ("detached; the daemon goes on", "import os; os.kill(os.getpid(), 9)", 1, "killed by the system (SIGKILL)"),
        ("detached; the daemon goes on", "import os; os.kill(os.getpid(), 15)", 1, "ended by signal 15 (Terminated)"),
    ],
)
def test_after_the_dashboard_it_is_said_what_became_of_the_daemon(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reason: str,
    program: str,
    code: int,
    expected: str,
) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", program])
    if "sleep" not in program:
        daemon.wait(DEADLINE_SECONDS)
    monkeypatch.setattr(foreground, "start_daemon", lambda *_: daemon)
    monkeypatch.setattr(tui, "run", lambda _: reason)
    try:
        assert foreground.join_with_dashboard(["join"], folder) == code
    finally:
        daemon.kill()
        daemon.wait()
    said = capsys.readouterr()
    assert expected in said.out + said.err


def test_a_daemon_that_was_started_since_goes_on_when_the_dashboard_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    first.wait(DEADLINE_SECONDS)
    monkeypatch.setattr(foreground, "start_daemon", lambda *_: first)
    monkeypatch.setattr(tui, "run", lambda _: "detached; the daemon goes on")
    with locked(folder):
        assert foreground.join_with_dashboard(["join"], folder) == 0
    assert f"the daemon goes on (pid {os.getpid()})" in capsys.readouterr().out


def command(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "spes_peer", *arguments, "--data-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def test_a_detached_daemon_goes_on_alone_and_is_asked_read_and_ended_by_other_commands(folder: Path) -> None:
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"
    started = command(folder, "join", "--bootstrap", address, "--detach", "--yes")
    assert (started.returncode, started.stderr) == (0, "")
    assert f"spes-peer leave --data-dir {folder}" in started.stdout
    try:
        assert "doing joining" in command(folder, "status").stdout
        assert "already running" in command(folder, "join", "--bootstrap", address, "--detach", "--yes").stderr
        read = command(folder, "logs", "--lines", "1")
        assert read.returncode == 0
        assert read.stdout.count("\n") == 1
        assert "nothing listens at 127.0.0.1:9" in command(folder, "logs").stdout
    finally:
        command(folder, "leave")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while command(folder, "status").returncode == 0:
        assert time.monotonic() < deadline


def test_where_no_daemon_has_run_there_is_no_log(folder: Path) -> None:
    done = command(folder, "logs")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has a daemon run on this folder?" in done.stderr


# ---- settings ----


def settings_file(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "settings.toml"
    path.write_text(text)
    return "--config", str(path)


def test_a_setting_that_a_flag_would_refuse_is_refused_before_anything_is_started(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "join", "--bootstrap", "x", *settings_file(folder, 'max_uplod = "2MB"'))
    assert "settings.toml: unknown key 'max_uplod'; did you mean max_upload?" in line


def test_commands_look_for_the_daemon_where_the_settings_say(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", *settings_file(folder, f'data_dir = "{folder / "lent"}"\nmax_upload = "2MB"')])
    assert ended.value.code == 1
    assert str(folder / "lent") in capsys.readouterr().err


def test_what_is_wrong_in_the_file_keeps_nobody_from_asking_a_daemon(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["leave", "--data-dir", str(folder), *settings_file(folder, "max_uplod = 7\n")])
    assert ended.value.code == 1
    assert "no daemon" in capsys.readouterr().err


def test_every_line_of_the_template_is_a_good_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "template.toml"
    config.write_template(path, add_join(Parser(prog="spes-peer").add_subparsers()))
    lines = [line[1:] for line in path.read_text().splitlines() if line.startswith("#") and not line.startswith("# ")]
    path.write_text("\n".join(lines))
    with pytest.raises(SystemExit) as ended:
        main(["config", "show", "--config", str(path)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out.splitlines()
    assert "max_circuits = 64" in shown
    assert "relay = true" in shown


def test_all_settings_are_shown_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", "show", *settings_file(folder, 'name = "attic"\nmax_upload = "2MB"\nmetrics = 9100\n')])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {'name = "attic"', "max_upload = 2000000", 'metrics = "127.0.0.1:9100"', "#relay = false"}
    assert shown <= set(lines)


def test_an_editor_gets_a_file_with_every_key_and_what_it_leaves_is_checked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "new" / "config.toml"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i 's/^#relay = true/relay = true/'")
    with pytest.raises(SystemExit) as ended:
        main(["config", "edit", "--config", str(path)])
    assert ended.value.code == 0
    assert "\nrelay = true\n" in path.read_text()
    assert f"{path} is good" in capsys.readouterr().out
    monkeypatch.setenv("EDITOR", "sed -i 's/^relay = true/relay = 7/'")
    assert "relay: 7 is neither true nor false" in refused(capsys, "config", "edit", "--config", str(path))
    monkeypatch.setenv("EDITOR", "false")
    assert "false ended with 1; set $EDITOR to another editor" in refused(
        capsys, "config", "edit", "--config", str(path)
    )
    monkeypatch.setenv("EDITOR", "no-such-editor")
    assert "no-such-editor: No such file or directory; set $EDITOR" in refused(
        capsys, "config", "edit", "--config", str(path)
    )


def test_without_a_terminal_and_an_editor_nothing_is_opened_or_made(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "new" / "config.toml"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("an editor was opened"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    said = refused(capsys, "config", "edit", "--config", str(path))
    assert f"set $EDITOR, or write to {path}" in said
    assert not path.exists()
