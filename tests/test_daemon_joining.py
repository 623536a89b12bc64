"""Records from other nodes: all of them, whoever answers, however many ask at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from daemon_parts import following, make_node
from exchange_nodes import Node as Source
from exchange_nodes import running

from spes_peer.daemon.joining import fetch_records
from spes_peer.errors import Unreachable
from spes_peer.exchange import server
from spes_peer.exchange.holdings import Holdings
from spes_peer.identity import Identity, PeerId
from spes_peer.node import Node
from spes_peer.run.chain import Chain
from spes_peer.run.manifest import Manifest

NUM_RECORDS = 7
NOBODY = Identity.from_seed(b"\x24" * 32).peer_id


@pytest.fixture
async def sources(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[tuple[Node, list[Source]]]:
    """A node that has made a chain, and two others, of which the first serves it."""
    maker = make_node(tmp_path / "maker", manifest, organizer)
    for _ in range(NUM_RECORDS - 1):
        maker.chain.append(following(maker, maker.identity))
    async with running(tmp_path, Holdings, Holdings) as nodes:
        nodes[0].records = list(maker.chain.from_round(0))
        yield maker, nodes


def empty_chain(folder: Path, maker: Node) -> Chain:
    return Chain(folder, maker.manifest.organizers, maker.run_id)


async def fetch(chain: Chain, node: Source, *peers: PeerId) -> None:
    await fetch_records(chain, node.connections, peers, stall_seconds=1.0)


async def test_records_come_also_when_a_node_gives_few_in_one_call(
    sources: tuple[Node, list[Source]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_RECORDS_PER_CALL", 2)
    maker, (source, asker) = sources
    chain = empty_chain(tmp_path / "chain", maker)
    await fetch(chain, asker, source.peer_id)
    assert chain.num_records == NUM_RECORDS


async def test_two_fetches_at_once_are_no_harm(sources: tuple[Node, list[Source]], tmp_path: Path) -> None:
    maker, (source, asker) = sources
    chain = empty_chain(tmp_path / "chain", maker)
    await asyncio.gather(*(fetch(chain, asker, source.peer_id) for _ in range(4)))
    assert chain.num_records == NUM_RECORDS


async def test_a_node_that_cannot_be_reached_or_lies_is_left_for_the_next(
    sources: tuple[Node, list[Source]], tmp_path: Path
) -> None:
    maker, (source, asker) = sources
    chain = empty_chain(tmp_path / "chain", maker)
    with pytest.raises(Unreachable, match="no address"):
        await fetch(chain, asker, NOBODY)
    asker.records = list(reversed(source.records))
    with pytest.raises(Unreachable, match="where record 0 belongs"):
        await fetch(chain, source, asker.peer_id)
    await fetch(chain, asker, NOBODY, source.peer_id)
    assert chain.num_records == NUM_RECORDS
