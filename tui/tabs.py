"""The names of the six screens in one line, with the one that is open marked; a click opens another."""

from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from tui.look import CHIP_INK, DIM, FAINT, SELF


class Tabs(Static):
    """Names shrink to the open one's where there is no room."""

    class Chosen(Message):
        """Somebody clicked on a tab."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(id="tabs", markup=False)
        self._names = tuple(names)
        self._open = self._names[0]
        self._ends: list[tuple[int, str]] = []

    def open(self, name: str) -> None:
        self._open = name
        self._draw()

    def on_resize(self, _event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        labels = [(f" {number} ", f"{name} ") for number, name in enumerate(self._names, start=1)]
        if sum(len(number) + len(name) for number, name in labels) > self.content_size.width:
            labels = [(number, name if name.strip() == self._open else "") for number, name in labels]
        parts: list[tuple[str, str]] = []
        end = 0
        self._ends = []
        for (number, word), name in zip(labels, self._names, strict=True):
            is_open = name == self._open
            parts += [(number, f"bold {CHIP_INK} on {SELF}" if is_open else FAINT)]
            parts += [(word, f"bold {CHIP_INK} on {SELF}" if is_open else DIM)]
            end += len(number) + len(word)
            self._ends.append((end, name))
        self.update(Content.assemble(*parts), layout=False)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        for end, name in self._ends:
            if offset is not None and offset.x < end:
                self.post_message(self.Chosen(name))
                return
