"""A long text that scrolls: only the rows on the screen are drawn. It follows its end until somebody scrolls up."""

import bisect
from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual


class Lines(ScrollView, can_focus=True):
    """Lines that wrap, each with a key by which it is known again."""

    def __init__(self) -> None:
        super().__init__(classes="lines")
        self._keys: Sequence[object] = ()
        self._lines: Sequence[Content] = ()
        self._rows: list[Content] = []
        self._begins: list[int] = []  # the row with which each line begins
        self._follows = True

    @property
    def follows(self) -> bool:
        """Whether it stays at its end."""
        return self._follows

    def follow(self, follows: bool) -> None:
        self._follows = follows
        self._keep_place(None)

    def put(self, keys: Sequence[object], lines: Sequence[Content]) -> None:
        """Show these lines; what was at the top of the screen stays there when it is still among them."""
        top = self._top_key()
        self._keys, self._lines = keys, lines
        self._wrap()
        self._keep_place(top)
        self.refresh()

    def go_to(self, number: int) -> None:
        """Have a line in the middle of the screen."""
        self._follows = False
        self.scroll_to(y=self._begins[number] - self.size.height // 2, animate=False)

    def render_line(self, y: int) -> Strip:
        row = round(self.scroll_y) + y
        width = self.scrollable_content_region.width
        if not 0 <= row < len(self._rows) or width < 1:
            return Strip.blank(max(0, self.size.width), self.rich_style)
        strips = Visual.to_strips(self, self._rows[row], width, 1, self.visual_style)
        return strips[0].adjust_cell_length(self.size.width, self.rich_style) if strips else Strip.blank(width)

    def on_resize(self, _event: events.Resize) -> None:
        top = self._top_key()
        self._wrap()
        self._keep_place(top)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Up is a person's doing, down to the end takes it back."""
        super().watch_scroll_y(old_value, new_value)
        is_at_end = new_value >= self.max_scroll_y
        self._follows = is_at_end if new_value < old_value else self._follows or is_at_end

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        self._rows, self._begins = [], []
        for line in self._lines:
            self._begins.append(len(self._rows))
            self._rows += line.wrap(width) if width > 0 and line.cell_length > width else [line]
        self.virtual_size = Size(width, len(self._rows))

    def _top_key(self) -> object:
        return self._keys[self._line_at(round(self.scroll_y))] if self._keys else None

    def _line_at(self, row: int) -> int:
        return max(0, bisect.bisect_right(self._begins, row) - 1)

    def _keep_place(self, top: object) -> None:
        if self._follows:
            self._scroll_to_end()
            self.call_after_refresh(self._scroll_to_end)  # its size may be of before it was shown
        elif top is not None and top in self._keys:
            follows = self._follows
            self.scroll_to(y=self._begins[self._keys.index(top)], animate=False, immediate=True)
            self._follows = follows

    def _scroll_to_end(self) -> None:
        if self._follows:
            self.scroll_end(animate=False, immediate=True)
