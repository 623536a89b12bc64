"""Bars, out of characters. Values that are no numbers leave gaps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from tui.figures import brief, share
from tui.look import INK, LINE


def bar(fraction: float, width: int, colour: str) -> Content:
    """A thin progress bar, in half cells."""
    halves = round(share(fraction, 1) * width * 2) if width > 0 else 0
    done = "━" * (halves // 2) + "╸" * (halves % 2)
    return Content.assemble((done, colour), ("─" * max(0, width - len(done)), LINE))


@dataclass(frozen=True)
class Part:
    """A part of a whole."""

    name: str
    size: float
    colour: str


def stacked_bar(parts: Sequence[Part], width: int) -> Content:
    """Parts beside each other, each as wide as it is large, with its name where there is room for it."""
    known = [part for part in parts if math.isfinite(part.size) and part.size > 0]
    whole = sum(part.size for part in known)
    drawn: list[tuple[str, str]] = []
    begin, size = 0, 0.0
    for part in known:
        size += part.size
        end = min(width, round(share(size, whole) * width))
        cells = end - begin
        seconds = f"{part.name} {brief(part.size)}"
        word = next((word for word in (seconds, part.name) if len(word) + 2 <= cells), "")
        drawn.append((f" {word}".ljust(cells)[:cells], f"{INK} on {part.colour} 40%"))
        begin = end
    return Content.assemble(*drawn)
