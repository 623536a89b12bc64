"""The frame that all panels share: a title, a heading that stays, a body that scrolls, redrawn only when it differs."""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tui.memory import View


@dataclass(frozen=True)
class Drawing:
    """What a panel shows."""

    body: Content
    heading: Content | None = None
    subtitle: str = ""
    """Figures only: it is markup."""

    @property
    def num_lines(self) -> tuple[bool, int]:
        """Whether there is a heading, and the lines of the body; what needs a new layout when it changes."""
        return self.heading is not None, self.body.plain.count("\n")

    def differs_from(self, other: "Drawing | None") -> bool:
        # contents compare by their text alone
        return other is None or _marks(self) != _marks(other)


def _marks(drawing: Drawing) -> tuple[object, ...]:
    heading = drawing.heading or Content()
    return (drawing.body.plain, drawing.body.spans, heading.plain, heading.spans, drawing.subtitle)


class Panel(Vertical):
    """A widget family's base: a subclass says only how a view is drawn."""

    TITLE: ClassVar[str] = ""
    TAKES_FOCUS: ClassVar[bool] = True
    """Whether its body is scrolled by keys; of a panel that never is longer than its room it need not be."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = self.TITLE
        self._view: View | None = None
        self._drawn: Drawing | None = None

    def compose(self) -> ComposeResult:
        yield Static(classes="heading", markup=False)
        with VerticalScroll(classes="body", can_focus=self.TAKES_FOCUS):
            yield Static(classes="content", markup=False)

    def draw(self, view: View, width: int, height: int) -> Drawing:
        """The view in `width` × `height` cells; a longer body scrolls."""
        raise NotImplementedError

    @property
    def body(self) -> VerticalScroll:
        return self.query_one(".body", VerticalScroll)

    def show(self, view: View) -> None:
        """Draw the view, unless the screen shows the same already."""
        self._view = view
        if not self.is_on_screen:
            return
        drawing = self.draw(view, max(1, self.content_size.width - 1), max(1, self.content_size.height))
        if drawing.differs_from(self._drawn):
            is_same_size = self._drawn is not None and self._drawn.num_lines == drawing.num_lines
            self._drawn = drawing
            self._put(drawing, is_same_size)

    @property
    def is_on_screen(self) -> bool:
        return self.content_size.area > 0

    def on_resize(self, _event: events.Resize) -> None:
        if self._view is not None:
            self.show(self._view)

    def _put(self, drawing: Drawing, is_same_size: bool) -> None:
        heading = self.query_one(".heading", Static)
        heading.display = drawing.heading is not None
        heading.update(drawing.heading or "", layout=not is_same_size)
        self.query_one(".content", Static).update(drawing.body, layout=not is_same_size)
        self.border_subtitle = drawing.subtitle
