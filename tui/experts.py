"""Who trains which experts: a row for every subset, or a field of chips when there are many."""

from collections import Counter
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content

from spes_peer.wire.control_pb2 import SubsetStatus
from tui.look import CHIP_INK, CHIP_UNOWNED, DIM, FAINT, SELF, WARNING
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel

_NAME_ROOM = 20
_EXPERTS_IN_A_ROW = 16


class ExpertsPage(Page):
    NAME = "Experts"
    MEANING = "who trains which experts"

    def compose(self) -> ComposeResult:
        yield ExpertsPanel()


class ExpertsPanel(Panel):
    TITLE = "experts and their owners"

    def draw(self, view: View, width: int, height: int) -> Drawing:
        subsets = view.status.subsets
        if not subsets:
            return Drawing(Content.styled("the assignment of experts comes with the run", DIM))
        owned = sum(bool(subset.owners) for subset in subsets)
        rows_fit = len(subsets) <= height and _rows_width(subsets) + _NAME_ROOM <= width
        body = _rows(view, height) if rows_fit else _field(view, width)
        return Drawing(body, subtitle=f"{owned} of {len(subsets)} subsets owned")


def _rows_width(subsets: Sequence[SubsetStatus]) -> int:
    widest = max(min(len(subset.experts), _EXPERTS_IN_A_ROW) for subset in subsets)
    return 4 + widest * (_digits(subsets) + 3)


def _digits(subsets: Sequence[SubsetStatus]) -> int:
    return len(str(max((expert for subset in subsets for expert in subset.experts), default=0)))


def _chip(view: View, subset: SubsetStatus, text: str) -> tuple[str, str]:
    if not subset.owners:
        return (f" {text} ", CHIP_UNOWNED)
    is_own = view.status.peer_id in subset.owners
    colour = SELF if is_own else view.colour(subset.owners[0])
    return (f" {text} ", f"{CHIP_INK} on {colour}" + (" bold" if is_own else ""))


def _rows(view: View, height: int) -> Content:
    subsets = view.status.subsets
    digits = _digits(subsets)
    owners_width = max(_owners(view, subset).cell_length for subset in subsets)
    lines = [_row(view, subset, digits, owners_width) for subset in subsets]
    is_airy = 2 * len(lines) - 1 <= height
    return Content("\n\n" if is_airy else "\n").join(lines)


def _row(view: View, subset: SubsetStatus, digits: int, owners_width: int) -> Content:
    is_own = view.status.peer_id in subset.owners
    parts: list[str | Content | tuple[str, str]] = [("▸ " if is_own else "  ", SELF)]
    for expert in subset.experts[:_EXPERTS_IN_A_ROW]:
        parts += [_chip(view, subset, str(expert).rjust(digits)), " "]
    if len(subset.experts) > _EXPERTS_IN_A_ROW:
        parts.append(("… ", DIM))
    owners = _owners(view, subset)
    parts += [" ", owners.pad_right(max(0, owners_width - owners.cell_length)), "  ", _news(view, subset)]
    return Content.assemble(*parts)


def _news(view: View, subset: SubsetStatus) -> Content:
    """Who wants the subset, or how much it was trained."""
    claimants = [peer_id for peer_id in subset.claimants if peer_id not in subset.owners]
    if claimants:
        return Content.styled(f"claimed by {view.someone(claimants, 1)}", WARNING)
    plural = "s" if subset.rounds_trained != 1 else ""
    return Content.styled(f"{subset.rounds_trained} round{plural}" if subset.rounds_trained else "untrained", FAINT)


def _owners(view: View, subset: SubsetStatus) -> Content:
    if not subset.owners:
        return Content.styled("nobody", DIM)
    names = [_owner(view, owner) for owner in subset.owners[:3]]
    rest = len(subset.owners) - len(names)
    return Content.assemble(Content(", ").join(names), (f" and {rest} more" if rest else "", DIM))


def _owner(view: View, owner: str) -> Content:
    if owner == view.status.peer_id:
        return Content.styled(f"{view.name(owner)} (you)", f"bold {SELF}")
    return Content.styled(view.name(owner), view.colour(owner))


def _field(view: View, width: int) -> Content:
    """All experts as chips, and how many each owner has."""
    digits = _digits(view.status.subsets)
    chips = sorted((expert, subset.subset, subset) for subset in view.status.subsets for expert in subset.experts)
    across = max(1, width // (digits + 3))
    parts: list[str | tuple[str, str]] = []
    for number, (expert, _, subset) in enumerate(chips, start=1):
        parts += [_chip(view, subset, str(expert).rjust(digits)), "\n" if number % across == 0 else " "]
    return Content.assemble(*parts, "\n", _legend(view, [subset for _, _, subset in chips], width))


def _legend(view: View, subset_of_each_expert: Sequence[SubsetStatus], width: int) -> Content:
    """Owners and how many experts each has: this peer first, the unowned last."""
    counts = Counter(subset.owners[0] if subset.owners else "" for subset in subset_of_each_expert)
    lines = [Content()]
    for owner, number in sorted(counts.items(), key=lambda item: (item[0] == "", item[0] != view.status.peer_id)):
        name = _owner(view, owner) if owner else Content.styled("nobody", DIM)
        entry = Content.assemble(("■ ", view.colour(owner) if owner else FAINT), name, (f" {number}   ", DIM))
        if lines[-1].cell_length + entry.cell_length > width:
            lines.append(Content())
        lines[-1] += entry
    return Content("\n").join(lines)
