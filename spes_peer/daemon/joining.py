"""From the records to a place in a run: which subsets to claim.

Claims only lead to the roster, which is the authority; see DESIGN's "Membership and claims".
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from spes_peer.errors import SpesError
from spes_peer.identity import PeerId
from spes_peer.membership.claims import Ground, choose_subsets, conflicts, wish
from spes_peer.membership.directory import Directory
from spes_peer.run.chain import Chain
from spes_peer.run.layout import Layout
from spes_peer.run.peers import Claim

logger = logging.getLogger(__name__)

_SECOND_LOOK_SECONDS = 1.0  # in which a rival's claim becomes visible
_MAX_LOOKS = 30


class Claiming:
    """Keeps a claim in the DHT: one that no rival has a better one for, or the place that the roster gives."""

    def __init__(
        self, peer_id: PeerId, layout: Layout, chain: Chain, directory: Directory, now: Callable[[], float]
    ) -> None:
        """`now` is the run's time."""
        self.subsets: tuple[int, ...] = ()
        """What this peer wants or has; empty when it must choose anew."""
        self.claims: dict[PeerId, Claim] = {}
        self._peer_id = peer_id
        self._layout = layout
        self._chain = chain
        self._directory = directory
        self._now = now
        self._is_reconsidering = False

    async def claim(self, capacity: int, on_progress: Callable[[str], None]) -> tuple[int, ...]:
        """Choose, store the claim, look again, and choose again what was lost. Ends after some looks with what it has:
        the coordinator takes several owners of a subset rather than none."""
        own = Claim((), 0.0)
        for _ in range(_MAX_LOOKS):
            await self.read()
            others, ground = self._others(), self._ground()
            lost = conflicts(self._peer_id, own, others, ground, self._now()) if own.subsets else ()
            if own.subsets and not lost:
                break
            known = {**others, self._peer_id: own} if own.subsets else others
            chosen = choose_subsets(self._peer_id, capacity, ground, known, self._now())
            own = Claim(chosen, self._now())
            on_progress(f"claiming subset {', '.join(map(str, chosen))}")
            await self._publish(own)
            await asyncio.sleep(_SECOND_LOOK_SECONDS)
        self.subsets = own.subsets
        return self.subsets

    async def reconsider(self, capacity: int) -> tuple[int, ...] | None:
        """What to ask for in place of what the roster gives: claimed, and found unclaimed by others at a second look.

        None to stay, which it mostly is. Without a look into the DHT unless the last one gives a reason, so it may be
        called whenever the records or the claims have changed; while one call runs, others return at once.
        """
        has = self._ground().subsets_of(self._peer_id)
        if self._is_reconsidering or not has or has != self.subsets or self._wish(capacity, self._others()) == has:
            return None
        self._is_reconsidering = True
        try:
            return await self._look_twice(has, capacity)
        finally:
            self._is_reconsidering = False

    async def _look_twice(self, has: tuple[int, ...], capacity: int) -> tuple[int, ...] | None:
        await self.read()
        wanted = self._wish(capacity, self._others())
        if wanted == has or not self._is_settled_on(has):
            return None
        own = Claim(wanted, self._now())
        await self._publish(own)
        await asyncio.sleep(_SECOND_LOOK_SECONDS)
        await self.read()
        if not self._is_settled_on(has):
            return None  # a record came, and what it gives has been claimed
        if self._wish(capacity, {**self._others(), self._peer_id: own}) != wanted:
            await self.keep(has)
            return None
        self.subsets = wanted
        return wanted

    def _is_settled_on(self, has: tuple[int, ...]) -> bool:
        """Whether this is what the newest roster gives and what is claimed for it."""
        return has == self.subsets == self._ground().subsets_of(self._peer_id)

    async def keep(self, subsets: tuple[int, ...]) -> None:
        """Claim what the roster gives, without a look at others: the record is the authority."""
        self.subsets = subsets
        await self._publish(Claim(subsets, self._now()))

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

    def _others(self) -> dict[PeerId, Claim]:
        """Everybody else's claims, by the last look."""
        return {peer: claim for peer, claim in self.claims.items() if peer != self._peer_id}

    def _wish(self, capacity: int, claims: Mapping[PeerId, Claim]) -> tuple[int, ...]:
        lease_seconds, now = self._layout.manifest.timing.lease_seconds, self._now()
        is_cooling = self._chain.leases.of(self._peer_id).is_cooling(now, lease_seconds)
        return wish(self._peer_id, capacity, self._ground(), claims, is_cooling, now)

    def _ground(self) -> Ground:
        timing, num_subsets = self._layout.manifest.timing, self._layout.manifest.training.num_subsets
        if self._chain.head is None:
            return Ground(num_subsets)
        record = self._chain.head.record
        members = {entry.peer_id for entry in record.roster}
        return Ground(
            num_subsets,
            {subset: record.owners_of(subset) for subset in range(num_subsets)},
            self._chain.leases.standing(members, self._now(), timing.lease_seconds),
            self._chain.rounds_trained(self._layout),
        )
