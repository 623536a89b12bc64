import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spes_peer.identity import PeerId
from spes_peer.membership.claims import choose_subsets, conflicts, rendezvous
from spes_peer.run.peers import Claim

ME, YOU, THIRD = PeerId("me"), PeerId("you"), PeerId("third")
NOW = 1000.0


def choose(capacity: int = 1, num_subsets: int = 4, owned=None, claims=None, trained=None) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
    return choose_subsets(ME, capacity, num_subsets, owned or {}, claims or {}, trained or {}, NOW)


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
    firsts = {choose_subsets(PeerId(f"peer {i}"), 1, 64, {}, {}, {}, NOW) for i in range(8)}
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


@pytest.mark.parametrize(("mine_since", "yours_since", "lost"), [(5.0, 6.0, ()), (6.0, 5.0, (0,))])
def test_of_two_claims_the_earlier_wins(mine_since: float, yours_since: float, lost: tuple[int, ...]) -> None:
    own = Claim((0,), mine_since)
    assert conflicts(ME, own, {YOU: Claim((0,), yours_since)}, {}, 2, NOW) == lost


def test_of_two_claims_at_once_exactly_one_wins_every_subset() -> None:
    mine, yours = Claim(tuple(range(8)), 5.0), Claim(tuple(range(8)), 5.0)
    claims = {ME: mine, YOU: yours}
    i_lose, you_lose = conflicts(ME, mine, claims, {}, 8, NOW), conflicts(YOU, yours, claims, {}, 8, NOW)
    assert sorted((*i_lose, *you_lose)) == list(range(8))
    assert i_lose
    assert you_lose


def test_an_admitted_owner_is_never_displaced_by_an_earlier_claim() -> None:
    own, earlier = Claim((0,), 9.0), {YOU: Claim((0,), 1.0)}
    assert conflicts(ME, own, earlier, {0: [ME]}, 4, NOW) == ()
    assert conflicts(YOU, earlier[YOU], {ME: own}, {0: [ME]}, 4, NOW) == (0,)


def test_a_loser_with_nowhere_to_go_stays_beside_the_winner_with_one_subset() -> None:
    own, earlier = Claim((0, 1), 9.0), {YOU: Claim((0, 1), 1.0)}
    assert len(conflicts(ME, own, earlier, {}, 2, NOW)) == 1
    assert conflicts(ME, Claim((0,), 9.0), {}, {0: [YOU], 1: [YOU]}, 2, NOW) == ()


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
        chosen = choose_subsets(peer, capacity, num_subsets, {}, seen, {}, now=float(step))
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
