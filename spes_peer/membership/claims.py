"""Which subsets a peer should claim. Pure: every peer that reads the same claims comes to the same answer.

A peer has a title to a subset that it owns by the newest roster, on which it has a lease, or that it claims, nobody
else owns, and nobody claimed before it. It keeps its titles, fills up from the free subsets, and only if that leaves it
with nothing joins one subset of others, whose owners' offers are then averaged. Claims order only what no roster holds
yet: an admitted owner is never displaced by a claim.

A subset whose owner has gone is left alone for as long as the owner's claim can be read; for the rest of the lease it
is taken last, by who would have less without it, and nobody gives up another for it. So a newcomer does not take what
its owner comes back for while there is anything else, and yet an expert does not wait a lease for whoever has room: if
the owner comes back later, it takes its subset up again beside the other.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from spes_peer.identity import PeerId
from spes_peer.membership.entries import CLOCK_MARGIN_SECONDS
from spes_peer.run.peers import Claim


def rendezvous(peer_id: str, subset: int) -> bytes:
    """A rank of `subset` for `peer_id`, unrelated to other peers' ranks: newcomers differ in what they take first."""
    return hashlib.sha256(f"{peer_id} {subset}".encode()).digest()


@dataclass(frozen=True)
class Ground:
    """What the records say, by which everybody judges claims alike."""

    num_subsets: int
    owned: Mapping[int, Collection[PeerId]] = field(default_factory=dict)
    """The owners of each subset by the newest roster."""
    leased: Mapping[int, Collection[PeerId]] = field(default_factory=dict)
    """Who is missing from the newest roster and has a lease on it."""
    rounds_trained: Mapping[int, int] = field(default_factory=dict)
    """0 where it is silent."""

    def owners(self, subset: int) -> Collection[PeerId]:
        return self.owned.get(subset, ())

    def has_lease(self, peer: PeerId, subset: int) -> bool:
        return peer in self.leased.get(subset, ())

    def subsets_of(self, peer: PeerId) -> tuple[int, ...]:
        """Its place in the newest roster; empty if it has none."""
        return tuple(subset for subset in range(self.num_subsets) if peer in self.owners(subset))


@dataclass(frozen=True)
class _Look:
    """One peer's look at the claims, its own among them if it has one."""

    peer_id: PeerId
    ground: Ground
    claims: Mapping[PeerId, Claim]
    now: float

    @cached_property
    def rivals(self) -> dict[int, set[PeerId]]:
        """Who else claims each subset. A claim from the future holds nobody off."""
        rivals: dict[int, set[PeerId]] = {subset: set() for subset in range(self.ground.num_subsets)}
        for rival, claim in self.claims.items():
            if rival != self.peer_id and claim.since_at <= self.now + CLOCK_MARGIN_SECONDS:
                for subset in claim.subsets:
                    if 0 <= subset < self.ground.num_subsets:
                        rivals[subset].add(rival)
        return rivals

    def has_title(self, subset: int) -> bool:
        owners = self.ground.owners(subset)
        if self.peer_id in owners or self.ground.has_lease(self.peer_id, subset):
            return True
        if owners or not self.claims_itself(subset):
            return False
        own = self.precedence(self.peer_id, subset)
        return all(own < self.precedence(rival, subset) for rival in self.rivals[subset])

    def claims_itself(self, subset: int) -> bool:
        return self.peer_id in self.claims and subset in self.claims[self.peer_id].subsets

    def precedence(self, peer: PeerId, subset: int) -> tuple[bool, float, bytes]:
        """Of two claims to a subset that no roster holds, the lower wins: a lease, the earlier, the lower hash."""
        return not self.ground.has_lease(peer, subset), self.claims[peer].since_at, rendezvous(peer, subset)

    def is_free(self, subset: int) -> bool:
        return not (self.ground.owners(subset) or self.rivals[subset])

    def need(self, subset: int) -> tuple[int, bytes]:
        """Subsets in the order of this are those that this peer should train first."""
        return self.ground.rounds_trained.get(subset, 0), rendezvous(self.peer_id, subset)


def choose_subsets(
    peer_id: PeerId, capacity: int, ground: Ground, claims: Mapping[PeerId, Claim], now: float
) -> tuple[int, ...]:
    """The subsets to claim, ascending, at most `capacity`; the same again as long as nothing changes.

    `claims` may hold this peer's own; `now` is in Unix seconds. Free subsets come least trained first, those on which
    somebody has a lease last. A subset that others own or claimed before is taken only if there is no other, and then
    only one.
    """
    if capacity <= 0:
        return ()
    look, subsets = _Look(peer_id, ground, claims, now), range(ground.num_subsets)
    titles = sorted(filter(look.has_title, subsets), key=lambda s: (peer_id not in ground.owners(s), *look.need(s)))
    others = [subset for subset in subsets if subset not in titles and look.is_free(subset)]
    free = sorted(others, key=lambda s: (s in ground.leased, *look.need(s)))
    if chosen := (titles + free)[:capacity]:
        return tuple(sorted(chosen))
    joinable = list(filter(look.claims_itself, subsets)) or list(subsets)
    return (min(joinable, key=lambda s: (len({*ground.owners(s), *look.rivals[s]}), *look.need(s))),)


def conflicts(
    peer_id: PeerId, own: Claim, claims: Mapping[PeerId, Claim], ground: Ground, now: float
) -> tuple[int, ...]:
    """The subsets of `own` to give up: of two claims the earlier `since_at` wins, then the lower rendezvous hash.

    A loser stays beside the winner, with one subset, only if it would otherwise have none.
    """
    untrained = replace(ground, rounds_trained={})
    kept = choose_subsets(peer_id, len(own.subsets), untrained, {**claims, peer_id: own}, now)
    return tuple(subset for subset in own.subsets if subset not in kept)


def wish(
    peer_id: PeerId, capacity: int, ground: Ground, claims: Mapping[PeerId, Claim], is_cooling: bool, now: float
) -> tuple[int, ...]:
    """The subsets that a peer with a place in the newest roster should own, ascending; mostly those that it has.

    With room it owns more, like a newcomer. Without, and unless it `is_cooling`, a co-owner takes an empty subset in
    place of the one with most owners. A subset that has no other owner is given up only for lack of room, what has been
    trained most first: who cannot train it holds off who can.
    """
    has = ground.subsets_of(peer_id)
    if not has or len(has) < capacity:
        return choose_subsets(peer_id, capacity, ground, claims, now)
    look, subsets = _Look(peer_id, ground, claims, now), range(ground.num_subsets)
    if len(has) > capacity > 0:
        return tuple(sorted(sorted(has, key=lambda s: (len(ground.owners(s)) > 1, *look.need(s)))[:capacity]))
    shared = [subset for subset in has if len(ground.owners(subset)) > 1]
    empty = [subset for subset in subsets if not (ground.owners(subset) or subset in ground.leased)]
    open_to_us = [subset for subset in empty if look.has_title(subset) or look.is_free(subset)]
    if is_cooling or not shared or not open_to_us:
        return has
    given_up = max(shared, key=lambda s: (len(ground.owners(s)), *look.need(s)))
    taken = min(open_to_us, key=lambda s: (not look.has_title(s), *look.need(s)))
    return tuple(sorted({*has, taken} - {given_up}))
