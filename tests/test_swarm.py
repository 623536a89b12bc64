"""Whole swarms of real processes on loopback: bootstrap node, volunteers, DHT, relay, trainers. Nothing is mocked."""

import json
import shutil
import signal
import subprocess
from typing import Any

import pytest
from real_swarm import Place, Run, is_alive, organized, place, small_run, until, words_of

from spes_peer.folder import own_content
from spes_peer.organize import create_run

__all__ = ["organized", "place"]


def nothing_is_left(place: Place, *besides: str) -> None:
    until(lambda: not place.processes(), "every process has ended")
    assert sorted(path.name for path in place.path.iterdir()) == sorted(besides)


def start_demo(place: Place, run_toml: str, rounds: int, peers: int = 3) -> "subprocess.Popen[bytes]":
    (place.path / "run.toml").write_text(run_toml)
    options = ["--peers", str(peers), "--rounds", str(rounds), "--config", str(place.path / "run.toml"), "--no-tui"]
    return place.start("demo", *options, "--report", str(place.path / "report.json"), log="demo.log")


@pytest.mark.timeout(600)
def test_three_volunteers_train_three_rounds_and_end_on_one_state(place: Place) -> None:
    demo = start_demo(place, small_run(), rounds=3)
    assert demo.wait(timeout=500) == 0, place.read("demo.log")
    report = json.loads(place.read("report.json"))

    assert [entry["round"] for entry in report["rounds"]] == [1, 2, 3]
    assert report["state_roots_equal"]
    assert all(entry["roots_equal"] for entry in report["rounds"])
    assert len({entry["state_root"] for entry in report["rounds"]}) == 3
    losses = [report["held_out_loss_start"], *(entry["held_out_loss"] for entry in report["rounds"])]
    # who owns what is drawn anew in each run, so the third round may bring little; the first bring much
    assert all(loss < losses[0] - 1.0 for loss in losses[1:]), losses
    assert losses[-1] < losses[1], losses
    assert losses[0] > 5.3
    assert losses[-1] < 4.5
    assert all(entry["tokens"] == 10 * 24 * 32 for entry in report["rounds"])

    direct, also_direct, relayed = report["peers"]
    assert (direct["reachability"], also_direct["reachability"], relayed["reachability"]) == (
        "direct",
        "direct",
        "relay",
    )
    for peer in (direct, also_direct):  # they dial each other, and the third through the relay
        assert peer["bytes_sent"]["grpc"] > 0
        assert peer["bytes_received"]["grpc"] > 0
        assert peer["bytes_received"]["libp2p"] > 0
    assert relayed["bytes_sent"]["libp2p"] > 0
    assert relayed["bytes_received"]["libp2p"] > 0
    nothing_is_left(place, "demo.log", "report.json", "run.toml")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_overlap_few_bytes_and_an_outer_step_all_end_on_one_state(place: Place) -> None:
    """Half of each round is trained while the exchange of the one before runs; two encodings, momentum in the state."""
    sparing = {"shared_offer_encoding": "int8", "shared_update_encoding": "int4", "expert_encoding": "topk"}
    quoted = {key: f'"{encoding}"' for key, encoding in sparing.items()}
    outer = 'overlap_steps = 5\nshared_outer = "nesterov"\nouter_lr = 0.9\nouter_momentum = 0.3'
    run_toml = small_run(**quoted, expert_kept=1024).replace("[sync]\n", f"[sync]\n{outer}\n")
    demo = start_demo(place, run_toml, rounds=6)
    assert demo.wait(timeout=500) == 0, place.read("demo.log")
    report = json.loads(place.read("report.json"))
    assert all(entry["roots_equal"] for entry in report["rounds"])
    assert all(entry["tokens"] == 10 * 24 * 32 for entry in report["rounds"])
    assert report["rounds"][-1]["held_out_loss"] < 4.0 < 5.3 < report["held_out_loss_start"]
    nothing_is_left(place, "demo.log", "report.json", "run.toml")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_that_is_interrupted_leaves_nothing(place: Place) -> None:
    demo = start_demo(place, small_run(min_peers=2), rounds=1000, peers=2)
    until(lambda: "round   1" in place.read("demo.log"), "a round was made")
    demo.send_signal(signal.SIGINT)
    assert demo.wait(timeout=120) == 130
    nothing_is_left(place, "demo.log", "run.toml")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_that_is_killed_leaves_no_process(place: Place) -> None:
    demo = start_demo(place, small_run(min_peers=2), rounds=1000, peers=2)
    trainer = "spes_peer.training"
    until(lambda: any(trainer in words_of(process) for process in place.processes()), "a volunteer has its processes")
    demo.kill()
    demo.wait(timeout=30)
    until(lambda: not place.processes(), "every process has ended")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_in_which_a_volunteer_crashes_fails_and_leaves_nothing(place: Place) -> None:
    demo = start_demo(place, small_run(min_peers=2), rounds=1000, peers=2)
    until(lambda: "round   1" in place.read("demo.log"), "a round was made")
    victim = next(process for process in place.processes() if "volunteer-2" in words_of(process))
    victim.kill()
    assert demo.wait(timeout=120) == 1
    assert "volunteer-2 ended" in place.read("demo.log")
    nothing_is_left(place, "demo.log", "run.toml")


def subset_owners(status: dict[str, Any]) -> list[list[str]]:
    return [subset.get("owners", []) for subset in status.get("subsets", [])]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_latecomer_catches_up_pauses_resumes_and_leaves(organized: Run) -> None:
    place = organized.place
    organized.join("veteran")
    organized.until_round("veteran", 3)
    latecomer = organized.join("latecomer")
    status = until(
        lambda: (found := place.status("latecomer")).get("rounds") and found, "the latecomer has applied a round"
    )
    newest = status["rounds"][-1]
    same = organized.until_round("veteran", int(newest["round"]))
    assert newest["state_root"] in [entry["state_root"] for entry in same["rounds"]]
    veteran_id, latecomer_id = same["peer_id"], status["peer_id"]
    until(lambda: len(place.status("veteran").get("peers", [])) == 3, "all are known")
    both = [[veteran_id], [latecomer_id]]
    until(lambda: all(one in subset_owners(place.status("veteran")) for one in both), "both own a subset")

    second = place.run(
        "join", "--bootstrap", organized.address, "--data-dir", str(place.path / "latecomer"), "--no-tui", "--yes"
    )
    assert second.returncode == 2
    assert f"already running (pid {latecomer.pid})" in second.stderr

    assert place.run("pause", "--data-dir", str(place.path / "latecomer")).returncode == 0
    until(lambda: place.status("latecomer").get("phase", {}).get("name") == "paused", "the latecomer is paused")
    until(
        lambda: (found := place.status("veteran")) and [latecomer_id] not in subset_owners(found),
        "it is out of the roster",
    )
    assert place.run("resume", "--data-dir", str(place.path / "latecomer")).returncode == 0
    until(lambda: [latecomer_id] in subset_owners(place.status("veteran")), "it is in the roster again")

    assert place.run("leave", "--data-dir", str(place.path / "latecomer")).returncode == 0
    assert latecomer.wait(timeout=120) == 0
    left = place.path / "latecomer"
    assert own_content(left) == sorted(left.iterdir())
    before = int(place.status("veteran")["rounds"][-1]["round"])
    organized.until_round("veteran", before + 2)  # the run goes on without it


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_state_folder_belongs_to_one_run(organized: Run) -> None:
    place = organized.place
    first = organized.join("volunteer")
    organized.until_round("volunteer", 1)
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=120) == 0
    organized.bootstrap.terminate()
    assert organized.bootstrap.wait(timeout=120) == 0
    run_toml = (place.path / "run" / "run.toml").read_text()
    shutil.rmtree(place.path / "run")
    create_run(place.path / "run", run_toml)  # a new organizer's key makes it another run
    options = ["--run", str(place.path / "run"), "--listen", "127.0.0.1:0"]
    place.start(*options, log="bootstrap.log", module="bootstrap")
    address = until(
        lambda: (place.path / "run/address").exists() and (place.path / "run/address").read_text().strip(), "it serves"
    )
    refused = place.run(
        "join", "--bootstrap", address, "--data-dir", str(place.path / "volunteer"), "--no-tui", "--yes"
    )
    assert refused.returncode == 2
    assert "another run" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_is_killed_at_a_member_comes_back_and_the_run_goes_on(organized: Run) -> None:
    place = organized.place
    organized.join("steady")
    organized.join("hit")
    organized.until_round("hit", 1)
    for module in ("spes_peer.membership.dht_node", "spes_peer.exchange.libp2p_node", "spes_peer.training"):
        victim = organized.child("hit", module)
        below = victim.children()
        victim.kill()
        organized.until_rounds_more("hit", 2)
        until(lambda module=module: organized.child("hit", module), f"another {module} runs")
        assert not any(map(is_alive, below))
    status = place.status("hit")
    assert any("the trainer ended reason=killed" in line["text"] for line in status["log"])
    numbers = [int(entry["round"]) for entry in status["rounds"]]
    assert numbers == sorted(set(numbers))  # each counts once; one may be passed over by loading a newer snapshot

    daemon = organized.daemon("hit")
    all_of_it = [daemon, *daemon.children(recursive=True)]
    daemon.kill()
    until(lambda: not any(map(is_alive, all_of_it)), "nothing of it is left")
    organized.join("hit")
    organized.until_rounds_more("hit", 2)
    organized.until_equal("steady", "hit")
    assert sorted(peer["name"] for peer in place.status("steady")["peers"]) == ["bootstrap", "hit", "steady"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_members_outlive_the_bootstrap_node_and_find_it_again(organized: Run) -> None:
    place = organized.place
    organized.join("one")
    organized.join("two", "--no-inbound")
    organized.until_round("two", 1)
    organized.bootstrap.kill()
    organized.bootstrap.wait()
    # what is missing depends on the moment: a coordinator, or updates of the one behind the relay that is down too
    words = ("for a coordinator", "trying again")
    until(lambda: place.status("one").get("phase", {}).get("why", "").startswith(words), "the wait says what it is")
    organized.start_bootstrap()
    organized.until_rounds_more("one", 2)
    organized.until_rounds_more("two", 1)
    organized.until_equal("one", "two")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pause_outlives_a_kill_and_an_absence_of_many_rounds_is_caught_up(organized: Run) -> None:
    place = organized.place
    organized.join("steady")
    guest = organized.join("guest")
    organized.until_round("guest", 1)
    assert place.run("pause", "--data-dir", str(place.path / "guest")).returncode == 0
    until(lambda: organized.phase("guest") == "paused", "it is paused")
    guest.kill()
    guest.wait()
    left_at = organized.newest_round("steady")
    organized.until_round("steady", left_at + 6)  # three snapshots: nobody has the updates since then
    organized.join("guest")
    until(lambda: organized.phase("guest") == "paused", "it is still paused")
    assert place.run("resume", "--data-dir", str(place.path / "guest")).returncode == 0
    organized.until_rounds_more("guest", 2)
    organized.until_equal("steady", "guest")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_can_leave_at_once_and_whoever_comes_back_goes_on(organized: Run) -> None:
    place = organized.place
    daemons = {name: organized.join(name) for name in ("one", "two")}
    for name in daemons:
        organized.until_round(name, 2)
    for name in daemons:
        assert place.run("leave", "--data-dir", str(place.path / name)).returncode == 0
    until(lambda: all(daemon.poll() == 0 for daemon in daemons.values()), "both have left")
    reached = max(int(path.stem) for path in (place.path / "run/records").iterdir())
    for name in daemons:  # which of them left last is not decided
        organized.join(name)
    organized.until_round("one", reached + 1)
    organized.until_equal("one", "two")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_signal_at_any_moment_ends_a_volunteer_in_good_order(organized: Run) -> None:
    moments = {
        "asking the node": signal.SIGINT,
        "starting the trainer": signal.SIGTERM,
        "fetching the records": signal.SIGHUP,
        "claiming subset": signal.SIGINT,
        "local steps": signal.SIGTERM,
    }
    place = organized.place
    before = len(place.processes())
    for mark, number in moments.items():
        daemon = organized.join("guest", "--log-level", "DEBUG")
        until(lambda mark=mark: mark in place.read("guest.log"), f"it says {mark!r}")
        daemon.send_signal(number)
        assert daemon.wait(timeout=60) == 0, mark
        until(lambda: len(place.processes()) == before, f"nothing of it is left after {mark!r}")
        assert not list(place.path.glob("guest/*.sock")), mark
