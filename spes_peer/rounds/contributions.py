"""What members contribute: whether it can be, what it weighs, and what it says of the state.

A contribution is hostile input: one that is not exactly what its roster entry lets its sender offer is refused whole,
with the reason. What is taken moves an average by no more than a bound, whatever is in it:

    mean = Σ_i w_i · c_i · offer_i,   w_i = weight_i / Σ weights,   c_i = min(1, L / ‖offer_i‖)

over n peers with offers that are not zero, the norms taken over a whole group (the shared parameters; one expert). L is
the median m of the norms, or g·u if that is less: u is what was usual in the records before (`run.norms`) and g is
`sync.most_growth`. A weight is the peer's tokens, or s times the median of the tokens if that is less: s is
`sync.most_weight`. Let k of the n be hostile, offer whatever they like, and be less than half. Then:

- *what they put into the mean* has at most the norm W·L, with W = Σ w_i over the k: each c_i·‖offer_i‖ ≤ L;
- *L is an honest norm's size*: less than half of the norms are theirs, so the median lies between the smallest and the
  largest of the honest ones; and where they are half or more (one of two, say), L ≤ g·u still holds;
- *W ≤ k·s·t / (k·s·t + T)* with t the median of all tokens, T the weights of the others: by a claim of speed nobody
  weighs more than s ordinary peers. With equal honest tokens W ≤ k·s / (k·s + n − k);
- *against the mean h of the honest alone*, which clips to their own L_h:  ‖mean − h‖ ≤ 2·W·max(L, L_h) + |L − L_h|. For
  mean − h = Σ_hostile w·c·offer + Σ_honest w·(c − c_h)·offer − W·h. The first has at most the norm W·L; the last W·L_h;
  and |c − c_h|·‖offer‖ = |min(‖offer‖, L) − min(‖offer‖, L_h)| ≤ |L − L_h|.

Reducers compare an offer with the norm that it claims to a thousandth (`sync.reduce`), by which L is larger here.
Directions are free within this: a flipped sign, an old offer, noise. A *copy* does not count: of two contributions with
the same bytes in every shared block that one is refused which came later. One block may well be the same: what nobody's
text has a use for just decays.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spes_peer.blobs import BlobName
from spes_peer.identity import PeerId
from spes_peer.rounds.messages import Contribution, Offer
from spes_peer.run.layout import Layout
from spes_peer.run.norms import SHARED, Norms, group_of
from spes_peer.run.records import Record, RosterEntry

_LARGEST_NORM = 3.4e38  # above this fp32 holds nothing; so sums of norms stay finite
_LARGEST_LOSS = 1e6  # nats a token, of a model that knows nothing at all: so sums of losses stay finite
LARGEST_SPEED = 1e12  # tokens a second
_SMALLEST_CLIP = 1e-300  # a factor in a record must be above zero
_ROOT = re.compile("[0-9a-f]{64}")

Contributions = Mapping[PeerId, Contribution]


def fault_in_contribution(contribution: Contribution, entry: RosterEntry, record: Record, layout: Layout) -> str | None:
    """Why it cannot be what `entry` allows in the round that `record` opened; None if it can.

    Tokens must be those of the steps made, and no more steps than the round has, so they stay within the ranges.
    """
    manifest = layout.manifest
    steps, num_steps = contribution.steps, manifest.training.steps_per_round_at(record.step)
    if contribution.round != record.round:
        return f"it is for round {contribution.round}, and round {record.round} is open"
    if not 1 <= steps <= num_steps:
        return f"it claims {steps} steps of a round that has {num_steps}"
    tokens = entry.sequences_in(steps) * manifest.model.sequence_length
    if contribution.tokens != tokens:
        return f"it claims {contribution.tokens} tokens, and its {steps} steps have {tokens}"
    held_out_tokens = contribution.held_out_tokens
    numbers = (contribution.train_loss, contribution.held_out_loss_sum, contribution.tokens_per_second)
    if not all(math.isfinite(number) and number >= 0 for number in numbers) or held_out_tokens < 0:
        return "a loss or speed in it is negative or not finite"
    if max(contribution.train_loss, contribution.held_out_loss_sum / max(1, held_out_tokens)) > _LARGEST_LOSS:
        return f"a loss in it is more than {_LARGEST_LOSS:g} a token"
    if held_out_tokens > manifest.data.held_out.num_tokens:
        return f"it measured {held_out_tokens} held-out tokens of {manifest.data.held_out.num_tokens}"
    if contribution.tokens_per_second > LARGEST_SPEED:
        return f"its speed of {contribution.tokens_per_second:g} tokens/s is none"
    if not _ROOT.fullmatch(contribution.state_root):
        return "its state root is not a sha256"
    return _fault_in_offers(contribution.offers, entry, layout)


def _fault_in_offers(offers: Sequence[Offer], entry: RosterEntry, layout: Layout) -> str | None:
    expected = {block.id: layout.offer_bytes(block) for block in layout.blocks_offered_by(entry.subsets)}
    offered = Counter(offer.block for offer in offers)
    if twice := [block for block, count in offered.items() if count > 1]:
        return f"it offers {twice[0]} twice"
    if foreign := sorted(offered.keys() - expected.keys()):
        return f"it offers {foreign[0]}, which is not the sender's to train"
    if missing := sorted(expected.keys() - offered.keys()):
        return f"it lacks {missing[0]}"
    for offer in offers:
        if offer.size_bytes != expected[offer.block]:
            return f"its offer of {offer.block} has {offer.size_bytes} bytes instead of {expected[offer.block]}"
        if not 0 <= offer.norm <= _LARGEST_NORM:
            return f"the norm of its offer of {offer.block} is {offer.norm}"
    return None


def majority_root(contributions: Contributions) -> str:
    """The state root on which most tokens were trained; of equals the lower."""
    tokens: Counter[str] = Counter()
    for contribution in contributions.values():
        tokens[contribution.state_root] += contribution.tokens
    return min(tokens, key=lambda root: (-tokens[root], root))


def clip_factors(norms: Mapping[PeerId, float], limit: float = math.inf) -> dict[PeerId, float]:
    """min(1, L / own norm) for each peer, L the median or `limit`. Zero norms need no clip and do not count for it."""
    positive = [norm for norm in norms.values() if norm > 0]
    most = min(statistics.median(positive), limit) if positive else 0.0
    return {peer: max(min(1.0, most / norm), _SMALLEST_CLIP) if norm > 0 else 1.0 for peer, norm in norms.items()}


def clips_by_group(contributions: Contributions, layout: Layout, past: Norms) -> dict[tuple[str, PeerId], float]:
    """A factor for what each peer offers of each group, against all who offer of it and what records so far have had.

    While no record has moved an expert, its owner is held to what the experts of this round have in common.
    """
    parts: dict[str, dict[PeerId, list[float]]] = {}
    for peer, contribution in contributions.items():
        for offer in contribution.offers:
            parts.setdefault(group_of(offer.block), {}).setdefault(peer, []).append(offer.norm)
    norms = {group: {peer: math.hypot(*some) for peer, some in by_peer.items()} for group, by_peer in parts.items()}
    of_experts = [norm for group, peers in norms.items() if group != SHARED for norm in peers.values() if norm > 0]
    first = statistics.median(of_experts) if of_experts else math.inf
    growth = layout.manifest.sync.most_growth
    factors: dict[tuple[str, PeerId], float] = {}
    for group, by_peer in norms.items():
        usual = past.usual(group)
        if usual is None:
            usual = math.inf if group == SHARED else first
        factors |= {(group, peer): clip for peer, clip in clip_factors(by_peer, growth * usual).items()}
    return factors


def weights(tokens: Mapping[PeerId, int], most_weight: float) -> dict[PeerId, int]:
    """What each weighs in an average: its tokens, but at most so many times the median."""
    most = max(1, int(most_weight * statistics.median(tokens.values())))
    return {peer: min(count, most) for peer, count in tokens.items()}


def copied(contributions: Contributions) -> frozenset[PeerId]:
    """Whose shared parameters are, block by block, the very ones that somebody offered who comes before it."""
    seen: set[tuple[BlobName, ...]] = set()
    copies: set[PeerId] = set()
    for peer, contribution in contributions.items():
        offers = [offer for offer in contribution.offers if group_of(offer.block) == SHARED]
        made = tuple(offer.blob for offer in sorted(offers, key=lambda offer: offer.block))
        if made in seen and any(offer.norm > 0 for offer in offers):
            copies.add(peer)
        seen.add(made)
    return frozenset(copies)


@dataclass(frozen=True)
class Findings:
    """What the contributions to a round say of it, as the next record has it."""

    state_root: str
    held_out_loss: float
    train_loss: float


def findings_in(contributions: Iterable[Contribution]) -> Findings:
    """Losses over contributions that stand on one root: held-out by its tokens, training by trained tokens."""
    parts = tuple(contributions)
    held_out_tokens = sum(part.held_out_tokens for part in parts)
    tokens = sum(part.tokens for part in parts)
    return Findings(
        parts[0].state_root,
        math.fsum(part.held_out_loss_sum for part in parts) / held_out_tokens if held_out_tokens else -1.0,
        math.fsum(part.train_loss * (part.tokens / tokens) for part in parts),
    )
