"""What a machine's owner asks of a guest, and from that and what the machine is doing: the reasons to rest.

A pure function of rules, facts and what was decided before. Nothing flaps: what makes it rest must be so for some
seconds, and be over for longer, and from "too hot" to "cool again" it is some degrees. What is not known is no reason.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spes_peer.guest.hours import Hours, clock_at, midnight_after

COOLER_BY = 10.0
"""Degrees Celsius below the limit at which it goes on."""
GPU_USE = 0.2
"""Of a GPU's time: what other programs use of it before they are made room for …"""
GPU_BYTES = 2 << 30
"""… or of its memory. A desktop and its browser take less."""
_REST_AFTER_SECONDS = {"gpu": 10.0, "heat": 5.0}
"""For so long it must be so before a rule makes it rest; the others at once."""
_GO_ON_AFTER_SECONDS = {"battery": 15.0, "gpu": 60.0, "heat": 15.0}
"""For so long it must be over."""


@dataclass(frozen=True)
class GuestRules:
    """What the owner has chosen."""

    hours: Hours | None = None
    """In which the machine is lent; None for always."""
    works_on_battery: bool = False
    yields_gpu: bool = False
    """To other programs."""
    max_temperature: float = 0.0
    """Degrees Celsius; 0 sets no limit."""
    max_upload_per_day: int = 0
    """Bytes, like `max_download_per_day`; 0 sets no limit."""
    max_download_per_day: int = 0

    @property
    def counts_traffic(self) -> bool:
        return bool(self.max_upload_per_day or self.max_download_per_day)


@dataclass(frozen=True)
class Facts:
    """What the machine is doing; None is not known."""

    at: float
    """Unix seconds."""
    passed: float
    """Seconds by a clock that nobody sets."""
    is_on_battery: bool | None = None
    temperature: float | None = None
    """Degrees Celsius, of what trains."""
    gpu_use_of_others: float | None = None
    """Of all its time."""
    gpu_bytes_of_others: int | None = None
    sent_today_bytes: int = 0
    received_today_bytes: int = 0


@dataclass(frozen=True)
class Reason:
    """Why to rest."""

    rule: str
    """"owner", "hours", "battery", "gpu", "heat", "upload" or "download"."""
    why: str
    """In words, with what ends it."""
    until_at: float = 0.0
    """Unix seconds at which it ends; 0 where that depends."""
    at_once: bool = False
    """Not at the end of the round, but after the step that is under way."""
    frees_device: bool = False
    """What the device holds must go, whatever the round still asks for."""
    ends_serving: bool = False
    """Others get no more blobs from here, once the round under way is over."""


BY_OWNER = Reason("owner", "paused by its owner; resume with: spes-peer resume")


@dataclass(frozen=True)
class Judged:
    """What was decided, and what may change it."""

    reasons: tuple[Reason, ...] = ()
    turning: Mapping[str, float] = field(default_factory=dict)
    """By rule, when facts began to say otherwise than the decision, as `Facts.passed`."""


def judge(rules: GuestRules, facts: Facts, before: Judged, zone: datetime.tzinfo | None = None) -> Judged:
    """Decide again. A reason keeps its words for as long as it stands."""
    standing = {reason.rule: reason for reason in before.reasons}
    reasons, turning = [], {}
    for rule, says, reason in _views(rules, facts, zone):
        rests = rule in standing
        if says is not None and says != rests:
            since = min(before.turning.get(rule, facts.passed), facts.passed)
            needed = (_GO_ON_AFTER_SECONDS if rests else _REST_AFTER_SECONDS).get(rule, 0.0)
            if facts.passed - since >= needed:
                rests = says
            else:
                turning[rule] = since
        if rests:
            reasons.append(standing.get(rule, reason))
    return Judged(tuple(reasons), turning)


_View = tuple[str, bool | None, Reason]


def _views(rules: GuestRules, facts: Facts, zone: datetime.tzinfo | None) -> Iterator[_View]:
    """Of each rule whether facts say to rest (True), to go on (False) or neither, and the reason it would be."""
    yield from _hours(rules, facts, zone)
    yield _battery(rules, facts)
    yield _gpu(rules, facts)
    yield _heat(rules, facts)
    midnight = midnight_after(facts.at, zone)
    yield _allowance("upload", rules.max_upload_per_day, facts.sent_today_bytes, midnight)
    yield _allowance("download", rules.max_download_per_day, facts.received_today_bytes, midnight)


def _hours(rules: GuestRules, facts: Facts, zone: datetime.tzinfo | None) -> Iterator[_View]:
    if rules.hours is None:
        return
    opens_at = rules.hours.next_at(facts.at, zone)
    shown = str(rules.hours).replace("-", "–").replace(",", ", ")
    why = f"outside {shown}, goes on at {clock_at(opens_at, zone)}"
    yield "hours", not rules.hours.include(facts.at, zone), Reason("hours", why, opens_at)


def _battery(rules: GuestRules, facts: Facts) -> _View:
    says = bool(facts.is_on_battery) and not rules.works_on_battery
    return "battery", says, Reason("battery", "on battery, goes on when it is plugged in", at_once=True)


def _gpu(rules: GuestRules, facts: Facts) -> _View:
    says = (facts.gpu_use_of_others or 0.0) >= GPU_USE or (facts.gpu_bytes_of_others or 0) >= GPU_BYTES
    quiet_seconds = _GO_ON_AFTER_SECONDS["gpu"]
    why = f"another program uses the GPU, goes on when it has left it alone for {quiet_seconds:.0f} s"
    return "gpu", rules.yields_gpu and says, Reason("gpu", why, at_once=True, frees_device=True)


def _heat(rules: GuestRules, facts: Facts) -> _View:
    limit, now = rules.max_temperature, facts.temperature
    cool = limit - COOLER_BY
    why = f"{now or 0.0:.0f} °C, too hot for its limit of {limit:.0f} °C, goes on at {cool:.0f} °C"
    reason = Reason("heat", why, at_once=True)
    if not limit or now is None:
        return "heat", False, reason
    return "heat", True if now > limit else False if now <= cool else None, reason


def _allowance(rule: str, limit: int, used: int, midnight: float) -> _View:
    shown = f"{limit / 1e9:g} GB" if limit >= 1e9 else f"{limit / 1e6:g} MB"
    why = f"the {shown} of {rule} a day are used up, goes on at midnight"
    return rule, bool(limit) and used >= limit, Reason(rule, why, midnight, ends_serving=rule == "upload")


def in_words(reasons: Sequence[Reason]) -> str:
    """All of them."""
    return "; ".join(reason.why for reason in reasons)


def until_at(reasons: Sequence[Reason]) -> float:
    """When the last of them ends; 0 where that depends."""
    return max((reason.until_at for reason in reasons), default=0.0) if all(r.until_at for r in reasons) else 0.0
