"""How numbers are written. Every function takes whatever a daemon may send: nan, infinities, nought and negatives."""

import math
import time
from collections.abc import Iterable

NONE = "–"
_DAY_SECONDS = 86_400
_MOST_SECONDS = 1000 * _DAY_SECONDS
_UNITS = ("", "k", "M", "G", "T", "P", "E")


def loss(value: float) -> str:
    """Nats with three decimals; a negative loss means that it is not known yet."""
    return f"{value:.3f}" if 0 <= value < 1e4 else NONE


def count(value: float) -> str:
    """1234567 as 1.23M."""
    return _scaled(value)


def size(num_bytes: float, digits: int = 3) -> str:
    """Bytes: 1.21M."""
    return _scaled(num_bytes, digits)


def share(part: float, whole: float) -> float:
    """part/whole between 0 and 1, and 0 where there is no such thing."""
    fraction = part / whole if whole else 0.0
    return min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0


def ratio(part: float, whole: float) -> float:
    """part/whole, and nan where there is no such thing."""
    try:
        quotient = part / whole
    except (ZeroDivisionError, OverflowError):
        return math.nan
    return quotient if math.isfinite(quotient) and quotient >= 0 else math.nan


def percent(part: float) -> str:
    """A share of 1: 31 %, 0.4 %."""
    if not 0 <= part <= 10:
        return NONE
    return f"{100 * part:.0f} %" if part >= 0.0995 or part == 0 else f"{100 * part:.1f} %"


def brief(seconds: float) -> str:
    """A length of time: 23 ms, 0.8 s, 38 s, 12:34."""
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if 0 <= seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return duration(seconds) if seconds > 0 else NONE


def hours(seconds: float) -> str:
    """How much time that is for a person: 12 minutes, 3.2 hours."""
    if not math.isfinite(seconds) or not 0 <= seconds < 1e12:
        return NONE
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return f"{seconds / 3600:,.1f} hours" if seconds < 360_000 else f"{seconds / 3600:,.0f} hours"


def duration(seconds: float) -> str:
    """0:07, 12:34, 1:02:03, 4d 05h."""
    if not math.isfinite(seconds) or abs(seconds) > _MOST_SECONDS:
        return NONE
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // _DAY_SECONDS
    if days:
        return f"{days}d {hours % 24:02}h"
    if hours:
        return f"{hours}:{minutes % 60:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"


def rate(bytes_per_second: float) -> str:
    """12.3 MB/s; a dash where there is none."""
    written = _scaled(bytes_per_second)
    if written == NONE:
        return NONE
    digits = written.rstrip("".join(_UNITS))
    return f"{digits} {written[len(digits) :]}B/s"


def since(at: float, now: float) -> str:
    """How long ago a moment was, or nothing for the moment 0."""
    return duration(now - at) if at > 0 else ""


def ranges(numbers: Iterable[int]) -> str:
    """0-3,7,9: numbers as short as they can be said."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def clock(at: float) -> str:
    """The local time of day."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "--:--:--"


def _scaled(value: float, digits: int = 3) -> str:
    if not math.isfinite(value) or value < 0:
        return NONE
    step = 0
    while value >= 999.5 and step < len(_UNITS) - 1:
        value, step = value / 1000, step + 1
    if value >= 999.5:
        return f"{value:.0e}{_UNITS[step]}"
    whole_digits = 1 if value < 9.995 else 2 if value < 99.95 else 3
    return f"{value:.{max(0, digits - whole_digits) if step else 0}f}{_UNITS[step]}"
