"""A subset in plain sentences: what it is, who trains it, how much it was trained and is used."""

from spes_peer.wire.control_pb2 import SubsetStatus
from tui import figures
from tui.memory import View

_MOST_EXPERTS = 8


def explain(view: View, subset: SubsetStatus) -> list[str]:
    """Sentences, the first of which says which subset it is."""
    sentences = [_which(view, subset), _who(view, subset), *_changes(view, subset), _trained(view, subset)]
    return [*sentences, *_used(view, subset)]


def _which(view: View, subset: SubsetStatus) -> str:
    numbers = [str(expert) for expert in subset.experts[:_MOST_EXPERTS]]
    more = "…" if len(subset.experts) > _MOST_EXPERTS else ""
    noun = "expert" if len(subset.experts) == 1 else "experts"
    return f"Subset {subset.subset}: {noun} {', '.join(numbers)}{more} of every layer."


def _who(view: View, subset: SubsetStatus) -> str:
    others = [owner for owner in subset.owners if owner != view.status.peer_id]
    is_own = len(others) < len(subset.owners)
    if not subset.owners:
        return "Nobody trains it: it stands still until somebody claims it."
    if is_own and not others:
        return "You train it, and nobody else does."
    if is_own:
        return f"You train it together with {view.someone(others)}; what each learns is averaged by its tokens."
    if len(others) == 1:
        return f"{view.name(others[0])} trains it."
    return f"{view.someone(others)} train it together; what each learns is averaged by its tokens."


def _changes(view: View, subset: SubsetStatus) -> list[str]:
    """What is about to change."""
    sentences = []
    if len(subset.lapsing) == 1:
        lapsing = view.name(subset.lapsing[0])
        sentences.append(f"{lapsing} has not been heard of, and will lose it unless it comes back soon.")
    elif subset.lapsing:
        lapsing = view.someone(list(subset.lapsing))
        sentences.append(f"{lapsing} have not been heard of, and will lose it unless they come back soon.")
    claimants = [peer_id for peer_id in subset.claimants if peer_id not in subset.owners]
    if claimants:
        verb = "claims" if len(claimants) == 1 else "claim"
        sentences.append(f"{view.someone(claimants)} {verb} it, to train it from the next record on.")
    return sentences


def _trained(view: View, subset: SubsetStatus) -> str:
    if not subset.rounds_trained:
        return "It was never trained."
    return f"It was trained in {subset.rounds_trained:,} round{'s' if subset.rounds_trained != 1 else ''}."


def _used(view: View, subset: SubsetStatus) -> list[str]:
    if not 0 <= subset.router_share <= 1:
        return []
    even = figures.share(len(subset.experts), view.status.run.num_experts)
    against = f", where an even share is {figures.percent(even)}" if even else ""
    return [f"In your last round the router gave it {figures.percent(subset.router_share)} of its choices{against}."]
