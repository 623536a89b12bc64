"""Which subsets a peer should claim. Pure: every peer that reads the same claims comes to the same answer.

A peer has a title to a subset that it owns by the newest roster, or that it claims, nobody else owns, and nobody
claimed before it. It keeps its titles, fills up from the free subsets, and only if that leaves it with nothing joins
one subset of others, whose owners' offers are then averaged. Claims order only what no roster holds yet: an admitted
owner is never displaced by a claim.
"""

import hashlib
from collections.abc import Mapping, Sequence

from spes_peer.identity import PeerId
from spes_peer.membership.entries import CLOCK_MARGIN_SECONDS
from spes_peer.run.peers import Claim


def rendezvous(peer_id: str, subset: int) -> bytes:
    """A rank of `subset` for `peer_id`, unrelated to other peers' ranks: newcomers differ in what they take first."""
    return hashlib.sha256(f"{peer_id} {subset}".encode()).digest()


def choose_subsets(
    peer_id: PeerId,
    capacity: int,
    num_subsets: int,
    owned: Mapping[int, Sequence[PeerId]],
    claims: Mapping[PeerId, Claim],
    rounds_trained: Mapping[int, int],
    now: float,
) -> tuple[int, ...]:
    """The subsets to claim, ascending, at most `capacity`; the same again as long as nothing changes.

    `owned` are the owners of each subset by the newest roster; `claims` may hold this peer's own; `rounds_trained`
    counts rounds for each subset, 0 where it is silent; `now` is in Unix seconds. Free subsets come least trained
    first. A subset that others own or claimed before is taken only if there is no other, and then only one.
    """
    if capacity <= 0:
        return ()
    mine = claims.get(peer_id, Claim((), 0.0))
    rivals = _rivals(peer_id, num_subsets, claims, now)
    owners = {subset: set(owned.get(subset, ())) for subset in range(num_subsets)}

    def has_title(subset: int) -> bool:
        if owners[subset]:
            return peer_id in owners[subset]
        return subset in mine.subsets and all(
            _precedence(peer_id, mine, subset) < _precedence(rival, claims[rival], subset) for rival in rivals[subset]
        )

    def need(subset: int) -> tuple[int, bytes]:
        return rounds_trained.get(subset, 0), rendezvous(peer_id, subset)

    titles = sorted((s for s in owners if has_title(s)), key=lambda s: (peer_id not in owners[s], *need(s)))
    free = sorted((s for s in owners if not (owners[s] or rivals[s] or s in titles)), key=need)
    if chosen := (titles + free)[:capacity]:
        return tuple(sorted(chosen))
    joinable = [subset for subset in owners if subset in mine.subsets] or list(owners)
    return (min(joinable, key=lambda s: (len(owners[s] | rivals[s]), *need(s))),)


def conflicts(
    peer_id: PeerId,
    own: Claim,
    claims: Mapping[PeerId, Claim],
    owned: Mapping[int, Sequence[PeerId]],
    num_subsets: int,
    now: float,
) -> tuple[int, ...]:
    """The subsets of `own` to give up: of two claims the earlier `since_at` wins, then the lower rendezvous hash.

    A loser stays beside the winner, with one subset, only if it would otherwise have none.
    """
    kept = choose_subsets(peer_id, len(own.subsets), num_subsets, owned, {**claims, peer_id: own}, {}, now)
    return tuple(subset for subset in own.subsets if subset not in kept)


def _precedence(peer_id: PeerId, claim: Claim, subset: int) -> tuple[float, bytes]:
    return claim.since_at, rendezvous(peer_id, subset)


def _rivals(peer_id: PeerId, num_subsets: int, claims: Mapping[PeerId, Claim], now: float) -> dict[int, set[PeerId]]:
    """Who else claims each subset. A claim from the future holds nobody off."""
    rivals: dict[int, set[PeerId]] = {subset: set() for subset in range(num_subsets)}
    for rival, claim in claims.items():
        if rival != peer_id and claim.since_at <= now + CLOCK_MARGIN_SECONDS:
            for subset in claim.subsets:
                if 0 <= subset < num_subsets:
                    rivals[subset].add(rival)
    return rivals
