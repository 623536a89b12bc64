"""The rounds on a screen: the table, the timeline, one round opened."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.binding import Binding, BindingType
from tui_full import closed_round, round_parts, status, status_before_the_first_round
from tui_pages import any_size_is_fine, hides, line_of, opened, press, shows, until, view_of
from tui_statuses import PEERS

from spes_peer.wire.control_pb2 import RoundStatus, Status
from tui.app import PAGES, Dashboard
from tui.look import PARTS
from tui.parts import in_words, of_a_whole, parts_bar
from tui.round_detail import contribution_fields, figure_lines
from tui.rounds import RoundsPage, foot_lines, open_round, round_fields, rounds_of, scale_of
from tui.rows import Rows

FIGURES = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 3.5])


async def test_rounds_stand_newest_first_the_open_one_before_all() -> None:
    async with opened(RoundsPage(), status()) as (app, pilot):
        await shows(app, pilot, "23 closed", "open the round")
        assert app.rows[2][:4] == ["▸", "24", "open", "5.7"]
        assert app.rows[3][0] == "23"
        assert "2.548" in app.rows[3]
        assert "dogwood" in app.rows[4]
        assert "dogwood" not in app.rows[3]


async def test_a_row_says_what_the_round_brought() -> None:
    row = line_of(round_fields(view_of(status()), rounds_of(view_of(status()))), closed_round(18), 160)
    for word in ("8.8 s", "164k", "2.596", "2.733", "31.3M", "10.0%"):
        assert word in row


async def test_the_foot_says_what_the_round_under_the_cursor_was_spent_on() -> None:
    async with opened(RoundsPage(), status(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "24  so far  apply 0.5 s   train 5.2 s", "▂▂ wait", "a whole bar is")
        press(app, "down", "down")
        await shows(app, pilot, "22  late: dogwood  apply 0.5 s")
        await pilot.resize_terminal(80, 10)
        await hides(app, pilot, "a whole bar is")


async def test_enter_opens_a_round_with_every_contribution_and_escape_closes_it() -> None:
    async with opened(RoundsPage(), status()) as (app, pilot):
        press(app, "down", "down", "enter")
        await shows(app, pilot, "round 22", "3 of 4 contributed", "12, together 24.1MB", "proposed by   bootstrap")
        await shows(app, pilot, "training 2.492, the mean over all contributors   held-out 2.578")
        await shows(app, pilot, "grpc ↑ 9.40MB  ↓ 14.1MB", "in the record", "late: not in the record")
        alder = next(row for row in app.rows if "alder" in row)
        assert alder[:6] == ["▸", "alder", "(you)", "41.0k", "33", "%"]
        await shows(app, pilot, "esc back")
        press(app, "escape")
        await shows(app, pilot, "23 closed", "open the round")
        await until(app, pilot, lambda: app.page.first.has_focus)


async def test_an_opened_round_leads_to_the_next_ones() -> None:
    async with opened(RoundsPage(), status()) as (app, pilot):
        press(app, "enter")
        await shows(app, pilot, "round 24, open", "its record says at its end")
        press(app, "o", "o", "o", "o")
        await shows(app, pilot, "round 20")
        press(app, "n")
        await shows(app, pilot, "round 21")
        press(app, "backspace")
        await until(app, pilot, lambda: app.rows[5][:2] == ["▸", "21"])  # nothing was scrolled away


async def test_the_cursor_stays_on_its_round_and_at_the_top_with_the_newest() -> None:
    async with opened(RoundsPage(), status()) as (app, pilot):
        app.show(status(25))
        await until(app, pilot, lambda: app.rows[2][:2] == ["▸", "25"])
        press(app, "down", "down")
        await until(app, pilot, lambda: any(row[:2] == ["▸", "23"] for row in app.rows))
        app.show(status(26))
        await until(app, pilot, lambda: any(row[:2] == ["▸", "23"] for row in app.rows))


async def test_every_key_of_the_list_moves_its_cursor() -> None:
    async with opened(RoundsPage(), status(60), (80, 24)) as (app, pilot):
        for keys, number in (("down", 59), ("j", 58), ("k", 59), ("up", 60), ("end", 1), ("pageup", 17), ("home", 60)):
            press(app, keys)
            await until(app, pilot, lambda number=number: any(row[:2] == ["▸", str(number)] for row in app.rows))  # type: ignore[misc]
        press(app, "pagedown", "up", "enter")
        await shows(app, pilot, "round 45")


async def test_a_click_chooses_and_a_second_one_opens() -> None:
    async with opened(RoundsPage(), status()) as (app, pilot):
        rows = app.page.first
        await pilot.click(rows, offset=(8, 3))
        await until(app, pilot, lambda: app.rows[4][:2] == ["▸", "22"])
        await pilot.click(rows, offset=(8, 3), times=2)
        await shows(app, pilot, "round 22", "contributed")


async def test_an_opened_round_that_is_forgotten_gives_the_list_back() -> None:
    async with opened(RoundsPage(), status()) as (app, pilot):
        press(app, "end", "enter")
        await shows(app, pilot, "round 1", "of 4 contributed")
        later = status()
        del later.rounds[:5]
        app.show(later)
        await shows(app, pilot, "18 closed")


async def test_before_the_first_round_the_screen_says_what_comes_next() -> None:
    async with opened(RoundsPage(), status_before_the_first_round(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "waiting for the first round: 2 of 4 volunteers admitted")
        press(app, "enter", "escape", "down", "end", "o", "n")
        app.show(status())
        await shows(app, pilot, "23 closed")


def test_bars_are_comparable_and_a_very_long_round_is_cut() -> None:
    short, long = round_parts(10), round_parts(20)
    lengths = [parts_bar(one, 40, 40).cell_length for one in (short, long)]
    assert lengths[1] == 2 * lengths[0]
    assert parts_bar(round_parts(400), 40, 40).plain.endswith("▸")
    assert parts_bar(round_parts(400), 40, 40).cell_length == 40
    ordinary = [RoundStatus(round=n, seconds=10) for n in range(9)]
    assert scale_of(ordinary) == 10
    assert scale_of([*ordinary, RoundStatus(round=9, seconds=5000)]) == 30
    assert scale_of([]) == 1


def test_parts_are_told_apart_without_colours() -> None:
    assert [part.name for part in of_a_whole(round_parts(1))] == list(PARTS)
    assert parts_bar(round_parts(100), 100, 40).plain == "▃▃" + 23 * "▆" + "▃▃" + 8 * "▄" + 5 * "▂"
    assert [line.plain for line in in_words(round_parts(10), 30)] == [
        "apply 0.5 s   train 5.8 s",
        "encode 0.5 s   exchange 2.0 s",
        "wait 1.2 s",
    ]


def test_who_was_late_is_named() -> None:
    round_ = closed_round(22)
    assert "late: dogwood" in foot_lines(view_of(status()), round_, 10, 200)[0].plain
    for one in round_.contributions:
        one.is_missing = True
    assert "late: everybody" in foot_lines(view_of(status()), round_, 10, 200)[0].plain


def test_no_round_is_open_once_its_record_is_there() -> None:
    shown = status()
    assert open_round(view_of(shown)) == 24
    shown.rounds.append(closed_round(24))
    assert open_round(view_of(shown)) == 0
    del shown.parts[:]
    assert open_round(view_of(shown)) == 0


def broken(figure: float) -> RoundStatus:
    words = "[/red]\x1b[2J" + "\u202e" + "x" * 400
    round_ = closed_round(4)
    round_.held_out_loss = round_.train_loss = round_.seconds = round_.opened_at = figure
    round_.merge = round_.coordinator = round_.state_root = words
    round_.traffic.add(transport=words, bytes_sent=2**63)
    for part in round_.parts:
        part.seconds = figure
    round_.parts.add(name=words, seconds=figure)
    round_.contributions.add(peer_id=words, subsets=range(1000), tokens=2**63)
    return round_


@settings(max_examples=40)
@given(FIGURES, st.integers(1, 200))
def test_rows_and_figures_take_anything_at_any_width(figure: float, width: int) -> None:
    shown = status(5)
    shown.rounds.append(broken(figure))
    shown.parts.add(name="wait", seconds=figure)
    view = view_of(shown)
    rounds = rounds_of(view)
    for round_ in rounds:
        brought = list(round_.contributions)
        rows = [line_of(round_fields(view, rounds), round_, width)]
        rows += [line_of(contribution_fields(view, brought), one, width) for one in brought]
        lines = [line.plain for line in figure_lines(view, round_, width)]
        lines += [line.plain for line in foot_lines(view, round_, scale_of(rounds), width)]
        assert all(len(line) <= width for line in lines)
        assert not any({"\x1b", "\n", "\u202e"} & set(line) for line in rows + lines)


async def test_any_size_and_a_storm_of_sizes_are_fine() -> None:
    hostile = status(12)
    hostile.rounds.append(broken(math.nan))
    await any_size_is_fine(RoundsPage(), [status(), Status(), hostile, status_before_the_first_round()])


@pytest.mark.parametrize("size", [(20, 5), (40, 12), (200, 60)])
async def test_a_round_opens_at_any_size(size: tuple[int, int]) -> None:
    async with opened(RoundsPage(), status(), size) as (app, pilot):
        press(app, "down", "enter")
        await shows(app, pilot, "round 23")
        await pilot.resize_terminal(1, 1)
        press(app, "escape")
        await pilot.resize_terminal(80, 24)
        await shows(app, pilot, "23 closed")


def test_a_peer_that_is_gone_has_a_place_in_its_old_rounds() -> None:
    shown = status()
    del shown.peers[3]
    fields = contribution_fields(view_of(shown), list(shown.rounds[0].contributions))
    assert f"…{PEERS[3][-6:]}" in line_of(fields, shown.rounds[0].contributions[3], 80)


def test_no_key_of_a_screen_is_one_of_the_dashboards() -> None:
    own = [binding for page in (*PAGES, Rows) for binding in vars(page).get("BINDINGS", ())]
    assert not {key for binding in own for key in keys_of(binding)} & {
        key for binding in Dashboard.BINDINGS for key in keys_of(binding)
    }


def keys_of(binding: BindingType) -> list[str]:
    assert isinstance(binding, Binding)
    return binding.key.split(",")
