"""Tables that fit: the least important columns go first when there is no room."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from tui.look import DIM

_GAP = 2


@dataclass(frozen=True)
class Column:
    """One column. Those with the highest `rank` are dropped first; rank 0 never is."""

    title: str
    cells: Sequence[Content]
    rank: int = 0
    is_right: bool = False

    @functools.cached_property
    def width(self) -> int:
        return max([len(self.title), *(cell.cell_length for cell in self.cells)])

    def line(self, cell: Content) -> Content:
        room = self.width - cell.cell_length
        return cell.pad_left(room) if self.is_right else cell.pad_right(room)


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that have room in `width`, in their order."""
    kept = list(columns)
    while sum(column.width + _GAP for column in kept) - _GAP > width:
        worst = max(kept, key=lambda column: column.rank)
        if worst.rank == 0:
            break
        kept.remove(worst)
    return kept


def table(columns: Sequence[Column], width: int) -> tuple[Content, Content]:
    """The heading line and the rows."""
    kept = fitting(columns, width)
    gap = Content(" " * _GAP)
    heading = gap.join([column.line(Content.styled(column.title, DIM)) for column in kept])
    rows = [gap.join([column.line(column.cells[i]) for column in kept]) for i in range(len(kept[0].cells))]
    return heading, Content("\n").join(rows)
