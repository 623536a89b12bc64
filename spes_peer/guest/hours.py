"""Hours of the day in which a machine is lent: "22:00-08:00", several with commas between.

They are those of the clock on the wall: nothing here counts hours of a day, so the two days a year that have 23 or 25
of them need no care.
"""

import datetime
import re
from dataclasses import dataclass

_RANGE = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*[-–]\s*(\d{1,2})(?::(\d{2}))?")
_DAY_MINUTES = 24 * 60
_MINUTE_SECONDS = 60
_FARTHEST_MINUTES = 50 * 60  # two days: on the one of them an hour may be skipped, on the other it comes
_LATER_SECONDS = 3600.0  # when to ask again should it not come even so


@dataclass(frozen=True)
class Span:
    """From one minute of the day up to another, over midnight where that comes first; never the whole day."""

    start: int
    end: int

    def has(self, minute: int) -> bool:
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return f"{_clock(self.start)}-{_clock(self.end)}"


@dataclass(frozen=True)
class Hours:
    """Times of each day."""

    spans: tuple[Span, ...]

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """`ValueError` says what is wrong with `text`."""
        return cls(tuple(_span(part.strip()) for part in text.split(",")))

    def include(self, at: float, zone: datetime.tzinfo | None = None) -> bool:
        """Whether it is within these hours `at`, in Unix seconds; in this machine's time zone unless in another."""
        return self._have(datetime.datetime.fromtimestamp(at, zone))

    def next_at(self, at: float, zone: datetime.tzinfo | None = None) -> float:
        """When they begin next, in Unix seconds; `at` itself within them."""
        if self.include(at, zone):
            return at
        full_minute = at - at % _MINUTE_SECONDS  # of every time zone in use
        for minutes in range(1, _FARTHEST_MINUTES):
            moment = full_minute + minutes * _MINUTE_SECONDS
            if self.include(moment, zone):
                return moment
        return at + _LATER_SECONDS

    def _have(self, local: datetime.datetime) -> bool:
        minute = local.hour * 60 + local.minute
        return any(span.has(minute) for span in self.spans)

    def __str__(self) -> str:
        return ",".join(map(str, self.spans))


def clock_at(at: float, zone: datetime.tzinfo | None = None) -> str:
    """Unix seconds as a clock on the wall shows them."""
    return datetime.datetime.fromtimestamp(at, zone).strftime("%H:%M")


def day_of(at: float, zone: datetime.tzinfo | None = None) -> str:
    """The day, as 2026-11-30."""
    return datetime.datetime.fromtimestamp(at, zone).date().isoformat()


def midnight_after(at: float, zone: datetime.tzinfo | None = None) -> float:
    """When the next day begins, in Unix seconds."""
    tomorrow = datetime.datetime.fromtimestamp(at, zone).date() + datetime.timedelta(days=1)
    return datetime.datetime.combine(tomorrow, datetime.time(), zone).timestamp()


def _span(text: str) -> Span:
    if (found := _RANGE.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not hours such as 22:00-08:00")
    start, end = (_minute(found[hour], found[hour + 1], text) for hour in (1, 3))
    if start % _DAY_MINUTES == end % _DAY_MINUTES:
        raise ValueError(f"{text!r} begins when it ends; leave it out to lend the whole day")
    return Span(start % _DAY_MINUTES, end)


def _minute(hour: str, minute: str | None, text: str) -> int:
    value = int(hour) * 60 + int(minute or 0)
    if int(minute or 0) > 59 or value > _DAY_MINUTES:
        raise ValueError(f"{text!r}: there is no {hour}:{minute or '00'} on a clock")
    return value


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
