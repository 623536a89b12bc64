"""A list with a cursor and a heading that stays, of which only the lines on the screen are ever drawn: thousands of
rows cost as much as forty. Columns that do not fit are left out, the least important first."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.look import BOLD, DIM, SELF

Item = TypeVar("Item")

_GUTTER = 2
_WIDE = 100
_HEADING_FROM_HEIGHT = 3
_CURSOR_CELLS = "on $own 14%"


@dataclass(frozen=True)
class Field(Generic[Item]):
    """One column. Those of the highest `rank` are dropped first; rank 0 never is."""

    title: str
    width: int
    draw: Callable[[Item, int], Content]
    """A cell for an item, given the width that the column got."""
    rank: int = 0
    most: int = 0
    """What it grows to where there is room."""
    is_right: bool = False

    def cell(self, item: Item, width: int) -> Content:
        return self._placed(self.draw(item, width), width)

    def heading(self, width: int, mark: str) -> Content:
        return self._placed(Content.styled(self.title + mark, f"{DIM} {BOLD}" if mark else DIM), width)

    def _placed(self, content: Content, width: int) -> Content:
        cut = content.truncate(width, ellipsis=True)
        room = width - cut.cell_length
        return cut.pad_left(room) if self.is_right else cut.pad_right(room)


def laid_out(fields: Sequence[Field[Item]], width: int, gap: int) -> list[tuple[Field[Item], int]]:
    """The fields that have room in `width`, in their order, each with the cells it gets; what is left is shared out by
    how much each wants to grow."""
    if not fields:
        return []  # before the first status
    kept = list(fields)
    while (left := width - sum(field.width + gap for field in kept) + gap) < 0:
        worst = max(kept, key=lambda field: field.rank)
        if worst.rank == 0:
            break
        kept.remove(worst)
    wants = [max(0, field.most - field.width) for field in kept]
    share = min(1.0, max(0, left) / max(1, sum(wants)))
    return [(field, field.width + int(share * want)) for field, want in zip(kept, wants, strict=True)]


class Rows(ScrollView, Generic[Item], can_focus=True, inherit_bindings=False):
    """Shows what `put` gave it last. The cursor stays on its item wherever that goes; at the top it stays at the top
    when `follows_top`."""

    DEFAULT_CSS = "Rows { overflow-x: hidden; height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", show=False),
        Binding("down,j", "step(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "go(0)", show=False),
        Binding("end", "go(-1)", show=False),
    ]

    class Moved(Message):
        """The cursor is on another item."""

    class Opened(Message):
        """A double click on the item under the cursor."""

    class HeadingClicked(Message):
        def __init__(self, title: str) -> None:
            super().__init__()
            self.title = title

    def __init__(self, id: str | None = None, *, follows_top: bool = False) -> None:
        super().__init__(id=id, classes="body")
        self._follows_top = follows_top
        self._fields: Sequence[Field[Item]] = ()
        self._items: Sequence[Item] = ()
        self._keys: Sequence[Hashable] = ()
        self._marks: dict[str, str] = {}
        self._instead = Content()
        self._index = 0
        self._shown: dict[int, object] = {}  # what each line of the screen shows

    @property
    def current(self) -> Item | None:
        """The item under the cursor."""
        return self._items[self._index] if self._items else None

    @property
    def num_items(self) -> int:
        return len(self._items)

    @property
    def index(self) -> int:
        """The row of the cursor."""
        return self._index

    def put(
        self,
        fields: Sequence[Field[Item]],
        items: Sequence[Item],
        keys: Sequence[Hashable],
        *,
        marks: dict[str, str] | None = None,
        instead: Content | None = None,
    ) -> None:
        """Show `items`, each known by its key, or `instead` where there are none; `marks` are written behind the titles
        of columns."""
        before, key = self._index, self._keys[self._index] if self._keys else None
        was_in_sight = self._is_in_sight()
        self._fields, self._items, self._keys, self._marks = fields, items, keys, marks or {}
        self._instead = instead or Content()
        self._index = self._place_of(key)
        self._measure()
        if was_in_sight and (moved := self._index - before):
            self.scroll_to(y=max(0, round(self.scroll_y) + moved), animate=False)
        if was_in_sight:
            self._bring_in_sight()
        self._refresh_changed()

    def _place_of(self, key: Hashable) -> int:
        if self._follows_top and self._index == 0:
            return 0
        try:
            return self._keys.index(key)
        except ValueError:
            return max(0, min(self._index, len(self._keys) - 1))

    # drawing

    @property
    def _width(self) -> int:
        """Beside the scrollbar."""
        return self.scrollable_content_region.width

    @property
    def _heading_lines(self) -> int:
        return 1 if self.size.height >= _HEADING_FROM_HEIGHT else 0

    @property
    def _window(self) -> int:
        """Rows that fit."""
        return max(1, self.size.height - self._heading_lines)

    @property
    def gap(self) -> int:
        return 2 if self.size.width >= _WIDE else 1

    def _measure(self) -> None:
        self.virtual_size = Size(self._width, len(self._items) + self._heading_lines)

    def _layout(self) -> list[tuple[Field[Item], int]]:
        return laid_out(self._fields, self._width - _GUTTER, self.gap)

    def render_line(self, y: int) -> Strip:
        line = self._line(y, self._layout())
        self._shown[y] = _marks_of(line)
        strip = Strip(line.render_segments(self.visual_style))
        return strip.adjust_cell_length(self._width, self.rich_style)

    def _line(self, y: int, layout: Sequence[tuple[Field[Item], int]]) -> Content:
        if not self._items:
            lines = self._instead.wrap(max(1, self._width)) if self._instead else []
            return lines[y] if y < len(lines) else Content()
        gap = Content(" " * self.gap)
        if y < self._heading_lines:
            cells = [field.heading(width, self._marks.get(field.title, "")) for field, width in layout]
            return Content.assemble(" " * _GUTTER, gap.join(cells))
        index = round(self.scroll_y) + y - self._heading_lines
        if not 0 <= index < len(self._items):
            return Content()
        row = gap.join([field.cell(self._items[index], width) for field, width in layout])
        if index != self._index:
            return Content.assemble(" " * _GUTTER, row)
        line = Content.assemble(("▸ ", f"{BOLD} {SELF}" if self.has_focus else DIM), row)
        return line.pad_right(max(0, self._width - line.cell_length)).stylize_before(_CURSOR_CELLS)

    def _refresh_changed(self) -> None:
        """Send those lines anew that show something else; a slow line to a terminal is thankful for the others."""
        layout = self._layout()
        for y in range(self.size.height):
            if _marks_of(self._line(y, layout)) != self._shown.get(y):
                self.refresh(Region(0, y, self._width, 1))

    def on_resize(self, _event: events.Resize) -> None:
        self._shown.clear()
        self._measure()
        self._bring_in_sight()

    def on_focus(self) -> None:
        self._refresh_changed()

    def on_blur(self) -> None:
        self._refresh_changed()

    # the cursor

    def _is_in_sight(self) -> bool:
        top = round(self.scroll_y)
        return top <= self._index < top + self._window

    def _bring_in_sight(self) -> None:
        if not self.size.height:
            return  # it is not on the screen; when it comes back it has its size again
        top = round(self.scroll_y)
        wanted = min(max(top, self._index - self._window + 1), self._index)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False)

    def go(self, index: int) -> None:
        """Put the cursor on a row; beyond the ends means the last one."""
        index = max(0, min(index, len(self._items) - 1))
        has_moved = index != self._index
        self._index = index
        self._bring_in_sight()
        self._refresh_changed()
        if has_moved:
            self.post_message(self.Moved())

    def action_step(self, by: int) -> None:
        self.go(self._index + by)

    def action_page(self, by: int) -> None:
        self.go(self._index + by * max(1, self._window - 1))

    def action_go(self, index: int) -> None:
        self.go(index if index >= 0 else len(self._items) - 1)

    def on_click(self, event: events.Click) -> None:
        if event.y < self._heading_lines and self._items:
            self._click_heading(event.x - _GUTTER)
            return
        index = round(self.scroll_y) + event.y - self._heading_lines
        if index < len(self._items):
            self.go(index)
            if event.chain == 2:
                self.post_message(self.Opened())

    def _click_heading(self, x: int) -> None:
        for field, width in self._layout():
            if 0 <= x < width:
                self.post_message(self.HeadingClicked(field.title))
            x -= width + self.gap


def _marks_of(line: Content) -> tuple[object, ...]:
    return line.plain, tuple(line.spans)  # contents compare by their text alone
