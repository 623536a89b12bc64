"""A volunteer's key: shown, copied to a safe place, put back; never made anew where there was one."""

import stat
from pathlib import Path

import pytest

from spes_peer.cli import main
from spes_peer.errors import BadConfiguration
from spes_peer.folder import INCARNATION_FILE, StateFolder
from spes_peer.identity import Identity

ANN = Identity.from_seed(b"a" * 32)
BEN = Identity.from_seed(b"b" * 32)


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def folder_of(path: Path, identity: Identity) -> Path:
    identity.save(StateFolder(path).identity_key)
    return path


def test_a_key_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "ann", ANN)
    assert run("identity", "show", "--data-dir", folder) == 0
    assert capsys.readouterr().out == f"{ANN.peer_id}\nits key lies in {folder}/identity.key\n"


def test_a_key_is_copied_and_put_into_a_new_folder(tmp_path: Path) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new"
    assert run("identity", "export", copy, "--data-dir", folder_of(tmp_path / "ann", ANN)) == 0
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert run("identity", "import", copy, "--data-dir", new) == 0
    assert run("identity", "import", copy, "--data-dir", new) == 0  # it is the same
    assert StateFolder(new).identity().peer_id == ANN.peer_id


def test_no_file_and_no_key_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ann, ben = folder_of(tmp_path / "ann", ANN), folder_of(tmp_path / "ben", BEN)
    key = ann / "identity.key"
    assert run("identity", "export", ben / "identity.key", "--data-dir", ann) == 2
    assert "is there already" in capsys.readouterr().err
    assert run("identity", "import", key, "--data-dir", ben) == 2
    assert f"has the key of {BEN.peer_id}" in capsys.readouterr().err
    assert StateFolder(ben).identity().peer_id == BEN.peer_id


def test_where_there_is_no_key_that_is_said_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("show",), ("export", tmp_path / "copy")):
        assert run("identity", *arguments, "--data-dir", tmp_path / "none") == 2
        assert "has no key" in capsys.readouterr().err
    assert run("identity", "import", tmp_path / "lost", "--data-dir", tmp_path / "new") == 2
    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "copy").exists()


def test_a_folder_whose_key_is_gone_gets_no_other(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "used")
    first = folder.identity()
    folder.next_number(INCARNATION_FILE)
    assert folder.identity().peer_id == first.peer_id
    folder.identity_key.unlink()
    with pytest.raises(BadConfiguration, match=r"the key of this folder is gone.*identity import"):
        folder.identity()
    assert not folder.identity_key.exists()
