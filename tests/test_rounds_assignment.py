"""Shares of the batch, ranges of data, reducers and candidates."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_swarm import BOOTSTRAP, changed, genesis, replaced

from spes_peer.blobs import BlobName
from spes_peer.identity import Identity, PeerId
from spes_peer.rounds.assignment import (
    DataShare,
    Pool,
    assign_data,
    assign_reducers,
    bootstraps_of,
    candidates_after,
    joined,
    most_shares,
    rendezvous,
    share_batch,
    share_within,
    split,
)
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId, Contributor, DataRange, Record, RosterEntry, Update, first_record

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
        assigned = []
        for need, _ in members.values():
            ranges, pool = pool.take(need)
            assigned.append(ranges)
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


@pytest.mark.parametrize("first", PEERS[:3])
def test_candidates_may_begin_with_any_peer_and_then_the_bootstrap_nodes_come_last(
    manifest: Manifest, first: PeerId
) -> None:
    zero, members = genesis(Layout(manifest)), roster((0,), (1,), (2,))
    candidates, changed = candidates_after(zero, 5, members), candidates_after(zero, 5, members, first)
    assert candidates_after(zero, 5, members, BOOTSTRAP) == candidates
    assert changed == (first, *(peer for peer in candidates if peer not in (first, BOOTSTRAP)), BOOTSTRAP)


def test_who_is_no_candidate_does_not_become_one_by_being_named_first(manifest: Manifest) -> None:
    zero, members = genesis(Layout(manifest)), roster((0,), (1,))
    assert candidates_after(zero, 5, members, PEERS[3]) == candidates_after(zero, 5, members)


def test_bootstrap_nodes_stay_candidates_through_a_round_that_a_peer_coordinates(manifest: Manifest) -> None:
    zero, members = genesis(Layout(manifest)), roster((0,), (1,))
    record = replaced(zero, round=1, roster=members, candidates=candidates_after(zero, 1, members, PEERS[0]))
    assert record.candidates[0] == PEERS[0]
    assert bootstraps_of(record) == (BOOTSTRAP,)
    assert BOOTSTRAP in candidates_after(record, 2, roster((0,)))


# ---- data of a round, some of it ahead ----


def with_data(record: Record, shares: dict[PeerId, DataShare], pool: Pool, step: int) -> Record:
    """The record behind `record` that assigns these shares."""
    roster = tuple(RosterEntry(peer, 1, (0,), **vars(share)) for peer, share in shares.items())
    return replaced(
        record,
        round=record.round + 1,
        roster=roster,
        next_position=pool.next_position,
        returned=pool.returned,
        step=step,
    )


def test_a_member_that_stays_begins_with_what_it_had_ahead_at_the_batch_it_had_then(manifest: Manifest) -> None:
    overlapping = changed(manifest, "sync", overlap_steps=5)
    first, second = PEERS[:2]
    shares, pool = assign_data(genesis(Layout(overlapping)), (), 0, {first: 2, second: 3}, overlapping)
    assert [sum(part.num_sequences for part in shares[peer].ranges) for peer in (first, second)] == [40, 60]
    assert [sum(part.num_sequences for part in shares[peer].ahead) for peer in (first, second)] == [10, 15]
    opened = with_data(genesis(Layout(overlapping)), shares, pool, 0)
    contributors = (Contributor(first, 40 * 128, 1.0, 1.0), Contributor(second, 60 * 128, 1.0, 1.0))
    closing = (Update(BlockId("shared/0000"), BlobName("0" * 64), 1, contributors, (first,)),)
    later, pool = assign_data(opened, closing, 20, {first: 4, second: 1}, overlapping)
    for peer, carried_batch, batch in ((first, 2, 4), (second, 3, 1)):
        share = later[peer]
        assert share.ranges[: len(shares[peer].ahead)] == shares[peer].ahead
        assert (share.carried_steps, share.carried_sequences_per_step) == (5, carried_batch)
        assert sum(part.num_sequences for part in share.ranges) == 5 * carried_batch + 15 * batch
    given_out = [p for one in (*shares.values(), *later.values()) for p in positions(one.ranges)]
    assert len(set(given_out)) == len(given_out) == 100 + 5 * 5 + 15 * 5
    assert pool.returned == ()


def test_what_a_member_that_leaves_had_ahead_goes_back_into_the_pool(manifest: Manifest) -> None:
    overlapping = changed(manifest, "sync", overlap_steps=20)
    first, second = PEERS[:2]
    shares, pool = assign_data(genesis(Layout(overlapping)), (), 0, {first: 1, second: 1}, overlapping)
    opened = with_data(genesis(Layout(overlapping)), shares, pool, 0)
    later, _ = assign_data(opened, (), 20, {second: 1}, overlapping)
    assert later[second].ranges == shares[second].ahead  # the whole round was ahead
    untrained = positions((*shares[first].ranges, *shares[first].ahead, *shares[second].ranges))
    assert positions(later[second].ahead) == sorted(untrained)[:20]


def test_nothing_is_assigned_ahead_of_the_end_of_the_run(manifest: Manifest) -> None:
    overlapping = changed(manifest, "sync", overlap_steps=5)
    last = manifest.training.total_steps - 20
    shares, _ = assign_data(genesis(Layout(overlapping)), (), last, {PEERS[0]: 1}, overlapping)
    assert (shares[PEERS[0]].ahead, sum(part.num_sequences for part in shares[PEERS[0]].ranges)) == ((), 20)


def after_training(had: dict[PeerId, int]) -> tuple[Record, tuple[Update, ...]]:
    """A record in which these peers had so many sequences per step, and the updates that count what they trained."""
    roster = tuple(RosterEntry(peer, 1, (0,), (), had[peer]) for peer in sorted(had))
    record = replaced(first_record(b"", (), (), 0.0), roster=roster)
    if not had:
        return record, ()
    counted = tuple(Contributor(peer, 1, 1.0, 1.0) for peer in sorted(had))
    return record, (Update(BlockId("shared/0000"), BlobName("ab" * 32), 1, counted, ()),)


@given(
    st.dictionaries(st.sampled_from([PeerId(f"peer {i}") for i in range(12)]), st.floats(0, 1e12), min_size=1),
    st.integers(1, 64),
    st.dictionaries(st.sampled_from([PeerId(f"peer {i}") for i in range(12)]), st.integers(1, 40)),
)
def test_nobody_gets_more_than_twice_what_counted_or_an_equal_part(
    speeds: dict[PeerId, float], batch: int, had: dict[PeerId, int]
) -> None:
    most = most_shares(*after_training(had), speeds, batch)
    shares = share_within(speeds, batch, most)
    assert sum(shares.values()) == max(batch, len(speeds))
    equal = math.ceil(max(batch, len(speeds)) / len(speeds))
    for peer, share in shares.items():
        assert 1 <= share <= max(equal, 2 * had.get(peer, 0))


def test_a_claim_of_speed_wins_the_batch_round_by_round_and_only_while_what_it_trains_counts() -> None:
    liar, *others = (PeerId(f"peer {i}") for i in range(8))
    speeds = {liar: 1e12} | dict.fromkeys(others, 100.0)
    had: dict[PeerId, int] = {}
    shares = []
    for _ in range(4):
        had = share_within(speeds, 64, most_shares(*after_training(had), speeds, 64))
        shares.append(had[liar])
    assert shares == [8, 16, 32, 57]
    record, _ = after_training(had)
    assert share_within(speeds, 64, most_shares(record, (), speeds, 64))[liar] == 8
