"""Before a machine is lent for the first time, its owner is told what that means, and asked; a no leaves nothing."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from described_node import folder, node
from exchange_nodes import Node, address_of
from terminal import in_a_terminal

from spes_peer import config
from spes_peer.daemon.program import JoinSettings
from spes_peer.errors import NoBootstrap, NoDevice
from spes_peer.exchange.introduction import describe
from spes_peer.first_start import command
from spes_peer.first_start import facts as facts_module
from spes_peer.first_start.facts import Facts, look, pace, plan_for
from spes_peer.first_start.words import described
from spes_peer.folder import StateFolder
from spes_peer.identity import Identity
from spes_peer.node import usable_name
from spes_peer.run.manifest import Manifest, Origin, sign_manifest
from spes_peer.run.records import first_record
from spes_peer.training.device import DeviceReport

__all__ = ["folder", "node"]

DEVICE = DeviceReport("cuda", "cuda:0 Test", 8 * 10**9, 8 * 10**9, 8 * 10**9, True)
ANN = Identity.from_seed(b"a" * 32)


async def looked(node: Node, monkeypatch: pytest.MonkeyPatch, **settings: object) -> Facts:
    async def report(_name: str) -> DeviceReport:
        return DEVICE

    monkeypatch.setattr(facts_module, "report_of", report)
    chosen = JoinSettings(bootstraps=(address_of(node).text(),), data_dir=Path("lent"), **settings)  # type: ignore[arg-type]
    return await look(chosen, Path("lent"), say=lambda _why, _until_at: None)


async def test_five_lines_say_what_joining_means(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    said = described(await looked(node, monkeypatch, name="attic", max_upload=1_000), ANN.peer_id)
    labels = [line[2:14].strip() for line in said.splitlines() if line[2:14].strip()]
    assert labels == ["the run", "it uses", "it does not", "its data", "others see"]
    words = " ".join(said.split())
    for part in (
        f"demo {node.described.manifest.run_id.hex()[:12]}",  # type: ignore[union-attr]
        f"signed by its organizer {node.described.manifest.organizer}",  # type: ignore[union-attr]
        "of memory on cuda:0 Test to train 4 of 4 subsets",
        "3.60 MB sent",  # an hour, by the limit
        "run what others send (only numbers travel)",
        "text; licence: not stated by the organizer",
        "the name 'attic' (everybody, if the run has a public page; another with --name), the address 127.0.0.1",
        ANN.peer_id,
    ):
        assert part in words, part


@pytest.mark.parametrize("host", ["attic", "attic.example.net", "attic.local"])
def test_no_more_of_a_machines_name_is_told_than_its_first_part(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert usable_name("") == "attic"
    assert usable_name("of.my.choice") == "of.my.choice"


async def test_what_an_organizer_writes_moves_no_cursor(
    node: Node, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = manifest.data.sources[0].model_copy(update={"licence": "\x1b]0;x\n"})
    data = manifest.data.model_copy(update={"sources": (source,), "licence": "CC0\x1b[2Jfree\r" + 400 * "x"})
    node.describe_run(sign_manifest(manifest.model_copy(update={"data": data}), organizer))
    said = described(await looked(node, monkeypatch), ANN.peer_id)
    assert "\x1b" not in said
    assert "\r" not in said
    assert "[2Jfree" in said
    assert 300 * "x" not in said


def test_a_pace_is_that_of_the_last_rounds_and_none_before_there_were_some() -> None:
    record = first_record(b"r" * 32, (), (), 1000.0)
    assert pace([]) == 0.0
    assert pace([record]) == 0.0
    rounds = [
        dataclasses.replace(record, round=number, opened_at=at) for number, at in ((3, 0.0), (4, 10.0), (5, 22.0))
    ]
    assert pace([record, *rounds]) == 11.0


def test_a_device_without_room_for_one_subset_is_refused_with_how_much_it_takes(manifest: Manifest) -> None:
    settings = JoinSettings(bootstraps=(), data_dir=Path("lent"))
    assert plan_for(manifest, DEVICE, settings).num_subsets == 4
    assert plan_for(manifest, DEVICE, dataclasses.replace(settings, max_subsets=1)).num_subsets == 1
    small = dataclasses.replace(DEVICE, free_bytes=10**6, most_bytes=10**6)
    with pytest.raises(NoDevice, match=r"the smallest part of this run needs 0\.\d\d GB"):
        plan_for(manifest, small, settings)
    with pytest.raises(NoDevice, match="--gpu-memory"):
        plan_for(manifest, DEVICE, dataclasses.replace(settings, memory_bytes=10**6))


async def test_a_person_is_not_kept_waiting_for_a_node_that_is_not_there(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "_PATIENCE_SECONDS", 0.0)
    address = address_of(node)
    await node.stop()
    chosen = JoinSettings(bootstraps=(address.text(),), data_dir=Path("lent"), device="cpu")
    with pytest.raises(NoBootstrap, match=f"nothing listens at {address.endpoint}"):
        await look(chosen, Path("lent"), say=lambda _why, _until_at: None)


async def test_a_no_leaves_nothing(node: Node, folder: Path) -> None:
    options = ("--bootstrap", address_of(node).text(), "--device", "cpu", "--no-tui")
    code, said = await asyncio.to_thread(in_a_terminal, "join", *options, "--data-dir", str(folder / "lent"))
    assert (code, "nothing is left behind" in said) == (0, True)
    assert "[y/N]" in said
    assert os.listdir(folder) == []


async def test_a_yes_is_kept_with_the_key_that_was_shown_and_nobody_is_asked_again(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = await looked(node, monkeypatch)
    monkeypatch.setattr(command, "_looked", lambda *_: facts)
    monkeypatch.setattr(command, "_is_watched", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: " Y ")
    settings = JoinSettings(bootstraps=(address_of(node).text(),), data_dir=folder / "lent")
    assert command.agree(settings, ["join"])
    shown = " ".join(capsys.readouterr().out.split()).partition("the peer id ")[2].split()[0]
    held = StateFolder(folder / "lent")
    assert held.identity().peer_id == shown
    assert command.has_joined(held.path)
    held.bind(facts.introduction.signed_manifest)  # it is this run's
    again = ["join", "--data-dir", str(held.path), "--no-tui", "--host", "192.0.2.77", "--port", "4510"]
    done = await asyncio.to_thread(typed, *again)
    assert done.returncode == 2
    assert "cannot listen on 192.0.2.77" in done.stderr  # which only a daemon says


async def test_the_key_is_told_within_the_terminal_with_a_command_that_finds_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = await looked(node, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(command, "_looked", lambda *_: facts)
    monkeypatch.setattr(command, "_is_watched", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    lent = Path("/nowhere") / "of this machine" / "but in a folder with a rather long name"
    settings = JoinSettings(bootstraps=(address_of(node).text(),), data_dir=lent)
    export = "    spes-peer identity export FILE"
    assert not command.agree(settings, ["join"])
    lines = capsys.readouterr().out.splitlines()
    assert f"{export} --data-dir '{lent}'" in lines
    assert [line for line in lines if len(line) > 80 and not line.startswith(export)] == []
    monkeypatch.setattr(config, "usual_folder", lambda: lent)
    assert not command.agree(settings, ["join"])
    assert export in capsys.readouterr().out.splitlines()


def typed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """In a script."""
    return subprocess.run(
        [sys.executable, "-m", "spes_peer", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def test_where_nobody_can_be_asked_it_is_said_what_to_type_and_nothing_is_made(folder: Path) -> None:
    lent = folder / "my data"
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{ANN.peer_id}"
    done = typed("join", "--bootstrap", address, "--data-dir", str(lent))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"type: spes-peer join --bootstrap {address} --data-dir '{lent}' --yes\n")
    assert os.listdir(folder) == []


async def test_the_licence_that_an_organizer_names_is_read_by_volunteers(
    node: Node, manifest: Manifest, organizer: Identity
) -> None:
    licensed = manifest.model_copy(update={"data": manifest.data.model_copy(update={"licence": "CC-BY-SA-4.0"})})
    node.describe_run(sign_manifest(licensed, organizer))
    introduction = await describe(address_of(node))
    assert introduction.manifest.data.licence == "CC-BY-SA-4.0"


async def test_where_a_run_that_goes_on_from_another_came_from_is_told(
    node: Node, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = manifest.model_copy(update={"origin": Origin(run_id="ab" * 32, round=40)})
    node.describe_run(sign_manifest(begun, organizer))
    said = " ".join(described(await looked(node, monkeypatch), ANN.peer_id).split())
    assert "begun from the state of run abababababab after record 40" in said
