"""A round as a bar of its parts: what this daemon did in it, one after the other. Equal lengths are equal times."""

import math
from collections.abc import Iterable, Sequence

from textual.content import Content

from spes_peer.wire.control_pb2 import RoundPart
from tui import figures
from tui.chart import Part
from tui.look import DIM, PARTS, safe

_GLYPHS = {"apply": "▃", "train": "▆", "encode": "▃", "exchange": "▄", "wait": "▂"}
"""For those who see no colours: the more a machine works in a part, the higher it is."""
_OTHER = "▂"
_MOST_PARTS = 64


def seconds_of(parts: Iterable[RoundPart]) -> float:
    """Of all parts together."""
    return sum(_seconds(part) for part in parts)


def _seconds(part: RoundPart) -> float:
    return part.seconds if math.isfinite(part.seconds) and part.seconds > 0 else 0.0


def parts_bar(parts: Sequence[RoundPart], whole_seconds: float, width: int) -> Content:
    """`whole_seconds` would fill `width` cells; what is longer is cut and says so by its end."""
    pieces: list[tuple[str, str]] = []
    begin, end = 0, 0.0
    for part in parts[:_MOST_PARTS]:
        end += figures.share(_seconds(part), whole_seconds) * width
        cells = min(width, round(end)) - begin
        pieces.append((_GLYPHS.get(part.name, _OTHER) * cells, PARTS.get(part.name, DIM)))
        begin += cells
    if seconds_of(parts) > whole_seconds and width > 0 and begin >= width:
        return Content.assemble(*pieces)[: width - 1] + Content.styled("▸", DIM)
    return Content.assemble(*pieces)


def of_a_whole(parts: Sequence[RoundPart]) -> list[Part]:
    """The parts for a bar that is as long as there is room, with their names in it."""
    return [Part(safe(part.name, 12), _seconds(part), PARTS.get(part.name, DIM)) for part in parts[:_MOST_PARTS]]


def legend() -> Content:
    """What the colours mean."""
    shown = ((2 * _GLYPHS.get(name, _OTHER), name, colour) for name, colour in PARTS.items())
    return Content("  ").join([Content.assemble((glyphs, colour), " ", (name, DIM)) for glyphs, name, colour in shown])


def in_words(parts: Sequence[RoundPart], width: int) -> list[Content]:
    """Each part with its time, in as many lines as they need."""
    lines = [Content()]
    for part in parts[:_MOST_PARTS]:
        word = Content.assemble((safe(part.name, 12), PARTS.get(part.name, DIM)), f" {figures.brief(part.seconds)}")
        gap = "   " if lines[-1] else ""
        if lines[-1].cell_length + len(gap) + word.cell_length > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = Content.assemble(lines[-1], gap, word)
    return lines
