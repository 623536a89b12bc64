"""At which relays a peer keeps a place: several, one of them an organizer's, and none that gives no place."""

import dataclasses

from spes_peer.exchange.relays import MAX_RELAYS, RelayChoice, relay_addresses
from spes_peer.identity import Identity, PeerId
from spes_peer.run.peers import PeerEntry, PeerState, Role

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 12)]
OWN = PEERS[10]


def entry(number: int, role: Role = Role.VOLUNTEER, is_relay: bool = True, **changes: object) -> PeerEntry:
    peer = PEERS[number]
    made = PeerEntry(
        peer_id=peer,
        name=f"peer {number}",
        version="0",
        protocol=1,
        role=role,
        state=PeerState.ONLINE,
        incarnation=1,
        grpc_addresses=(),
        certificate=b"",
        libp2p_addresses=(f"/ip4/11.77.0.{number}/tcp/4511/p2p/{peer}",),
        dht_addresses=(),
        max_subsets=1,
        written_at=0.0,
        is_relay=is_relay,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def numbers(addresses: tuple[str, ...]) -> list[int]:
    return [int(address.split("/")[2].rpartition(".")[2]) for address in addresses]


BOOTSTRAP = entry(0, Role.BOOTSTRAP, is_relay=False)
VOLUNTEERS = [entry(number) for number in range(1, 7)]


def test_bootstrap_nodes_relay_and_volunteers_that_offer_it_where_they_are_dialled() -> None:
    assert relay_addresses(BOOTSTRAP)
    assert relay_addresses(VOLUNTEERS[0])
    assert not relay_addresses(entry(1, is_relay=False))
    through_a_relay = f"/ip4/11.77.0.9/tcp/4511/p2p/{PEERS[9]}/p2p-circuit/p2p/{PEERS[1]}"
    assert not relay_addresses(entry(1, libp2p_addresses=(through_a_relay, "nonsense")))


def test_several_are_kept_and_the_organizers_is_the_first() -> None:
    chosen = numbers(RelayChoice(OWN).choose([*VOLUNTEERS, BOOTSTRAP], ()))
    assert len(chosen) == len(set(chosen)) == MAX_RELAYS
    assert chosen[0] == 0


def test_one_is_kept_where_no_more_are_wanted() -> None:
    choice = RelayChoice(OWN)
    assert len(choice.choose([*VOLUNTEERS, BOOTSTRAP], ())) == MAX_RELAYS
    assert numbers(choice.choose([*VOLUNTEERS, BOOTSTRAP], (), 1)) == [0]


def test_the_choice_stands_and_different_peers_choose_differently() -> None:
    choices = {tuple(numbers(RelayChoice(peer).choose(VOLUNTEERS, ()))) for peer in PEERS[6:]}
    assert len(choices) > 1
    choice = RelayChoice(OWN)
    assert choice.choose(VOLUNTEERS, ()) == choice.choose(list(reversed(VOLUNTEERS)), ())


def test_a_relay_that_is_gone_or_gives_no_place_is_replaced_and_asked_again_much_later() -> None:
    now = 0.0
    choice = RelayChoice(OWN, lambda: now)
    first = choice.choose(VOLUNTEERS, ())
    gone = [one for one in VOLUNTEERS if one.libp2p_addresses[0] != first[0]]
    assert first[0] not in choice.choose(gone, first)
    assert choice.choose(VOLUNTEERS, first) == first
    now = 25.0
    second = choice.choose(VOLUNTEERS, first[1:])
    assert set(second) > set(first[1:])
    assert first[0] not in second
    now = 700.0
    assert choice.choose(VOLUNTEERS, second) == first


def test_a_relay_that_fails_is_kept_where_there_is_no_other_and_those_at_hand_while_nobody_is_known() -> None:
    now = 0.0
    choice = RelayChoice(OWN, lambda: now)
    only = choice.choose([BOOTSTRAP], ())
    now = 60.0
    assert choice.choose([BOOTSTRAP], ()) == only
    assert choice.choose([], ()) == only


def test_nobody_is_its_own_relay() -> None:
    own = dataclasses.replace(VOLUNTEERS[0], peer_id=PeerId(OWN))
    assert RelayChoice(OWN).choose([own], ()) == ()
