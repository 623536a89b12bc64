"""Records from other nodes: what continues our chain, or a chain that ranks above its uncertified end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence

from spes_peer.errors import BadMessage, BlobMissing, PeerError, Unreachable
from spes_peer.exchange.limits import MAX_RECORDS_PER_CALL
from spes_peer.exchange.link import Link, blaming
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.run.lineage import branch_of
from spes_peer.run.records import CertifiedRecord
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import RecordsRequest

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_MAX_BRANCH_RECORDS = 10_000  # a chain that has gone on for longer without a certificate is not read to its end


async def fetch_records(node: Node, sources: Sequence[PeerId]) -> None:
    """Take what the first of `sources` that answers has and we lack, verified. One that fails, or sends nothing for
    the fetch stall time-out, is left for the next; `Unreachable` when all fail."""
    reasons = []
    for source in sources:
        try:
            await fetch_from(node, source)
            return
        except (PeerError, BlobMissing) as error:
            logger.info("no records from a peer peer=%s reason=%s", source[-8:], error)
            reasons.append(str(error))
    raise Unreachable(f"nobody gives the records of this run: {'; '.join(reasons) or 'nobody is known'}")


async def first_record(node: Node, say: Callable[[str], None]) -> None:
    """Wait for the records of the run, from whoever has them; at once where they are on disk."""
    while node.chain.head is None:
        say("fetching the records of the run")
        try:
            await fetch_records(node, node.others()[::-1])  # bootstrap nodes first: they have them for certain
        except PeerError as error:
            say(f"no records yet: {error}")
            await asyncio.sleep(_RETRY_SECONDS)


async def fetch_from(node: Node, source: PeerId) -> None:
    """Take what continues our chain at `source`, or its whole chain behind our last certified record if that ranks
    above ours. Every record is verified as it comes. Raises `PeerError`."""
    link = await node.connections.to(source)
    with blaming(source):
        await _take_from(node, link)


async def _take_from(node: Node, link: Link) -> None:
    if not await _has_our_end(node, link):
        await _take_branch(node, link)
        return
    async with contextlib.aclosing(_records(node, link, node.chain.num_records)) as records:
        async for certified in records:
            if certified.sealed.round >= node.chain.num_records:  # the coordinator may have told it meanwhile
                node.take_record(certified)


async def _has_our_end(node: Node, link: Link) -> bool:
    """Whether what is uncertified in our chain stands there too; takes better certificates of it."""
    for round in (node.chain.certified_round + 1, node.head_round):
        if node.chain.certified_round < round < node.chain.num_records:
            async with contextlib.aclosing(_records(node, link, round)) as records:
                theirs = await anext(records, None)
            if theirs is None or theirs.sealed.hash != node.chain.record(round).sealed.hash:
                return False
            node.improve_record(theirs)
    return True


async def _take_branch(node: Node, link: Link) -> None:
    branch: list[CertifiedRecord] = []
    lineage = branch_of(node.chain.record(node.chain.certified_round).sealed, (), node.chain.checks)
    async with contextlib.aclosing(_records(node, link, lineage.head.round + 1)) as records:
        async for certified in records:
            lineage = lineage.followed_by(certified)
            branch.append(certified)
            if len(branch) == _MAX_BRANCH_RECORDS:
                break
    node.take_branch(branch)


async def _records(node: Node, link: Link, first: int) -> AsyncGenerator[CertifiedRecord, None]:
    """All that a node has from this round on; it gives some in one call."""
    stall_seconds = node.manifest.timing.fetch_stall_seconds
    while True:
        num_taken, request = 0, RecordsRequest(from_round=first)
        async with contextlib.aclosing(link.stream(link.stub.Records, request, stall_seconds)) as messages:
            async for message in messages:
                certified = convert.from_message(CertifiedRecord, message)
                if certified.sealed.round != first or num_taken == MAX_RECORDS_PER_CALL:
                    raise BadMessage(f"record {certified.sealed.round}, which was not asked for")
                yield certified
                first, num_taken = first + 1, num_taken + 1
        if not num_taken:
            return
