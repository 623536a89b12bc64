"""What the dashboard draws, without a screen: figures, text from strangers, charts, tables, panels."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content
from tui_statuses import NOW, PEERS, status, status_before_the_first_round

from spes_peer.wire.control_pb2 import LogLine, Status
from tui import figures
from tui.chart import Part, bar, stacked_bar
from tui.experts import ExpertsPanel
from tui.explaining import explain
from tui.header import top_line, trouble_lines
from tui.look import safe
from tui.machine import MachinePanel, machine_lines
from tui.memory import Memory, View
from tui.now import now_lines
from tui.panel import Panel
from tui.plot import Axis, Line, plot
from tui.table import Column, table
from tui.training import LossPanel, SpeedPanel, TrafficPanel

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def view_of(shown: Status, now: float = NOW) -> View:
    memory = Memory()
    memory.absorb(shown, now)
    view = memory.view(now)
    assert view is not None
    return view


def drawn(panel: type[Panel], shown: Status, width: int = 70, height: int = 12) -> str:
    drawing = panel().draw(view_of(shown), width, height)
    return f"{drawing.heading or ''}\n{drawing.body}"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (figures.loss(3.4214), "3.421"),
        (figures.loss(math.nan), "–"),
        (figures.loss(-1), "–"),
        (figures.count(0), "0"),
        (figures.count(4310), "4.31k"),
        (figures.count(999_600), "1.00M"),
        (figures.count(math.inf), "–"),
        (figures.size(13_400_000), "13.4M"),
        (figures.size(13_400_000, digits=2), "13M"),
        (figures.duration(7), "0:07"),
        (figures.duration(3723), "1:02:03"),
        (figures.duration(103 * 3600), "4d 07h"),
        (figures.duration(math.nan), "–"),
        (figures.since(0, NOW), ""),
        (figures.brief(0.0231), "23 ms"),
        (figures.brief(75), "1:15"),
        (figures.brief(-1), "–"),
        (figures.rate(12_300_000), "12.3 MB/s"),
        (figures.rate(math.nan), "–"),
        (figures.ranges([9, 0, 1, 2, 7]), "0-2,7,9"),
        (figures.ranges([]), ""),
    ],
)
def test_figures_are_short_and_never_nonsense(written: str, expected: str) -> None:
    assert written == expected


@given(ANY_FLOAT, ANY_FLOAT)
def test_every_float_can_be_written(value: float, other: float) -> None:
    assert len(figures.count(value)) <= 8
    assert len(figures.size(value)) <= 8
    assert len(figures.loss(value)) <= 9
    assert len(figures.duration(value)) <= 12
    assert len(figures.clock(value)) == 8
    assert 0 <= figures.share(value, other) <= 1


@given(st.text(max_size=300))
def test_text_from_strangers_is_one_short_line_that_moves_no_cursor(text: str) -> None:
    harmless = safe(text, 80)
    assert len(harmless) <= 80
    assert harmless.isprintable() or "�" in harmless
    assert not {"\x1b", "\n", "\r", "\t", "\u202e", "\u200b"} & set(harmless)


def test_piles_of_marks_are_cut_but_scripts_that_need_marks_are_not() -> None:
    assert safe("a" + "\u0301" * 50) == "a\u0301\u0301"
    assert safe("नमस्ते") == "नमस्ते"


@given(st.lists(ANY_FLOAT, max_size=40), st.integers(-3, 60), st.integers(0, 12), st.booleans())
def test_plots_and_bars_take_any_values_and_keep_their_size(
    values: list[float], width: int, height: int, is_whole: bool
) -> None:
    axis = Axis(figures.count, is_whole=is_whole)
    lines = plot([Line(values, list(reversed(values)), "red")], width, height, axis, axis).split("\n")
    assert len(lines) <= max(1, height)
    assert all(line.cell_length <= max(0, width) for line in lines)
    assert len(bar(values[0] if values and math.isfinite(values[0]) else 0, width, "red")) == max(0, width)
    assert len(stacked_bar([Part("part", value, "red") for value in values], width)) <= max(0, width)


def test_a_plot_falls_from_left_above_to_right_below_between_its_axes() -> None:
    rounds = Axis(lambda value: f"{value:.0f}", is_whole=True)
    lines = plot([Line([1, 10], [5.0, 1.0], "red")], 30, 6, rounds, Axis(figures.loss)).plain.split("\n")
    assert lines[0].startswith(" │⠑") or lines[0].startswith("5┤")
    assert "─" in lines[4]
    assert lines[5].split() == ["2", "4", "6", "8", "10"] or lines[5].split() == ["5", "10"]
    assert lines[3].rstrip()[-1] not in "│┤ "


def test_a_value_that_is_no_number_leaves_a_gap_in_a_plot() -> None:
    axis = Axis(figures.count)
    ys = [1.0, 1.0, math.nan, 1.0, 1.0]
    whole = plot([Line(range(5), [1.0] * 5, "red")], 40, 5, axis, axis).plain
    gap = plot([Line(range(5), ys, "red")], 40, 5, axis, axis).plain
    assert whole.count("⠤") + whole.count("⠒") > gap.count("⠤") + gap.count("⠒") > 0


def test_where_there_is_no_room_for_a_plot_its_figures_stand_alone() -> None:
    assert drawn(LossPanel, status(), 60, 12).count("\n") > 6
    assert drawn(LossPanel, status(), 60, 4).split() == ["held-out", "2.548", "▼", "from", "5.545", "training", "2.532"]
    assert drawn(LossPanel, status(), 20, 12).split() == ["held-out", "2.548", "training", "2.532"]


def test_the_parts_of_a_round_are_as_wide_as_they_took_long_and_named_where_there_is_room() -> None:
    parts = [Part("apply", 1.0, "red"), Part("train", 9.0, "green"), Part("wait", math.nan, "blue")]
    assert stacked_bar(parts, 40).plain == "    " + " train 9.0 s".ljust(36)
    assert stacked_bar(parts, 100).plain == " apply    " + " train 9.0 s".ljust(90)


def test_a_table_drops_its_least_important_columns_first() -> None:
    cells = [Content("aaaa")]
    columns = [Column("one", cells), Column("two", cells, rank=2), Column("three", cells, rank=1)]
    assert table(columns, 17)[0].plain.split() == ["one", "two", "three"]
    assert table(columns, 16)[0].plain.split() == ["one", "three"]
    assert table(columns, 5)[0].plain.split() == ["one"]
    assert table(columns, 1)[0].plain.split() == ["one"]


def test_experts_stand_beside_their_owners_with_what_was_done_for_them() -> None:
    rows = [re.sub("[━╸─]", "", row).split() for row in drawn(ExpertsPanel, status()).splitlines()]
    assert ["▸", "0", "1", "alder", "(you)", "23", "31", "%"] in rows
    assert ["6", "7", "dogwood", "23", "18", "%"] in rows


def test_unowned_experts_say_who_claims_them() -> None:
    rows = [row.split() for row in drawn(ExpertsPanel, status_before_the_first_round()).splitlines()]
    assert ["4", "5", "nobody", "claimed", "by", "cedar"] in [row[:6] for row in rows]


def many_subsets() -> Status:
    shown = status()
    del shown.subsets[:]
    for number in range(64):
        shown.subsets.add(subset=number, experts=[number], owners=[PEERS[number % 4]] if number < 40 else [])
    shown.subsets[1].owners.append(PEERS[2])
    shown.subsets[2].lapsing.append(PEERS[2])
    return shown


def test_many_subsets_become_cells_with_marks_and_a_legend() -> None:
    text = drawn(ExpertsPanel, many_subsets())
    assert "● 0    1+   2!   3  ● 4" in text
    assert "alder (you) 10" in text
    assert "nobody 24" in text
    assert " 63·" in text
    assert "● yours  + several owners  ! lapsing  · nobody's" in text


def test_a_subset_is_explained_in_sentences() -> None:
    shown = many_subsets()
    view = view_of(shown)
    assert "You train it, and nobody else does." in explain(view, shown.subsets[0])
    assert "birch, cedar train it together; what each learns is averaged by its tokens." in explain(
        view, shown.subsets[1]
    )
    assert "cedar has not been heard of, and will lose it unless it comes back soon." in explain(view, shown.subsets[2])
    assert "Nobody trains it: it stands still until somebody claims it." in explain(view, shown.subsets[63])
    assert explain(view_of(status()), status().subsets[1]) == [
        "Subset 1: experts 2, 3 of every layer.",
        "birch trains it.",
        "It was trained in 23 rounds.",
        "In your last round the router gave it 27 % of its choices, where an even share is 25 %.",
    ]
    assert "cedar claims it, to train it from the next record on." in explain(
        view_of(status_before_the_first_round()), status_before_the_first_round().subsets[2]
    )


def test_an_expert_with_many_owners_names_the_first_and_counts_the_rest() -> None:
    shown = status()
    shown.subsets[1].owners[:] = [*PEERS, "unknown-peer"]
    assert "alder (you), birch, cedar and 2 more" in drawn(ExpertsPanel, shown)


def test_loss_and_speed_are_figures_above_their_plots() -> None:
    assert "held-out 2.548  ▼ from 5.545  training 2.532" in drawn(LossPanel, status())
    assert "mine 4.31k  the run 18.7k" in drawn(SpeedPanel, status())


def test_own_speed_over_time_is_shown_before_a_round_has_closed() -> None:
    memory = Memory()
    shown = status(1)
    for second in range(0, 60, 3):
        memory.absorb(shown, NOW + second)
    view = memory.view(NOW + 60)
    assert view is not None
    text = SpeedPanel().draw(view, 60, 10)
    assert "mine 4.31k  the run –" in text.body.plain
    assert "now" in text.body.plain


def test_rates_come_from_what_was_counted_and_a_new_daemon_counts_anew() -> None:
    memory = Memory()
    for second, pid, sent in ((0, 1, 0), (1, 1, 500), (4, 1, 4000), (8, 2, 100), (10, 2, 300)):
        shown = Status(pid=pid)
        shown.traffic.add(transport="grpc", bytes_sent=sent, bytes_received=2 * sent)
        memory.absorb(shown, NOW + second)
    view = memory.view(NOW + 10)
    assert view is not None
    assert [(sample.sent_per_second, sample.received_per_second) for sample in view.samples] == [
        (1000, 2000),
        (100, 200),
    ]
    assert "up 100  down 200" in str(TrafficPanel().draw(view, 60, 10).body)


def test_a_machine_shows_what_it_gave_its_device_and_how_it_is_reached() -> None:
    text = drawn(MachinePanel, status())
    assert "41.2M tokens in 312 rounds and 3.2 hours" in text
    assert "cuda:0 NVIDIA RTX 4090" in text
    assert "93 %, 67 °C" in text
    assert "15.2G of 24.0GB, 9.40G ours" in text
    before = drawn(MachinePanel, status_before_the_first_round())
    assert "direct" in before
    shown = status()
    shown.ClearField("device")
    shown.ClearField("given")
    text = drawn(MachinePanel, shown)
    assert "nothing yet" in text
    assert "cpu" in text


def test_a_held_out_loss_not_known_yet_leaves_the_last_known_one() -> None:
    shown = status()
    shown.rounds[-1].held_out_loss = -1
    assert "held-out 2.578" in drawn(LossPanel, shown)


def test_before_the_first_round_panels_say_what_is_missing() -> None:
    shown = status_before_the_first_round()
    assert "waiting for the first round: 2 of 4 volunteers admitted" in drawn(LossPanel, shown)


def now(shown: Status, at: float = NOW, width: int = 120) -> str:
    return "\n".join(line.plain for line in now_lines(view_of(shown, at), width))


def test_the_overview_says_what_is_waited_for_until_when_and_why() -> None:
    text = now(status())
    assert "training  0:06  0:47 left  step 13 of 20" in text
    assert "waits for birch, dogwood: 2 of 4 contributions are in" in text
    assert "13 of 20 steps" in text
    assert "460 of 2,000 steps, 23 %" in text
    assert " apply 0.8 s" in text


def test_what_takes_its_time_has_a_bar_a_rate_and_time_left() -> None:
    shown = status_before_the_first_round()
    shown.progress.what, shown.progress.unit = "fetching the snapshot", "bytes"
    shown.progress.done, shown.progress.whole, shown.progress.since_at = 2.5e9, 1e10, NOW - 100
    text = now(shown)
    assert "fetching the snapshot  ━━━" in text
    assert "2.50G of 10.0GB, 25.0MB/s, 5:00 left" in text
    shown.progress.whole, shown.progress.unit = 0, "records"
    assert "fetching the snapshot    2.50G records, 25.0M records/s" in now(shown)


def test_a_pause_says_why() -> None:
    shown = status()
    shown.is_paused = True
    shown.pause_why = "on battery"
    assert "pauses after this round  step 13 of 20 on its own part of the text  on battery" in now(shown)
    shown.phase.name, shown.phase.why = "paused", "outside its hours, 22:00-08:00"
    shown.pause_why = "outside its hours, 22:00-08:00"
    assert now(shown).count("outside its hours") == 1


def machine(shown: Status, width: int = 120) -> list[str]:
    return [line.plain for line in machine_lines(view_of(shown), width)]


def test_how_much_of_the_disk_is_taken_and_may_be_is_said() -> None:
    shown = status()
    shown.disk_used_bytes = 1_200_000_000
    assert "disk     1.20GB  up 12:33" in machine(shown)
    shown.disk_limit_bytes = 20_000_000_000
    assert "disk     1.20G of 20.0GB  up 12:33" in machine(shown)


def test_how_the_daemons_own_processes_are_is_said_and_first_which_do_not_run() -> None:
    shown = status()
    assert machine(shown)[-1] == "runs     trainer 12:30  DHT node 12:30  libp2p node 12:30"
    shown.services[0].state, shown.services[0].since_at = "restarting", NOW - 12
    shown.services[0].why = "killed by the system (memory)"
    shown.services[1].why = "none of 2 known DHT nodes answers"
    assert machine(shown)[0] == "▲        trainer restarting 0:12 killed by the system (memory)"
    assert machine(shown)[-1] == ("runs     DHT node 12:30 (none of 2 known DHT nodes answers)  libp2p node 12:30")


def test_the_top_line_says_what_is_wrong_with_the_machine_below_it() -> None:
    shown = status()
    disk = "disk full: 0.0 of 20 GB free at /home/alder; training goes on, but nothing can be kept"
    shown.troubles.extend([disk, "[/red]\x1b[2J clock", "three", "four"])
    assert [line.plain for line in trouble_lines(view_of(shown), 120, 2)] == [
        f"▲ {disk}",
        "▲ [/red]�[2J clock",
        "▲ and 2 more",
    ]


def test_the_top_line_keeps_what_matters_at_any_width() -> None:
    assert top_line(view_of(status()), 80).plain.split() == (
        ["bytes-of-python", "round", "24", "alder", "●", "training", "0:47", "left"]
    )
    assert top_line(view_of(status()), 21).plain == "● training 0:47 left"
    for width in range(1, 120):
        assert top_line(view_of(status()), width).cell_length <= width


def test_who_is_waited_for_stands_in_order_this_peer_first_and_the_whole_roster_in_a_word() -> None:
    view = view_of(status())
    alder, birch, cedar, dogwood = PEERS
    assert view.someone([dogwood, cedar, alder]) == "you, cedar, dogwood"
    assert view.someone([dogwood, cedar, alder], most=2) == "you, cedar and 1 more"
    assert view.someone([dogwood, cedar, birch, alder]) == "everybody"


def test_a_passed_deadline_is_called_late() -> None:
    assert "0:13 late" in now(status(), NOW + 60)


@given(st.integers(1, 200))
def test_the_overviews_lines_fit_any_width(width: int) -> None:
    assert all(line.cell_length <= width for line in now_lines(view_of(status()), width))


@given(st.integers(1, 120), st.integers(1, 30), st.sampled_from(["nan", "inf", "-inf", "0"]))
def test_panels_take_any_size_and_any_figures(width: int, height: int, word: str) -> None:
    for shown in (status(5), Status()):
        figure = float(word)
        shown.held_out_loss_start = shown.training.loss = shown.training.tokens_per_second = figure
        for closed in shown.rounds:
            closed.held_out_loss = closed.train_loss = closed.seconds = figure
        for peer in shown.peers:
            peer.seen_at = figure
        for phase in (shown.phase, shown.round_phase):
            phase.since_at = phase.until_at = figure
            phase.name = "training"
        for subset in shown.subsets:
            subset.router_share = figure
        for part in shown.parts:
            part.seconds = figure
        shown.device.use = shown.device.temperature = shown.given.seconds = figure
        shown.progress.what, shown.progress.unit = "replaying records", "records"
        shown.progress.done = shown.progress.whole = shown.progress.since_at = figure
        for panel in (ExpertsPanel, LossPanel, SpeedPanel, TrafficPanel, MachinePanel):
            drawn(panel, shown, width, height)
        now(shown, width=width)
        for subset in shown.subsets:
            explain(view_of(shown), subset)
        memory = Memory()
        for at in (NOW, figure, NOW + 9):
            memory.absorb(shown, at)
        view = memory.view(NOW + 9)
        assert view is not None
        for panel in (SpeedPanel, TrafficPanel):
            panel().draw(view, width, height)


def test_memory_stays_flat_however_long_the_daemon_talks() -> None:
    memory = Memory()
    for sequence in range(6000):
        shown = Status(pid=1, log=[LogLine(sequence=sequence), LogLine(sequence=sequence + 1)])
        memory.absorb(shown, NOW + 2.0 * sequence)
    view = memory.view(NOW)
    assert view is not None
    assert [line.sequence for line in view.log] == list(range(4001, 6001))
    assert len(view.samples) == 240


def test_the_log_of_a_restarted_daemon_follows_that_of_the_old_one() -> None:
    memory = Memory()
    memory.absorb(Status(pid=1, log=[LogLine(sequence=9, text="old")]), NOW)
    memory.absorb(Status(pid=2, log=[LogLine(sequence=0, text="new")]), NOW)
    view = memory.view(NOW)
    assert view is not None
    assert [line.text for line in view.log] == ["old", "new"]
