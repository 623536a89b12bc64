"""Bytes and times as one says them, for every part that tells a person of them, and as one types them."""

import argparse
import contextlib
import math
import re

_MINUTE, _DAY, _YEAR = 60, 86_400.0, 365.25 * 86_400.0
_LONGEST_YEARS = 1e9
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_MOST_BYTES = 10**18
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]I?|)B?", re.IGNORECASE)
LEAST, MOST = 1e-6, 1e12
"""Of whatever is typed as a number above zero: tokens a second, seconds, parts."""


def amount(size_bytes: float) -> str:
    """Bytes to three digits: 13.2 GB."""
    units = iter(("B", "kB", "MB", "GB", "TB", "PB", "EB"))
    unit = next(units)
    while size_bytes >= 999.5 and unit != "EB":
        size_bytes, unit = size_bytes / 1000, next(units)
    digits = 0 if unit == "B" or size_bytes >= 99.95 else 1 if size_bytes >= 9.995 else 2
    return f"{size_bytes:,.{digits}f} {unit}"


def duration(seconds: float) -> str:
    """As one would say it: 27 ms, 2.4 s, 48 s, 12 min, 3 h 20 min, 2.5 days, 12 years."""
    if not math.isfinite(seconds) or seconds > _LONGEST_YEARS * _YEAR:
        return "more than a billion years"
    if 0 < seconds < 0.095:
        return f"{max(1.0, 1000 * seconds):.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 or not seconds else f"{seconds:.1f} s"
    minutes = round(seconds / _MINUTE)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{seconds / _DAY:,.1f} days" if seconds < 3 * _YEAR else f"{seconds / _YEAR:,.0f} years"


def size(text: str) -> int:
    """Bytes: "24GB" is 24·10⁹, "24GiB" 24·2³⁰."""
    if (found := _SIZE.fullmatch(text.strip())) is None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a size such as 24GB or 16GiB")
    num_bytes = float(found[1]) * _UNITS[found[2].upper()]
    if num_bytes > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is beyond all measure")
    return int(num_bytes)


def above_zero(text: str) -> float:
    """A number of something that there is, within what one can reckon with."""
    with contextlib.suppress(ValueError):
        if LEAST <= float(text) <= MOST:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number from {LEAST:f} to 10^{math.log10(MOST):.0f}")
