"""The exchange on a screen: transfers, totals, limits."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from tui_full import status, status_before_the_first_round
from tui_pages import any_size_is_fine, line_of, opened, press, shows, until, view_of
from tui_statuses import NOW, PEERS

from spes_peer.wire.control_pb2 import ExchangeStatus, Status, Traffic, Transfer
from tui.exchange import ExchangePage, Shown, lane, totals, transfer_fields, transfer_lines


def row(transfer: Transfer, has_ended: bool = False, width: int = 120) -> list[str]:
    return line_of(transfer_fields(view_of(status())), Shown(transfer, has_ended), width).split()


def transfer(**more: object) -> Transfer:
    one = Transfer(id=1, what="snapshot", direction="down", bytes_done=2_000_000, num_bytes=8_000_000)
    one.bytes_per_second, one.peers[:], one.transports[:] = 500_000, [PEERS[1], PEERS[2]], ["grpc", "libp2p"]
    for name, value in more.items():
        setattr(one, name, value)
    return one


async def test_transfers_stand_with_bar_rate_time_left_and_sources() -> None:
    async with opened(ExchangePage(), status(), (120, 40)) as (app, pilot):
        await shows(app, pilot, "4 on their way  ·  3 wait  ·  12 ended")
        first = next(words for words in app.rows if "▸" in words)
        assert first[:5] == ["▸", "↓", "offer", "of", "expert"]
        assert first[-7:] == ["5.21M/8.40M", "1.92", "MB/s", "0:02", "birch,", "cedar", "grpc"]
        assert any("cut" in words and "off" in words for words in app.rows)


async def test_totals_are_of_this_round_and_since_the_start_by_transport() -> None:
    async with opened(ExchangePage(), status(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "↓ this round", "↑ since start", "the daemon runs for 12:33")
        grpc = next(words for words in app.rows if words[:1] == ["grpc"])
        assert grpc == ["grpc", "7.10M", "4.40M", "331M", "221M", "75", "%"]
        everything = next(words for words in app.rows if words[:1] == ["all"])
        assert everything == ["all", "8.80M", "5.50M", "441M", "293M", "100", "%"]


async def test_the_foot_explains_the_transfer_under_the_cursor() -> None:
    async with opened(ExchangePage(), status(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "offer of expert 3  62 % of 8.40MB, begun 0:02 ago", "from birch, cedar over grpc")
        press(app, "down", "down")
        await shows(app, pilot, "to birch over grpc")
        press(app, "end", "up", "home", "pagedown", "pageup")
        await shows(app, pilot, "from birch, cedar over grpc")


def test_a_direction_says_how_near_it_is_to_the_limit_of_its_owner() -> None:
    exchange = status().exchange
    assert lane(exchange, "down", 80).plain == "↓ down  2.63 MB/s  no limit is set"
    assert "100 % of the limit, 2.50 MB/s" in lane(exchange, "up", 80).plain
    exchange.max_download = 10_000_000
    assert " 26 % of the limit, 10.0 MB/s" in lane(exchange, "down", 80).plain
    assert lane(exchange, "down", 80).plain.count("━") == 8
    assert "0 B/s" in lane(ExchangeStatus(), "up", 80).plain


def test_time_left_is_what_the_rate_makes_of_the_rest() -> None:
    assert "0:12" in row(transfer())
    assert "–" in row(transfer(bytes_per_second=0.0))
    assert "–" in row(transfer(bytes_per_second=math.nan))
    assert "0:00" in row(transfer(bytes_done=9_000_000))
    assert "done" in row(transfer(bytes_done=8_000_000), has_ended=True)
    assert "cut" in row(transfer(), has_ended=True)


def test_a_part_that_others_fetched_is_done_because_they_have_the_rest_from_others() -> None:
    part = transfer(direction="up")
    words = row(part, has_ended=True)
    assert "done" in words
    assert "cut" not in words
    assert "2.00M/8.00M" in words
    for one, is_said in ((part, False), (transfer(), True)):
        one.since_at = NOW - 10
        assert ("cut off" in transfer_lines(view_of(status()), Shown(one, True), 100)[0].plain) == is_said


def test_both_transports_of_a_transfer_are_named() -> None:
    lines = transfer_lines(view_of(status()), Shown(transfer(), False), 100)
    assert lines[1].plain == "from birch, cedar over grpc, libp2p"


def test_totals_know_any_transports() -> None:
    assert totals([], [], 80).plain == "nothing was sent or received yet"
    one = totals([Traffic(transport="grpc", bytes_sent=5, bytes_received=7)], [], 80).plain.splitlines()
    assert one[1].split() == ["grpc", "0", "0", "7", "5", "100", "%"]
    assert "0 %" in totals([Traffic(transport="grpc")], [], 80).plain


async def test_nothing_is_on_its_way_and_the_screen_says_what_comes_next() -> None:
    async with opened(ExchangePage(), status_before_the_first_round(), (80, 24)) as (app, pilot):
        await shows(app, pilot, "nothing is on its way: blobs travel when a round is exchanged", "nothing was sent")
        press(app, "down", "end", "enter", "escape")
        app.show(status())
        await shows(app, pilot, "4 on their way")


async def test_a_transfer_that_ends_takes_its_place_below() -> None:
    async with opened(ExchangePage(), status(), (120, 40)) as (app, pilot):
        later = status()
        ended = later.exchange.transfers.pop(0)
        ended.bytes_done = ended.num_bytes
        later.exchange.ended.insert(0, ended)
        app.show(later)
        await shows(app, pilot, "3 on their way  ·  3 wait  ·  13 ended")
        await until(app, pilot, lambda: "6" in next(words for words in app.rows if "▸" in words))


def hostile(figure: float) -> Status:
    words = "[/red]\x1b[2J\u202e" + "x" * 400
    shown = status()
    for n in range(40):
        one = Transfer(id=n, what=words, direction=words if n % 2 else "up", bytes_done=2**64 - 1, num_bytes=n)
        one.bytes_per_second = one.since_at = figure
        one.peers[:], one.transports[:] = [words] * 30, [words] * 30
        shown.exchange.transfers.append(one)
        shown.exchange.ended.append(one)
    shown.exchange.max_upload = shown.exchange.num_queued = 1
    shown.traffic.add(transport=words, bytes_sent=2**64 - 1)
    shown.exchange.this_round.add(transport=words, bytes_received=2**64 - 1)
    shown.started_at = figure
    return shown


@settings(max_examples=40)
@given(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300]), st.integers(1, 250))
def test_everything_is_drawn_at_any_width_whatever_is_in_it(figure: float, width: int) -> None:
    view = view_of(hostile(figure))
    exchange = view.status.exchange
    lines = [lane(exchange, direction, width).plain for direction in ("up", "down")]
    for one in (
        Shown(exchange.transfers[-1], False),
        Shown(exchange.ended[-1], True),
        Shown(exchange.transfers[0], True),
    ):
        lines += [line.plain for line in transfer_lines(view, one, width)]
        assert not {"\x1b", "\n", "\u202e"} & set(line_of(transfer_fields(view), one, width))
    assert all(len(line) <= width for line in lines)
    assert not {"\x1b", "\u202e"} & set(totals(view.status.traffic, exchange.this_round, width).plain)


async def test_any_size_and_a_storm_of_sizes_are_fine() -> None:
    await any_size_is_fine(
        ExchangePage(), [status(), Status(), hostile(math.nan), hostile(-1), status_before_the_first_round()]
    )
