"""Which of two chains everybody follows."""

from dataclasses import replace
from typing import Any

import pytest
from chain_parts import PEERS, branch, certify, following, roster, trained
from hypothesis import given
from hypothesis import strategies as st
from rounds_swarm import CHECKS, ORGANIZER, RUN_ID, genesis

from spes_peer.errors import BadSignature
from spes_peer.identity import Identity
from spes_peer.run.certificates import sign_genesis
from spes_peer.run.layout import Layout
from spes_peer.run.lineage import Lineage, Link, Rank, branch_of
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord, SealedRecord, first_record

FORGERS = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(80, 85)), key=lambda one: one.peer_id)


@pytest.fixture
def base(manifest: Manifest) -> SealedRecord:
    """Record 1, whose roster is `PEERS`; it counts as certified."""
    return following(genesis(Layout(manifest)).seal()).seal()


def rank(base: SealedRecord, *records: CertifiedRecord) -> Rank:
    """Of the chain that these make behind `base`."""
    return branch_of(base, records, CHECKS).rank


def uncertified(base: SealedRecord, *signers: Identity, **changes: Any) -> CertifiedRecord:
    return certify(following(base, **changes), uncertified=signers or PEERS[:1])


# ---- what counts as certified ----


def test_a_chain_begins_with_the_organizers_record(manifest: Manifest) -> None:
    zero = genesis(Layout(manifest))
    lineage = Lineage.begun(sign_genesis(zero, ORGANIZER, RUN_ID), CHECKS)
    assert (lineage.head.record, lineage.certified_round, lineage.tail) == (zero, 0, ())
    with pytest.raises(BadSignature):
        Lineage.begun(sign_genesis(zero, PEERS[0], RUN_ID), CHECKS)


def test_behind_an_uncertified_record_nothing_counts_as_certified(base: SealedRecord) -> None:
    records = branch(base, ({}, PEERS[:3]), ({}, PEERS[:2]), ({}, PEERS), ({}, PEERS))
    lineage = branch_of(base, records, CHECKS)
    assert lineage.certified_round == 2
    assert [link.is_certified for link in lineage.tail] == [False, True, True]
    assert lineage.head.round == 5


def test_late_signatures_under_it_make_all_behind_it_count_too(base: SealedRecord) -> None:
    records = branch(base, ({}, PEERS[:2]), ({}, PEERS), ({}, PEERS[:2]), ({}, PEERS))
    lineage = branch_of(base, records, CHECKS).improved(certify(records[0].sealed.record, *PEERS[:3]), base)
    assert lineage.certified_round == 3
    assert [link.is_certified for link in lineage.tail] == [False, True]
    again = lineage.improved(certify(records[2].sealed.record, *PEERS[1:]), records[1].sealed)
    assert (again.certified_round, again.tail) == (5, ())


def test_late_signatures_further_back_wait_for_those_before_them(base: SealedRecord) -> None:
    records = branch(base, ({}, PEERS[:2]), ({}, PEERS[:2]))
    later = branch_of(base, records, CHECKS).improved(certify(records[1].sealed.record, *PEERS), records[0].sealed)
    assert later.certified_round == 1
    assert later.improved(certify(records[0].sealed.record, *PEERS), base).certified_round == 3


def test_a_certificate_of_another_record_improves_nothing(base: SealedRecord) -> None:
    lineage = branch_of(base, branch(base, ({}, PEERS[:2])), CHECKS)
    assert lineage.improved(certify(following(base, tokens=5), *PEERS), base) == lineage
    assert lineage.improved(certify(following(lineage.head), *PEERS), lineage.head) == lineage


# ---- rank ----


def test_more_certified_records_rank_higher_whatever_the_uncertified_ones_hold(base: SealedRecord) -> None:
    heavy = uncertified(base, *PEERS[:2], ORGANIZER, updates=trained(100, 100))
    assert rank(base, certify(following(base), *PEERS[:3])) > rank(base, heavy)


def test_an_organizers_signature_ranks_above_any_tokens(base: SealedRecord) -> None:
    heavy = uncertified(base, *PEERS[:2], updates=trained(100, 100))
    assert rank(base, uncertified(base, PEERS[3], ORGANIZER)) > rank(base, heavy)


def test_more_tokens_of_its_signers_rank_higher(base: SealedRecord) -> None:
    by_two = uncertified(base, *PEERS[:2], updates=trained(30, 30))
    assert rank(base, by_two) > rank(base, uncertified(base, PEERS[0], updates=trained(50)))


def test_others_work_does_not_count_for_who_makes_a_chain_alone(base: SealedRecord) -> None:
    alone = uncertified(base, PEERS[0], updates=trained(50, 90, 90, 90))
    assert rank(base, alone).stretches[0].tokens == 50


def test_nobody_counts_for_more_than_was_assigned_to_it(base: SealedRecord) -> None:
    assert rank(base, uncertified(base, PEERS[0], updates=trained(10**9))).stretches[0].tokens == 100


def test_a_newcomers_tokens_do_not_count(base: SealedRecord) -> None:
    update = trained(50)[0]
    forged = replace(update, contributors=(replace(update.contributors[0], peer_id=FORGERS[0].peer_id),))
    record = uncertified(base, PEERS[0], FORGERS[0], updates=(forged,), roster=roster(FORGERS[0]))
    assert rank(base, record).stretches[0].tokens == 0


def test_of_equals_the_lower_hash_ranks_higher(base: SealedRecord) -> None:
    ones = [uncertified(base, PEERS[0], held_out_loss=float(loss)) for loss in range(5)]
    assert max(ones, key=lambda one: rank(base, one)) == min(ones, key=lambda one: one.sealed.hash)


def test_a_forged_heavy_chain_of_one_peer_does_not_rank_above_two_that_went_on(base: SealedRecord) -> None:
    """It makes records with rosters of its own keys, all of which sign, and claims any number of tokens in each."""
    honest = uncertified(base, *PEERS[:2], updates=trained(30, 30))
    forged = [certify(following(base, roster=roster(*FORGERS), updates=trained(59, 10**9)), PEERS[0], *FORGERS)]
    for _ in range(50):
        heavy = following(forged[-1].sealed, roster=roster(*FORGERS), updates=trained(10**9, 10**9))
        forged.append(certify(heavy, *FORGERS))
    assert rank(base, honest) > rank(base, *forged)


def test_strangers_alone_cannot_go_on_behind_a_roster(base: SealedRecord) -> None:
    forged = certify(following(base, roster=roster(*FORGERS), updates=trained(100, 100, 100, 100)), *FORGERS)
    with pytest.raises(BadSignature):
        rank(base, forged)


def test_behind_equal_uncertified_records_more_that_their_own_rosters_certify_rank_higher(base: SealedRecord) -> None:
    (first,) = branch(base, ({}, PEERS[:1]))
    certified = certify(following(first.sealed), *PEERS)
    heavy = uncertified(first.sealed, *PEERS[:2], ORGANIZER, updates=trained(100, 100))
    assert rank(base, first, certified) > rank(base, first, heavy) > rank(base, first)


# ---- rank as an order ----

links = st.builds(
    Link,
    hash=st.integers(0, 3).map(lambda number: bytes([number] * 32)),
    is_certified=st.booleans(),
    has_organizer=st.booleans(),
    tokens=st.integers(0, 2),
)
HEAD = first_record(RUN_ID, (), (), 0.0).seal()


def ending_in(certified_round: int, tail: list[Link]) -> Lineage:
    """A chain with these behind its certified records; the first of them is not certified, or it would be one more."""
    first = [replace(link, is_certified=False) for link in tail[:1]]
    return Lineage(CHECKS, HEAD, certified_round, (*first, *tail[1:]))


lineages = st.builds(ending_in, st.integers(0, 2), st.lists(links, max_size=4))


def grown_by(lineage: Lineage, link: Link) -> Lineage:
    return replace(lineage, tail=(*lineage.tail, link))._counted()


@given(lineages, lineages, lineages)
def test_ranks_are_in_one_order(a: Lineage, b: Lineage, c: Lineage) -> None:
    assert (a.rank < b.rank) + (a.rank == b.rank) + (a.rank > b.rank) == 1
    low, middle, high = sorted((a.rank, b.rank, c.rank))
    assert low <= middle <= high
    assert low <= high


@given(lineages, links)
def test_a_chain_ranks_above_any_shorter_part_of_it(lineage: Lineage, link: Link) -> None:
    assert grown_by(lineage, link).rank > lineage.rank


@given(st.lists(links, min_size=1, max_size=4), st.lists(links, min_size=1, max_size=4), links, links)
def test_who_extends_an_end_that_lost_cannot_win_by_length(
    one: list[Link], two: list[Link], more: Link, other: Link
) -> None:
    first, second = replace(one[0], hash=b"\0" * 32), replace(two[0], hash=b"\1" * 32)
    chains = ending_in(1, [first, *one[1:]]), ending_in(1, [second, *two[1:]])
    low, high = sorted(chains, key=lambda chain: chain.rank)
    assert grown_by(grown_by(low, more), other).rank < high.rank


@given(st.integers(0, 2), st.lists(links, min_size=1, max_size=4), st.data())
def test_late_signatures_never_lower_a_rank(certified_round: int, end: list[Link], data: st.DataObject) -> None:
    lineage = ending_in(certified_round, end)
    tail, place = list(lineage.tail), data.draw(st.integers(0, len(end) - 1))
    tail[place] = replace(tail[place], is_certified=True)
    assert replace(lineage, tail=tuple(tail))._counted().rank >= lineage.rank
