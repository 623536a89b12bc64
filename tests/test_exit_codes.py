"""How `spes-peer join` ends when it cannot: each reason by its own code, and in one line that says what to do."""

import asyncio
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from described_node import folder, node
from exchange_nodes import Node, address_of
from terminal import in_a_terminal

from spes_peer.cli import EXIT_CODES
from spes_peer.collector import refuse_if_no_room
from spes_peer.daemon.trainer_host import TrainerHost, TrainerSettings
from spes_peer.errors import BadConfiguration, NoBootstrap, NoDevice, NotAdmitted, TooOld
from spes_peer.first_start.command import has_joined
from spes_peer.folder import StateFolder
from spes_peer.identity import Identity, PeerId
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest, SignedManifest
from spes_peer.run.records import CertifiedRecord, first_record
from spes_peer.training.work import TrainerOpened

__all__ = ["folder", "node"]

DEADLINE_SECONDS = 60.0
SOMEBODY = Identity.from_seed(b"s" * 32).peer_id


async def ended(folder: Path, address: str = "", *options: str) -> tuple[int, str]:
    """The code of a join in a script, and its last line."""

    def join() -> "subprocess.CompletedProcess[str]":
        fixed = ["join", "--yes", "--no-tui", "--data-dir", str(folder / "lent")]
        fixed += ["--bootstrap", address] if address else []
        return subprocess.run(
            [sys.executable, "-m", "spes_peer", *fixed, *options],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )

    done = await asyncio.to_thread(join)
    return done.returncode, done.stderr.splitlines()[-1]


async def test_another_node_than_that_of_the_address_is_3(node: Node, folder: Path) -> None:
    code, said = await ended(folder, address_of(node, peer_id=SOMEBODY).text())
    assert code == NoBootstrap.exit_code == 3
    assert "another node than expected" in said
    assert "ask the organizer for the address of today" in said


async def test_a_program_too_old_for_the_run_is_4_and_told_what_to_install(
    node: Node, folder: Path, signed_manifest: SignedManifest
) -> None:
    node.describe_run(signed_manifest, protocol=PROTOCOL_VERSION + 1)
    code, said = await ended(folder, address_of(node).text())
    assert code == TooOld.exit_code == 4
    assert "pip install --upgrade spes-peer" in said


async def test_a_run_that_is_over_is_5(node: Node, folder: Path, signed_manifest: SignedManifest) -> None:
    last = dataclasses.replace(first_record(signed_manifest.run_id, (), (), 0.0), round=8, is_final=True)
    node.run_id = signed_manifest.run_id
    node.records = [CertifiedRecord(last.seal().content, 0, ())] * 4
    code, said = await ended(folder, address_of(node).text())
    assert code == NotAdmitted.exit_code == 5
    assert "the run ended with round 7" in said
    assert not has_joined(folder / "lent")


async def test_a_device_that_is_not_there_is_6(node: Node, folder: Path) -> None:
    options = ("--bootstrap", address_of(node).text(), "--data-dir", str(folder / "lent"), "--device", "cuda:77")
    code, said = await asyncio.to_thread(in_a_terminal, "join", *options)
    assert code == NoDevice.exit_code == 6
    assert "the device 'cuda:77' cannot be used" in said
    assert "name another with --device" in said
    assert not (folder / "lent").exists()


def test_a_limit_below_the_smallest_part_of_the_run_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    def host(memory_bytes: int) -> TrainerHost:
        settings = TrainerSettings(b"", tmp_path, tmp_path, tmp_path / "log", PeerId("me"), "", 1)
        made = TrainerHost(dataclasses.replace(settings, memory_bytes=memory_bytes))
        made.opened = TrainerOpened(device="cpu", max_subsets=1, tokens_per_second=0.0)
        return made

    for enough in (0, 10**9):
        host(enough).refuse_a_limit_below_every_plan(manifest)
    with pytest.raises(NoDevice, match="--gpu-memory"):
        host(10**6).refuse_a_limit_below_every_plan(manifest)


def test_every_code_stands_in_the_help() -> None:
    for error in (BadConfiguration, NoBootstrap, TooOld, NotAdmitted, NoDevice):
        assert f"  {error.exit_code}  " in EXIT_CODES


def test_a_disk_that_the_run_would_fill_is_refused_before_anything_is_fetched(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    refuse_if_no_room(tmp_path / "new" / "folder", Layout(manifest))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**6))
    with pytest.raises(BadConfiguration, match=r"has 1.0 MB of free disk, and this run needs \d+\.\d MB at least"):
        refuse_if_no_room(tmp_path / "new" / "folder", Layout(manifest))
    (tmp_path / "snapshots.spes").touch()  # what is there goes on, whatever the disk says
    refuse_if_no_room(tmp_path, Layout(manifest))


async def test_a_folder_that_knows_neither_a_node_nor_a_state_of_its_run_asks_for_a_node(
    folder: Path, signed_manifest: SignedManifest
) -> None:
    StateFolder(folder / "lent").bind(signed_manifest)
    code, said = await ended(folder)
    assert code == 2
    assert "none of its nodes is known; name one: spes-peer join --bootstrap ADDRESS" in said
