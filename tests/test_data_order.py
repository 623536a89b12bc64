"""Which sequence every position of the global shuffle is: of one source, and of several that are mixed."""

import random
from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import pytest
from data_parts import made_up_data, made_up_source
from hypothesis import given, settings
from hypothesis import strategies as st

from spes_peer.data.coming import ComingShards
from spes_peer.data.index import ShardIndex, ShardNumber, index_of
from spes_peer.data.permutation import permuted
from spes_peer.data.ranges import Shuffle, quotas_of
from spes_peer.data.source_order import Sequence, SourceOrder
from spes_peer.errors import BadConfiguration, BadMessage
from spes_peer.run.data import STRATUM, Data, Shards
from spes_peer.run.manifest import Manifest, validated
from spes_peer.run.records import DataRange

LENGTH = 16
ONE_FOR_EVER = [(1, 48), (1, 8), (1, 15), (0, 44), (2, 32), (2, 41)]
THREE_FOR_EVER = [(1, 5, 39), (0, 18, 28), (0, 54, 10), (1, 5, 40), (0, 65, 30), (0, 27, 28)]
NAME = "ab" * 32


def order_of(num_tokens: int, shard_tokens: int, source: int = 0, seed: int = 7) -> SourceOrder:
    return SourceOrder.of(Shards(num_tokens=num_tokens, shard_tokens=shard_tokens, index=NAME), LENGTH, seed, source)


def mixed(*sources: SourceOrder, ratios: tuple[int, ...] = ()) -> Shuffle:
    total = sum(ratios)
    return Shuffle(7, sources, quotas_of(tuple(Fraction(ratio, total) for ratio in ratios) or (Fraction(1),)))


SHARD_SIZES = st.tuples(st.integers(1, 900), st.integers(LENGTH + 1, 200)).filter(
    lambda sizes: min(sizes) > LENGTH  # one sequence at least
)
ORDERS = SHARD_SIZES.map(lambda sizes: order_of(*sizes))
THREE = mixed(
    order_of(40_000, 500, 0), order_of(9_000, 1_000, 1), order_of(300, 100, 2), ratios=(6, 3, 1)
)  # the last goes through many epochs in a stratum


@pytest.mark.parametrize("size", [1, 2, 3, 100, 1024, 1025, STRATUM])
def test_the_permutation_reaches_every_value_once(size: int) -> None:
    assert sorted(permuted(value, size, (1, 2, 3, 4)) for value in range(size)) == list(range(size))


# ---- one source ----


@settings(max_examples=40)
@given(SHARD_SIZES)
def test_an_epoch_covers_every_sequence_once_and_the_next_in_another_order(sizes: tuple[int, int]) -> None:
    shards = Shards(num_tokens=sizes[0], shard_tokens=sizes[1], index=NAME)
    everything = {
        Sequence(ShardNumber(0, number), index)
        for number in range(shards.num_shards)
        for index in range(shards.sequences_of(number, LENGTH))
    }
    order = order_of(*sizes)
    assert order.num_sequences == shards.num_sequences(LENGTH) == len(everything)
    epochs = [[order.sequence_at(position) for position in positions(order, epoch)] for epoch in (0, 1)]
    assert set(epochs[0]) == set(epochs[1]) == everything
    if len(everything) > 20:
        assert epochs[0] != epochs[1]
        assert epochs[0] != [order_of(*sizes, seed=8).sequence_at(position) for position in positions(order, 0)]


def positions(order: SourceOrder, epoch: int) -> range:
    return range(epoch * order.num_sequences, (epoch + 1) * order.num_sequences)


def test_neighbouring_positions_lie_in_few_shards() -> None:
    order = order_of(100_000, 1_000)
    shards = [order.shard_at(position) for position in positions(order, 3)]
    assert sum(left != right for left, right in pairwise(shards)) == order.num_shards - 1


def test_the_shuffle_is_the_same_for_ever() -> None:
    """Peers of different versions must agree; these values are part of the protocol."""
    one = mixed(order_of(3_000, 1_000))
    assert [(at.shard.number, at.index) for at in map(one.sequence_at, (0, 1, 2, 185, 186, 1000))] == ONE_FOR_EVER
    found = map(THREE.sequence_at, (0, 1, 2, 4095, 4096, 1_000_000))
    assert [(*at.shard, at.index) for at in found] == THREE_FOR_EVER


@given(ORDERS, st.integers(0, 5_000), st.integers(0, 200))
def test_a_stretch_needs_exactly_the_shards_of_its_sequences_in_their_order(
    order: SourceOrder, start: int, size: int
) -> None:
    trained = [order.shard_at(position) for position in range(start, start + size)]
    found = list(order.shards_between(start, start + size))
    assert set(found) == set(trained)
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(trained))


@given(ORDERS, st.integers(0, 5_000))
def test_shards_are_needed_in_the_order_in_which_training_comes_to_them(order: SourceOrder, position: int) -> None:
    trained = [order.shard_at(at) for at in range(position, position + 2 * order.num_sequences)]
    firsts = {shard: position + trained.index(shard) for shard in set(trained)}
    assert list(order.shards_from(position)) == [(firsts[shard], shard) for shard in dict.fromkeys(trained)]
    assert {shard: order.next_need(shard, position) for shard in firsts} == firsts


# ---- several ----


def test_every_stretch_holds_the_mixture() -> None:
    for start in (0, 12_345, 10**9):
        for size in (4_096, 20_000):
            found = Counter(at.shard.source for at in THREE.sequences_in([DataRange(start, start + size)]))
            for source, ratio in enumerate((0.6, 0.3, 0.1)):
                assert abs(found[source] - ratio * size) <= size / STRATUM + STRATUM


def test_a_stratum_holds_exactly_the_quotas_and_not_one_source_after_the_other() -> None:
    found = [at.shard.source for at in THREE.sequences_in([DataRange(STRATUM, 2 * STRATUM)])]
    assert tuple(found.count(source) for source in range(3)) == THREE.quotas == (2458, 1229, 409)
    for part in range(0, STRATUM, 256):
        assert set(found[part : part + 256]) == {0, 1, 2}


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=30).filter(lambda ratios: STRATUM * min(ratios) >= sum(ratios))
)
def test_quotas_fill_a_stratum_and_are_within_one_of_the_ratios(ratios: list[int]) -> None:
    shares = tuple(Fraction(ratio, sum(ratios)) for ratio in ratios)
    quotas = quotas_of(shares)
    assert sum(quotas) == STRATUM
    assert min(quotas) >= 1
    assert all(abs(quota - STRATUM * share) < 1 for quota, share in zip(quotas, shares, strict=True))


def test_disjoint_ranges_share_no_sequence_within_an_epoch_of_any_source() -> None:
    """Ranges of all sizes, as they come from joins, leaves and what was returned; no source ends its first epoch."""
    large = mixed(order_of(400_000, 5_000, 0), order_of(100_000, 900, 1), ratios=(3, 1))
    order = random.Random(4)
    cuts = list(accumulate([order.randrange(1, 500) for _ in range(60)], initial=0))
    ranges = [DataRange(start, end) for start, end in pairwise(cuts)]
    order.shuffle(ranges)
    trained = list(large.sequences_in(ranges))
    assert len(set(trained)) == len(trained) == cuts[-1] > 10_000


def test_a_source_begins_an_epoch_when_the_one_before_has_given_every_sequence() -> None:
    for num_strata in (1, 3):
        found = Counter(THREE.sequences_in([DataRange(0, num_strata * STRATUM)]))
        for source, (order, quota) in enumerate(zip(THREE.sources, THREE.quotas, strict=True)):
            times = Counter(count for at, count in found.items() if at.shard.source == source)
            epochs, begun = divmod(num_strata * quota, order.num_sequences)
            assert (times[epochs + 1], times[epochs] if epochs else 0) == (
                begun,
                order.num_sequences - begun if epochs else 0,
            )


RANGES = st.lists(
    st.tuples(st.integers(0, 40_000), st.integers(1, 12_000)).map(lambda one: DataRange(one[0], one[0] + one[1])),
    max_size=2,
)


@settings(max_examples=30)
@given(RANGES)
def test_ranges_need_exactly_the_shards_of_their_sequences(ranges: list[DataRange]) -> None:
    assert THREE.shards_of(ranges) == {at.shard for at in THREE.sequences_in(ranges)}


@pytest.mark.parametrize("position", [0, 1, 4_096, 70_000])
def test_shards_of_several_sources_come_in_the_order_of_the_strata_that_need_them(position: int) -> None:
    first_stratum = position // STRATUM
    strata: dict[ShardNumber, int] = {}
    for stratum in range(first_stratum, first_stratum + 4):
        for at in THREE.sequences_in([DataRange(stratum * STRATUM, (stratum + 1) * STRATUM)]):
            strata.setdefault(at.shard, stratum)
    found = list(THREE.shards_from(position))
    assert len(found) == len(set(found)) == 80 + 9 + 3
    assert set(found) == set(strata)
    assert [strata[at] for at in found] == sorted(strata.values())
    assert {at: THREE.next_need(at, position) for at in found} == {at: one * STRATUM for at, one in strata.items()}


def test_positions_beyond_all_measure_cost_no_more_than_others() -> None:
    far = DataRange(1 << 60, (1 << 60) + (1 << 50))
    assert len(THREE.shards_of([far])) == 80 + 9 + 3
    assert len(THREE.shards_of([DataRange(1 << 62, (1 << 62) + 1)])) == 1


# ---- the index ----


def data_of(*sources: dict[str, Any]) -> Data:
    return Data.model_validate(made_up_data(*sources))


NAMES = [f"{number:02x}" * 32 for number in range(5)]


def two_sources() -> tuple[Data, ShardIndex]:
    data = data_of(made_up_source(NAMES[:3], name="a"), made_up_source(NAMES[3:], 50_000, name="b"))
    return data, ShardIndex(data, [index_of(NAMES[:3]), index_of(NAMES[3:])])


def test_an_index_tells_every_shard_of_every_source() -> None:
    _, index = two_sources()
    assert [(shard.blob, shard.num_tokens) for shard in index.shards()] == [
        (name, 100_000 if number < 3 else 50_000) for number, name in enumerate(NAMES)
    ]
    assert index.find(NAMES[4]) == ShardNumber(1, 1)
    assert index.find("ff" * 32) is None


@given(st.binary(max_size=200))
def test_an_index_of_another_length_than_its_source_has_shards_is_refused(content: bytes) -> None:
    data = data_of(made_up_source(NAMES[:3], name="books"))
    if len(content) == 96:
        ShardIndex(data, [content])
        return
    with pytest.raises(BadMessage, match=f"index of 'books' has {len(content)} bytes, and its 3 shards need 96"):
        ShardIndex(data, [content])


def test_when_training_comes_to_a_shard_is_known_by_its_blob_and_of_others_nothing(manifest: Manifest) -> None:
    data, index = two_sources()
    shuffle = Shuffle.of(manifest.model_copy(update={"data": data}))
    coming = ComingShards(shuffle, index, position=0)
    assert list(coming) == [index.shard(at).blob for at in shuffle.shards_from(0)]
    assert len(coming) == 5
    assert sorted(coming, key=coming.__getitem__) == list(coming)
    assert "ff" * 32 not in coming
    assert coming.get("ff" * 32) is None


# ---- what a manifest says ----


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sources": [made_up_source(name="a"), made_up_source(name="a")]}, "two sources are called 'a'"),
        ({"sources": [made_up_source(ratio=1), made_up_source(name="b", ratio=1e-4)]}, "the least is 1/4096"),
        ({"sources": [made_up_source(ratio=0)]}, r"sources\.0\.ratio"),
        ({"sources": [made_up_source(name="a\n")]}, "cannot be printed"),
        ({"tokenizer": {"num_ids": 300}}, "bytes have 257 ids"),
        ({"tokenizer": {"kind": "json", "name": "x", "num_ids": 300, "end_of_text": 1}}, "needs the blob"),
        ({"tokenizer": {"num_ids": 100, "end_of_text": 100}}, "is not among the 100 ids"),
        (
            {"tokenizer": {"kind": "json", "blob": NAME, "size_bytes": 9, "num_ids": 70_000, "end_of_text": 1}},
            "70000 token ids do not fit uint16",
        ),
    ],
)
def test_data_that_fits_nothing_is_refused_with_the_rule(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadConfiguration, match=reason):
        validated(Data, {**made_up_data(), **change}, "data.json")


def test_more_shards_than_an_index_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="make them larger"):
        Shards(num_tokens=1 << 40, shard_tokens=1_000, index=NAME)
    assert Shards(num_tokens=10**12, shard_tokens=1 << 24, index=NAME).index_bytes == 32 * 59_605


def test_what_is_left_for_the_last_shard_may_be_too_little_for_a_sequence() -> None:
    order = order_of(2 * 100 + LENGTH, 100)
    assert order.num_shards == 2
    assert order.num_sequences == 2 * ((100 - 1) // LENGTH)
    shuffle = mixed(order)
    assert set(shuffle.shards_from(0)) == {ShardNumber(0, 0), ShardNumber(0, 1)}
    assert shuffle.next_need(ShardNumber(0, 2), 0) is None
