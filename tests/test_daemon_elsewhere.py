"""A key that is used on two machines: the later start is refused, or the first ends, with since when and what to do."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange_nodes import Node, running

from spes_peer.daemon import elsewhere
from spes_peer.daemon.elsewhere import refuse_if_online, until_online_elsewhere
from spes_peer.errors import ChildFailed, NotAdmitted
from spes_peer.exchange.holdings import Holdings
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.peers import PeerEntry, PeerState

FIRST, LATER = 1, 2


@pytest.fixture
async def first(tmp_path: Path, signed_manifest: SignedManifest) -> AsyncIterator[Node]:
    """The first start of a peer: its incarnation is 1."""
    async with running(tmp_path, Holdings) as (one,):
        one.describe_run(signed_manifest)
        yield one


def start_of(peer: str, entry: PeerEntry | None, incarnation: int, in_record: int = 0, in_dht: int = 0) -> Any:
    """What of a node is looked at: a start of the peer, which finds `entry` as its own in the DHT."""

    async def read_entries() -> dict[str, PeerEntry]:
        if entry is None:
            raise ChildFailed("the DHT node is being started again")
        return {peer: entry}

    place = SimpleNamespace(incarnation=in_record) if in_record else None
    record = SimpleNamespace(entry_of=lambda peer_id: place if peer_id == peer else None)
    return SimpleNamespace(
        peer_id=peer,
        directory=SimpleNamespace(read_entries=read_entries),
        signer=SimpleNamespace(incarnation=incarnation),
        chain=SimpleNamespace(head=SimpleNamespace(record=record)),
        settings=SimpleNamespace(name="attic"),
        seen_incarnation=in_dht,
    )


async def test_a_later_start_is_refused_while_the_first_answers(first: Node) -> None:
    later = start_of(first.peer_id, first.entry(), LATER)
    with pytest.raises(NotAdmitted, match=r"online elsewhere since \d{4}-.*--data-dir"):
        await refuse_if_online(later)
    await first.stop()
    await refuse_if_online(later)  # it was killed, and this is its restart


async def test_a_start_is_not_taken_for_another_that_leaves_or_is_itself_or_cannot_be_seen(first: Node) -> None:
    leaving = dataclasses.replace(first.entry(), state=PeerState.LEAVING)
    await refuse_if_online(start_of(first.peer_id, leaving, LATER))
    # at the address of an earlier start it is this one that answers
    await refuse_if_online(start_of(first.peer_id, dataclasses.replace(first.entry(), incarnation=0), FIRST))
    await refuse_if_online(start_of(first.peer_id, None, LATER))


@pytest.mark.parametrize("seen", [{"in_record": LATER}, {"in_dht": LATER}])
async def test_the_first_ends_when_a_record_or_the_dht_names_a_later_start(
    monkeypatch: pytest.MonkeyPatch, seen: dict[str, int]
) -> None:
    monkeypatch.setattr(elsewhere, "_LOOK_SECONDS", 0.001)
    with pytest.raises(NotAdmitted, match="attic"):
        await until_online_elsewhere(start_of("me", None, FIRST, **seen))
    own = asyncio.create_task(until_online_elsewhere(start_of("me", None, LATER, **seen)))
    await asyncio.sleep(0.05)
    assert not own.done()
    own.cancel()
