"""The dashboard under what nobody expects: any key, any size, bursts, odd terminals, statuses out of nothing."""

import asyncio
import random
import re
import tracemalloc
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Resize
from textual.geometry import Size
from textual.pilot import Pilot
from textual.widgets import Input
from tui_feeds import BurstFeed, MadeUpFeed, MadeUpRecording
from tui_screens import screen_of, shows, until
from tui_statuses import NOW, PEERS, log_line, status, status_before_the_first_round

from spes_peer.wire.control_pb2 import Status
from tui.app import PAGES, Dashboard
from tui.feed import Lost
from tui.look import DARK_THEME, LIGHT_THEME
from tui.plain import is_needed, plain
from tui.recorded import RecordedFeed

SIZES = ((1, 1), (2, 30), (20, 5), (40, 12), (80, 24), (120, 40), (200, 60), (300, 100))
SMALL_SIZES = ((1, 1), (20, 5), (80, 24), (100, 30))
FEW_SIZES = ((1, 1), (20, 5), (80, 24), (200, 60))
KEYS = (
    *"abcdefghijkmnoprstuvwxyz0123456789/?.,+-[]ACFGN ",
    *("tab", "shift+tab", "up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter", "escape"),
    *("shift+left", "shift+right", "backspace", "delete", "ctrl+p", "ctrl+a", "ctrl+z", "ctrl+u", "f1", "f12"),
    *("ctrl+up", "ctrl+home", "l", "q", "ctrl+c", "ctrl+q", "escape", "escape"),
)


class Endless(Dashboard):
    """A dashboard that stays open when somebody detaches."""

    def action_detach(self) -> None:
        pass


def nothing_known() -> Status:
    return Status(pid=1)


def half_known() -> Status:
    """Everything a status may hold, with figures that are none."""
    shown = status()
    for figures in (shown.training, shown.device, shown.given, shown.progress):
        for field in figures.DESCRIPTOR.fields:
            if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
                setattr(figures, field.name, float("nan"))
    for closed in shown.rounds:
        closed.seconds = closed.train_loss = closed.held_out_loss = closed.opened_at = float("nan")
    for peer in shown.peers:
        peer.seen_at = peer.round_trip_seconds = peer.tokens_per_second = float("inf")
    shown.exchange.transfers.add(id=1, what="offer", bytes_per_second=float("nan"), since_at=float("nan"))
    shown.exchange.transfers.add(id=2, what="[/red]\x1b[2J", direction="sideways", num_bytes=0, bytes_done=5)
    shown.run.total_steps = 0
    return shown


def many() -> Status:
    """A large run: 200 peers, 256 subsets."""
    shown = status()
    del shown.subsets[:]
    for number in range(200):
        shown.peers.add(peer_id=f"peer-{number}", name=f"peer {number}", state="ONLINE", seen_at=NOW)
    for number in range(256):
        shown.subsets.add(subset=number, experts=[number], owners=[f"peer-{number % 200}"] if number % 3 else [])
    shown.subsets[7].owners.extend(PEERS)
    return shown


STATUSES = {"nothing": nothing_known, "half": half_known, "many": many, "before": status_before_the_first_round}


async def press_at_random(pilot: Pilot[str], seed: int, num_keys: int) -> None:
    dice = random.Random(seed)
    app = pilot.app
    for number in range(num_keys):
        app.simulate_key(dice.choice(KEYS))
        await asyncio.sleep(0 if number % 10 else 0.005)
        if number % 50 == 0:
            resize(pilot, Size(*dice.choice(SMALL_SIZES)))
        assert app.is_running, number
    app.simulate_key("escape")
    await asyncio.sleep(0.1)
    assert app.is_running


def resize(pilot: Pilot[str], size: Size) -> None:
    """As the pilot does, which waits for every widget of the screen then: in vain for those of one that just closes."""
    driver = pilot.app._driver
    assert isinstance(driver, HeadlessDriver)
    driver._size = size
    pilot.app.post_message(Resize(size, size))


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_thousand_random_keys_do_no_harm(seed: int) -> None:
    app = Endless(MadeUpFeed([status()]) if seed == 1 else RecordedFeed(MadeUpRecording()))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "bytes-of-python")
        await press_at_random(pilot, seed, 500)
    assert app.return_value is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_ten_thousand_random_keys_do_no_harm(seed: int) -> None:
    feed = RecordedFeed(MadeUpRecording()) if seed % 3 == 0 else MadeUpFeed([many() if seed % 3 == 1 else status()])
    app = Endless(feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "bytes-of-python")
        await press_at_random(pilot, 100 + seed, 1000)
    assert app.return_value is None


async def draw_every_screen(kind: str, sizes: Sequence[tuple[int, int]]) -> None:
    app = Dashboard(MadeUpFeed([STATUSES[kind](), STATUSES[kind]()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app._num_statuses == 2)
        for width, height in sizes:
            await pilot.resize_terminal(width, height)
            for page in PAGES:
                app.action_open(page.NAME)
                await pilot.pause()
                lines = screen_of(app).split("\n")
                assert len(lines) == height
                if width > 4:  # Textual's frames are wider than that
                    assert {cell_len(line) for line in lines} == {width}, (page.NAME, width, height)


async def test_every_screen_draws_odd_statuses_small_and_large() -> None:
    await draw_every_screen("half", FEW_SIZES)
    await draw_every_screen("nothing", ((80, 24),))
    await draw_every_screen("many", ((80, 24),))


@pytest.mark.slow
@pytest.mark.parametrize("kind", STATUSES)
async def test_every_screen_draws_any_status_at_any_size(kind: str) -> None:
    await draw_every_screen(kind, SIZES)


async def test_tabs_and_keys_fit_eighty_columns() -> None:
    app = Dashboard(MadeUpFeed([status()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "bytes-of-python")
        for number in range(1, len(PAGES) + 1):
            await pilot.press(str(number))
            await shows(pilot, "q detach")
            assert all(page.NAME in screen_of(app) for page in PAGES)


async def test_a_burst_of_a_thousand_statuses_a_second_leaves_keys_their_answer() -> None:
    made = status()

    def make(number: int) -> Status:
        shown = Status()
        shown.CopyFrom(made)
        del shown.log[:]
        shown.log.append(log_line(number))
        return shown

    feed = BurstFeed(make)
    app = Dashboard(feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: feed.num_said > 100)
        for key, text in (("2", "alder (you)"), ("4", "birch"), ("6", " lines "), ("1", "RTX 4090")):
            app.simulate_key(key)
            await until(pilot, lambda text=text: text in screen_of(app))  # type: ignore[misc]
        await until(pilot, lambda: feed.num_said > 600)
        feed.is_enough = True
        await pilot.press("6")
        await shows(pilot, f"{feed.num_said:,} of {feed.num_said:,} lines")


def test_memory_does_not_grow_with_statuses() -> None:
    app = Dashboard(MadeUpFeed([]))
    made = [status(number) for number in range(1, 30)]

    def absorb(times: int) -> int:
        for number in range(times):
            made[number % 29].pid = number
            app._memory.absorb(made[number % 29], NOW + number)
        app._memory.view(NOW)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = absorb(600)
        assert absorb(1200) - first < 300_000
    finally:
        tracemalloc.stop()


async def test_dark_and_light_change_by_a_key_and_keep_their_words() -> None:
    app = Dashboard(MadeUpFeed([status()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "bytes-of-python", "RTX 4090", "41.2M", "mine 4.31k")
        await pilot.pause()
        before = screen_of(app)
        assert app.theme == DARK_THEME.name
        await pilot.press("d")
        assert app.theme == LIGHT_THEME.name
        assert screen_of(app) == before
        await pilot.press("d")
        assert app.theme == DARK_THEME.name


def test_both_themes_have_every_colour() -> None:
    assert set(DARK_THEME.variables) == set(LIGHT_THEME.variables)


async def test_without_colour_the_screen_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Dashboard(MadeUpFeed([status()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await shows(pilot, "alder (you)", "▸  0   1")
        for strip in app.screen._compositor.render_strips():
            for segment in strip.apply_filter(app._filters[-1], app.screen.background_colors[1]):
                colour = segment.style.color if segment.style is not None else None
                triplet = colour.triplet if colour is not None else None
                assert triplet is None or triplet.red == triplet.green == triplet.blue


async def test_a_locale_without_other_characters_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C")
    shown = status()
    shown.peers[1].name = "bjørk 桜"
    app = Dashboard(MadeUpFeed([shown]))
    async with app.run_test(size=(80, 24)) as pilot:
        for number in range(1, len(PAGES) + 1):
            await pilot.press(str(number))
            await shows(pilot, "q detach")
            text = "\n".join(
                "".join(
                    segment.text for segment in app._filters[-1].apply(list(strip), app.screen.background_colors[1])
                )
                for strip in app.screen._compositor.render_strips()
            )
            assert text.isascii()
            assert all(len(line) == 80 for line in text.split("\n"))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"LANG": "en_GB.UTF-8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # as Python leaves it
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "POSIX"}, True),
        ({"LANG": "en_US.ISO-8859-1"}, True),
        ({"LANG": "en_US"}, False),
    ],
)
def test_whether_ascii_is_needed_is_said_by_the_locale(environment: dict[str, str], expected: bool) -> None:
    assert is_needed(environment) is expected


def test_ascii_takes_as_many_cells() -> None:
    for text in ("━━╸──", "╭─ now ─╮", "▲ disk", "⠑⢄⠀", "桜 bjørk", "12 °C …", "−×·"):
        assert plain(text).isascii()
        assert len(plain(text)) == cell_len(text)
    assert plain("━━╸──") == "===--"


# a recording


async def test_a_recording_has_a_line_to_move_through_it() -> None:
    feed = RecordedFeed(MadeUpRecording(), clock=lambda: 0.0)
    async with Dashboard(feed).run_test(size=(100, 30)) as pilot:
        await shows(pilot, "0:00 of 4:00", "round 1 ", "× 1")
        await pilot.press("right", "right")
        await shows(pilot, "0:20 of 4:00", "round 3 ")
        await pilot.press("shift+right")
        await shows(pilot, "0:30 of 4:00", "round 4 ")
        await pilot.press("shift+left", "shift+left")
        await shows(pilot, "0:10 of 4:00", "round 2 ")
        await pilot.press("end")
        await shows(pilot, "4:00 of 4:00", "round 24")
        await pilot.press("left")
        await shows(pilot, "3:50 of 4:00")
        await pilot.press("home")
        await shows(pilot, "0:00 of 4:00", "round 1 ")
        await pilot.press("plus", "plus", "minus", "plus")
        await shows(pilot, "× 4")
        await pilot.click("#scrubber", offset=(60, 0))
        await until(pilot, lambda: 100 < feed.position_seconds < 200)


async def test_a_recording_plays_pauses_stops_at_its_end_and_begins_again() -> None:
    seconds = 0.0
    feed = RecordedFeed(MadeUpRecording(), clock=lambda: seconds)
    async with Dashboard(feed).run_test(size=(100, 30)) as pilot:
        await shows(pilot, "▶ 0:00")
        seconds = 15.0
        await shows(pilot, "▶ 0:15", "round 2 ")
        await pilot.press("space")
        seconds = 30.0
        await shows(pilot, "■ 0:15")
        await pilot.press("space")
        seconds = 400.0
        await shows(pilot, "■ 4:00", "round 24")
        await pilot.press("space")
        await shows(pilot, "▶ 0:00", "round 1 ")


async def test_keys_of_a_recording_work_on_every_screen_and_leave_text_alone() -> None:
    feed = RecordedFeed(MadeUpRecording(), clock=lambda: 0.0)
    async with Dashboard(feed).run_test(size=(100, 30), notifications=True) as pilot:
        for number in range(1, len(PAGES) + 1):
            await pilot.press(str(number), "home", "right")
            await shows(pilot, "0:10 of 4:00")
        await pilot.press("6", "f", "a", "space", "b", "left")
        assert pilot.app.query_one("#log-input", Input).value == "a b"
        assert feed.position_seconds == 10
        await pilot.press("escape", "p")
        await shows(pilot, "this is a recording")


# news that are no statuses


async def test_without_a_daemon_the_screen_says_what_to_do_next() -> None:
    why = "no daemon runs on this state folder; start one with: spes-peer join; waiting for it…"
    async with Dashboard(MadeUpFeed([Lost(why)])).run_test(size=(100, 30)) as pilot:
        for number in range(1, len(PAGES) + 1):
            await pilot.press(str(number))
            await shows(pilot, "start one with: spes-peer join", "connecting")


def test_the_keys_pressed_at_random_are_those_that_the_dashboard_has() -> None:
    keys = {key for binding in Dashboard.BINDINGS for key in re.split(",", getattr(binding, "key", ""))}
    names = {"question_mark": "?"}
    assert {names.get(key, key) for key in keys} - set(KEYS) == set()


async def test_keys_and_sizes_that_come_while_it_ends_do_no_harm() -> None:
    app = Dashboard(MadeUpFeed([status()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "bytes-of-python")
        for key in ("4", "slash", "q", *"pl?1d", "ctrl+p", "tab", "enter"):
            app.simulate_key(key)
            resize(pilot, Size(20, 5))


async def test_the_palette_opens_again_while_it_closes() -> None:
    app = Dashboard(MadeUpFeed([status()]))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "bytes-of-python")
        for _ in range(5):
            for key in ("ctrl+p", "escape", "ctrl+p", "escape"):
                app.simulate_key(key)
            await asyncio.sleep(0)
