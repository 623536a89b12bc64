"""Real peers in the lab: whatever routers and addresses they have, rounds of all are completed."""

import base64
import ipaddress
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from netlab.lab import Host, Lab, Nat, lab, needs_lab
from real_swarm import Place, Run, organize, place, small_run, until

from spes_peer.chaos.network import ip
from spes_peer.exchange.addresses import parse_endpoint
from spes_peer.folder import StateFolder
from spes_peer.run.peers import PeerEntry
from spes_peer.wire import convert

__all__ = ["lab", "place"]

pytestmark = [pytest.mark.slow, needs_lab]

NUM_ROUNDS = 2
ROUNDS_SECONDS = 180.0
IDLE_SECONDS = 35.0
PUNCHING = Path(__file__).parent / "netlab" / "punching.py"


def organized_at(place: Place, host: Host, run_toml: str) -> Run:
    """A run whose bootstrap node is `host`."""
    return organize(place, run_toml, host.address, 4510, before=host.before)


def join_at(run: Run, host: Host, name: str, *options: str) -> None:
    run.befores[name] = host.before
    run.join(name, *options)


def complete(run: Run, names: Sequence[str], num_rounds: int) -> None:
    """So many more rounds, with contributions of all."""
    first = run.newest_round(names[0])

    def are_complete(name: str) -> bool:
        rounds = [entry for entry in run.place.status(name).get("rounds", []) if int(entry["round"]) > first]
        return sum(entry.get("num_contributors") == len(names) for entry in rounds) >= num_rounds

    for name in names:
        until(lambda name=name: are_complete(name), f"{name} has {num_rounds} rounds of all", ROUNDS_SECONDS)
    run.until_equal(*names)


@pytest.mark.timeout(420)
def test_peers_behind_routers_train_through_the_relay_whatever_their_routers_forget(place: Place, lab: Lab) -> None:
    """Both routers forget what is quiet for 30 s, then everything at once, then one gets another public address. The
    peers are told nothing of all that."""
    run = organized_at(place, lab.public(), small_run(min_peers=2))
    cone, symmetric = lab.home("cone", forget_seconds=30), lab.home("symmetric", forget_seconds=30, delay_ms=10)
    join_at(run, cone, "cone")
    until(lambda: run.phase("cone") == "waiting", "the first waits for others")
    time.sleep(IDLE_SECONDS)
    join_at(run, symmetric, "symmetric")
    complete(run, ["cone", "symmetric"], NUM_ROUNDS)
    for name in ("cone", "symmetric"):
        status = place.status(name)
        assert status["reachability"] == "relay"
        assert "did not answer a dial back by bootstrap" in status["reachability_why"]
    cone.forget()
    symmetric.forget()
    complete(run, ["cone", "symmetric"], 1)
    lab.move(cone)
    complete(run, ["cone", "symmetric"], 1)


@pytest.mark.timeout(300)
def test_peers_with_nothing_but_ipv6_train_and_pass_over_an_address_that_is_dead(place: Place, lab: Lab) -> None:
    bootstrap = lab.public("6", has_dead=True)
    run = organized_at(place, bootstrap, small_run(min_peers=2))
    dead = run.address.replace(bootstrap.address, bootstrap.dead_address)
    run.address = f"{dead},{run.address}"
    join_at(run, lab.public("6"), "public")
    join_at(run, lab.home(family="6"), "home", "--no-inbound")
    complete(run, ["public", "home"], NUM_ROUNDS)


@pytest.mark.timeout(300)
def test_a_home_whose_router_opens_ports_is_dialled_there_also_when_its_public_address_changes(
    place: Place, lab: Lab
) -> None:
    """One of the three ports that it would have is another's in the router."""
    run = organized_at(place, lab.public(), small_run(min_peers=2))
    home = lab.home()
    asked = home.offer_upnp()
    join_at(run, home, "home", "--port", "4510")
    join_at(run, lab.public(), "public")
    complete(run, ["home", "public"], 1)
    until(lambda: place.status("home").get("reachability") == "direct", "somebody gets through to the home")
    assert f"{home.public_address}:4510 answered" in place.status("home")["reachability_why"]
    until(lambda: transport(place, "public", "home") == "grpc", "calls have moved up from the relay")
    assert transport(place, "public", "home") == "grpc"
    before = home.public_address
    lab.move(home)
    until(lambda: home.public_address in place.status("home").get("reachability_why", ""), "the new address is found")
    assert home.public_address != before
    complete(run, ["home", "public"], 1)
    assert transport(place, "public", "home") == "grpc"
    run.daemon("home").terminate()
    until(lambda: sum(line.startswith("close") for line in asked) == 3, "what was opened is closed")


def replace_address(host: Host) -> str:
    """As a machine that goes from Wi-Fi to cable: for a moment it has none, then another; which that is."""
    before = host.address
    after = str(ipaddress.ip_address(before) + 100)
    ip("-n", host.space, "address", "delete", f"{before}/24", "dev", "eth0")
    time.sleep(2.0)
    ip("-n", host.space, "address", "add", f"{after}/24", "dev", "eth0")
    ip("-n", host.space, "route", "add", "default", "via", str(ipaddress.ip_network(f"{after}/24", False)[1]))
    host.addresses = (after, *host.addresses[1:])
    return after


@pytest.mark.timeout(300)
def test_a_machine_whose_address_changes_is_found_at_the_new_one_and_goes_on_training(place: Place, lab: Lab) -> None:
    """It has another interface too, to which nobody should be sent."""
    run = organized_at(place, lab.public(), small_run(min_peers=2))
    moving = lab.public()
    ip("-n", moving.space, "link", "add", "docker0", "type", "bridge")
    ip("-n", moving.space, "address", "add", "172.17.0.1/16", "dev", "docker0")
    ip("-n", moving.space, "link", "set", "docker0", "up")
    join_at(run, moving, "moving")
    join_at(run, lab.public(), "staying")
    complete(run, ["moving", "staying"], 1)
    assert announced(place, "staying", "moving") == {moving.address}
    after = replace_address(moving)
    moved_at = time.monotonic()
    until(lambda: announced(place, "staying", "moving") == {after}, "the new address is announced")
    print(f"announced after {time.monotonic() - moved_at:.1f} s")
    complete(run, ["moving", "staying"], NUM_ROUNDS)
    print(f"{NUM_ROUNDS} rounds of both after {time.monotonic() - moved_at:.1f} s")
    for name, other in itertools.permutations(("moving", "staying")):
        assert transport(place, name, other) == "grpc"


@pytest.mark.timeout(300)
def test_two_volunteers_in_one_home_reach_each_other_there_and_tell_nobody_else(place: Place, lab: Lab) -> None:
    run = organized_at(place, lab.public(), small_run(min_peers=2))
    home = lab.home()
    hosts = {"home": home, "neighbour": lab.neighbour(home)}
    for name, host in hosts.items():
        join_at(run, host, name)
    complete(run, list(hosts), 1)
    for one, other in itertools.permutations(hosts):
        until(lambda one=one, other=other: transport(place, one, other) == "grpc", f"{one} has found {other}", 120)
    for one, other in itertools.permutations(hosts):
        assert not [host for host in announced(place, one, other) if host.startswith("192.168.")]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("nat", "is_punched"), [("cone", True), ("symmetric", False)])
def test_a_hole_is_punched_between_homes_where_routers_let_that_be(
    place: Place, lab: Lab, nat: Nat, is_punched: bool
) -> None:
    """Both call each other through the relay first, and go on like that behind a router that does not."""

    def start(name: str, host: Host, *arguments: str) -> tuple["subprocess.Popen[str]", str]:
        listening = host.address if "relay" in arguments else "0.0.0.0"
        command = [sys.executable, str(PUNCHING), name, str(place.path), listening, "4511", *arguments]
        started = host.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=place.environment)
        return started, started.stdout.readline().strip()

    def reach(node: "subprocess.Popen[str]", address: str) -> str:
        node.stdin.write(f"reach {address.rpartition('/')[2]} {address}\n")
        node.stdin.flush()
        said, _, by = node.stdout.readline().strip().partition(" ")
        assert said == "hello"
        return by

    _, relay = start("r", lab.public(), "relay")
    homes = [lab.home("cone"), lab.home(nat)]
    (one, at_one), (other, at_other) = (
        start(f"h{index}", home, home.public_address, relay) for index, home in enumerate(homes)
    )
    assert reach(one, at_other) == relay.rpartition("/")[2]
    if is_punched:
        until(lambda: reach(one, at_other) == reach(other, at_one) == "punched", "both go through the hole", 30.0)
    else:
        time.sleep(6.0)
        assert reach(one, at_other) == reach(other, at_one) == relay.rpartition("/")[2]
        assert reach(other, at_one) == relay.rpartition("/")[2]


def announced(place: Place, name: str, other: str) -> set[str]:
    """Hosts of all addresses at which one peer knows another, as it has written down."""
    content = json.loads(StateFolder(place.path / name).known_nodes.read_bytes())
    for entry in (convert.decode(PeerEntry, base64.b64decode(text)) for text in content["entries"]):
        if entry.name == other:
            multiaddrs = (*entry.libp2p_addresses, *entry.dht_addresses)
            return {parse_endpoint(one).host for one in entry.grpc_addresses} | {
                one.split("/")[2] for one in multiaddrs
            }
    return set()


def transport(place: Place, name: str, other: str) -> str:
    """By which one peer calls another, as it says."""
    return str(next(peer["transport"] for peer in place.status(name)["peers"] if peer["name"] == other))
