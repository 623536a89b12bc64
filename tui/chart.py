"""Bars, sparklines and a line chart, out of characters. Values that are no numbers leave gaps."""

import itertools
import math
from collections.abc import Sequence

from textual.content import Content

from tui.figures import share
from tui.look import FAINT

_EIGHTHS = "▁▂▃▄▅▆▇█"
# the bit of each dot of a braille character: [row][column]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800

Series = tuple[Sequence[float], str]
"""Values from old to new, and their colour."""


def bar(fraction: float, width: int, colour: str) -> Content:
    """A thin progress bar, in half cells."""
    halves = round(share(fraction, 1) * width * 2) if width > 0 else 0
    done = "━" * (halves // 2) + "╸" * (halves % 2)
    return Content.assemble((done, colour), ("━" * max(0, width - len(done)), FAINT))


def sparkline(values: Sequence[float], width: int, colour: str) -> Content:
    """The newest values that fit, each a column from nought to the largest."""
    shown = list(values)[-width:] if width > 0 else []
    top = max((value for value in shown if math.isfinite(value)), default=0.0)
    columns = "".join(_eighth(value, top) for value in shown)
    return Content.styled(columns, colour)


def _eighth(value: float, top: float) -> str:
    if not math.isfinite(value):
        return " "
    return _EIGHTHS[round(7 * share(value, top))]


def line_chart(series: Sequence[Series], width: int, height: int) -> list[Content]:
    """`height` lines of braille: every series over the whole width on one scale, its ends written at the left.

    Where two series share a character the first one's colour shows.
    """
    finite = [value for values, _ in series for value in values if math.isfinite(value)]
    if not finite or height < 1:
        return [Content()] * max(0, height)
    low, high = min(finite), max(finite)
    labels = [f"{high:.2f}"[:6]] + [""] * (height - 2) + ([f"{low:.2f}"[:6]] if height > 1 else [])
    margin = max(len(label) for label in labels)
    plot_width = max(1, width - margin - 2)
    cells: dict[tuple[int, int], tuple[int, str]] = {}
    for values, colour in series:
        for x, y in _dots(values, low, high, plot_width * 2, height * 4):
            bits, first = cells.get((y // 4, x // 2), (0, colour))
            cells[y // 4, x // 2] = (bits | _DOTS[y % 4][x % 2], first)
    return [_line(label.rjust(margin), cells, row, plot_width) for row, label in enumerate(labels)]


def _line(label: str, cells: dict[tuple[int, int], tuple[int, str]], row: int, width: int) -> Content:
    parts: list[tuple[str, str]] = [(f"{label} ", FAINT), ("│", FAINT)]
    for column in range(width):
        bits, colour = cells.get((row, column), (0, ""))
        parts.append((chr(_BRAILLE | bits) if bits else " ", colour))
    return Content.assemble(*parts)


def _dots(values: Sequence[float], low: float, high: float, width: int, height: int) -> list[tuple[int, int]]:
    """(x, y) of a line through the values, y downwards, joined where neighbours are finite."""
    spread = high / 2 - low / 2 or 1.0  # halves, for the difference of two floats may be none

    def point(index: int) -> tuple[int, int]:
        x = round(index * (width - 1) / max(1, len(values) - 1))
        return x, round((high / 2 - values[index] / 2) / spread * (height - 1))

    known = [index for index, value in enumerate(values) if math.isfinite(value)]
    dots = [point(index) for index in known]
    for left, right in itertools.pairwise(known):
        if right == left + 1:
            dots += _between(point(left), point(right))
    return dots


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = start, end
    steps = max(abs(x1 - x0), abs(y1 - y0))
    return [(x0 + round((x1 - x0) * i / steps), y0 + round((y1 - y0) * i / steps)) for i in range(1, steps)]
