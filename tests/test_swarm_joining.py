"""Real processes that join, or start again, while nobody or hardly anybody is there."""

import signal
import time

import pytest
from real_swarm import Run, organized, place, three_free_ports, until

from spes_peer.exchange.addresses import NodeAddress
from spes_peer.identity import PeerId

__all__ = ["organized", "place"]


def why(run: Run, name: str) -> str:
    """What a daemon says that it waits for."""
    return str(run.place.status(name).get("phase", {}).get("why", ""))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_newcomer_waits_for_the_bootstrap_node_with_a_countdown_and_is_in_soon_after_it_appears(
    organized: Run,
) -> None:
    place = organized.place
    organized.bootstrap.kill()
    organized.bootstrap.wait()
    newcomer = organized.join("newcomer")
    until(lambda: "trying again in" in why(organized, "newcomer"), "it can be asked while it waits")
    phase = place.status("newcomer")["phase"]
    assert phase["name"] == "joining"
    assert "nothing listens at" in phase["why"]
    assert "trying again in" in phase["why"]
    assert phase["until_at"] > 0
    newcomer.send_signal(signal.SIGINT)
    assert newcomer.wait(timeout=60) == 0

    newcomer = organized.join("newcomer")
    until(lambda: "trying again" in why(organized, "newcomer"), "it waits again")
    organized.start_bootstrap()
    # it tries again every 5 s; asking it takes a process of its own, which is slow on a busy machine
    until(lambda: (said := why(organized, "newcomer")) and "trying again" not in said, "it is introduced", seconds=90)
    organized.until_round("newcomer", 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_joiner_gets_the_state_from_the_bootstrap_node_when_all_veterans_have_left(organized: Run) -> None:
    place = organized.place
    veteran = organized.join("veteran")
    organized.until_round("veteran", 7)  # so long that the first weights and the first updates are gone
    assert place.run("leave", "--data-dir", str(place.path / "veteran")).returncode == 0
    assert veteran.wait(timeout=120) == 0
    reached = max(int(path.stem) for path in (place.path / "run/records").iterdir())
    organized.join("late")
    status = organized.until_round("late", reached + 1)
    assert int(status["rounds"][0]["round"]) > 2  # it began with a snapshot


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_last_one_goes_on_from_its_own_disk_and_lets_others_in_by_its_address(organized: Run) -> None:
    place, port = organized.place, three_free_ports()
    last = organized.join("last", "--port", str(port))
    organized.until_round("last", 3)
    organized.bootstrap.kill()
    organized.bootstrap.wait()
    last.kill()
    last.wait()

    started_at = time.monotonic()
    fixed = ["--data-dir", str(place.path / "last"), "--device", "cpu", "--threads", "1", "--no-tui", "--on-battery"]
    place.start("join", *fixed, "--port", str(port), log="last.log")
    status = until(lambda: (found := place.status("last")).get("state_root") and found, "it has its state again")
    assert time.monotonic() - started_at < 120
    assert "nobody of the run is here, going on from our own folder" in place.read("last.log")

    organized.address, bootstrap = NodeAddress("127.0.0.1", port, PeerId(status["peer_id"])).text(), organized.address
    organized.join("newcomer")
    organized.until_rounds_more("newcomer", 1)
    organized.until_equal("last", "newcomer")
    organized.address = bootstrap
    organized.start_bootstrap()
    organized.until_rounds_more("newcomer", 2)
    organized.until_equal("last", "newcomer")
    until(lambda: "bootstrap" in {peer["name"] for peer in place.status("newcomer")["peers"]}, "it knows all again")
