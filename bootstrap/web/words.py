"""Figures in words, short enough for a phone."""

from datetime import UTC, datetime

from spes_peer import measures

_GAP = "\u00a0"  # a number stays beside its unit
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def count(number: float | None) -> str:
    """`1234567` as `1.23 M`: three digits, with the letters that papers use for tokens."""
    return "–" if number is None else _scaled(number, _SCALES, "")


def size(num_bytes: float) -> str:
    return _scaled(num_bytes, _SIZES, f"{_GAP}bytes")


def _scaled(number: float, scales: tuple[tuple[float, str], ...], unit: str) -> str:
    for scale, letter in scales:
        if number >= 0.9995 * scale:
            scaled = number / scale
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{_GAP}{letter}"
    return f"{number:.0f}{unit}"


def loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def share(part: float) -> str:
    return f"<{_GAP}0.1{_GAP}%" if 0 < part < 0.001 else f"{100 * part:.1f}{_GAP}%"


def duration(seconds: float | None) -> str:
    return "–" if seconds is None else measures.duration(seconds).replace(" ", _GAP)


def moment(at: float) -> str:
    """For people; times on the page are UTC."""
    return _at(at).strftime("%d %b %H:%M")


def iso(at: float) -> str:
    return _at(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def _at(at: float) -> datetime:
    """Records of volunteers say it, and may say anything."""
    return datetime.fromtimestamp(min(max(at, 0.0), 4e9), UTC)


def several(number: int, one: str, many: str = "") -> str:
    """`3 rounds`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
