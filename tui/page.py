"""The frame that all six screens share: a widget that draws a view, shown alone between tabs and footer."""

from typing import ClassVar

from textual.containers import Vertical
from textual.widget import Widget

from tui.memory import View
from tui.panel import Panel


class Page(Vertical):
    """One of the six screens. One made of panels says only which; others say what `show` does and where keys go.

    A page's own keys are its `BINDINGS`: they work while the focus is in it, and stand in the footer.
    """

    NAME: ClassVar[str] = ""
    """One capitalized word, for the tabs; in lower case it is the widget's id."""
    MEANING: ClassVar[str] = ""
    """What it answers, for help and the palette."""

    def __init__(self) -> None:
        super().__init__(id=self.NAME.lower(), classes="page")

    def show(self, view: View) -> None:
        """Draw the view. Called at most four times a second, and only while the page is the one on the screen."""
        for panel in self.query(Panel):
            panel.show(view)

    @property
    def first(self) -> Widget:
        """What gets the focus when the page is opened."""
        return self.query(Panel).first().body
