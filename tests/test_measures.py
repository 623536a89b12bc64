"""Bytes and times are said in few letters, however many there are."""

import math

from spes_peer.measures import amount, duration

YEAR = 365.25 * 86_400


def test_amounts_and_durations_are_short() -> None:
    assert [amount(n) for n in (0, 999, 1000, 18_300, 999_600, 29.33e9, 2e12, 3e15, 2e21)] == [
        "0 B", "999 B", "1.00 kB", "18.3 kB", "1.00 MB", "29.3 GB", "2.00 TB", "3.00 PB", "2,000 EB",
    ]  # fmt: skip
    times = (0, 0.0269, 2.43, 48.2, 99.6, 3570, 3600, 5290, 259_200, 1000 * 86_400, 12 * YEAR)
    assert [duration(n) for n in times] == [
        "0 s", "27 ms", "2.4 s", "48 s", "2 min", "1 h 00 min", "1 h 00 min", "1 h 28 min", "3.0 days", "1,000.0 days",
        "12 years",
    ]  # fmt: skip


def test_no_time_is_too_long_to_be_said() -> None:
    for seconds in (1e17, 1e308, math.inf, math.nan):
        assert duration(seconds) == "more than a billion years"
