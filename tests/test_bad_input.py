"""A person's mistakes: one line on stderr that says what happened and what to do; nothing half-started is left."""

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spes_peer.cli import main, run_command
from spes_peer.files import write_whole
from spes_peer.identity import Identity
from spes_peer.organize import create_run, run_file_text
from spes_peer.run.manifest import SignedManifest

NOBODY = Identity.from_seed(b"n" * 32).peer_id


def run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def refused(done: "subprocess.CompletedProcess[str]", code: int, *words: str) -> None:
    """The command failed with `code`, and its last line, the only one that is no log line, has all `words`."""
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("organizer") / "run"
    create_run(folder, run_file_text("demo", None))
    return folder


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_an_address_without_a_peer_id_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = run("spes_peer", "join", "--bootstrap", "127.0.0.1:4510", "--data-dir", str(tmp_path / "state"), "--no-tui")
    refused(done, 2, "127.0.0.1:4510", "/p2p/")
    assert not (tmp_path / "state").exists()


def test_a_dead_bootstrap_port_is_named_and_tried_again_until_its_owner_gives_up(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"
    command = ["spes_peer", "join", "--bootstrap", address, "--data-dir", str(tmp_path / "state"), "--no-tui", "--yes"]
    with subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True) as waiting:
        try:
            assert waiting.stderr is not None
            said = next(line for line in waiting.stderr if "nothing listens" in line)
            assert str(port) in said
            assert "waiting for a node of the run" in said
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(timeout=30) == 0
        finally:
            waiting.kill()
    assert not (tmp_path / "state" / "control.sock").exists()


def test_a_port_in_use_is_named(run_folder: Path, busy_port: int) -> None:
    done = run("bootstrap", "--run", str(run_folder), "--listen", f"127.0.0.1:{busy_port}")
    refused(done, 2, str(busy_port), "--listen")
    assert not (run_folder / "address").exists()


def test_an_unknown_key_of_a_run_file_is_named_with_the_nearest_valid_one(tmp_path: Path) -> None:
    run_toml = tmp_path / "run.toml"
    run_toml.write_text(run_file_text("demo", None).replace("top_k = 2", "top_k = 2\nexpert_hiden = 3"))
    done = run("spes_peer", "run", "new", str(tmp_path / "run"), "--config", str(run_toml))
    refused(done, 2, "expert_hiden", "expert_hidden")
    assert list(tmp_path.iterdir()) == [run_toml]


def test_a_misspelt_key_is_named_and_not_the_right_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(run_file_text("demo", None).replace("top_k =", "topk ="))
    done = run("spes_peer", "run", "new", str(tmp_path / "run"), "--config", str(tmp_path / "run.toml"))
    refused(done, 2, "model.topk", "top_k")


def test_a_run_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    done = run("spes_peer", "run", "new", str(tmp_path / "run"), "--config", missing)
    refused(done, 2, f"cannot read {missing}: No such file")


def test_a_manifest_with_a_bad_signature_is_refused(run_folder: Path, tmp_path: Path) -> None:
    signed = SignedManifest.from_bytes((run_folder / "manifest.spes").read_bytes())
    forged = SignedManifest(signed.manifest.replace(b'"lr":0.003', b'"lr":0.3  '), signed.organizer, signed.signature)
    (tmp_path / "manifest.spes").write_bytes(forged.to_bytes())
    refused(run("bootstrap", "--run", str(tmp_path), "--listen", "0"), 1, "signature")


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.spes").write_bytes(b"not a manifest")
    refused(run("bootstrap", "--run", str(tmp_path), "--listen", "0"), 2, str(tmp_path / "manifest.spes"), "damaged")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    refused(run("bootstrap", "--run", str(tmp_path / "new"), "--listen", "0"), 2, "run new", "--join")
    assert not (tmp_path / "new").exists()


def test_a_corpus_that_is_too_short_is_refused_and_no_folder_is_left(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "one.txt").write_text("too short")
    (tmp_path / "run.toml").write_text(run_file_text("demo", None))
    done = run("spes_peer.organize", str(tmp_path / "run"), str(tmp_path / "run.toml"), str(corpus))
    refused(done, 2, "too short")
    assert not (tmp_path / "run").exists()


def test_a_run_folder_in_use_is_not_overwritten(run_folder: Path) -> None:
    before = (run_folder / "manifest.spes").read_bytes()
    refused(run("spes_peer", "run", "new", str(run_folder)), 2, "not empty")
    assert (run_folder / "manifest.spes").read_bytes() == before


def test_an_invitation_that_cannot_be_written_is_refused_before_it_is_made(tmp_path: Path) -> None:
    text = run_file_text("demo", None) + '\n[admission]\nmode = "invitation"\n'
    create_run(tmp_path / "run", text)
    for out in (tmp_path / "missing" / "x", tmp_path):
        done = run("spes_peer", "run", "invite", str(tmp_path / "run"), "--out", str(out))
        refused(done, 2, str(out), "nothing was made")
    for days in ("0", "nan", "inf", "5e-324", "1e308", "0.0005", "3651"):
        refused(run("spes_peer", "run", "invite", str(tmp_path / "run"), f"--days={days}"), 2, "--days")
    assert not (tmp_path / "run" / "invitations.json").exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e308", "5e-324", "1" + "0" * 30])
def test_a_length_of_rounds_that_is_none_is_refused_before_the_run_is_asked(
    seconds: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("run", "amend", str(run_folder), f"--round-seconds={seconds}"))
    assert ended.value.code == 2
    assert "argument --round-seconds" in capsys.readouterr().err


def test_words_too_long_for_a_file_name_are_no_folder(tmp_path: Path) -> None:
    refused(run("spes_peer", "export", "x" * 300, str(tmp_path / "out")), 2, "neither a folder nor an address")


def test_what_the_system_refuses_is_one_line_and_where_it_happened_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def run_(_options: argparse.Namespace) -> None:
        write_whole(tmp_path / "missing" / "x", b"")

    parser = argparse.ArgumentParser(prog="spes-peer")
    parser.set_defaults(run=run_, log_level="DEBUG")
    with caplog.at_level(logging.DEBUG):
        assert run_command(parser, []) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"spes-peer: cannot use {tmp_path / 'missing' / 'x'}: No such file or directory")
    assert "Traceback" in caplog.text


def test_an_unwritable_state_folder_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("short") / "file"  # for the sockets in it
    file.write_text("")  # a folder inside a file cannot be made, not even by root
    state = file / "state"
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"
    done = run("spes_peer", "join", "--bootstrap", address, "--data-dir", str(state), "--no-tui", "--yes")
    refused(done, 2, str(state), "--data-dir")


def test_a_state_folder_whose_sockets_would_have_too_long_paths_is_refused(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 100)
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{NOBODY}"
    done = run("spes_peer", "join", "--bootstrap", address, "--data-dir", str(state), "--no-tui", "--yes")
    refused(done, 2, "too long", "at most")
    assert not state.exists()


def test_a_command_without_a_daemon_says_how_to_start_one(tmp_path: Path) -> None:
    for command in ("status", "pause", "resume", "leave"):
        refused(run("spes_peer", command, "--data-dir", str(tmp_path)), 1, "join")


def test_a_demo_with_too_few_volunteers_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spes_peer", "demo", "--peers", "2", "--no-tui"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    refused(done, 1, "min_peers")
    assert not list(tmp_path.iterdir())
