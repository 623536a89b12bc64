"""The doctor: what it finds on this machine and among others, in words, with what to do."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from control_program import Program, served, short_folder
from exchange_nodes import Node, address_of, running
from tui_statuses import status

from spes_peer.doctor import machine, network
from spes_peer.doctor.command import DoctorSettings, examine
from spes_peer.doctor.finding import Finding, are_fit, in_words
from spes_peer.exchange.holdings import Holdings
from spes_peer.folder import INCARNATION_FILE, StateFolder
from spes_peer.run.manifest import SignedManifest


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
async def node(tmp_path: Path, signed_manifest: SignedManifest) -> AsyncIterator[Node]:
    async with running(tmp_path, Holdings) as (one,):
        one.describe_run(signed_manifest)
        yield one


def test_advice_stands_below_what_was_found_and_only_what_stops_makes_unfit() -> None:
    well, hint = Finding("disk", "9 GB free"), Finding("disk", "1 GB free", "make room")
    bad = Finding("disk", "read-only", "choose another", stops=True)
    assert in_words(well) == "ok    disk           9 GB free"
    assert in_words(hint).splitlines()[1].strip() == "→ make room"
    assert [one.verdict for one in (well, hint, bad)] == ["ok", "hint", "bad"]
    assert are_fit([well, hint])
    assert not are_fit([well, bad])


# ---- this machine ----


def test_a_new_folder_is_well_and_stays_new(tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert "is new" in machine.state(new).said
    assert machine.disk(new).verdict in ("ok", "hint")
    assert not new.exists()


def test_whose_folder_it_is_and_of_which_run(folder: Path, signed_manifest: SignedManifest) -> None:
    held = StateFolder(folder)
    peer = held.identity().peer_id
    assert machine.state(folder).said == f"{peer}, of no run yet"
    held.bind(signed_manifest)
    assert machine.state(folder).said == f"{peer}, of run demo {signed_manifest.run_id.hex()[:12]}"


def test_a_lost_or_damaged_key_or_manifest_stops_with_what_to_do(folder: Path, signed_manifest: SignedManifest) -> None:
    held = StateFolder(folder)
    held.identity()
    held.bind(signed_manifest)
    manifest = folder / "manifest.spes"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert "its manifest cannot be used" in machine.state(folder).said
    held.identity_key.write_text("xyz")
    assert (machine.state(folder).verdict, machine.state(folder).said) == ("bad", "its key is damaged")
    held.next_number(INCARNATION_FILE)
    held.identity_key.unlink()
    assert machine.state(folder).verdict == "bad"
    assert "identity import" in machine.state(folder).advice


def test_a_port_that_is_taken_stops() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        taken = machine.ports("127.0.0.1", port)
    assert taken.verdict == "bad"
    assert str(port) in taken.said
    assert "--port" in taken.advice
    assert machine.ports("127.0.0.1", 0).verdict == "ok"


def test_what_a_dead_daemon_left_is_found_by_its_id() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", "spes_peer.tied", "module"]
    gone = subprocess.Popen(["true"])
    gone.wait()
    for parent, is_stray in ((os.getpid(), False), (gone.pid, True)):
        process = subprocess.Popen([*sleep, str(parent)])
        try:
            assert (str(process.pid) in machine.strays().advice.split()) is is_stray
        finally:
            process.kill()
            process.wait()


async def test_a_device_is_what_torch_says_and_a_wrong_one_is_refused_in_its_words() -> None:
    there = await machine.device("cpu")
    assert there.said.startswith("cpu, ")
    assert there.verdict == "hint"
    wrong = await machine.device("cuda:99")
    assert wrong.verdict == "bad"
    assert "'cuda:99' cannot be used" in wrong.said


async def test_what_keeps_the_doctor_from_looking_is_a_finding(folder: Path) -> None:
    too_long = folder / ("x" * 100)
    (folder / "manifest.spes").write_bytes(b"no manifest")
    for place, what in ((too_long, "disk"), (folder, "run")):
        settings = DoctorSettings(place, (), "cpu", "127.0.0.1", 0)
        verdicts = {finding.what: finding.verdict async for finding in examine(settings)}
        assert verdicts[what] == "bad"
        assert verdicts["device"] == "hint"  # it goes on


# ---- among others ----


async def test_a_node_that_answers_tells_the_run_and_the_time(node: Node, signed_manifest: SignedManifest) -> None:
    run, clock = await network.nodes([address_of(node)])
    assert run.said.startswith(f"demo {signed_manifest.run_id.hex()[:12]}, round 3, at 127.0.0.1:")
    assert (run.verdict, clock.what) == ("ok", "clock")
    node.ahead_seconds = 3600.0
    node.describe_run(signed_manifest)
    _, clock = await network.nodes([address_of(node)])
    assert clock.verdict == "hint"
    assert "behind the run's" in clock.said


async def test_a_node_that_does_not_answer_is_said_beside_one_that_does(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = dataclasses.replace(address_of(node), port=free.getsockname()[1])
    silent, run, _ = await network.nodes([dead, address_of(node)])
    assert f"nothing listens at {dead.endpoint}" in silent.said
    assert silent.advice
    assert run.verdict == "ok"
    assert [one.verdict for one in await network.nodes([dead])] == ["hint"]
    assert "--bootstrap" in (await network.nodes([]))[0].advice


async def test_a_running_daemon_tells_what_it_has_found_out(folder: Path) -> None:
    shown = status()
    shown.reachability, shown.reachability_why = "relay", "nobody got through to 192.0.2.7:4510"
    shown.troubles.append("the disk is full")
    shown.services.add(name="DHT node", state="restarting", why="it has ended")
    async with served(Program(shown), folder):
        findings, found = await network.daemon(folder)
    assert found is not None
    by_what = {finding.what: finding for finding in findings}
    assert by_what["daemon"].said.startswith(f"pid {shown.pid}, {shown.phase.name}")
    assert "the disk is full" in [finding.said for finding in findings if finding.what == "trouble"]
    assert "logs --of dht" in by_what["DHT node"].advice
    assert by_what["reachability"].said == "relay: nobody got through to 192.0.2.7:4510"
    assert "forward three TCP ports" in by_what["reachability"].advice
    assert "tokens/s" in by_what["speed"].said
    findings, found = await network.daemon(folder)
    assert found is None
    assert "none runs" in findings[0].said


async def test_all_of_it_is_looked_at_and_a_wrong_address_is_a_finding_too(folder: Path, node: Node) -> None:
    address = f"/ip4/127.0.0.1/tcp/{address_of(node).port}/p2p/{node.peer_id}"
    settings = DoctorSettings(folder, (address,), "cpu", "127.0.0.1", 0)
    found = [finding async for finding in examine(settings)]
    assert {"programs", "memory", "disk", "state folder", "processes", "daemon", "ports", "run", "clock", "device"} == {
        finding.what for finding in found
    }
    wrong = [finding async for finding in examine(dataclasses.replace(settings, bootstraps=("nonsense",)))]
    assert [finding.verdict for finding in wrong if finding.what == "run"] == ["bad"]


def test_the_command_prints_for_programs_and_ends_with_what_it_found(folder: Path) -> None:
    new = str(folder / "new")
    done = subprocess.run(
        [sys.executable, "-m", "spes_peer", "doctor", "--json", "--device", "cuda:99", "--data-dir", new],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    verdicts = {finding["what"]: finding["verdict"] for finding in json.loads(done.stdout)}
    assert verdicts["device"] == "bad"
    assert verdicts["programs"] == "ok"
