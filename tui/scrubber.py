"""The line at the bottom of a recording: where in it we are, and the keys that move there."""

import bisect
from collections.abc import Callable

from textual import events
from textual.content import Content
from textual.widgets import Static

from tui import figures
from tui.chart import bar
from tui.feed import Player
from tui.look import BOLD, DIM, SELF, WARNING

STEP_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
"""Going back a round from this close to its beginning means the round before."""


class Scrubber(Static):
    """Draws a player and commands it. `changed` is called after each command, to draw at once."""

    def __init__(self, player: Player, changed: Callable[[], None]) -> None:
        super().__init__(id="scrubber", markup=False)
        self._player = player
        self._changed = changed
        self._bar_at = 0

    def show(self) -> None:
        player, width = self._player, self.content_size.width
        left = Content.assemble(
            ("▶ " if player.is_playing else "■ ", SELF if player.is_playing else WARNING),
            (figures.duration(player.position_seconds), BOLD),
            (f" of {figures.duration(player.duration_seconds)}  ", DIM),
        )
        right = f"  × {player.speed:g}"
        room = width - left.cell_length - len(right)
        self._bar_at = left.cell_length
        part = figures.share(player.position_seconds, player.duration_seconds)
        self.update(Content.assemble(left, bar(part, room, SELF), (right, DIM)), layout=False)

    def on_resize(self, _event: events.Resize) -> None:
        self.show()

    def on_click(self, event: events.Click) -> None:
        """A click in the bar goes there."""
        offset = event.get_content_offset(self)
        room = self.content_size.width - self._bar_at - len(f"  × {self._player.speed:g}")
        if offset is not None and room > 1 and 0 <= offset.x - self._bar_at < room:
            self._go(self._player.duration_seconds * (offset.x - self._bar_at) / (room - 1))

    def turn(self) -> None:
        """Play or pause; at the end, play again from the beginning."""
        player = self._player
        was_playing = player.is_playing
        if not was_playing and player.position_seconds >= player.duration_seconds:
            player.seek(0)
        player.play(not was_playing)
        self._told()

    def step(self, steps: int) -> None:
        self._go(self._player.position_seconds + steps * STEP_SECONDS)

    def step_rounds(self, rounds: int) -> None:
        """To the beginning of the next round, or of this one, or of the one before."""
        begins, position = self._player.round_seconds, self._player.position_seconds
        if rounds > 0:
            later = begins[bisect.bisect_right(begins, position) :]
            self._go(later[0] if later else self._player.duration_seconds)
        else:
            earlier = begins[: bisect.bisect_left(begins, position - _CLOSE_SECONDS)]
            self._go(earlier[-1] if earlier else 0.0)

    def to_begin(self) -> None:
        self._go(0)

    def to_end(self) -> None:
        self._go(self._player.duration_seconds)

    def change_speed(self, factor: float) -> None:
        self._player.set_speed(self._player.speed * factor)
        self._told()

    def _go(self, seconds: float) -> None:
        self._player.seek(seconds)
        self._told()

    def _told(self) -> None:
        self.show()
        self._changed()
