"""A machine whose address changes: noticed, told, and nothing waits for connections from where it is no more."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spes_peer.daemon.program import _place_among
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.exchange.moving import AddressWatch
from spes_peer.identity import Identity
from spes_peer.ports import has_address, is_loopback, wildcard_for

WIFI, CABLE = "192.168.1.7", "192.168.1.9"


@dataclass
class Machine:
    way_out: str = WIFI
    has: set[str] = field(default_factory=lambda: {WIFI})
    moves: list[tuple[str, bool]] = field(default_factory=list)

    def watch(self, own: str = WIFI) -> AddressWatch:
        return AddressWatch(own, lambda: self.way_out, self._note, lambda address: address in self.has)

    async def _note(self, address: str, is_cut: bool) -> None:
        self.moves.append((address, is_cut))


async def test_an_address_that_takes_the_place_of_another_is_a_move_and_cuts_what_was() -> None:
    machine = Machine()
    watch = machine.watch()
    await watch.look()
    assert machine.moves == []
    machine.way_out, machine.has = CABLE, {CABLE}
    await watch.look()
    await watch.look()
    assert machine.moves == [(CABLE, True)]


async def test_an_address_beside_the_old_one_cuts_nothing_until_the_old_one_goes() -> None:
    machine = Machine()
    watch = machine.watch()
    machine.way_out, machine.has = CABLE, {WIFI, CABLE}
    await watch.look()
    assert machine.moves == [(CABLE, False)]
    machine.has = {CABLE}
    await watch.look()
    await watch.look()
    assert machine.moves == [(CABLE, False), (CABLE, True)]


async def test_without_any_way_out_nothing_is_done_until_there_is_one_again() -> None:
    machine = Machine()
    watch = machine.watch()
    machine.way_out, machine.has = "127.0.0.1", set()
    await watch.look()
    assert machine.moves == []
    machine.way_out, machine.has = WIFI, {WIFI}
    await watch.look()
    await watch.look()
    assert machine.moves == [(WIFI, True)]  # the same, but for a while it was not there


async def test_a_machine_that_had_no_network_when_it_started_gets_one() -> None:
    machine = Machine("127.0.0.1", {"127.0.0.1"})
    watch = machine.watch("127.0.0.1")
    await watch.look()
    assert machine.moves == []
    machine.way_out = WIFI
    machine.has.add(WIFI)
    await watch.look()
    assert machine.moves == [(WIFI, False)]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_addresses_that_this_machine_has_are_told_from_others(address: str) -> None:
    assert has_address(address)
    assert not has_address("2001:db8::7" if ":" in address else "192.0.2.7")
    assert is_loopback(address)
    assert wildcard_for(address) == ("::" if ":" in address else "0.0.0.0")


@pytest.mark.parametrize(
    ("others", "listening", "is_public"),
    [
        (["/ip4/192.0.2.1"], "0.0.0.0", False),
        (["/ip6/2a11:77::2", "/ip4/192.0.2.1"], "::", True),
        (["/ip4/127.0.0.1", "/ip6/::1"], "127.0.0.1", False),
        (["/ip4/127.0.0.1", "/ip4/192.0.2.1"], "0.0.0.0", False),
        ([], "0.0.0.0", False),
    ],
)
def test_a_machine_listens_at_all_its_addresses_unless_the_others_are_all_on_it_too(
    tmp_path: Path, others: list[str], listening: str, is_public: bool
) -> None:
    peer_id = Identity.from_seed(b"\2" * 32).peer_id
    addresses = [parse_address(f"{host}/tcp/4510/p2p/{peer_id}") for host in others]
    place = _place_among(None, KnownNodes(tmp_path / "known", b"r" * 32), addresses)
    assert (place.listening, place.is_public) == (listening, is_public)
