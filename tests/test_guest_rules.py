"""When a guest rests and when it goes on: hours, battery, others on the GPU, heat, the day's traffic."""

import dataclasses
import datetime
from collections.abc import Iterable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from spes_peer.guest.allowance import Today
from spes_peer.guest.hours import Hours, day_of, midnight_after
from spes_peer.guest.rules import BY_OWNER, Facts, GuestRules, Judged, Reason, in_words, judge, until_at

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, fold: int = 0) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def facts(second: float = 0.0, **changes: object) -> Facts:
    return dataclasses.replace(Facts(at("2026-11-30 12:00") + second, second), **changes)


def course(rules: GuestRules, course: Iterable[Facts]) -> list[tuple[str, ...]]:
    """By which rules it rests, after each look."""
    judged, seen = Judged(), []
    for one in course:
        judged = judge(rules, one, judged, BERLIN)
        seen.append(tuple(reason.rule for reason in judged.reasons))
    return seen


@pytest.mark.parametrize(
    ("hours", "moment", "is_within"),
    [
        ("22:00-08:00", "2026-11-30 21:59:59", False),
        ("22:00-08:00", "2026-11-30 22:00", True),
        ("22:00-08:00", "2026-12-01 00:00", True),
        ("22:00-08:00", "2026-12-01 07:59:59", True),
        ("22:00-08:00", "2026-12-01 08:00", False),
        ("9-17", "2026-11-30 09:00", True),
        ("9-17", "2026-11-30 17:00", False),
        ("18:00-24:00", "2026-11-30 23:59:59", True),
        ("18:00-24:00", "2026-11-30 00:00", False),
        ("24:00-06:00", "2026-11-30 00:00", True),
        ("12:00-13:00, 22:30–06:15", "2026-11-30 12:30", True),
        ("12:00-13:00, 22:30–06:15", "2026-11-30 06:14", True),
        ("12:00-13:00, 22:30–06:15", "2026-11-30 14:00", False),
    ],
)
def test_a_machine_is_lent_within_its_hours(hours: str, moment: str, is_within: bool) -> None:
    assert Hours.parse(hours).include(at(moment), BERLIN) is is_within


@pytest.mark.parametrize(
    ("hours", "now", "opens_at"),
    [
        ("22:00-08:00", "2026-11-30 12:34:56", "2026-11-30 22:00"),
        ("22:00-08:00", "2026-11-30 22:00", "2026-11-30 22:00"),
        ("09:00-10:00", "2026-11-30 10:00", "2026-12-01 09:00"),
        ("02:30-04:00", "2026-03-29 01:30", "2026-03-29 03:00"),  # that night there is no 02:30
        ("02:15-02:45", "2026-03-29 01:30", "2026-03-30 02:15"),
        ("02:10-02:50", "2027-03-27 03:00", "2027-03-29 02:10"),
        ("09:00-10:00", "2026-10-24 10:00", "2026-10-25 09:00"),  # a day of 25 hours lies between
        ("09:00-09:01", "2026-10-24 09:01", "2026-10-25 09:00"),
    ],
)
def test_it_is_known_when_the_hours_begin_also_when_the_clocks_change(hours: str, now: str, opens_at: str) -> None:
    assert Hours.parse(hours).next_at(at(now), BERLIN) == at(opens_at)


def test_an_hour_that_comes_twice_is_lent_twice() -> None:
    hours = Hours.parse("02:00-03:00")
    assert hours.include(at("2026-10-25 02:30", fold=0), BERLIN)
    assert hours.include(at("2026-10-25 02:30", fold=1), BERLIN)
    assert not hours.include(at("2026-10-25 03:00"), BERLIN)


@pytest.mark.parametrize("text", ["", "22:00", "22:00-25:00", "22:60-08:00", "24:01-3:00", "8-8", "0:00-24:00", "a-b"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hours|clock|begins"):
        Hours.parse(text)


def test_hours_are_written_as_they_are_read() -> None:
    assert str(Hours.parse("9-17, 22:30–6:05")) == "09:00-17:00,22:30-06:05"


def test_a_day_ends_at_midnight_also_one_of_25_hours() -> None:
    assert midnight_after(at("2026-10-25 00:00"), BERLIN) - at("2026-10-25 00:00") == 25 * 3600
    assert day_of(at("2026-10-25 23:59:59"), BERLIN) == "2026-10-25"


def test_outside_its_hours_it_rests_and_says_when_it_goes_on() -> None:
    rules = GuestRules(hours=Hours.parse("22:00-08:00"))
    (reason,) = judge(rules, facts(), Judged(), BERLIN).reasons
    assert reason == Reason("hours", "outside 22:00–08:00, goes on at 22:00", at("2026-11-30 22:00"))
    assert course(rules, [facts(), facts(10 * 3600.0 - 1), facts(10 * 3600.0)]) == [("hours",), ("hours",), ()]


def test_it_rests_on_battery_at_once_and_goes_on_when_it_has_been_plugged_in_for_a_while() -> None:
    plugged = [facts(second, is_on_battery=False) for second in (5.0, 10.0, 15.0, 20.0)]
    assert course(GuestRules(), [facts(0.0, is_on_battery=True), *plugged]) == [("battery",)] * 4 + [()]
    assert judge(GuestRules(), facts(is_on_battery=True), Judged()).reasons[0].at_once
    assert course(GuestRules(works_on_battery=True), [facts(is_on_battery=True)]) == [()]


def test_a_loose_plug_does_not_start_and_stop_it() -> None:
    looks = [facts(5.0 * number, is_on_battery=number % 2 == 0) for number in range(20)]
    assert set(course(GuestRules(), looks)) == {("battery",)}


def test_above_its_temperature_it_rests_and_goes_on_ten_degrees_below() -> None:
    degrees = [79, 81, 81, 79, 75, 71, 79, 70, 69, 70, 65, 78]
    looks = [facts(5.0 * number, temperature=float(now)) for number, now in enumerate(degrees)]
    rests = course(GuestRules(max_temperature=80.0), looks)
    assert [bool(one) for one in rests] == [False] * 2 + [True] * 8 + [False] * 2
    judged = Judged()
    for one in looks[:3]:
        judged = judge(GuestRules(max_temperature=80.0), one, judged)
    assert judged.reasons[0].why == "81 °C, too hot for its limit of 80 °C, goes on at 70 °C"
    assert judged.reasons[0].at_once
    assert judge(GuestRules(max_temperature=80.0), looks[3], judged).reasons == judged.reasons  # its words too


def test_a_peak_of_heat_is_no_reason() -> None:
    looks = [facts(second, temperature=95.0 if second == 5.0 else 60.0) for second in (0.0, 5.0, 7.0, 12.0)]
    assert set(course(GuestRules(max_temperature=80.0), looks)) == {()}


def test_it_makes_room_on_the_gpu_for_who_uses_it_for_some_seconds_and_waits_until_it_is_left_alone() -> None:
    rules = GuestRules(yields_gpu=True)
    busy = [facts(second, gpu_use_of_others=0.5) for second in (0.0, 5.0, 10.0)]
    assert course(rules, busy) == [(), (), ("gpu",)]
    reason = Judged()
    for one in busy:
        reason = judge(rules, one, reason)
    assert (reason.reasons[0].at_once, reason.reasons[0].frees_device) == (True, True)
    quiet = [facts(second, gpu_use_of_others=0.0) for second in (15.0, 70.0, 75.0)]
    assert course(rules, [*busy, *quiet])[-3:] == [("gpu",), ("gpu",), ()]
    again = [facts(15.0, gpu_use_of_others=0.0), facts(60.0, gpu_use_of_others=0.3), facts(80.0, gpu_use_of_others=0.0)]
    assert course(rules, [*busy, *again])[-1] == ("gpu",)  # the quiet is counted anew
    assert course(rules, [facts(second, gpu_bytes_of_others=3 << 30) for second in (0.0, 10.0)]) == [(), ("gpu",)]
    assert set(course(rules, [facts(second, gpu_bytes_of_others=1 << 30) for second in (0.0, 10.0)])) == {()}
    assert set(course(GuestRules(), busy)) == {()}


def test_what_is_used_up_for_today_is_there_again_after_midnight() -> None:
    rules = GuestRules(max_upload_per_day=5_000_000_000, max_download_per_day=10_000_000_000)
    used = facts(0.0, sent_today_bytes=5_000_000_000, received_today_bytes=9_000_000_000)
    (reason,) = judge(rules, used, Judged(), BERLIN).reasons
    assert reason.why == "the 5 GB of upload a day are used up, goes on at midnight"
    small = judge(GuestRules(max_upload_per_day=2_000_000), used, Judged(), BERLIN)
    assert small.reasons[0].why == "the 2 MB of upload a day are used up, goes on at midnight"
    assert (reason.until_at, reason.at_once) == (at("2026-12-01 00:00"), False)
    both = facts(0.0, sent_today_bytes=6_000_000_000, received_today_bytes=11_000_000_000)
    assert course(rules, [used, both, facts(12 * 3600.0)]) == [("upload",), ("upload", "download"), ()]


def test_what_no_sensor_tells_is_no_reason_and_no_longer_one() -> None:
    rules = GuestRules(yields_gpu=True, max_temperature=80.0)
    assert course(rules, [facts()]) == [()]
    hot = [facts(second, temperature=99.0, is_on_battery=True, gpu_use_of_others=1.0) for second in (0.0, 5.0, 10.0)]
    assert course(rules, hot)[-1] == ("battery", "gpu", "heat")
    assert course(rules, [*hot, facts(20.0), facts(100.0)])[-1] == ()


def test_a_clock_that_is_set_back_holds_nobody_up() -> None:
    cool = [facts(5.0, is_on_battery=True), facts(10.0, is_on_battery=False), facts(25.0, is_on_battery=False)]
    cool[2] = dataclasses.replace(cool[2], at=cool[0].at - 3600.0)
    assert course(GuestRules(), cool)[-1] == ()


def test_reasons_are_said_together_and_end_when_the_last_one_does() -> None:
    timed = [Reason("hours", "outside 22:00–08:00", 50.0), Reason("upload", "used up", 70.0)]
    assert in_words([BY_OWNER, *timed]) == f"{BY_OWNER.why}; outside 22:00–08:00; used up"
    assert until_at(timed) == 70.0
    assert until_at([*timed, BY_OWNER]) == 0.0
    assert until_at([]) == 0.0


def test_the_days_traffic_outlives_a_restart_but_not_the_day(tmp_path: Path) -> None:
    totals, path = [0, 0], tmp_path / "today.json"
    today = Today(path, lambda: (totals[0], totals[1]))
    today.count("2026-11-30")
    totals[:] = [3_000_000, 500]
    today.count("2026-11-30")
    assert (today.sent_bytes, today.received_bytes) == (3_000_000, 500)
    today.keep()
    again = Today(path, lambda: (0, 0))  # its counters begin anew
    again.count("2026-11-30")
    assert (again.sent_bytes, again.received_bytes) == (3_000_000, 500)
    again.count("2026-12-01")
    assert (again.sent_bytes, again.received_bytes) == (0, 0)
    again.keep()
    assert Today(path, lambda: (0, 0)).sent_bytes == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 99_999,
        b'{"day": "2026-11-30", "sent": "x", "received": 0}',
        b'{"day": "2026-11-30", "sent": Infinity, "received": 0}',
        b'{"day": "2026-11-30", "sent": 0, "received": 1e23}',
        b'{"day": "2026-11-30", "sent": -1, "received": 0}',
    ],
)
def test_a_damaged_count_begins_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "today.json").write_bytes(content)
    today = Today(tmp_path / "today.json", lambda: (5, 5))
    today.count("2026-11-30")
    assert (today.sent_bytes, today.received_bytes) == (0, 0)
