"""From an address to a place in a run: which records there are, which subsets to claim.

Claims only lead to the roster, which is the authority; see DESIGN's "Membership and claims".
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import grpc

from spes_peer.errors import BadMessage, PeerError, SpesError
from spes_peer.exchange.connections import Connections
from spes_peer.identity import PeerId
from spes_peer.membership.claims import choose_subsets, conflicts
from spes_peer.membership.directory import Directory
from spes_peer.run.chain import Chain
from spes_peer.run.layout import Layout
from spes_peer.run.peers import Claim
from spes_peer.run.records import CertifiedRecord
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import RecordsRequest

logger = logging.getLogger(__name__)

_SECOND_LOOK_SECONDS = 1.0  # in which a rival's claim becomes visible
_MAX_LOOKS = 30


async def fetch_records(
    chain: Chain, connections: Connections, sources: Sequence[PeerId], timeout_seconds: float
) -> int:
    """Append what `sources` have and we lack, verified; the number of new records. A source that fails is left for
    the next; `PeerError` when all fail."""
    before = chain.num_records
    failure: Exception | None = None
    for source in sources:
        try:
            link = await connections.to(source)
            call = link.stub.Records(
                RecordsRequest(from_round=chain.num_records), metadata=link.metadata(), timeout=timeout_seconds
            )
            async for message in call:
                chain.append(convert.from_message(CertifiedRecord, message))
        except (PeerError, grpc.aio.AioRpcError) as error:
            logger.info("no records from a peer peer=%s reason=%s", source[-8:], error)
            failure = error
            continue
        return chain.num_records - before
    raise BadMessage(f"nobody could give the records of this run: {failure}")


class Claiming:
    """Keeps a claim in the DHT until no rival has a better one."""

    def __init__(self, peer_id: PeerId, layout: Layout, chain: Chain, directory: Directory) -> None:
        self.subsets: tuple[int, ...] = ()
        self.claims: dict[PeerId, Claim] = {}
        self._peer_id = peer_id
        self._layout = layout
        self._chain = chain
        self._directory = directory

    async def claim(self, capacity: int, on_progress: Callable[[str], None]) -> tuple[int, ...]:
        """Choose, store the claim, look again, and choose again what was lost. Ends after some looks with what it has:
        the coordinator takes several owners of a subset rather than none."""
        num_subsets = self._layout.manifest.training.num_subsets
        own = Claim((), 0.0)
        for _ in range(_MAX_LOOKS):
            await self.read()
            others = {peer: claim for peer, claim in self.claims.items() if peer != self._peer_id}
            lost = conflicts(self._peer_id, own, others, self._owned(), num_subsets, time.time()) if own.subsets else ()
            if own.subsets and not lost:
                break
            known = {**others, self._peer_id: own} if own.subsets else others
            chosen = choose_subsets(
                self._peer_id,
                capacity,
                num_subsets,
                self._owned(),
                known,
                self._chain.rounds_trained(self._layout),
                time.time(),
            )
            own = Claim(chosen, time.time())
            on_progress(f"claiming subset {', '.join(map(str, chosen))}")
            try:
                await self._directory.publish_claim(own)
            except SpesError as error:
                logger.warning("the claim could not be stored reason=%s", error)
            await asyncio.sleep(_SECOND_LOOK_SECONDS)
        self.subsets = own.subsets
        return self.subsets

    async def read(self) -> None:
        try:
            self.claims = await self._directory.read_claims()
        except SpesError as error:
            logger.warning("claims could not be read reason=%s", error)

    def claimants(self) -> dict[int, list[PeerId]]:
        """Who claims each subset, by the last look."""
        by_subset: dict[int, list[PeerId]] = {}
        for peer, claim in sorted(self.claims.items()):
            for subset in claim.subsets:
                by_subset.setdefault(subset, []).append(peer)
        return by_subset

    def _owned(self) -> dict[int, tuple[PeerId, ...]]:
        head = self._chain.head
        if head is None:
            return {}
        return {subset: head.record.owners_of(subset) for subset in range(self._layout.manifest.training.num_subsets)}
