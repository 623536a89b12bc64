"""Lines for people: as wide as their terminal, and numbers as one says them."""

import shutil
import textwrap

_WIDEST, _NARROWEST = 120, 40


def width() -> int:
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def folded(label: str, text: str, label_width: int) -> str:
    """`text` beside its label, and below itself where it is longer than the line; below the label where that is too
    long."""
    indent = " " * (label_width + 2)
    wrapper = textwrap.TextWrapper(width(), indent, indent, break_long_words=False, break_on_hyphens=False)
    lines = wrapper.wrap(text) or [indent]
    if len(label) <= label_width:
        lines[0] = f"{label:<{label_width}}  {lines[0].lstrip()}"
        return "\n".join(lines).rstrip()
    return "\n".join((label, *lines)).rstrip()


def wrapped(text: str) -> str:
    """A paragraph."""
    return textwrap.fill(text, width(), break_long_words=False, break_on_hyphens=False)


def number(value: float) -> str:
    """As one would say it: 1,430; 262 million; 1.17 billion; 102 billion; 1.05 trillion."""
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {word}" if value < 999.5 * size else f"{value / size:,.0f} {word}"
    return f"{value:,.0f}"


def count(value: int, what: str) -> str:
    return f"{value:,} {what}{'' if value == 1 else 's'}"


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.095 or not part else f"{part:.1%}"
