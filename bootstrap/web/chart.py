"""The loss curves as SVG: no script, colours by class, text large enough on a phone.

One drawing is made for narrow screens and one for wide ones, because text in a picture shrinks with it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bootstrap.web.view import Point
from bootstrap.web.words import count, loss, several

_MOST_POINTS = 300  # of one curve: more is not seen
_EARLY_PART = 0.05  # of a long run: its steep beginning may leave the picture, so that the rest is seen
_LONG_RUN_POINTS = 60


@dataclass(frozen=True)
class Size:
    """In units of the drawing, which are pixels where it is not scaled."""

    name: str
    width: int
    height: int
    num_ticks: int


SIZES = (Size("wide", 860, 300, 6), Size("narrow", 344, 250, 3))
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 12, 44


def drawings(training: Sequence[Point], held_out: Sequence[Point]) -> list[str]:
    """One SVG for each of `SIZES`; none where there is nothing to draw yet."""
    if not training and not held_out:
        return []
    return ["".join(_drawing(size, training, held_out)) for size in SIZES]


def summary(training: Sequence[Point], held_out: Sequence[Point]) -> str:
    """What the curves show, for those who do not see them."""
    said = []
    for name, points in (("Held-out loss", held_out), ("Training loss", training)):
        if points:
            first, last = points[0], points[-1]
            over = several(last.round - first.round, "round")
            said.append(f"{name} went from {loss(first.loss)} to {loss(last.loss)} nats per token over {over}.")
    return " ".join(said)


def cut_words(training: Sequence[Point], held_out: Sequence[Point]) -> str:
    """What is not in the picture; empty if nothing."""
    points = (*training, *held_out)
    if not points:
        return ""
    high = _frame(SIZES[0], training, held_out).high
    is_cut = any(point.loss > high for point in points)
    return f"Losses above {high:g}, of the beginning, are not drawn." if is_cut else ""


@dataclass(frozen=True)
class _Frame:
    """From tokens and losses to places."""

    size: Size
    most_tokens: int
    low: float
    high: float

    def x(self, tokens: float) -> float:
        return _LEFT + tokens / self.most_tokens * (self.size.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        height = self.size.height - _TOP - _BOTTOM
        return _TOP + (self.high - value) / (self.high - self.low) * height

    @property
    def floor(self) -> float:
        return self.size.height - _BOTTOM


def _drawing(size: Size, training: Sequence[Point], held_out: Sequence[Point]) -> Iterator[str]:
    frame = _frame(size, training, held_out)
    words = escape(summary(training, held_out))
    yield f'<svg class="curve {size.name}" viewBox="0 0 {size.width} {size.height}" role="img" aria-label="{words}">'
    yield from _grid(frame)
    yield from _axis(frame, training, held_out)
    inside = f'x="{_LEFT - 4}" y="{_TOP - 4}" width="{size.width - _LEFT}" height="{size.height - _TOP - _BOTTOM + 8}"'
    yield f'<clipPath id="inside-{size.name}"><rect {inside}/></clipPath><g clip-path="url(#inside-{size.name})">'
    for name, points in (("training", training), ("held-out", held_out)):
        yield _curve(frame, name, points)
    yield "</g></svg>"


def _frame(size: Size, training: Sequence[Point], held_out: Sequence[Point]) -> _Frame:
    points = (*training, *held_out)
    late = points
    if max(len(training), len(held_out)) > _LONG_RUN_POINTS:
        last = max(point.tokens for point in points)
        late = tuple(point for point in points if point.tokens >= _EARLY_PART * last)
    step = _nice(max(max(p.loss for p in late) - min(p.loss for p in late), 0.02) / 5)
    low = math.floor(min(point.loss for point in late) / step) * step
    high = math.ceil(max(point.loss for point in late) / step) * step
    return _Frame(size, max(1, *(point.tokens for point in points)), low, high if high > low else low + step)


def _nice(value: float) -> float:
    """1, 2 or 5 times a power of ten, not below `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= 0.999999 * value)


def _grid(frame: _Frame) -> Iterator[str]:
    step = _nice((frame.high - frame.low) / 5)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    right = frame.size.width - _RIGHT
    for number in range(math.ceil(frame.low / step - 1e-6), math.floor(frame.high / step + 1e-6) + 1):
        y = frame.y(number * step)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{number * step:.{digits}f}</text>'


def _axis(frame: _Frame, training: Sequence[Point], held_out: Sequence[Point]) -> Iterator[str]:
    """Tokens, and the round that was closed with so many."""
    rounds = sorted({point.tokens: point.round for point in (*training, *held_out)}.items())
    y, last = frame.floor, ""
    for number in range(frame.size.num_ticks + 1):
        tokens = frame.most_tokens * number / frame.size.num_ticks
        x = frame.x(tokens)
        anchor = "start" if not number else "end" if number == frame.size.num_ticks else "middle"
        near = min(rounds, key=lambda one: abs(one[0] - tokens))[1]
        shown = f"round {near}" if near or not number else ""
        yield f'<path class="grid" d="M{x:.1f} {y:.1f}v4"/>'
        yield f'<text class="tick" text-anchor="{anchor}" x="{x:.1f}" y="{y + 18:.1f}">{count(tokens)}</text>'
        if shown != last:
            yield f'<text class="tick" text-anchor="{anchor}" x="{x:.1f}" y="{y + 34:.1f}">{shown}</text>'
        last = shown


def _curve(frame: _Frame, name: str, points: Sequence[Point]) -> str:
    places = [(frame.x(point.tokens), frame.y(point.loss)) for point in _thinned(points)]
    if len(places) == 1:
        return f'<circle class="{name} dot" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3"/>'
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return f'<path class="{name}" d="M{path}"/>' if places else ""


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Means of neighbours, so many that none is drawn over another; the first and the last stay."""
    if len(points) <= _MOST_POINTS:
        return points
    width = len(points) / _MOST_POINTS
    groups = [points[round(i * width) : round((i + 1) * width)] for i in range(_MOST_POINTS)]
    means = [
        Point(group[-1].round, sum(p.tokens for p in group) // len(group), sum(p.loss for p in group) / len(group))
        for group in groups
    ]
    return (points[0], *means, points[-1])
