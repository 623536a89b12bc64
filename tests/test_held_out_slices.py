"""Who measures which part of the held-out split."""

from hypothesis import given
from hypothesis import strategies as st

from spes_peer.daemon.held_out import MOST_TOKENS, slice_of


@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(1, 10**7), st.integers(8, 4096))
def test_a_roster_shares_no_slice_and_nobody_measures_more_than_the_bound(
    num_peers: int, round: int, num_sequences: int, length: int
) -> None:
    parts = [slice_of(place, num_peers, round, num_sequences, length) for place in range(num_peers)]
    (num_slices,) = {of for _, of in parts}
    assert len({slice for slice, _ in parts}) == num_peers
    assert all(0 <= slice < num_slices for slice, _ in parts)
    assert -(-num_sequences // num_slices) * length <= max(MOST_TOKENS, length)


@given(st.integers(2, 12), st.integers(0, 1000))
def test_nobody_has_the_same_slice_of_a_small_split_twice_in_a_row(num_peers: int, round: int) -> None:
    first, second = (slice_of(0, num_peers, at, num_sequences=100, sequence_length=128)[0] for at in (round, round + 1))
    assert first != second
    assert {slice_of(place, num_peers, round, 100, 128)[0] for place in range(num_peers)} == set(range(num_peers))


@given(st.integers(1, 5), st.integers(1, 60))
def test_all_of_a_large_split_has_its_turn(num_peers: int, num_slices: int) -> None:
    num_sequences = num_slices * (MOST_TOKENS // 128)
    rounds = -(-num_slices // num_peers) + 1
    seen = {slice_of(place, num_peers, at, num_sequences, 128)[0] for at in range(rounds) for place in range(num_peers)}
    assert seen == set(range(max(num_slices, num_peers)))
