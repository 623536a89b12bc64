"""What members contribute: whether it can be, what it weighs, and what it says of the state.

A contribution is hostile input: one that is not exactly what its roster entry lets its sender offer is refused whole,
with the reason.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spes_peer.identity import PeerId
from spes_peer.rounds.messages import Contribution, Offer
from spes_peer.run.layout import Layout
from spes_peer.run.records import Record, RosterEntry

_LARGEST_NORM = 3.4e38  # above this fp32 holds nothing; so sums of norms stay finite
_LARGEST_LOSS = 1e6  # nats a token, of a model that knows nothing at all: so sums of losses stay finite
LARGEST_SPEED = 1e12  # tokens a second
_SMALLEST_CLIP = 1e-12  # a factor in a record must be above zero
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


def clip_factors(norms: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """min(1, median / own norm) for each peer. Zero norms need no clip and do not count for the median."""
    positive = [norm for norm in norms.values() if norm > 0]
    median = statistics.median(positive) if positive else 0.0
    return {peer: max(min(1.0, median / norm), _SMALLEST_CLIP) if norm > 0 else 1.0 for peer, norm in norms.items()}


def clips_by_group(contributions: Contributions, layout: Layout) -> dict[tuple[int | None, PeerId], float]:
    """A factor for what each peer offers of the shared group (None) and of each expert, against all who offer of it.

    So an expert with one owner is never scaled, and one owner of several cannot outweigh the others.
    """
    norms: dict[int | None, dict[PeerId, list[float]]] = {}
    for peer, contribution in contributions.items():
        for offer in contribution.offers:
            norms.setdefault(layout.by_id[offer.block].expert, {}).setdefault(peer, []).append(offer.norm)
    return {
        (group, peer): factor
        for group, by_peer in norms.items()
        for peer, factor in clip_factors({peer: math.hypot(*parts) for peer, parts in by_peer.items()}).items()
    }


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
