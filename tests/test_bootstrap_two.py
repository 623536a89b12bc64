"""Two bootstrap nodes of real processes share a run: each can be lost, and comes back from its folder."""

import signal
import subprocess
import urllib.request

import pytest
from real_swarm import LOOPBACK, START_SECONDS, Place, Run, place, small_run, three_free_ports, until  # noqa: F401
from test_metrics import free_port

from spes_peer.identity import Identity


def serve(place: Place, folder: str, *options: str) -> "tuple[subprocess.Popen[bytes], str]":  # noqa: F811
    """A bootstrap node, and its addresses once it serves."""
    file = place.path / folder / "address"
    started = place.start("--run", str(place.path / folder), *options, log=f"{folder}.log", module="bootstrap")
    until(lambda: file.exists() or started.poll() is not None, f"the node of {folder} serves")
    assert started.poll() is None, place.read(f"{folder}.log")
    return started, file.read_text().strip()


def figures(port: int) -> dict[str, float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{LOOPBACK}:{port}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_two_bootstrap_nodes_loses_either_and_goes_on(place: Place) -> None:  # noqa: F811
    second = Identity.generate()
    (place.path / "second").mkdir()
    second.save(place.path / "second" / "identity.key")
    (place.path / "run").mkdir()
    (place.path / "run" / "run.toml").write_text(small_run(min_peers=2))
    Identity.load_or_create(place.path / "run" / "organizer.key")
    options = (str(place.path / "run"), "--bootstrap-node", second.peer_id)
    assert place.start("run", "sign", *options, log="sign.log").wait(START_SECONDS) == 0, place.read("sign.log")
    (place.path / "run" / "manifest.spes").chmod(0o400)

    port, metrics = three_free_ports(), free_port()
    listen = ("--listen", f"{LOOPBACK}:{port}")
    first, address = serve(place, "run", *listen, "--metrics", str(metrics))
    further, addresses = serve(place, "second", "--listen", f"{LOOPBACK}:0", "--join", address)
    assert addresses.split(",")[1:] == [address]
    own = addresses.split(",")[0]
    until(lambda: own in (place.path / "run/address").read_text(), "the first node gives the second's address, too")
    until(lambda: "the run's data is here" in place.read("second.log"), "the second has copied the data")

    run = Run(place, address, first)
    for name in ("tower", "cellar"):
        run.join(name, *(("--no-inbound",) if name == "cellar" else ()))
    run.until_round("tower", 2)
    assert figures(metrics)["spes_bootstrap_roster_peers"] == 2

    first.kill()
    run.until_rounds_more("tower", 2)  # the second coordinates, and relays for the cellar
    run.until_equal("tower", "cellar")
    assert run.newest("tower").candidates[0] == second.peer_id
    told = place.status("tower")
    assert {peer["name"] for peer in told["peers"]} >= {"tower", "cellar"}
    assert told["rounds"]
    assert told["subsets"]

    late = Run(place, addresses, first)
    late.join("cyd")
    run.until_round("cyd", 1)
    run.kill("tower")
    run.join("tower")  # with nothing but the address of the node that is gone
    run.until_rounds_more("tower", 1)

    first, again = serve(place, "run", *listen)  # after a kill, from its folder
    assert address in again
    further.kill()
    run.until_rounds_more("tower", 2)
    further, _ = serve(place, "second", "--listen", f"{LOOPBACK}:0")  # without being told where
    run.until_rounds_more("cyd", 1)
    for node in (first, further):
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=120) == 0


def test_a_further_node_of_nowhere_waits_and_says_for_whom_and_ends_when_asked(place: Place) -> None:  # noqa: F811
    nobody = f"/ip4/{LOOPBACK}/tcp/{three_free_ports()}/p2p/{Identity.generate().peer_id}"
    node = place.start(
        *("--run", str(place.path / "new"), "--listen", f"{LOOPBACK}:0", "--join", nobody),
        log="new.log",
        module="bootstrap",
    )
    until(lambda: "nothing listens" in place.read("new.log"), "it says why it waits")
    node.send_signal(signal.SIGTERM)
    assert node.wait(timeout=60) == 0
    assert not (place.path / "new" / "address").exists()


@pytest.mark.slow
def test_a_run_that_is_not_signed_yet_is_signed_first_and_then_served(place: Place) -> None:  # noqa: F811
    (place.path / "run").mkdir()
    (place.path / "run" / "run.toml").write_text(small_run(min_peers=1))
    Identity.load_or_create(place.path / "run" / "organizer.key")
    node, address = serve(place, "run", "--listen", f"{LOOPBACK}:0")
    assert "is not signed yet: signing it now" in place.read("run.log")
    assert place.run("run", "show", address).returncode == 0
    node.send_signal(signal.SIGTERM)
    assert node.wait(timeout=120) == 0
