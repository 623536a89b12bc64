"""Line plots with axes, as text: plotext draws, in colours of the theme. Values that are no numbers leave gaps."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from textual.content import Content

from tui.look import DIM, LINE

MIN_WIDTH, MIN_HEIGHT = 24, 4
"""Below that a plot says nothing."""

_LARGEST = 1e15
_STEPS = (1.0, 2.0, 5.0)
_ROWS_OF_A_TICK = 2
_LETTERS = "kMGTPE"
_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
_TRUE_COLOUR = re.compile(r"38;2;(\d+);0;0")


@dataclass(frozen=True)
class Line:
    """Points from left to right and their colour."""

    xs: Sequence[float]
    ys: Sequence[float]
    colour: str

    @property
    def points(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in zip(self.xs, self.ys, strict=True) if _is_drawable(x) and _is_drawable(y)]

    @property
    def stretches(self) -> Iterator[list[tuple[float, float]]]:
        """Points between gaps."""
        pairs = zip(self.xs, self.ys, strict=True)
        for is_drawable, group in itertools.groupby(pairs, lambda point: all(map(_is_drawable, point))):
            if is_drawable:
                yield list(group)


def _is_drawable(value: float) -> bool:
    return abs(value) < _LARGEST  # false for nan


@dataclass(frozen=True)
class Axis:
    """How values of an axis are written, and what it shows at least."""

    write: Callable[[float], str]
    holds: tuple[float, ...] = ()
    """Values that are in it, whatever the points are."""
    is_whole: bool = False
    """Only whole numbers are written."""
    min_span: float = 0.0


def plot(lines: Sequence[Line], width: int, height: int, x: Axis, y: Axis) -> Content:
    """`height` lines of at most `width` cells; an empty text where there is no room, or nothing to draw.

    Lines are drawn in their order, so that the last one lies on top.
    """
    points = [point for line in lines for point in line.points]
    if width < MIN_WIDTH or height < MIN_HEIGHT or not points:
        return Content()
    import plotext  # 30 ms, so not before something is drawn

    low_x, high_x = _span([px for px, _ in points], x)
    low_y, high_y = _span([py for _, py in points], y)
    plotext.clear_figure()
    plotext.limit_size(False, False)  # else it looks at the terminal
    plotext.plotsize(width, height)
    plotext.canvas_color("default")
    plotext.axes_color("default")
    plotext.ticks_color((0, 0, 0))
    plotext.xaxes(True, False)
    plotext.yaxes(True, False)
    plotext.xlim(low_x, high_x)
    plotext.ylim(low_y, high_y)
    y_ticks = _ticks(low_y, high_y, max(2, (height - 2) // _ROWS_OF_A_TICK), y.is_whole)
    plotext.yticks(y_ticks, [_short(y.write(tick)) for tick in y_ticks])
    widest = max(len(x.write(low_x)), len(x.write(high_x)))
    x_ticks = _ticks(low_x, high_x, max(2, min(7, width // (4 * max(3, widest)))), x.is_whole)
    plotext.xticks(x_ticks, [x.write(tick) for tick in x_ticks])
    for number, line in enumerate(lines, start=1):
        for stretch in line.stretches:
            xs, ys = zip(*stretch, strict=True)
            plotext.plot(xs, ys, marker="braille", color=(number, 0, 0))
    return _content(plotext.build(), [DIM, *(line.colour for line in lines)], height)


def _span(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """What an axis shows: a little more where all values are the same."""
    low, high = min([*values, *axis.holds]), max([*values, *axis.holds])
    missing = max(axis.min_span, 1e-3 * max(abs(low), abs(high))) - (high - low)
    if low == high == 0:
        return 0.0, max(1.0, axis.min_span)
    if missing <= 0:
        return low, high
    return (low, high + missing) if low == 0 or axis.is_whole else (low - missing / 2, high + missing / 2)


def _ticks(low: float, high: float, most: int, is_whole: bool) -> list[float]:
    """At most `most` round numbers within, or the lower end where there is none."""
    size = math.floor(math.log10(high - low)) - 2
    for power, factor in itertools.product(range(size, size + 5), _STEPS):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
        if last - first < most and (step >= 1 or not is_whole):
            return [number * step for number in range(first, last + 1)] or [low]
    return [low]


def _short(figure: str) -> str:
    """4.50k as 4.5k, and 4.00k as 4k."""
    number = figure.rstrip(_LETTERS)
    return (number.rstrip("0").rstrip(".") if "." in number else number) + figure[len(number) :]


def _content(drawn: str, colours: Sequence[str], height: int) -> Content:
    """plotext's text with our colours: it was given a number of one as the red part."""
    lines = []
    for line in drawn.rstrip("\n").split("\n")[:height]:
        parts: list[tuple[str, str]] = []
        colour = LINE
        for number, piece in enumerate(_ESCAPE.split(line)):
            if number % 2:
                known = _TRUE_COLOUR.search(piece)
                colour = colours[int(known.group(1))] if known else LINE
            elif piece:
                parts.append((piece, colour))
        lines.append(Content.assemble(*parts).rstrip())
    return Content("\n").join(lines)
