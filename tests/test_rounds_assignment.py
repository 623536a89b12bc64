"""Shares of the batch, ranges of data, reducers and candidates."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_swarm import BOOTSTRAP, genesis, replaced

from spes_peer.identity import Identity, PeerId
from spes_peer.rounds.assignment import (
    Pool,
    assign_ranges,
    assign_reducers,
    candidates_after,
    joined,
    rendezvous,
    share_batch,
    split,
)
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import DataRange, RosterEntry

PEERS = [Identity.from_seed(bytes([n]) * 32).peer_id for n in range(11, 19)]
speeds_of_some = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3).map(PeerId),
    st.one_of(st.just(0.0), st.floats(1e-3, 1e9)),
    min_size=1,
    max_size=12,
)


# ---- batch ----


def test_batch_follows_speed() -> None:
    assert share_batch({PeerId("a"): 100.0, PeerId("b"): 300.0}, 32) == {"a": 8, "b": 24}


def test_the_largest_remainder_gets_what_rounding_leaves() -> None:
    assert share_batch({PeerId("a"): 1.0, PeerId("b"): 1.4, PeerId("c"): 1.0}, 8) == {"a": 3, "b": 3, "c": 2}


def test_an_unknown_speed_counts_as_the_median() -> None:
    assert share_batch({PeerId("a"): 100.0, PeerId("b"): 0.0, PeerId("c"): 100.0}, 9) == {"a": 3, "b": 3, "c": 3}


def test_without_any_speed_all_get_alike() -> None:
    assert share_batch(dict.fromkeys(map(PeerId, "abcd"), 0.0), 32) == dict.fromkeys("abcd", 8)


def test_the_slowest_gets_one_sequence_at_least() -> None:
    assert share_batch({PeerId("a"): 1.0, PeerId("b"): 1e6}, 8) == {"a": 1, "b": 7}


def test_more_peers_than_sequences_get_one_each() -> None:
    assert share_batch(dict.fromkeys(map(PeerId, "abc"), 5.0), 2) == dict.fromkeys("abc", 1)


@given(speeds_of_some, st.integers(1, 200))
def test_shares_add_up_to_the_batch_and_the_faster_never_gets_less(
    speeds: dict[PeerId, float], batch_sequences: int
) -> None:
    shares = share_batch(speeds, batch_sequences)
    assert shares.keys() == speeds.keys()
    assert min(shares.values()) >= 1
    assert sum(shares.values()) == max(batch_sequences, len(speeds))
    known = sorted((peer for peer in speeds if speeds[peer] > 0), key=lambda peer: speeds[peer])
    for slower, faster in itertools.pairwise(known):
        assert shares[slower] <= shares[faster] + (speeds[slower] == speeds[faster])


# ---- data ----


def positions(ranges: tuple[DataRange, ...]) -> list[int]:
    return [position for part in ranges for position in range(part.start, part.end)]


def test_returned_positions_are_assigned_before_new_ones() -> None:
    ranges, pool = Pool(100, (DataRange(3, 5), DataRange(8, 9))).take(5)
    assert ranges == (DataRange(3, 5), DataRange(8, 9), DataRange(100, 102))
    assert pool == Pool(102, ())


def test_returned_positions_that_nobody_takes_stay_returned() -> None:
    assert Pool(100, (DataRange(3, 9),)).take(2) == ((DataRange(3, 5),), Pool(100, (DataRange(5, 9),)))


def test_neighbouring_ranges_become_one() -> None:
    assert joined([DataRange(5, 9), DataRange(0, 2), DataRange(2, 5)]) == (DataRange(0, 9),)


def test_a_split_keeps_every_position_in_order() -> None:
    assert split((DataRange(0, 3), DataRange(7, 9)), 4) == ((DataRange(0, 3), DataRange(7, 8)), (DataRange(8, 9),))


members_of_rounds = st.lists(
    st.dictionaries(st.integers(0, 7), st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=6), max_size=8
)


@given(members_of_rounds)
def test_over_random_joins_and_leaves_no_sequence_is_assigned_twice_or_lost(
    rounds: list[dict[int, tuple[int, int]]],
) -> None:
    """Each member of a round needs so many sequences and trains so many of them; the rest returns."""
    pool, trained = Pool(0, ()), []
    for members in rounds:
        assigned, pool = assign_ranges([need for need, _ in members.values()], pool)
        given_out = [position for ranges in assigned for position in positions(ranges)]
        assert len(set(given_out)) == len(given_out) == sum(need for need, _ in members.values())
        returned = list(pool.returned)
        for ranges, (_, done) in zip(assigned, members.values(), strict=True):
            first, rest = split(ranges, done)
            trained += positions(first)
            returned += rest
        pool = Pool(pool.next_position, joined(returned))
    assert sorted(trained + positions(pool.returned)) == list(range(pool.next_position))


# ---- roles ----


@pytest.fixture
def layout(manifest: Manifest) -> Layout:
    return Layout(manifest)


def roster(*subsets: tuple[int, ...]) -> tuple[RosterEntry, ...]:
    peers = sorted(PEERS[: len(subsets)])
    return tuple(RosterEntry(peer, 1, owned, (), 1) for peer, owned in zip(peers, subsets, strict=True))


def test_losing_a_peer_leaves_the_rendezvous_order_of_the_others() -> None:
    order = rendezvous("key", PEERS)
    assert rendezvous("key", [peer for peer in PEERS if peer != order[2]]) == order[:2] + order[3:]


def test_only_blocks_that_several_offer_have_reducers(layout: Layout) -> None:
    assigned = assign_reducers(5, roster((0,), (1,), (1, 2)), layout)
    shared = {block.id for block in layout.shared_blocks}
    twice_owned = {block.id for block in layout.blocks if layout.subset_of(block) == 1}
    assert {one.block for one in assigned} == shared | twice_owned
    assert {len(set(one.reducers)) for one in assigned} == {2}


def test_nobody_reduces_for_one_member(layout: Layout) -> None:
    assert assign_reducers(5, roster((0,)), layout) == ()


def test_the_work_of_reducing_goes_round(layout: Layout) -> None:
    per_round = {assign_reducers(round, roster((0,), (1,), (2,), (3,)), layout) for round in range(4)}
    assert len(per_round) == 4


def test_candidates_are_the_bootstrap_nodes_then_the_roster(manifest: Manifest) -> None:
    zero, first = genesis(Layout(manifest)), roster((0,), (1,))
    record = replaced(zero, round=1, roster=first, candidates=candidates_after(zero, 1, first))
    assert record.candidates[0] == BOOTSTRAP
    following = candidates_after(record, 2, roster((0,), (1,), (2,)))
    assert following[0] == BOOTSTRAP
    assert sorted(following[1:]) == sorted(PEERS[:3])
