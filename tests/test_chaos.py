"""The chaos command: what it plans, what it says of what it saw, the networks it parts, and a real run of it."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from chain_parts import PEERS, certify, following, grown
from rounds_swarm import CHECKS, genesis

from spes_peer.chaos import network, nodes
from spes_peer.chaos.network import Loopback, Spot, Switched
from spes_peer.chaos.nodes import Nodes
from spes_peer.chaos.observer import Observer
from spes_peer.chaos.program import ChaosSettings, run_chaos
from spes_peer.chaos.report import Observations, SeenFault, SeenRecord, build_report, is_good
from spes_peer.chaos.run_file import RUN_FILE
from spes_peer.chaos.schedule import BOOTSTRAP, MAX_NEWCOMERS, Fault, Kind, schedule, volunteer_names
from spes_peer.errors import ChildFailed, UserError
from spes_peer.identity import PeerId
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, parse_run_file
from spes_peer.run.records import SealedRecord
from spes_peer.wire.control_pb2 import PeerStatus, RoundStatus, Status, TrainingStatus

can_part = os.geteuid() == 0 and Path("/proc/self/ns/net").exists()
needs_root = pytest.mark.skipif(not can_part, reason="network namespaces need root")

# ---- the schedule ----

SEEDS = range(30)


def half_hour(seed: int, num_peers: int = 6) -> tuple[Fault, ...]:
    return schedule(seed, num_peers, 1800.0, 30.0)


def test_a_seed_says_everything_about_a_schedule() -> None:
    assert half_hour(7) == half_hour(7)
    assert half_hour(7) != half_hour(8)


def test_faults_come_in_order_as_often_as_asked_and_end_in_time() -> None:
    counts = []
    for seed in SEEDS:
        faults = half_hour(seed)
        counts.append(len(faults))
        assert list(faults) == sorted(faults, key=lambda fault: fault.at_seconds)
        assert all(fault.at_seconds + fault.seconds <= 1800 for fault in faults)
    assert 57 < sum(counts) / len(counts) < 63


def test_every_kind_of_fault_comes_and_newcomers_are_few() -> None:
    for seed in SEEDS:
        faults = half_hour(seed)
        assert sum(fault.kind is Kind.JOIN for fault in faults) <= MAX_NEWCOMERS
        for fault in faults:
            assert set(fault.targets) <= {BOOTSTRAP, *volunteer_names(6), "newcomer-1", "newcomer-2"}
    everything = [fault for seed in SEEDS for fault in half_hour(seed)]
    assert {fault.kind for fault in everything} == set(Kind)
    assert any(fault.targets == (BOOTSTRAP,) and fault.kind is Kind.KILL for fault in everything)
    assert any(len(fault.targets) > 3 and fault.kind is Kind.STOP for fault in everything)
    assert {fault.child for fault in everything if fault.kind is Kind.KILL_CHILD} == {
        "trainer",
        "dht node",
        "libp2p node",
    }


def test_small_faults_together_leave_more_than_half_and_large_ones_come_alone() -> None:
    for seed in SEEDS:
        faults = [fault for fault in half_hour(seed) if fault.kind not in (Kind.KILL_CHILD, Kind.JOIN)]
        large = [fault for fault in faults if len(fault.targets) > 1 or BOOTSTRAP in fault.targets]
        small = [fault for fault in faults if fault not in large]
        for fault in small:
            others = [one for one in small if one.at_seconds <= fault.at_seconds < one.at_seconds + one.seconds]
            assert len({one.targets for one in others}) == len(others) <= 3  # of six to eight
        for one, after in itertools.pairwise(large):
            assert one.at_seconds + one.seconds < after.at_seconds


def test_nobody_is_struck_who_has_not_come_yet() -> None:
    for seed in SEEDS:
        known = {BOOTSTRAP, *volunteer_names(6)}
        for fault in half_hour(seed):
            if fault.kind is Kind.JOIN:
                known.update(fault.targets)
            assert set(fault.targets) <= known


def test_a_lone_volunteer_is_never_sent_away_for_small_reasons() -> None:
    for seed in SEEDS:
        alone = itertools.takewhile(lambda fault: fault.kind is not Kind.JOIN, schedule(seed, 1, 60.0, 5.0))
        assert all(fault.kind not in (Kind.LEAVE, Kind.PARTITION) for fault in alone)


def test_without_a_network_to_part_nothing_is_parted() -> None:
    assert all(fault.kind is not Kind.PARTITION for seed in SEEDS for fault in schedule(seed, 6, 1800, 10, False))


# ---- the report ----

A, B = PeerId("a"), PeerId("b")


def record(round: int, tokens: int = 100, hash: str = "", opened_at: float | None = None) -> SeenRecord:
    at = 1000.0 + 10 * round if opened_at is None else opened_at
    return SeenRecord(round, hash or f"h{round}", True, tokens, {A: tokens} if tokens else {}, at)


def observed(**values: Any) -> Observations:
    """Three rounds of one peer, ten seconds each, with nothing amiss."""
    final = (record(0, 0), record(1, 0), record(2), record(3), record(4))
    seen = Observations(
        started_at=1000.0,
        ended_at=1050.0,
        final=final,
        certified_at={one.key: one.opened_at + 0.5 for one in final},
        roots={one.key: {"x": f"r{one.round}", "y": f"r{one.round}"} for one in final[2:]},
        final_roots={"x": "r4", "y": "r4"},
        trained_tokens={(A, 1): 100, (A, 2): 100, (A, 3): 100},
        settled_seconds=4.0,
    )
    return replace(seen, **values)


def test_a_run_with_nothing_amiss_is_good() -> None:
    report = build_report(observed())
    assert is_good(report)
    assert (report["rounds_completed"], report["rounds_lost"], report["roots_equal"]) == (3, 0, True)
    assert report["goodput"] == 1.0
    assert report["round_seconds"] == {"median": 10.0, "worst": 10.0}


def test_a_certified_record_that_the_final_chain_has_not_is_lost() -> None:
    seen = observed()
    seen.certified_at[4, "another"] = 1041.0
    report = build_report(seen)
    assert report["lost"] == [{"round": 4, "hash": "another"}]
    assert not is_good(report)


def test_roots_differ_where_one_record_led_to_two_or_one_volunteer_has_none_at_the_end() -> None:
    seen = observed()
    seen.roots[3, "h3"]["y"] = "other"
    assert not build_report(seen)["roots_equal"]
    assert not build_report(observed(final_roots={"x": "r4", "y": "other"}))["roots_equal"]
    assert not build_report(observed(final_roots={"x": "r4", "y": ""}))["roots_equal"]
    seen = observed()
    seen.roots[3, "uncertified"] = {"x": "r3", "y": "other"}  # torn is nobody who applied what nobody certified
    assert build_report(seen)["roots_equal"]


def test_goodput_counts_what_was_trained_in_vain_and_not_the_open_round() -> None:
    trained = {(A, 1): 100, (A, 2): 150, (B, 3): 50, (A, 3): 100, (A, 4): 90}
    report = build_report(observed(trained_tokens=trained))
    assert (report["tokens_in_records"], report["tokens_trained"]) == (300, 400)
    assert report["goodput"] == 0.75


def test_what_a_record_has_of_a_peer_was_trained_even_where_nobody_saw_it() -> None:
    assert build_report(observed(trained_tokens={(A, 1): 60}))["tokens_trained"] == 300


def test_a_fault_is_recovered_from_with_a_whole_round_after_it() -> None:
    faults = [
        SeenFault(Fault(5.0, Kind.KILL, ("x",), 2.0), 1015.0, 1017.0),  # round 2 begins at 1020 and is closed at 1030
        SeenFault(Fault(7.0, Kind.STOP, ("x",), 2.0), 1029.0, 1031.0),
        SeenFault(Fault(9.0, Kind.LEAVE, ("x",), 2.0), 1039.0, 1045.0, "it did not leave"),
    ]
    report = build_report(observed(faults=faults))
    recovered = [fault["recovered_after_seconds"] for fault in report["faults"]]
    assert recovered == [15.5, 11.5, None]
    assert report["recovery_seconds"] == {"median": 13.5, "worst": 15.5}
    assert (report["num_faults"], report["num_not_recovered"]) == (3, 1)
    assert report["faults"][2]["note"] == "it did not leave"
    assert report["faults"][0]["lasted_seconds"] == 2.0


def test_memory_growth_is_a_slope_without_the_first_rounds_and_short_lives() -> None:
    filling = [(n, 1000 * n) for n in range(10)]
    memory = {
        ("trainer", 1): [*filling, *((n, 9000 + 5 * n) for n in range(10, 40))],
        ("trainer", 2): [*filling, *((n, 9000 + 1 * n) for n in range(10, 40))],
        ("trainer", 3): filling,
        ("p2pd", 4): [(n, 500 - n) for n in range(30)],
        ("daemon", 5): [(1, 70)],
    }
    growth = build_report(observed(memory=memory))["memory_growth"]
    assert growth["trainer"]["lives_measured"] == 2
    assert growth["trainer"]["bytes_per_round_median"] == pytest.approx(3)
    assert growth["trainer"]["bytes_per_round_worst"] == pytest.approx(5)
    assert growth["p2pd"]["bytes_per_round_worst"] == pytest.approx(-1)
    assert growth["daemon"] == {
        "lives_measured": 0,
        "bytes_per_round_median": None,
        "bytes_per_round_worst": None,
        "largest_bytes": 70,
    }


def test_orphans_and_a_run_that_does_not_settle_are_not_good() -> None:
    assert not is_good(build_report(observed(orphans=["p2pd of volunteer-1, pid 7"])))
    assert not is_good(build_report(observed(settled_seconds=None)))
    json.dumps(build_report(Observations()))  # nothing seen at all can still be said


# ---- the observer ----


@pytest.fixture
def zero(manifest: Manifest) -> SealedRecord:
    return genesis(Layout(manifest)).seal()


def test_late_signatures_make_certified_what_was_not_and_what_is_behind_it(tmp_path: Path, zero: SealedRecord) -> None:
    chain = grown(tmp_path, zero, 3)
    base = chain.head
    assert base is not None
    late = following(base)
    chain.append(certify(late, uncertified=PEERS[:1]))
    chain.append(certify(following(late.seal()), *PEERS))
    observer = Observer(CHECKS, lambda _name: chain.folder)
    observer.look_at_disk("x", now=5.0)
    assert sorted(number for number, _ in observer.seen.certified_at) == [0, 1, 2]
    assert chain.improve(certify(late, *PEERS))
    observer.look_at_disk("x", now=6.0)
    assert sorted(observer.seen.certified_at.values()) == [5.0, 5.0, 5.0, 6.0, 6.0]
    assert observer.newest is not None
    assert observer.newest.round == 4


def test_a_certified_record_that_another_chain_displaced_is_seen_to_be_lost(tmp_path: Path, zero: SealedRecord) -> None:
    chains = {name: grown(tmp_path / name, zero, 3) for name in ("x", "y")}
    base = chains["x"].head
    assert base is not None
    for name, moment in (("x", 1.0), ("y", 2.0)):
        chains[name].append(certify(following(base, opened_at=moment), *PEERS))
    after = chains["x"].head
    assert after is not None
    chains["x"].append(certify(following(after), *PEERS))
    observer = Observer(CHECKS, lambda name: chains[name].folder)
    for name in chains:
        said = [RoundStatus(round=number, state_root=f"root of {name}") for number in (1, 2)]
        observer.take_status(name, Status(pid=1, rounds=said), now=6.0)
    observer.conclude(["x", "y"], ["x", "y"])
    assert [one.round for one in observer.seen.final] == [0, 1, 2, 3, 4]
    assert [one["round"] for one in build_report(observer.seen)["lost"]] == [3]
    assert observer.seen.final_roots == {"x": "root of x", "y": "root of y"}  # after the newest record that both had


def test_steps_are_counted_once_and_again_when_a_trainer_begins_again(tmp_path: Path) -> None:
    observer = Observer(replace(CHECKS, sequence_length=32), lambda name: tmp_path / name)

    def says(round: int, steps: int, pid: int = 1) -> None:
        peers = [PeerStatus(is_self=True, sequences_per_step=2)]
        training = TrainingStatus(steps_done=steps)
        status = Status(pid=pid, peer_id="a", round=round, peers=peers, training=training)
        observer.take_status("x", status, now=0.0)

    for steps in (0, 4, 4, 10):
        says(1, steps)
    says(1, 3)  # another trainer, from the beginning
    says(1, 10)
    says(2, 5)
    says(2, 2, pid=2)
    assert observer.seen.trained_tokens == {(A, 1): 20 * 64, (A, 2): 7 * 64}


# ---- networks ----


@pytest.fixture
def switched() -> Iterator[Switched]:
    made = Switched()
    yield made
    made.close()


def reaches(source: Spot, target: Spot) -> bool:
    """Whether a connection from one spot to a listener at the other comes about within some seconds."""
    listening = subprocess.Popen(
        [*target.before, sys.executable, "-c", _LISTEN, target.address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        done = subprocess.run([*source.before, sys.executable, "-c", _DIAL, target.address], timeout=30, check=False)
        return done.returncode == 0
    finally:
        listening.kill()
        listening.communicate()


_LISTEN = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 4510))
print("listening", flush=True)
time.sleep(60)
"""
_DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 4510), timeout=4).close()
except OSError:
    sys.exit(1)
"""


@needs_root
def test_halves_reach_their_own_and_nobody_else_until_they_are_whole_again(switched: Switched) -> None:
    a, b, c = (switched.add(name) for name in (A, "b", "c"))
    assert reaches(a, c)
    switched.part(["c", "b"])
    assert not reaches(a, c)
    assert reaches(b, c)
    switched.heal()
    assert reaches(a, c)


@needs_root
def test_a_network_leaves_nothing_and_clears_away_what_the_dead_left(switched: Switched) -> None:
    subprocess.run(
        [sys.executable, "-c", "from spes_peer.chaos.network import Switched; Switched().add('a')"],
        check=True,
        timeout=60,
    )
    own = f"spes-chaos-{os.getpid()}-"
    assert [name for name in network.namespaces() if not name.startswith(own)]
    network.remove_leftovers()
    switched.add("a")
    assert {name for name in network.namespaces() if name.startswith(own)} == {f"{own}switch", f"{own}a"}
    switched.close()
    assert not [name for name in network.namespaces() if name.startswith(own)]


def test_a_machine_without_ip_has_no_network_to_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ChildFailed, match="cannot run ip"):
        Switched()
    assert Loopback().add("a") == Spot("127.0.0.1")


# ---- the command ----


def test_its_run_file_is_sound_and_its_own() -> None:
    run_file = parse_run_file(RUN_FILE)
    assert run_file.training.num_subsets == 6
    assert run_file.timing.coordinator_timeout_seconds < 10


def test_mistakes_are_told_before_anything_starts(tmp_path: Path) -> None:
    settings = ChaosSettings(1, 1.0, 10.0, 0, None, None, None, False)
    with pytest.raises(UserError, match="waits for 2 volunteers"):
        run_chaos(settings)
    with pytest.raises(UserError, match="no folder"):
        run_chaos(replace(settings, report=tmp_path / "none" / "report.json"))


def until(condition: Callable[[], Any], what: str, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.1)


def test_a_child_that_outlives_its_node_is_found_named_and_ended(tmp_path: Path) -> None:
    mark = {**os.environ, "SPES_CHAOS_RUN": str(os.getpid()), "SPES_CHAOS_NODE": "volunteer-9"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=mark) as left:
        until(lambda: nodes.processes_of("volunteer-9"), "it runs with its mark")
        name = psutil.Process(left.pid).name()
        some = Nodes(tmp_path, Loopback())
        some.stop_all()
        assert some.orphans == [f"{name} of volunteer-9, pid {left.pid}"]
        assert left.wait(timeout=30) == -signal.SIGKILL


@contextlib.contextmanager
def chaos(folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A chaos command whose temporary folder and whose processes can be found by `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder), "SPES_TEST_PLACE": str(folder)}
    with (folder / "chaos.log").open("wb") as log:
        command = [sys.executable, "-m", "spes_peer", "chaos", *options]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            for one in processes_at(folder):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()


def processes_at(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            is_here = process.environ().get("SPES_TEST_PLACE") == str(folder)
            if is_here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def namespaces_of(maker: int) -> list[str]:
    return [name for name in network.namespaces() if name.startswith(f"spes-chaos-{maker}-")] if can_part else []


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spes-") as path:
        yield Path(path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_under_chaos_loses_no_certified_round_and_leaves_nothing(short_folder: Path) -> None:
    report_file = short_folder / "report.json"
    options = ["--peers", "3", "--minutes", "1", "--fault-every", "10", "--seed", "1", "--report", str(report_file)]
    with chaos(short_folder, *options) as process:
        code = process.wait(timeout=800)
        said = (short_folder / "chaos.log").read_text()
        assert code == 0, said
        assert not processes_at(short_folder)
        assert not namespaces_of(process.pid)
    report = json.loads(report_file.read_text())
    assert (report["rounds_lost"], report["roots_equal"], report["orphans"]) == (0, True, 0)
    assert report["unexpected_ends"] == []
    assert report["num_faults"] >= 4
    assert report["rounds_completed"] >= 3  # a busy machine makes few
    assert report["goodput"] > 0.3
    assert sorted(path.name for path in short_folder.iterdir()) == ["chaos.log", "report.json"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_chaos_that_is_interrupted_leaves_nothing_and_what_a_killed_one_left_goes_with_the_next(
    short_folder: Path,
) -> None:
    options = ["--peers", "2", "--minutes", "10", "--fault-every", "2"]
    with chaos(short_folder, *options) as process:
        until(lambda: "faults in" in (short_folder / "chaos.log").read_text(), "it strikes")
        process.kill()
        process.wait()
        killed = process.pid
    with chaos(short_folder, *options) as process:
        until(lambda: "faults in" in (short_folder / "chaos.log").read_text(), "it strikes")
        assert not namespaces_of(killed)
        process.terminate()
        assert process.wait(timeout=120) == 130
        assert not processes_at(short_folder)
        assert not namespaces_of(process.pid)
