"""What lies over a screen until it is dismissed."""

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

Result = TypeVar("Result")


class Over(ModalScreen[Result]):
    """A second key that would dismiss it, pressed before it is gone, does nothing: Textual (8.2.8) raises."""

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_current else AwaitComplete()
