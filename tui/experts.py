"""Who trains which experts: a row for every subset, or a field of cells when there are many; a cursor explains one."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from spes_peer.wire.control_pb2 import SubsetStatus
from tui import figures
from tui.chart import bar
from tui.explaining import explain
from tui.look import BOLD, CHIP_INK, CHIP_UNOWNED, DIM, SELF, WARNING
from tui.memory import View
from tui.page import Page
from tui.panel import Drawing, Panel
from tui.table import Column, table

_EXPERTS_IN_A_ROW = 12
_SHORTEST_BAR, _LONGEST_BAR = 10, 24
_ROWS_WIDTH = 64
_LEGEND_LINES = 5
_MAPS = ("owners", "rounds trained", "used by the router")
"""What the colours of a field mean."""


class ExpertsPage(Page):
    NAME = "Experts"
    MEANING = "who trains which experts, and how much they are used"

    def compose(self) -> ComposeResult:
        yield ExpertsPanel()
        yield Explanation()

    def show(self, view: View) -> None:
        super().show(view)
        panel = self.query_one(ExpertsPanel)
        self.query_one(Explanation).show(view, panel.cursor)

    @property
    def first(self) -> Widget:
        return self.query_one(ExpertsPanel)


class Explanation(Static):
    """Some sentences about the subset under the cursor."""

    def __init__(self) -> None:
        super().__init__(id="explanation", markup=False)

    def show(self, view: View, cursor: int) -> None:
        subsets = view.status.subsets
        if not 0 <= cursor < len(subsets):
            self.update("")
            return
        first, *rest = explain(view, subsets[cursor])
        self.border_title = f"subset {subsets[cursor].subset}"
        self.update(Content.assemble((f"{first} ", BOLD), " ".join(rest)))


class ExpertsPanel(Panel, can_focus=True):
    TITLE = "who trains which experts"
    TAKES_FOCUS = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(0, -1)", "explain", key_display="↑↓"),
        Binding("down", "move(0, 1)", show=False),
        Binding("left,left_square_bracket", "move(-1, 0)", show=False),
        Binding("right,right_square_bracket", "move(1, 0)", show=False),
        Binding("pageup", "move(0, -8)", show=False),
        Binding("pagedown", "move(0, 8)", show=False),
        Binding("home", "go(0)", show=False),
        Binding("end", "go(-1)", show=False),
        Binding("m", "change_map", "map"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.cursor = 0
        self._map = _MAPS[0]
        self._across = 1  # cells in a row of the field; 1 for rows
        self._airy = 1  # lines a row takes

    def draw(self, view: View, width: int, height: int) -> Drawing:
        subsets = view.status.subsets
        if not subsets:
            return Drawing(Content.styled("the assignment of experts comes with the run", DIM))
        self.cursor = min(self.cursor, len(subsets) - 1)
        owned = sum(bool(subset.owners) for subset in subsets)
        subtitle = f"{owned} of {len(subsets)} subsets have an owner"
        if len(subsets) + 1 <= height and width >= _ROWS_WIDTH:
            self._across, self._airy = 1, 2 if 2 * len(subsets) <= height - 1 else 1
            heading, body = table(_columns(view, width), width - 2)
            rows = [_with_cursor(row, n == self.cursor, width) for n, row in enumerate(body.split("\n"))]
            return Drawing(Content("\n" * self._airy).join(rows), Content("  ") + heading, subtitle)
        digits = len(str(max(subset.subset for subset in subsets)))
        self._across, self._airy = _arranged(len(subsets), (width + 1) // (digits + 3), height)
        lines = _field(view, self.cursor, self._across, digits, self._map)
        body = Content("\n" * self._airy).join(lines)
        return Drawing(Content("\n").join([body, *_meaning(view, self._map, width)]), None, subtitle)

    def action_move(self, by_cells: int, by_rows: int) -> None:
        self.action_go(max(0, self.cursor + by_cells + by_rows * self._across))

    def action_go(self, cursor: int) -> None:
        if self._view is None or not (number := len(self._view.status.subsets)):
            return
        self.cursor = min(cursor, number - 1) if cursor >= 0 else number - 1
        self._show_again()

    def action_change_map(self) -> None:
        self._map = _MAPS[(_MAPS.index(self._map) + 1) % len(_MAPS)]
        self._show_again()

    def _show_again(self) -> None:
        if self._view is None or not isinstance(self.parent, ExpertsPage):
            return
        self.parent.show(self._view)
        line = self.cursor // self._across * self._airy
        top, height = round(self.body.scroll_y), self.body.size.height
        if not top <= line < top + height:
            self.body.scroll_to(y=line - height // 2, animate=False)

    def on_click(self, event: events.Click) -> None:
        """A click on a row or a cell moves the cursor there."""
        content = self.query_one(".content", Static)
        offset = event.screen_offset - content.region.offset
        if self._view is None or not content.region.contains_point(event.screen_offset):
            return
        number = len(self._view.status.subsets)
        across = offset.x // self._cell_width if self._across > 1 else 0
        clicked = offset.y // self._airy * self._across + min(across, self._across - 1)
        if 0 <= clicked < number:
            self.action_go(clicked)

    @property
    def _cell_width(self) -> int:
        subsets = self._view.status.subsets if self._view is not None else []
        return len(str(max((subset.subset for subset in subsets), default=0))) + 3


def _with_cursor(row: Content, is_here: bool, width: int) -> Content:
    if not is_here:
        return Content.assemble("  ", row)
    line = Content.assemble(("▸ ", f"bold {SELF}"), row)
    return line.pad_right(max(0, width - line.cell_length)).stylize_before("on $panel")


def _columns(view: View, width: int) -> list[Column]:
    cells = min(_LONGEST_BAR, max(_SHORTEST_BAR, width // 6))
    subsets = list(view.status.subsets)
    most = max((subset.rounds_trained for subset in subsets), default=0)
    columns = [
        Column("experts", [_chips(view, subset) for subset in subsets]),
        Column("owners", [_owners(view, subset) for subset in subsets]),
        Column("", [_news(view, subset) for subset in subsets], rank=1),
        Column(
            "rounds trained",
            [_measured(subset.rounds_trained, most, figures.count(subset.rounds_trained), cells) for subset in subsets],
            rank=3,
        ),
        Column("used by the router", [_router_share(subset, subsets, cells) for subset in subsets], rank=2),
    ]
    return [column for column in columns if any(column.cells)]


def _chips(view: View, subset: SubsetStatus) -> Content:
    digits = len(str(max(view.status.run.num_experts - 1, *subset.experts, 0)))
    shown = subset.experts[:_EXPERTS_IN_A_ROW]
    parts: list[str | tuple[str, str]] = []
    for expert in shown:
        parts += [(f" {str(expert).rjust(digits)} ", _cell_style(view, subset)), " "]
    return Content.assemble(*parts, ("…" if len(subset.experts) > len(shown) else "", DIM))


def _cell_style(view: View, subset: SubsetStatus) -> str:
    if not subset.owners:
        return CHIP_UNOWNED
    if view.status.peer_id in subset.owners:
        return f"bold {CHIP_INK} on {SELF}"
    return f"{CHIP_INK} on {view.colour(subset.owners[0])}"


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


def _news(view: View, subset: SubsetStatus) -> Content:
    """What is about to change."""
    claimants = [peer_id for peer_id in subset.claimants if peer_id not in subset.owners]
    if subset.lapsing:
        return Content.styled(f"{view.someone(list(subset.lapsing), 1)} lapsing", WARNING)
    if claimants:
        return Content.styled(f"claimed by {view.someone(claimants, 1)}", WARNING)
    return Content.styled("frozen" if not subset.owners else "", DIM)


def _measured(value: float, most: float, words: str, cells: int) -> Content:
    return Content.assemble(bar(figures.share(value, most), cells, SELF), f"  {words}")


def _router_share(subset: SubsetStatus, subsets: Sequence[SubsetStatus], cells: int) -> Content:
    if not 0 <= subset.router_share <= 1:
        return Content.styled("not known yet", DIM)
    most = max((other.router_share for other in subsets if 0 <= other.router_share <= 1), default=0.0)
    return _measured(subset.router_share, most, figures.percent(subset.router_share), cells)


# many subsets


def _arranged(num_cells: int, most_across: int, height: int) -> tuple[int, int]:
    """Cells of a row, a power of two where all rows fit so, and the lines a row takes."""
    across = max(1, most_across)
    even = 2 ** (across.bit_length() - 1)
    room = height - _LEGEND_LINES
    if even < num_cells <= even * room:
        across = even
    num_rows = -(-num_cells // across)
    return across, 2 if 2 * num_rows <= room else 1


def _field(view: View, cursor: int, across: int, digits: int, what: str) -> list[Content]:
    """All subsets as cells."""
    subsets = list(view.status.subsets)
    cells = [
        _cell(view, subset, digits, n == cursor, _field_style(view, subset, subsets, what))
        for n, subset in enumerate(subsets)
    ]
    return [Content(" ").join(cells[begin : begin + across]) for begin in range(0, len(cells), across)]


def _meaning(view: View, what: str, width: int) -> list[Content]:
    """What the colours and the marks of cells mean."""
    is_owners = what == _MAPS[0]
    legend = _legend(view, view.status.subsets, width) if is_owners else [Content.styled("the stronger the more", DIM)]
    marks = Content.styled("● yours  + several owners  ! lapsing  · nobody's", DIM)
    head = Content.assemble(("colours: ", DIM), (what, BOLD))
    return [Content(), head, *legend, marks.truncate(width, ellipsis=True)]


def _cell(view: View, subset: SubsetStatus, digits: int, is_here: bool, style: str) -> Content:
    first = "●" if view.status.peer_id in subset.owners else " "
    last = "!" if subset.lapsing else "·" if not subset.owners else "+" if len(subset.owners) > 1 else " "
    cell = Content.styled(f"{first}{str(subset.subset).rjust(digits)}{last}", style)
    return cell.stylize("reverse") if is_here else cell


def _field_style(view: View, subset: SubsetStatus, subsets: Sequence[SubsetStatus], what: str) -> str:
    if what == _MAPS[0]:
        return _cell_style(view, subset)
    values = [one.rounds_trained if what == _MAPS[1] else max(0.0, one.router_share) for one in subsets]
    value = subset.rounds_trained if what == _MAPS[1] else max(0.0, subset.router_share)
    return f"on $own {round(5 + 65 * figures.share(value, max(values)))}%"


def _legend(view: View, subsets: Sequence[SubsetStatus], width: int) -> list[Content]:
    """Owners and how many subsets each has: this peer first, the unowned last."""
    counts = Counter(subset.owners[0] if subset.owners else "" for subset in subsets)
    lines = [Content()]
    for owner, number in sorted(counts.items(), key=lambda item: (item[0] == "", item[0] != view.status.peer_id)):
        name = _owner(view, owner) if owner else Content.styled("nobody", DIM)
        entry = Content.assemble(("■ ", view.colour(owner) if owner else DIM), name, (f" {number}   ", DIM))
        if lines[-1].cell_length + entry.cell_length > width:
            lines.append(Content())
        lines[-1] += entry
    return lines
