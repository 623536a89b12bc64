"""The screen in ASCII, for terminals whose locale has nothing else: every other character becomes one that it has."""

import functools
import os
import unicodedata
from collections.abc import Mapping

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_BRAILLE = range(0x2800, 0x2900)
_ALIKE = {
    **dict.fromkeys("━═╸╺", "="),
    **dict.fromkeys("─╌┄┈╴╶", "-"),
    **dict.fromkeys("│┃║┆┊▏▎▍▌▐▕▊▉", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛╔╗╚╝", "+"),
    **dict.fromkeys("█▇▆▅▓", "#"),
    **dict.fromkeys("▄▃▒░", "="),
    **dict.fromkeys("▂▁▔▀", "_"),
    **dict.fromkeys("●■★◆", "*"),
    **dict.fromkeys("○□·•∙", "."),
    **dict.fromkeys("▸▶→", ">"),
    **dict.fromkeys("◂◀←", "<"),
    **dict.fromkeys("▲↑", "^"),
    **dict.fromkeys("▼↓", "v"),
    "–": "-", "—": "-", "…": "~", "×": "x", "°": " ", "⇧": "^", "’": "'", "“": '"', "”": '"',
}  # fmt: skip


def is_needed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the locale is of a terminal that shows nothing but ASCII.

    Python itself sets LC_CTYPE=C.UTF-8 where LANG is C, so that says nothing; nor does a locale that nobody set.
    """
    locale = environment.get("LC_ALL") or ""
    if not locale and (kind := environment.get("LC_CTYPE", "")) != "C.UTF-8":
        locale = kind
    locale = (locale or environment.get("LANG", "")).upper()
    return locale in ("C", "POSIX") or ("." in locale and "UTF" not in locale)


class Plain(LineFilter):
    """Takes the place of all that is not ASCII as the last thing before the terminal, cell for cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(plain(segment.text), segment.style, segment.control)
            for segment in segments
        ]


@functools.lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """The text in as many cells, of ASCII alone."""
    return "".join(character if character.isascii() else _alike(character) for character in text)


def _alike(character: str) -> str:
    if ord(character) in _BRAILLE:
        return "." if character == "⠀" else "*"
    cells = cell_len(character)
    known = _ALIKE.get(character) or unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return (known or "?" * cells)[:cells].ljust(cells, "?")
