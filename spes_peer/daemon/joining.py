"""From an address to a place in a run: which records there are, which subsets to claim.

Claims only lead to the roster, which is the authority; see DESIGN's "Membership and claims".
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from spes_peer.errors import BlobMissing, PeerError, SpesError, Unreachable
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.link import Link
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
    chain: Chain, connections: Connections, sources: Sequence[PeerId], stall_seconds: float
) -> None:
    """Append what the first of `sources` that answers has and we lack, verified. One that fails, or sends nothing for
    `stall_seconds`, is left for the next; `Unreachable` when all fail."""
    reasons = []
    for source in sources:
        try:
            link = await connections.to(source)
            while await _fetch_some(chain, link, stall_seconds):
                pass
            return
        except (PeerError, BlobMissing) as error:
            logger.info("no records from a peer peer=%s reason=%s", source[-8:], error)
            reasons.append(str(error))
    raise Unreachable(f"nobody gives the records of this run: {'; '.join(reasons) or 'nobody is known'}")


async def _fetch_some(chain: Chain, link: Link, stall_seconds: float) -> bool:
    """As many records as a node gives in one call; whether there were any."""
    before = chain.num_records
    request = RecordsRequest(from_round=before)
    async with contextlib.aclosing(link.stream(link.stub.Records, request, stall_seconds)) as messages:
        async for message in messages:
            certified = convert.from_message(CertifiedRecord, message)
            if certified.sealed.round >= chain.num_records:  # the coordinator may have told it meanwhile
                chain.append(certified)
    return chain.num_records > before


class Claiming:
    """Keeps a claim in the DHT: one that no rival has a better one for, or the place that the roster gives."""

    def __init__(self, peer_id: PeerId, layout: Layout, chain: Chain, directory: Directory) -> None:
        self.subsets: tuple[int, ...] = ()
        """What this peer wants or has; empty when it must choose anew."""
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
            await self._publish(own)
            await asyncio.sleep(_SECOND_LOOK_SECONDS)
        self.subsets = own.subsets
        return self.subsets

    async def keep(self, subsets: tuple[int, ...]) -> None:
        """Claim what the roster gives, without a look at others: the record is the authority."""
        self.subsets = subsets
        await self._publish(Claim(subsets, time.time()))

    async def _publish(self, claim: Claim) -> None:
        try:
            await self._directory.publish_claim(claim)
        except SpesError as error:
            logger.warning("the claim could not be stored reason=%s", error)

    async def read(self) -> None:
        """Look at everybody's claims; those of the last look stay when the DHT does not answer."""
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
