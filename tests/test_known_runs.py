"""The runs of this machine: listed wherever they lie, and taken away whole, with nothing that is not ours."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from tui_statuses import status

from spes_peer import known_runs, service
from spes_peer.cli import main
from spes_peer.folder import StateFolder
from spes_peer.run.manifest import SignedManifest


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_folder() as path:
        monkeypatch.setenv("HOME", str(path))
        for name in ("DATA", "STATE", "CONFIG"):
            monkeypatch.setenv(f"XDG_{name}_HOME", str(path / name.lower()))
        yield path


def joined(path: Path, signed: SignedManifest) -> StateFolder:
    """A folder as a daemon leaves it."""
    folder = StateFolder(path)
    folder.identity()
    folder.bind(signed)
    for round_ in (0, 1, 2):
        (path / "records" / f"{round_:08d}.record").write_bytes(b"r" * 10)
    (path / "blobs" / "blob").write_bytes(b"b" * 1_000)
    known_runs.remember(folder.path)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_runs_are_listed_wherever_they_lie_and_only_while_they_are_there(
    home: Path, signed_manifest: SignedManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no run is known here" in run(capsys, "runs")[1]
    one = joined(home / "one", signed_manifest)
    usual = joined(home / "data" / "spes-peer", signed_manifest)
    gone = joined(home / "gone", signed_manifest)
    (gone.path / "manifest.spes").unlink()
    with one.locked():
        code, shown, _ = run(capsys, "runs")
        (first, second) = json.loads(run(capsys, "runs", "--json")[1])
    assert code == 0
    assert "running, pid" in shown
    assert "not running" in shown
    assert (first["folder"], second["folder"]) == (str(one.path), str(usual.path))
    assert first["pid"].isdigit()
    assert (second["name"], second["round"], second["pid"]) == ("demo", 2, "")
    assert second["run_id"] == signed_manifest.run_id.hex()
    assert second["size_bytes"] > 1_000


def test_a_list_that_is_damaged_or_of_folders_that_are_gone_is_begun_anew(
    home: Path, signed_manifest: SignedManifest
) -> None:
    known_runs.list_path().parent.mkdir(parents=True)
    for damage in (b"", b"[[[", b"{}", b'[1, null, "/nowhere"]', b"\xff"):
        known_runs.list_path().write_bytes(damage)
        assert known_runs.folders() == ()
    folder = joined(home / "one", signed_manifest)
    assert known_runs.folders() == (folder.path,)


def test_a_purge_removes_what_is_ours_and_nothing_that_is_not_nor_what_links_lead_to(
    home: Path, signed_manifest: SignedManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = joined(home / "one", signed_manifest)
    (home / "elsewhere").mkdir()
    (home / "elsewhere" / "photo").touch()
    (folder.path / "mine.txt").touch()
    (folder.path / "blobs" / "link").symlink_to(home / "elsewhere")
    (folder.path / "ballots").symlink_to(home / "elsewhere")
    (home / "config" / "spes-peer").mkdir(parents=True)
    (home / "config" / "spes-peer" / "config.toml").write_text("")
    code, said, error = run(capsys, "leave", "--purge", "--data-dir", folder.path)
    assert (code, "add --yes" in error) == (2, True)
    assert "spes-peer identity export FILE" in said
    assert "kB  blobs\n" in said
    assert folder.identity_key.exists()
    code, said, _ = run(capsys, "leave", "--purge", "--yes", "--data-dir", folder.path)
    assert (code, "what was not ours is still in" in said) == (0, True)
    left = [path for path in home.rglob("*") if not path.is_dir()]
    assert sorted(left) == [home / "elsewhere" / "photo", folder.path / "mine.txt"]
    code, _, error = run(capsys, "leave", "--purge", "--yes", "--data-dir", folder.path)
    assert (code, "nothing of ours is in" in error) == (1, True)


def test_the_settings_stay_while_another_run_is_known_and_the_service_while_it_is_the_others(
    home: Path, signed_manifest: SignedManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = joined(home / "one", signed_manifest), joined(home / "one2", signed_manifest)
    unit = service.unit_path(home, "linux")
    unit.parent.mkdir(parents=True)
    unit.write_text(service.unit_text(["spes-peer", "join", "--data-dir", str(other.path)]))
    settings = home / "config" / "spes-peer" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("")
    assert run(capsys, "leave", "--purge", "--yes", "--data-dir", folder.path)[0] == 0
    assert not folder.path.exists()
    assert known_runs.folders() == (other.path,)
    assert settings.exists()
    assert unit.exists()


def test_only_a_folder_in_which_a_volunteers_daemon_has_lived_is_purged(
    home: Path, signed_manifest: SignedManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logs`, `records` and `lock` are others' names too."""
    project, organizers = home / "project", joined(home / "run", signed_manifest)
    for name in ("logs", "records", "cache"):
        (project / name).mkdir(parents=True)
        (project / name / "mine").touch()
    (project / "manifest.spes").write_bytes(b"another program's")
    (organizers.path / "organizer.key").touch()
    StateFolder(home).identity()
    file = home / "file"
    file.touch()
    settings = home / "config" / "spes-peer" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.touch()
    before = sorted(home.rglob("*"))
    for folder, code, words in (
        (project, 1, "nothing of ours"),
        (organizers.path, 2, "is an organizer's"),
        (home, 2, "no folder to remove things from"),
        (Path("/"), 2, "no folder to remove things from"),
        (file, 2, "cannot read"),
        (home / "none", 1, "nothing of ours"),
    ):
        ended, _, error = run(capsys, "leave", "--purge", "--yes", "--data-dir", folder)
        assert (ended, words in error) == (code, True), error
    assert sorted(home.rglob("*")) == before


def test_settings_that_are_named_and_those_of_runs_that_nobody_listed_stay(
    home: Path, signed_manifest: SignedManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = joined(home / "one", signed_manifest)
    known_runs.forget(folder.path)
    named, usual = home / "mine.toml", home / "config" / "spes-peer" / "config.toml"
    usual.parent.mkdir(parents=True)
    for settings in (named, usual):
        settings.touch()
    assert run(capsys, "leave", "--purge", "--yes", "--data-dir", folder.path, "--config", named)[0] == 0
    assert not folder.path.exists()
    assert named.exists()
    assert usual.exists()


async def test_a_purge_waits_for_the_daemon_that_it_ends(home: Path, signed_manifest: SignedManifest) -> None:
    folder = joined(home / "one", signed_manifest)
    program = Program(status())
    held = folder.locked()

    async def leave(at_once: bool) -> str:
        program.commands.append(f"leave at_once={at_once}")
        held.__exit__(None, None, None)
        return "leaves"

    program.leave = leave  # type: ignore[method-assign]
    held.__enter__()
    async with served(program, folder.path):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "spes_peer", "leave", "--purge", "--yes", "--data-dir", str(folder.path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ends the daemon that runs there" in done.stdout
    assert program.commands == ["leave at_once=True"]
    assert not folder.path.exists()
