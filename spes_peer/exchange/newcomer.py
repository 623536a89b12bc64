"""Calls of one who has not joined, to the node that introduced it: how the run goes, and how that node sees us."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from spes_peer.errors import NotAdmitted, PeerError
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.link import Link
from spes_peer.exchange.traffic import Traffic
from spes_peer.identity import Identity
from spes_peer.run.records import CertifiedRecord, Record
from spes_peer.run.signed import Signer
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import RecordsRequest

CALL_SECONDS = 5.0
_NEWEST = 5  # records, of which the pace of the run is seen


@contextlib.asynccontextmanager
async def link_to(introduction: Introduction, identity: Identity) -> AsyncIterator[Link]:
    """To whoever introduced us; `PeerError` where it cannot be called."""
    signer = Signer(identity, introduction.run_id, time.time_ns())
    connections = Connections(signer, Traffic(), now=introduction.clock.time)
    connections.update_entry(introduction.entry)
    try:
        yield await connections.to(introduction.entry.peer_id)
    finally:
        await connections.close()


async def newest_of(introduction: Introduction) -> list[Record]:
    """As below, from whoever introduced us, with a key for this call alone; none where they are not to be had."""
    with contextlib.suppress(PeerError):
        async with link_to(introduction, Identity.generate()) as link:
            return await newest_records(link, introduction.head_round)
    return []


def refuse_if_over(records: Sequence[Record]) -> None:
    """`NotAdmitted` for a newcomer to a run that has ended."""
    if records and records[-1].is_final:
        raise NotAdmitted(
            f"the run ended with round {records[-1].round - 1}: there is nothing left to train; ask its organizer for"
            " the next one"
        )


async def newest_records(link: Link, head_round: int) -> list[Record]:
    """The last few, oldest first, *unverified*: for people. `PeerError` where there are none."""
    request = RecordsRequest(from_round=max(0, head_round - _NEWEST + 1))
    records: list[Record] = []
    async with contextlib.aclosing(link.stream(link.stub.Records, request, CALL_SECONDS)) as messages:
        async for message in messages:
            records.append(convert.from_message(CertifiedRecord, message).sealed.record)
            if len(records) == _NEWEST:
                break
    return records
