"""Records from other nodes: all of them, whoever answers, however many ask at once; a better chain in place of ours."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from run_nodes import RunNodes, run_nodes

from spes_peer.errors import BadMessage, BadSignature, Unreachable
from spes_peer.exchange import server
from spes_peer.following.records import fetch_from, fetch_records, first_record
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.chain import Switch
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord

NUM_RECORDS = 7
NOBODY = Identity.from_seed(b"\x24" * 32).peer_id
LONG_AGO = 1000.0
PATIENT = {
    "fetch_stall_seconds": 5.0,
    "round_grace_seconds": 6.0,
    "coordinator_timeout_seconds": 7.0,
    "stall_timeout_seconds": 8.0,
}
"""Nobody is silent here but those that are gone: a machine that does other things too makes no difference."""


@pytest.fixture
async def run(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[RunNodes]:
    """Three nodes with record 0."""
    async with run_nodes(tmp_path, manifest, organizer, 3, PATIENT) as run:
        yield run


def grow(node: Node, run: RunNodes, num_records: int = NUM_RECORDS) -> None:
    """Certified records of the rounds of nodes 1 and 2."""
    while node.chain.num_records < num_records:
        assert node.chain.head is not None
        node.chain.append(run.signed(run.following(node.chain.head, (1, 2)), (0, 1, 2)))


def uncertified(node: Node, run: RunNodes, signer: int, deadline_at: float = LONG_AGO) -> CertifiedRecord:
    """Behind the node's head, on which one of the roster goes on alone; the next is then due at `deadline_at`."""
    assert node.chain.head is not None
    record = run.following(node.chain.head, (signer,), deadline_at=deadline_at, tokens=signer)
    return run.signed(record, (signer,), uncertified=True)


# ---- from other nodes ----


async def test_records_come_also_when_a_node_gives_few_in_one_call(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_RECORDS_PER_CALL", 2)
    source, asker, _ = run.nodes
    grow(source, run)
    await fetch_records(asker, [source.peer_id])
    assert asker.chain.head == source.chain.head
    assert asker.chain.certified_round == NUM_RECORDS - 1


async def test_two_fetches_at_once_are_no_harm(run: RunNodes) -> None:
    source, asker, _ = run.nodes
    grow(source, run)
    await asyncio.gather(*(fetch_records(asker, [source.peer_id]) for _ in range(4)))
    assert asker.chain.num_records == NUM_RECORDS


async def test_a_node_that_cannot_be_reached_or_lies_is_left_for_the_next(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, asker, liar = run.nodes
    grow(source, run)
    backwards = list(source.chain.from_round(0))[::-1]
    monkeypatch.setattr(liar, "records_from", lambda _round: backwards)
    with pytest.raises(Unreachable, match="no address"):
        await fetch_records(asker, [NOBODY])
    with pytest.raises(Unreachable, match="which was not asked for"):
        await fetch_records(asker, [liar.peer_id])
    await fetch_records(asker, [NOBODY, liar.peer_id, source.peer_id])
    assert asker.chain.num_records == NUM_RECORDS
    with pytest.raises(Unreachable, match="nobody is known"):
        await fetch_records(asker, [])


async def test_a_node_that_sends_records_without_end_is_not_read_to_it(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.following.records.MAX_RECORDS_PER_CALL", 2)
    source, asker, _ = run.nodes
    grow(source, run)
    with pytest.raises(BadMessage, match="record 3, which was not asked for"):
        await fetch_from(asker, source.peer_id)
    assert asker.chain.num_records == 3  # each is verified and kept as it comes


async def test_the_first_records_are_asked_for_until_somebody_has_them(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.following.records._RETRY_SECONDS", 0.01)
    source, *others = run.nodes
    grow(source, run)
    newcomer = await run.start(run.make(3, has_genesis=False))
    for node in (source, *others):
        run.cut(newcomer, node)
    said: list[str] = []

    def say(why: str) -> None:
        said.append(why)
        if len(said) == 4:
            run.reconnect(newcomer, source)

    await first_record(newcomer, say)
    assert newcomer.chain.head == source.chain.head
    assert said[0] == "fetching the records of the run"
    assert said[1].startswith("no records yet: nobody gives the records of this run")


async def test_nothing_is_asked_for_where_the_first_record_is_here(run: RunNodes) -> None:
    await first_record(run.nodes[0], lambda _why: pytest.fail("it is here"))


# ---- a better chain ----


async def test_a_chain_that_ranks_above_our_uncertified_end_is_fetched_whole(run: RunNodes) -> None:
    source, asker, _ = run.nodes
    for node in (source, asker):
        grow(node, run, 3)
    lost = uncertified(asker, run, 1)
    asker.chain.append(lost)
    grow(source, run)
    switches: list[Switch | None] = []
    asker.on_chain.append(switches.append)
    await fetch_from(asker, source.peer_id)
    assert asker.chain.head == source.chain.head
    assert asker.chain.certified_round == NUM_RECORDS - 1
    assert switches == [Switch(3, (lost.sealed,))]


async def test_what_is_uncertified_in_both_chains_is_not_read_again(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, asker, _ = run.nodes
    for node in (source, asker):
        grow(node, run, 3)
    for _ in range(5):
        source.chain.append(uncertified(source, run, 1))
    first = source.chain.record(3)
    for round in (3, 4, 5):
        asker.chain.append(source.chain.record(round))
    source.chain.improve(run.signed(first.sealed.record, (1, 2)))
    asked: list[int] = []

    def records_from(round: int) -> Iterator[CertifiedRecord]:
        for certified in source.chain.from_round(round):
            asked.append(certified.sealed.round)
            yield certified

    monkeypatch.setattr("spes_peer.exchange.server.MAX_RECORDS_PER_CALL", 1)
    monkeypatch.setattr(source, "records_from", records_from)
    await fetch_from(asker, source.peer_id)
    assert (asker.chain.head, asker.chain.certified_round) == (source.chain.head, 3)
    assert asked == [3, 5, 6, 7]


async def test_a_chain_that_does_not_rank_above_ours_is_left_alone(run: RunNodes) -> None:
    source, asker, _ = run.nodes
    for node in (source, asker):
        grow(node, run, 3)
        node.chain.append(uncertified(node, run, 1 if node is source else 2))
    better, worse = sorted((source, asker), key=lambda node: node.chain.rank, reverse=True)
    before = better.chain.head
    await fetch_from(better, worse.peer_id)
    assert better.chain.head == before
    await fetch_from(worse, better.peer_id)
    assert worse.chain.head == before


async def test_a_shorter_certified_chain_takes_the_place_of_a_longer_one_that_is_not(run: RunNodes) -> None:
    source, asker, _ = run.nodes
    for node in (source, asker):
        grow(node, run, 3)
    for _ in range(4):
        asker.chain.append(uncertified(asker, run, 1))
    grow(source, run, 4)
    await fetch_from(asker, source.peer_id)
    assert asker.chain.head == source.chain.head
    assert asker.chain.num_records == 4


# ---- what a node takes ----


def switches_of(node: Node) -> list[Switch | None]:
    switches: list[Switch | None] = []
    node.on_chain.append(switches.append)
    return switches


async def test_an_uncertified_record_is_refused_until_our_own_clock_says_that_the_run_has_stalled(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run.nodes[1]
    grow(node, run, 3)
    stalled_at = LONG_AGO + node.manifest.timing.stall_timeout_seconds
    head = run.following(node.chain.record(2).sealed, (1, 2), deadline_at=LONG_AGO)
    node.take_record(run.signed(head, (1, 2)))
    early = uncertified(node, run, 1)
    switches = switches_of(node)
    monkeypatch.setattr(node, "now", lambda: stalled_at - 0.1)
    with pytest.raises(BadMessage, match="record 4 is not certified, and the run has not stalled"):
        node.take_record(early)
    assert node.take_branch([early]) is None
    assert (node.head_round, switches) == (3, [])
    monkeypatch.setattr(node, "now", lambda: stalled_at)
    node.take_record(early)
    assert (node.head_round, node.chain.certified_round, switches) == (4, 3, [None])


async def test_behind_an_uncertified_record_the_next_is_taken_as_it_comes(run: RunNodes) -> None:
    node = run.nodes[1]
    grow(node, run, 3)
    node.take_record(uncertified(node, run, 1, deadline_at=1e12))
    node.take_record(uncertified(node, run, 1))
    assert (node.head_round, node.chain.certified_round) == (4, 2)


async def test_a_branch_that_begins_certified_is_taken_at_any_time(run: RunNodes) -> None:
    source, node, _ = run.nodes
    for one in (source, node):
        grow(one, run, 3)
    node.take_record(uncertified(node, run, 1))
    grow(source, run, 5)
    switch = node.take_branch(list(source.chain.from_round(3)))
    assert switch is not None
    assert (switch.first_round, len(switch.lost)) == (3, 1)
    assert node.chain.head == source.chain.head


async def test_late_signatures_are_taken_and_bad_ones_refused(run: RunNodes) -> None:
    node = run.nodes[1]
    grow(node, run, 3)
    one = uncertified(node, run, 1)
    node.take_record(one)
    switches = switches_of(node)
    late = run.signed(one.sealed.record, (1, 2))
    with pytest.raises(BadSignature):
        node.improve_record(dataclasses.replace(late, term=9))
    node.improve_record(one)
    assert (node.chain.certified_round, switches) == (2, [])
    node.improve_record(late)
    assert (node.chain.certified_round, switches) == (3, [None])
