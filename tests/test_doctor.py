"""The doctor: what it finds on this machine and among others, in words, with what to do."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_program import Program, served
from data_parts import made_up_data, made_up_source
from described_node import folder, node
from exchange_nodes import Node, address_of
from tui_statuses import status

from spes_peer import refuse_windows
from spes_peer.data.index import index_of
from spes_peer.doctor import line, machine, network
from spes_peer.doctor.command import DoctorSettings, examine
from spes_peer.doctor.finding import Finding, are_fit, in_words
from spes_peer.exchange.dial_back import DialledBack
from spes_peer.folder import INCARNATION_FILE, StateFolder
from spes_peer.identity import Identity
from spes_peer.ports import Ports
from spes_peer.run.data import Data
from spes_peer.run.manifest import Manifest, SignedManifest, sign_manifest
from spes_peer.training.device import DeviceReport

__all__ = ["folder", "node"]


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


def test_a_file_in_the_place_of_the_folder_is_told_as_that(tmp_path: Path) -> None:
    file = tmp_path / "lent"
    file.touch()
    found = machine.state(file)
    assert (found.verdict, found.said) == ("bad", f"{file} is a file")
    assert "--data-dir" in found.advice


def test_an_organizers_name_for_a_run_moves_no_cursor(folder: Path, manifest: Manifest, organizer: Identity) -> None:
    held = StateFolder(folder)
    held.identity()
    named = manifest.model_copy(update={"run": manifest.run.model_copy(update={"name": "\x1b[2Jrun"})})
    held.bind(sign_manifest(named, organizer))
    assert machine.state(folder).said.isprintable()


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
    (run, clock), _ = await network.nodes([address_of(node)])
    assert run.said.startswith(f"demo {signed_manifest.run_id.hex()[:12]}, round 3, at 127.0.0.1:")
    assert (run.verdict, clock.what) == ("ok", "clock")
    node.ahead_seconds = 3600.0
    node.describe_run(signed_manifest)
    (_, clock), _ = await network.nodes([address_of(node)])
    assert clock.verdict == "hint"
    assert "behind the run's" in clock.said


async def test_a_node_that_does_not_answer_is_said_beside_one_that_does(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = dataclasses.replace(address_of(node), port=free.getsockname()[1])
    (silent, run, _), introduction = await network.nodes([dead, address_of(node)])
    assert introduction is not None
    assert f"nothing listens at {dead.endpoint}" in silent.said
    assert silent.advice
    assert run.verdict == "ok"
    assert [one.verdict for one in (await network.nodes([dead]))[0]] == ["hint"]
    assert "--bootstrap" in (await network.nodes([]))[0][0].advice


async def test_a_daemon_that_does_not_answer_is_one(folder: Path) -> None:
    with served_by_nobody(folder):
        findings, found = await network.daemon(folder)
    assert found
    assert findings[0].verdict == "bad"


@contextlib.contextmanager
def served_by_nobody(folder: Path) -> Iterator[None]:
    """Something that listens where a daemon would, and speaks another language."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control.sock"))
        listener.listen()

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def test_which_ports_are_reached_from_outside_and_what_to_do_where_they_are_not() -> None:
    ports = Ports(4510, 4511, 4512)
    found = DialledBack("ann", "203.0.113.7", ("", "", ""))
    router, outside = line.doors_found(found, ports, is_chosen=True, own="203.0.113.7")
    assert (router.verdict, outside.verdict) == ("ok", "ok")
    assert "its own address" in router.said
    assert outside.said == "TCP 4510, 4511, 4512: all answer when ann dials"
    found = DialledBack("ann", "203.0.113.7", ("", "it does not answer in 4 s", "refused"))
    router, outside = line.doors_found(found, ports, is_chosen=True, own="192.168.1.5")
    assert "a router of this machine" in router.said
    assert outside.said.startswith("2 of TCP 4510, 4511, 4512 do not answer when ann dials; 4511: it does not answer")
    assert "forward TCP 4510 to 4512 on the router to 192.168.1.5" in outside.advice
    assert "let TCP 4510 to 4512 in" in line.doors_found(found, ports, False, own="203.0.113.7")[1].advice
    assert line.doors_found(DialledBack("ann", "", ("", "", "")), ports, True, "10.0.0.1")[0].verdict == "hint"


async def test_the_line_is_measured_before_joining(
    node: Node, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = node.store.put(bytes(200_000))
    node.store.put(index_of([blob.name]))
    data = Data.model_validate(made_up_data(made_up_source([blob.name])))
    signed = sign_manifest(manifest.model_copy(update={"data": data}), organizer)
    node.describe_run(signed)
    node.run_id = signed.run_id
    _, introduction = await network.nodes([address_of(node)])
    assert introduction is not None
    findings = {finding.what: finding for finding in await line.look(introduction, "127.0.0.1", 0)}
    assert findings["from outside"].verdict == "ok"
    assert "MB/s from node; a round brings" in findings["line"].said
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(line, "choose_ports", lambda *_: Ports(taken, taken, taken))  # since they were looked at
        findings = {finding.what: finding for finding in await line.look(introduction, "127.0.0.1", 0)}
    assert f"not tried: cannot listen on 127.0.0.1 port {taken}: " in findings["from outside"].said
    assert "address already in use" in findings["from outside"].said
    assert "MB/s" in findings["line"].said
    await node.stop()
    assert "cannot be asked" in (await line.look(introduction, "127.0.0.1", 0))[0].said


def test_what_is_not_linux_is_untested_and_windows_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.system("Linux", "6.1").verdict == "ok"
    assert "WSL is untested" in machine.system("Linux", "5.15.90-microsoft-standard-WSL2").advice
    assert "Darwin is untested" in machine.system("Darwin", "23").advice
    refuse_windows("linux")
    with pytest.raises(SystemExit) as ended:
        refuse_windows("win32")
    assert ended.value.code == 2
    assert "WSL" in capsys.readouterr().err


async def test_a_running_daemon_tells_what_it_has_found_out(folder: Path) -> None:
    shown = status()
    shown.reachability, shown.reachability_why = "relay", "nobody got through to 192.0.2.7:4510"
    shown.troubles.append("the disk is full")
    shown.services.add(name="DHT node", state="restarting", why="it has ended")
    async with served(Program(shown), folder):
        findings, found = await network.daemon(folder)
    assert found
    by_what = {finding.what: finding for finding in findings}
    assert by_what["daemon"].said.startswith(f"pid {shown.pid}, {shown.phase.name}")
    assert "the disk is full" in [finding.said for finding in findings if finding.what == "trouble"]
    assert "logs --of dht" in by_what["DHT node"].advice
    assert by_what["reachability"].said == "relay: nobody got through to 192.0.2.7:4510"
    assert "forward three TCP ports" in by_what["reachability"].advice
    assert "tokens/s" in by_what["speed"].said
    findings, found = await network.daemon(folder)
    assert not found
    assert "none runs" in findings[0].said


async def test_all_of_it_is_looked_at_and_a_wrong_address_is_a_finding_too(
    folder: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def report(name: str, about: bytes = b"") -> DeviceReport:
        asked.append((name, about))
        return DeviceReport("cpu", "cpu", 10**9, 10**9, 10**9, True)

    monkeypatch.setattr(machine, "report_of", report)
    address = f"/ip4/127.0.0.1/tcp/{address_of(node).port}/p2p/{node.peer_id}"
    node.run_id = node.description().manifest.run_id
    settings = DoctorSettings(folder, (address,), "cpu", "127.0.0.1", 0)
    found = [finding async for finding in examine(settings)]
    looked_at = {"system", "programs", "memory", "disk", "state folder", "processes", "daemon", "ports", "run", "clock"}
    assert {*looked_at, "router", "from outside", "device"} == {finding.what for finding in found}
    assert asked == [("cpu", node.description().manifest.manifest)]
    wrong = [finding async for finding in examine(dataclasses.replace(settings, bootstraps=("nonsense",)))]
    assert [finding.verdict for finding in wrong if finding.what == "run"] == ["bad"]
    elsewhere = {finding.what: finding async for finding in examine(dataclasses.replace(settings, host="192.0.2.77"))}
    assert (elsewhere["ports"].verdict, "from outside" in elsewhere) == ("bad", False)


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


async def test_the_speed_on_the_runs_model_is_tried(manifest: Manifest) -> None:
    small = manifest.model.model_copy(update={"d_model": 16, "num_layers": 1, "expert_hidden": 8, "sequence_length": 8})
    found = await machine.device("cpu", manifest.model_copy(update={"model": small}).to_bytes())
    assert "tokens/s with 4 subsets of this run" in found.said
