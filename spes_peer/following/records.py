"""Records from other nodes: what continues our chain, or a chain that ranks above its uncertified end."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from spes_peer.errors import BadMessage, BlobMissing, PeerError, Unreachable
from spes_peer.exchange.limits import MAX_RECORDS_PER_CALL
from spes_peer.exchange.link import Link
from spes_peer.identity import PeerId
from spes_peer.node import Node
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
    above ours. Raises `PeerError`."""
    link = await node.connections.to(source)
    if node.chain.certified_round < node.head_round:
        branch: list[CertifiedRecord] = []
        first = node.chain.certified_round + 1
        while (more := await _some(node, link, first + len(branch))) and len(branch) < _MAX_BRANCH_RECORDS:
            branch += more
        if branch:
            node.take_branch(branch)
        return
    while more := await _some(node, link, node.chain.num_records):
        for certified in more:
            if certified.sealed.round >= node.chain.num_records:  # the coordinator may have told it meanwhile
                node.take_record(certified)


async def _some(node: Node, link: Link, first: int) -> list[CertifiedRecord]:
    """As many records as a node gives in one call."""
    request = RecordsRequest(from_round=first)
    stall_seconds = node.manifest.timing.fetch_stall_seconds
    async with contextlib.aclosing(link.stream(link.stub.Records, request, stall_seconds)) as messages:
        records: list[CertifiedRecord] = []
        async for message in messages:
            records.append(convert.from_message(CertifiedRecord, message))
            if records[-1].sealed.round != first + len(records) - 1 or len(records) > MAX_RECORDS_PER_CALL:
                raise BadMessage(f"record {records[-1].sealed.round}, which was not asked for")
    return records
