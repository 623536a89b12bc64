"""Which subsets to claim: alone, in a race, and with a place already."""

import random
from collections import Counter
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spes_peer.identity import PeerId
from spes_peer.membership.claims import Ground, choose_subsets, conflicts, rendezvous, wish
from spes_peer.run.peers import Claim

ME, YOU, THIRD = PeerId("me"), PeerId("you"), PeerId("third")
NOW = 1000.0


Owners = Mapping[int, Collection[PeerId]]
NOBODY: Owners = {}


def choose(
    capacity: int = 1,
    num_subsets: int = 4,
    owned: Owners = NOBODY,
    claims: Mapping[PeerId, Claim] | None = None,
    trained: Mapping[int, int] | None = None,
    leased: Owners = NOBODY,
) -> tuple[int, ...]:
    return choose_subsets(ME, capacity, Ground(num_subsets, owned, leased, trained or {}), claims or {}, NOW)


def lost(peer: PeerId, own: Claim, claims: Mapping[PeerId, Claim], ground: Ground) -> tuple[int, ...]:
    return conflicts(peer, own, claims, ground, NOW)


def test_a_newcomer_takes_as_many_free_subsets_as_it_holds() -> None:
    assert len(choose(capacity=3)) == 3
    assert choose(capacity=9) == (0, 1, 2, 3)
    assert choose(capacity=0) == ()


def test_free_subsets_come_before_owned_and_claimed_ones() -> None:
    assert choose(capacity=4, owned={0: [YOU], 2: [YOU]}, claims={THIRD: Claim((3,), NOW)}) == (1,)


def test_the_least_trained_subset_comes_first() -> None:
    assert choose(trained={0: 5, 1: 4, 2: 1, 3: 2}) == (2,)
    assert choose(trained={0: 5, 1: 4, 3: 2}) == (2,)


def test_ties_fall_in_an_order_that_differs_between_newcomers() -> None:
    firsts = {choose_subsets(PeerId(f"peer {i}"), 1, Ground(64), {}, NOW) for i in range(8)}
    assert len(firsts) >= 6
    assert choose(num_subsets=64) == (min(range(64), key=lambda subset: rendezvous(ME, subset)),)


def test_when_all_are_owned_the_subset_with_fewest_owners_is_joined_and_only_one() -> None:
    owned = {0: [YOU, THIRD], 1: [YOU], 2: [YOU, THIRD], 3: [YOU, THIRD]}
    assert choose(capacity=4, owned=owned) == (1,)


def test_a_restarted_owner_takes_up_its_own_subsets() -> None:
    owned = {0: [YOU], 1: [ME], 2: [ME, YOU]}
    assert choose(capacity=2, owned=owned, trained={1: 9, 2: 9}) == (1, 2)


def test_a_claim_from_the_future_holds_nobody_off() -> None:
    assert choose(num_subsets=1, claims={YOU: Claim((0,), NOW + 1000)}) == (0,)


def test_subsets_that_do_not_exist_are_passed_over() -> None:
    assert choose(num_subsets=1, claims={YOU: Claim((7, 1), NOW)}, owned={9: [YOU]}) == (0,)


@pytest.mark.parametrize(("mine_since", "yours_since", "expected"), [(5.0, 6.0, ()), (6.0, 5.0, (0,))])
def test_of_two_claims_the_earlier_wins(mine_since: float, yours_since: float, expected: tuple[int, ...]) -> None:
    own = Claim((0,), mine_since)
    assert lost(ME, own, {YOU: Claim((0,), yours_since)}, Ground(2)) == expected


def test_of_two_claims_at_once_exactly_one_wins_every_subset() -> None:
    mine, yours = Claim(tuple(range(8)), 5.0), Claim(tuple(range(8)), 5.0)
    claims = {ME: mine, YOU: yours}
    i_lose, you_lose = lost(ME, mine, claims, Ground(8)), lost(YOU, yours, claims, Ground(8))
    assert sorted((*i_lose, *you_lose)) == list(range(8))
    assert i_lose
    assert you_lose


def test_an_admitted_owner_is_never_displaced_by_an_earlier_claim() -> None:
    own, earlier = Claim((0,), 9.0), {YOU: Claim((0,), 1.0)}
    assert lost(ME, own, earlier, Ground(4, {0: [ME]})) == ()
    assert lost(YOU, earlier[YOU], {ME: own}, Ground(4, {0: [ME]})) == (0,)


def test_a_loser_with_nowhere_to_go_stays_beside_the_winner_with_one_subset() -> None:
    own, earlier = Claim((0, 1), 9.0), {YOU: Claim((0, 1), 1.0)}
    assert len(lost(ME, own, earlier, Ground(2))) == 1
    assert lost(ME, Claim((0,), 9.0), {}, Ground(2, {0: [YOU], 1: [YOU]})) == ()


# ---- leases ----


def test_a_subset_that_its_owner_may_come_back_for_is_taken_last() -> None:
    leased = {0: [YOU], 1: [YOU], 2: [YOU]}
    assert choose(leased=leased, trained={3: 99}) == (3,)
    assert choose(capacity=2, leased=leased, owned={3: [THIRD]}, trained={0: 5, 1: 4, 2: 3}) == (1, 2)


def test_while_the_claim_of_a_dead_owner_can_be_read_its_subset_is_nobodys_to_take() -> None:
    claims = {YOU: Claim((0,), 1.0)}
    assert choose(capacity=4, num_subsets=2, leased={0: [YOU]}, claims=claims) == (1,)
    owned = {1: [ME]}
    assert wished(capacity=2, num_subsets=2, owned=owned, leased={0: [YOU]}, claims=claims) == (1,)
    assert wished(capacity=2, num_subsets=2, owned=owned, leased={0: [YOU]}) == (0, 1)


def test_an_owner_that_comes_back_within_its_lease_takes_up_its_subsets() -> None:
    assert choose(leased={2: [ME]}, trained={2: 99}) == (2,)
    assert choose(leased={2: [ME]}, owned={2: [YOU]}) == (2,)
    assert choose(capacity=2, leased={2: [ME, YOU], 3: [ME]}, trained={2: 9, 3: 9}) == (2, 3)


def test_a_lease_wins_against_an_earlier_claim() -> None:
    ground = Ground(4, leased={0: [ME]})
    mine, earlier = Claim((0,), 9.0), Claim((0,), 1.0)
    assert lost(ME, mine, {YOU: earlier}, ground) == ()
    assert lost(YOU, earlier, {ME: mine}, ground) == (0,)


# ---- a wish to change ----


def wished(
    capacity: int = 1,
    num_subsets: int = 4,
    owned: Owners = NOBODY,
    leased: Owners = NOBODY,
    claims: Mapping[PeerId, Claim] | None = None,
    is_cooling: bool = False,
) -> tuple[int, ...]:
    return wish(ME, capacity, Ground(num_subsets, owned, leased), claims or {}, is_cooling, NOW)


def test_a_peer_with_room_takes_what_has_no_owner() -> None:
    assert wished(capacity=3, owned={0: [ME], 1: [YOU]}) == (0, 2, 3)
    assert wished(capacity=3, owned={0: [ME], 1: [YOU], 2: [YOU], 3: [YOU]}) == (0,)


def test_a_co_owner_takes_an_empty_subset_in_place_of_the_one_with_most_owners() -> None:
    owned = {0: [ME, YOU], 1: [ME, YOU, THIRD], 2: [ME]}
    assert wished(capacity=3, owned=owned) == (0, 2, 3)


def test_an_only_owner_without_room_stays() -> None:
    assert wished(owned={0: [ME]}) == (0,)


def test_nobody_gives_up_a_subset_for_one_that_is_leased_or_claimed() -> None:
    owned = {0: [ME, YOU], 1: [YOU], 2: [YOU]}
    assert wished(owned=owned, leased={3: [THIRD]}) == (0,)
    assert wished(owned=owned, claims={THIRD: Claim((3,), 1.0)}) == (0,)
    assert wished(owned=owned) == (3,)


def test_who_has_moved_lately_does_not_wish_to_move() -> None:
    assert wished(owned={0: [ME, YOU]}, is_cooling=True) == (0,)
    assert wished(capacity=2, num_subsets=2, owned={0: [ME, YOU]}, is_cooling=True) == (0, 1)


def test_a_peer_that_owns_more_than_it_has_room_for_gives_up_what_others_own_and_then_what_is_trained_most() -> None:
    trained = {0: 3, 1: 9, 2: 1, 3: 0}
    owned = {0: [ME], 1: [ME], 2: [ME, YOU], 3: [YOU]}
    for capacity, kept in ((3, (0, 1, 2)), (2, (0, 1)), (1, (0,))):
        assert wish(ME, capacity, Ground(4, owned, NOBODY, trained), {}, True, NOW) == kept
    assert wished(capacity=0, owned={0: [ME], 1: [ME]}) == (0, 1)  # nothing is known of its room yet


def test_of_two_co_owners_that_claim_one_empty_subset_the_later_stays() -> None:
    owned = {0: [ME, YOU]}
    ground, claims = Ground(2, owned), {ME: Claim((1,), 9.0), YOU: Claim((1,), 5.0)}
    assert wish(ME, 1, ground, claims, False, NOW) == (0,)
    assert wish(YOU, 1, ground, claims, False, NOW) == (1,)


# ---- races ----


def race(num_peers: int, num_subsets: int, capacity: int, seed: int) -> tuple[dict[PeerId, Claim], int]:
    """Peers that read, choose, write, and read again until nothing changes; their steps interleave at random."""
    order = random.Random(seed)
    peers = [PeerId(f"{seed} {index}") for index in range(num_peers)]
    stored: dict[PeerId, Claim] = {}
    views: dict[PeerId, dict[PeerId, Claim]] = {}
    settled: set[PeerId] = set()
    for step in range(200 * num_peers):
        if len(settled) == num_peers:
            return stored, step
        peer = order.choice(peers)
        if peer not in views:
            views[peer] = dict(stored)
            continue
        seen = views.pop(peer)
        chosen = choose_subsets(peer, capacity, Ground(num_subsets), seen, now=float(step))
        if peer in stored and stored[peer].subsets == chosen:
            settled.add(peer)
        else:
            stored[peer] = Claim(chosen, float(step))
            settled.clear()
    raise AssertionError("the race does not end")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 24))
def test_eight_racing_peers_end_with_a_subset_each_and_no_duplicate(seed: int, num_subsets: int) -> None:
    claims, _ = race(8, num_subsets, 1, seed)
    taken = [subset for claim in claims.values() for subset in claim.subsets]
    assert len(taken) == len(set(taken)) == 8


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_racing_peers_cover_everything_when_their_memory_holds_it(seed: int) -> None:
    claims, _ = race(8, 64, 8, seed)
    taken = [subset for claim in claims.values() for subset in claim.subsets]
    assert sorted(taken) == list(range(64))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_more_peers_than_subsets_leave_none_empty(seed: int) -> None:
    claims, _ = race(10, 4, 1, seed)
    owners = Counter(subset for claim in claims.values() for subset in claim.subsets)
    assert sorted(owners) == [0, 1, 2, 3]
    assert sum(owners.values()) == 10
