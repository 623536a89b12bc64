"""What the dashboard draws, without a screen: figures, text from strangers, charts, tables, panels."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content
from tui_statuses import NOW, PEERS, status, status_before_the_first_round

from spes_peer.wire.control_pb2 import LogLine, Status
from tui import figures
from tui.chart import bar, line_chart, sparkline
from tui.experts import ExpertsPanel
from tui.header import header_lines, machine_lines, top_line, trouble_lines
from tui.look import safe
from tui.memory import Memory, View
from tui.panel import Panel
from tui.peers import PeersPanel
from tui.rounds import RoundsPanel
from tui.table import Column, table
from tui.training import TrainingPanel

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def view_of(shown: Status, now: float = NOW) -> View:
    memory = Memory()
    memory.absorb(shown)
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


@given(st.lists(ANY_FLOAT, max_size=40), st.integers(-3, 60), st.integers(0, 12))
def test_charts_take_any_values_and_keep_their_size(values: list[float], width: int, height: int) -> None:
    lines = line_chart([(values, "red")], width, height)
    assert len(lines) == height
    assert len(sparkline(values, width, "red")) <= max(0, width)
    assert len(bar(values[0] if values and math.isfinite(values[0]) else 0, width, "red")) == max(0, width)


def test_a_chart_falls_from_left_above_to_right_below() -> None:
    lines = line_chart([([5.0, 1.0], "red")], 27, 3)
    assert lines[0].plain.startswith("5.00 │")
    assert lines[2].plain.startswith("1.00 │")
    assert lines[0].plain[6] != " "
    assert lines[2].plain[26] != " "
    assert lines[2].plain[6] == " "


def test_a_table_drops_its_least_important_columns_first() -> None:
    cells = [Content("aaaa")]
    columns = [Column("one", cells), Column("two", cells, rank=2), Column("three", cells, rank=1)]
    assert table(columns, 17)[0].plain.split() == ["one", "two", "three"]
    assert table(columns, 16)[0].plain.split() == ["one", "three"]
    assert table(columns, 5)[0].plain.split() == ["one"]
    assert table(columns, 1)[0].plain.split() == ["one"]


def test_experts_stand_beside_their_owners_and_your_own_are_marked() -> None:
    rows = [row.split() for row in drawn(ExpertsPanel, status()).splitlines() if row.strip()]
    assert rows[0] == ["▸", "0", "1", "alder", "(you)", "23", "rounds"]
    assert rows[3] == ["6", "7", "dogwood", "23", "rounds"]


def test_unowned_experts_say_who_claims_them() -> None:
    text = drawn(ExpertsPanel, status_before_the_first_round())
    assert "4   5   nobody       claimed by cedar" in text


def test_many_experts_become_chips_with_a_legend() -> None:
    shown = status()
    del shown.subsets[:]
    for number in range(64):
        shown.subsets.add(subset=number, experts=[number], owners=[PEERS[number % 4]] if number < 40 else [])
    text = drawn(ExpertsPanel, shown)
    assert "alder (you) 10" in text
    assert "nobody 24" in text
    assert " 63 " in text


def test_an_expert_with_many_owners_names_the_first_and_counts_the_rest() -> None:
    shown = status()
    shown.subsets[1].owners[:] = [*PEERS, "unknown-peer"]
    assert "alder (you), birch, cedar and 2 more" in drawn(ExpertsPanel, shown)


def test_training_shows_steps_losses_and_speeds() -> None:
    text = drawn(TrainingPanel, status())
    assert "13/20" in text
    assert "training  2.532" in text
    assert "held-out 2.548  ▼ from 5.545" in text
    assert "4.31k tok/s" in text
    assert "18.7k tok/s" in text


def test_a_held_out_loss_not_known_yet_leaves_the_last_known_one() -> None:
    shown = status()
    shown.rounds[-1].held_out_loss = -1
    assert "held-out 2.578" in drawn(TrainingPanel, shown)
    assert drawn(RoundsPanel, shown).splitlines()[1].split()[:2] == ["23", "–"]


def test_before_the_first_round_panels_say_what_is_missing() -> None:
    shown = status_before_the_first_round()
    for panel in (TrainingPanel, RoundsPanel):
        assert "waiting for the first round: 2 of 4 volunteers admitted" in drawn(panel, shown)


def test_peers_show_transport_traffic_and_silence() -> None:
    text = drawn(PeersPanel, status(), width=80)
    dogwood = next(line for line in text.splitlines() if "dogwood" in line).split()
    assert dogwood == ["dogwood", "online", "3", "8", "relay", "74.4M", "113M", "0:03"]
    assert "★ bootstrap" in text
    assert "●  alder" in text


def test_the_header_says_what_it_waits_for_until_when_and_why() -> None:
    text = "\n".join(line.plain for line in header_lines(view_of(status()), 120, 5))
    assert "bytes-of-python  3f9a12c0" in text
    assert "round 24  step 460 of 2,000" in text
    assert "training       0:06  0:47 left  step 13 of 20" in text
    assert "waits for birch, dogwood: 2 of 4 contributions are in" in text


def machine(shown: Status, width: int = 120, max_lines: int = 5) -> list[str]:
    return [line.plain for line in machine_lines(view_of(shown), width, max_lines)]


def test_the_header_says_how_much_of_the_disk_is_taken_and_may_be() -> None:
    shown = status()
    shown.disk_used_bytes = 1_200_000_000
    assert "disk 1.20G ·" in header_lines(view_of(shown), 120, 5)[0].plain
    shown.disk_limit_bytes = 20_000_000_000
    assert "disk 1.20G of 20.0G ·" in header_lines(view_of(shown), 120, 5)[0].plain


def test_how_the_daemons_own_processes_are_is_said() -> None:
    shown = status()
    assert machine(shown) == ["trainer 12:30  ·  DHT node 12:30  ·  libp2p node 12:30"]
    assert machine(shown, max_lines=3) == []
    shown.services[0].state, shown.services[0].since_at = "restarting", NOW - 12
    shown.services[0].why = "killed by the system (memory)"
    shown.services[1].why = "none of 2 known DHT nodes answers"
    assert machine(shown, 160)[0].startswith(
        "trainer restarting 0:12 (killed by the system (memory))  ·  DHT node 12:30 (none of 2"
    )
    assert machine(shown, 40, 3) == ["trainer restarting 0:12 (killed by the …"]


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
        ["bytes-of-python", "3f9a12c0", "round", "24", "alder", "●", "training", "0:47", "left"]
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
    text = "\n".join(line.plain for line in header_lines(view_of(status(), NOW + 60), 120, 5))
    assert "0:13 late" in text


@given(st.integers(1, 200), st.integers(1, 5))
def test_the_header_fits_any_size(width: int, max_lines: int) -> None:
    lines = header_lines(view_of(status()), width, max_lines)
    assert len(lines) <= max_lines
    assert all(line.cell_length <= width for line in lines)


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
        for panel in (ExpertsPanel, TrainingPanel, PeersPanel, RoundsPanel):
            drawn(panel, shown, width, height)
        header_lines(view_of(shown), width, height)


def test_memory_stays_flat_however_long_the_daemon_talks() -> None:
    memory = Memory()
    for sequence in range(3000):
        shown = Status(pid=1, log=[LogLine(sequence=sequence), LogLine(sequence=sequence + 1)])
        shown.training.num_steps, shown.training.tokens_per_second = 1, sequence
        memory.absorb(shown)
    view = memory.view(NOW)
    assert view is not None
    assert [line.sequence for line in view.log] == list(range(2501, 3001))
    assert len(view.speeds) == 240


def test_the_log_of_a_restarted_daemon_follows_that_of_the_old_one() -> None:
    memory = Memory()
    memory.absorb(Status(pid=1, log=[LogLine(sequence=9, text="old")]))
    memory.absorb(Status(pid=2, log=[LogLine(sequence=0, text="new")]))
    view = memory.view(NOW)
    assert view is not None
    assert [line.text for line in view.log] == ["old", "new"]
