"""Peers on a screen: the list, its orders and its filter, the peer under the cursor, and thousands of them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content
from textual.widgets import Input
from tui_full import peer, status, status_before_the_first_round
from tui_pages import any_size_is_fine, hides, line_of, opened, press, shows, until, view_of
from tui_statuses import BOOTSTRAP, NOW, PEERS

from spes_peer.wire.control_pb2 import PeerStatus, Status
from tui.peer_detail import peer_lines
from tui.peers import ORDERS, PeersPage, matching, peer_fields, sorted_peers
from tui.rows import Field, Rows

ANY_ORDER = {order.title: order for order in ORDERS}


def names(peers: list[PeerStatus]) -> list[str]:
    return [one.name for one in peers]


def crowd(number: int) -> Status:
    """A run of so many."""
    shown = status()
    for n in range(number):
        one = shown.peers.add()
        one.CopyFrom(peer(1 + n % 3, 24))
        one.peer_id, one.name, one.tokens_per_second = f"12D3KooWCrowd{n:06}", f"crowd{n:06}", n
    return shown


async def test_a_row_says_state_subsets_speed_way_round_trip_silence_and_standing() -> None:
    async with opened(PeersPage(), status(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "5 of 5 online", "/ filter", "s sort", "S reverse")
        assert app.rows[2] == ["▸", "●", "alder", "online", "0", "4.31k"]
        dogwood = next(row for row in app.rows if "dogwood" in row)
        assert dogwood[:9] == ["dogwood", "online", "3", "690", "relay", "0.2", "s", "0:03", "1"]
        assert next(row for row in app.rows if "bootstrap" in row)[:3] == ["★", "bootstrap", "online"]


async def test_a_wide_screen_has_ids_roles_versions_and_reasons_too() -> None:
    async with opened(PeersPage(), status(), (200, 60)) as (app, pilot):
        await shows(app, pilot, "…Edogwood", "volunteer", "0.5.0", "its address answers", "1 mark for experts")


async def test_the_foot_explains_the_peer_under_the_cursor() -> None:
    async with opened(PeersPage(), status(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "others reach this machine: direct", "version 0.5.0")
        press(app, "end", "up")
        await shows(app, pilot, "called by libp2p relay: through bootstrap: it was dialled back and did not")
        await shows(
            app, pilot, "answer; it is behind a router", "1 mark for experts that did harm, the last in record 17"
        )
        await pilot.resize_terminal(80, 10)
        await hides(app, pilot, "called by")


def test_a_joining_peer_is_shown_as_joining_and_not_as_unreachable() -> None:
    shown = status()
    joining = shown.peers[3]
    joining.state, joining.transport_why = "JOINING", "its address does not answer"
    joining.transport = joining.route = ""
    del joining.subsets[:]
    view = view_of(shown)
    assert "joining" in line_of(peer_fields(view), joining, 80)
    text = "\n".join(line.plain for line in peer_lines(view, joining, 100))
    assert "it is joining: it gets a place in one of the next rounds, and is called then; its address does not" in text
    assert "trains nothing in the open round" in text
    for word in ("unreachable", "offline", "never"):
        assert word not in text


@pytest.mark.parametrize(
    ("title", "order"),
    [
        ("peer", ["alder", "birch", "bootstrap", "cedar", "dogwood"]),
        ("subsets", ["alder", "birch", "cedar", "dogwood", "bootstrap"]),
        ("tok/s", ["alder", "birch", "cedar", "dogwood", "bootstrap"]),
        ("via", ["birch", "cedar", "bootstrap", "dogwood", "alder"]),
        ("ping", ["birch", "cedar", "dogwood", "alder", "bootstrap"]),
        ("standing", ["dogwood", "alder", "birch", "cedar", "bootstrap"]),
    ],
)
def test_peers_are_sorted_and_what_is_not_known_stands_last_both_ways(title: str, order: list[str]) -> None:
    view = view_of(status())
    peers = list(view.status.peers)
    assert names(sorted_peers(view, peers, ANY_ORDER[title], False)) == order
    known = [one for one in order if ANY_ORDER[title].key(view, peers[names(peers).index(one)]) is not None]
    falling = names(sorted_peers(view, peers, ANY_ORDER[title], True))
    assert sorted(falling[: len(known)]) == sorted(known)
    assert falling[0] == known[-1] or title == "via"
    assert falling[len(known) :] == order[len(known) :]


async def test_s_goes_through_the_orders_and_shift_reverses() -> None:
    async with opened(PeersPage(), status(), (200, 30)) as (app, pilot):
        for order in ORDERS:
            press(app, "s")
            await shows(app, pilot, f"{order.title}{'▼' if order.is_falling else '▲'}")
            press(app, "S")
            await shows(app, pilot, f"{order.title}{'▲' if order.is_falling else '▼'}")
        press(app, "s")
        await hides(app, pilot, "▲", "▼")
        press(app, "S")
        await until(app, pilot, lambda: "bootstrap" in app.rows[2])


async def test_a_click_on_a_heading_sorts_and_a_second_one_reverses() -> None:
    async with opened(PeersPage(), status(), (80, 24)) as (app, pilot):
        column = app.text.splitlines()[1].index("tok/s")
        for mark in ("tok/s▼", "tok/s▲"):
            await pilot.click(offset=(column + 1, 1))
            await shows(app, pilot, mark)
        await pilot.click(offset=(1, 1))
        await shows(app, pilot, "tok/s▲")


async def test_the_cursor_stays_on_its_peer_whatever_the_order() -> None:
    async with opened(PeersPage(), crowd(300), (80, 24)) as (app, pilot):
        press(app, "down", "down", "s", "S", "S", "s", "s", "s")
        await until(app, pilot, lambda: any(row[:2] == ["▸", "cedar"] for row in app.rows))


async def test_the_filter_finds_by_what_is_known_and_escape_shows_all() -> None:
    async with opened(PeersPage(), status(), (120, 40)) as (app, pilot):
        await pilot.press("slash", *"relay")
        await shows(app, pilot, "1 of 5 shown", "dogwood", "esc show all")
        await hides(app, pilot, "cedar")
        press(app, "enter")  # keeps it, and the keys are the list's again
        await until(app, pilot, lambda: app.page.first.has_focus)
        await pilot.press("s", "escape")
        await shows(app, pilot, "cedar", "peer▲")
        await hides(app, pilot, "shown", "esc show all")


async def test_keys_of_the_dashboard_are_letters_while_somebody_types() -> None:
    async with opened(PeersPage(), status(), (120, 40)) as (app, pilot):
        await pilot.press("slash", *"1pqlsd?S")
        asked = app.query_one(Input)
        assert asked.value == "1pqlsd?S"
        await shows(app, pilot, "no peer has “1pqlsd?S”", "Escape shows all again")
        await pilot.press("escape")
        await shows(app, pilot, "5 of 5 online", "cedar")
        assert not asked.display


async def test_a_filter_without_words_closes_with_enter() -> None:
    async with opened(PeersPage(), status(), (80, 24)) as (app, pilot):
        await pilot.press("slash", "enter")
        await until(app, pilot, lambda: not app.query_one(Input).display and app.page.first.has_focus)
        await shows(app, pilot, "5 of 5 online")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", ["alder", "birch", "cedar", "dogwood", "bootstrap"]),
        ("DOG relay", ["dogwood"]),
        ("subset:2", ["cedar"]),
        ("coordinator", ["bootstrap"]),
        ("volunteer online grpc", ["birch", "cedar"]),
        ("you", ["alder"]),
        (PEERS[1], ["birch"]),
        ("elm", []),
    ],
)
def test_all_words_of_a_filter_must_be_there(words: str, found: list[str]) -> None:
    view = view_of(status())
    assert names(matching(view, view.status.peers, words)) == found


async def test_of_thousands_of_peers_only_those_on_the_screen_are_drawn() -> None:
    drawn = 0

    def cell(_peer: PeerStatus, _width: int) -> Content:
        nonlocal drawn
        drawn += 1
        return Content("x")

    async with opened(PeersPage(), crowd(2000), (80, 24)) as (app, pilot):
        await shows(app, pilot, "2,005 of 2,005 online")
        rows = app.query_one(Rows)
        peers = list(crowd(2000).peers)
        rows.put([Field("x", 3, cell)], peers, range(len(peers)))
        press(app, "end", "pageup")
        assert 0 < drawn < 20 * 24


async def test_nobody_is_known_yet() -> None:
    async with opened(PeersPage(), Status(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "nobody is known yet: the bootstrap node introduces peers")
        await pilot.press("s", "S", "down", "enter", "escape", "slash", "x", "escape")
        app.show(status())
        await shows(app, pilot, "5 of 5 online")


def hostile() -> PeerStatus:
    words = "[/red]\x1b[2J\u202e" + "x" * 400
    one = PeerStatus(peer_id=words, name=words, role=words, state=words, transport=words, route=words, version=words)
    one.standing = one.transport_why = words
    one.subsets.extend(range(0, 4000, 2))
    one.sequences_per_step = 2**32 - 1
    return one


@settings(max_examples=40)
@given(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300]), st.integers(1, 250))
def test_rows_and_explanations_take_anything_at_any_width(figure: float, width: int) -> None:
    shown = status()
    shown.peers.append(hostile())
    for one in shown.peers:
        one.tokens_per_second = one.round_trip_seconds = one.seen_at = figure
    view = view_of(shown, NOW)
    for order in ORDERS:
        assert len(sorted_peers(view, list(shown.peers), order, True)) == len(shown.peers)
    for one in (shown.peers[0], shown.peers[3], shown.peers[-1]):
        lines = [line.plain for line in peer_lines(view, one, width)]
        assert len(lines) == 6
        assert all(len(line) <= width for line in lines)
        assert not any(
            {"\x1b", "\n", "\u202e"} & set(line) for line in [*lines, line_of(peer_fields(view), one, width)]
        )


async def test_any_size_and_a_storm_of_sizes_are_fine() -> None:
    odd = status()
    odd.peers.append(hostile())
    await any_size_is_fine(PeersPage(), [status(), Status(), odd, crowd(100), status_before_the_first_round()])


def test_the_coordinator_is_marked() -> None:
    view = view_of(status())
    bootstrap = next(one for one in view.status.peers if one.peer_id == BOOTSTRAP)
    assert line_of(peer_fields(view), bootstrap, 80).startswith("★ bootstrap")
    assert "★ coordinates the run" in peer_lines(view, bootstrap, 100)[1].plain
