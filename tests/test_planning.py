"""What is said of a run before it is signed follows from its file: lengths, cards, traffic, time; in any terminal."""

import argparse
import json
import re
from pathlib import Path

import pytest

from spes_peer.cli import main
from spes_peer.cli.organizing import _costs
from spes_peer.errors import BadConfiguration
from spes_peer.planning.explaining import explained, num_active, num_parameters
from spes_peer.planning.fleet import Group, link, read_fleet
from spes_peer.planning.forecast import CHOICES, forecast, operations_per_token
from spes_peer.planning.lines import folded, number
from spes_peer.planning.words import as_json, in_words
from spes_peer.run.layout import RunLayout
from spes_peer.run.length import Length
from spes_peer.run.manifest import RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.training.plan import memory_plan
from spes_peer.training.traffic import Line, traffic_plan

GB = 10**9
HOME = Line(up=20e6, down=100e6)


def run_of(preset: str) -> RunFile:
    return parse_run_file(PRESETS[preset])


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


# ---- the forecast ----


def test_time_is_the_rounds_training_and_the_exchange_of_the_slowest_line() -> None:
    run = run_of("spes-1b")
    slow = Line(up=10e6, down=100e6)
    found = forecast(run, [Group(2, 24 * GB, HOME, 10_000.0), Group(2, 24 * GB, slow, 5_000.0)], None)
    assert found is not None
    traffic = traffic_plan(run, 4)
    assert found.traffic == traffic
    for phase in found.phases:
        tokens = phase.phase.steps_per_round * phase.phase.batch_sequences * 2048
        assert phase.training_seconds == pytest.approx(tokens / 30_000)
        assert phase.exchange_seconds == slow.exchange_seconds(traffic)
        assert phase.round_seconds == pytest.approx(phase.training_seconds + phase.exchange_seconds)
    assert found.seconds == pytest.approx(sum(one.round_seconds * one.phase.num_rounds for one in found.phases))
    assert found.tokens_per_second == pytest.approx(Length.of(run).num_tokens / found.seconds)
    days = found.seconds / 86_400
    assert found.bytes_per_day == pytest.approx(traffic.sent_bytes * 1000 / days)


def test_a_step_is_no_faster_than_the_slowest_volunteers_one_sequence() -> None:
    found = forecast(run_of("demo"), [Group(31, 8 * GB, HOME, 1e6), Group(1, 8 * GB, HOME, 64.0)], None)
    assert found is not None
    assert found.phases[0].training_seconds == pytest.approx(20 * 128 / 64)


def test_the_exchange_costs_only_what_overlap_does_not_hide() -> None:
    run = run_of("spes-1b")
    overlapped = run.model_copy(update={"sync": run.sync.model_copy(update={"overlap_steps": 50})})
    fleet = [Group(4, 24 * GB, HOME, 10_000.0)]
    one, other = forecast(run, fleet, None), forecast(overlapped, fleet, None)
    assert one is not None
    assert other is not None
    assert other.utilisation == 1.0
    assert one.utilisation < 1.0


def test_a_card_is_planned_with_the_finest_choices_that_hold_its_part() -> None:
    run = run_of("spes-2b")
    found = forecast(run, [Group(16, 16 * GB, HOME), Group(16, 48 * GB, HOME)], None)
    assert found is not None
    for group in found.groups:
        assert group.plan.fits
        assert group.plan.num_subsets == 1
        assert not any(plan.fits for plan in group.plans[: group.chosen])
        assert group.plan == memory_plan(run, group.group.memory_bytes, CHOICES[group.chosen], 1)
    assert found.groups[0].chosen > found.groups[1].chosen == 0


def test_fewer_volunteers_hold_more_each_and_too_few_take_turns() -> None:
    alone = forecast(run_of("spes-1b"), [Group(1, 80 * GB, HOME)], None)
    assert alone is not None
    assert alone.groups[0].plan.num_subsets == 4
    few = forecast(run_of("spes-2b"), [Group(4, 16 * GB, HOME)], None)
    assert few is not None
    assert few.part_trained == sum(group.plan.num_subsets for group in few.groups) * 4 / 16 < 1
    assert "experts take turns" in in_words(few, 0.25)


def test_cards_that_hold_nothing_are_left_out_and_no_run_is_planned_with_them_alone() -> None:
    run = run_of("spes-7b")
    assert forecast(run, [Group(8, 8 * GB, HOME)], None) is None
    found = forecast(run, [Group(8, 8 * GB, HOME), Group(4, 80 * GB, HOME)], None)
    assert found is not None
    assert found.num_peers == 4
    assert "not even one subset fits" in in_words(found, 0.25)


def test_a_token_costs_six_operations_for_each_weight_that_is_trained_and_four_for_a_frozen_one() -> None:
    run, layout = run_of("spes-1b"), RunLayout(run_of("spes-1b"))
    short = run.model_copy(update={"model": run.model.model_copy(update={"sequence_length": 8})})
    plan = memory_plan(short, 80 * GB, CHOICES[0], 4)
    shared = layout.num_shared - 151_665 * 768
    assert operations_per_token(short, plan) == pytest.approx(6 * (shared + 2 * layout.num_per_expert), rel=0.001)
    quarter = memory_plan(short, 80 * GB, CHOICES[0], 1)
    routed = 2 * layout.num_per_expert
    assert operations_per_token(short, quarter) == pytest.approx(6 * shared + 4 * routed + 2 * routed / 4, rel=0.001)


def test_measured_speeds_are_taken_as_they_are_and_others_are_said_to_be_assumed() -> None:
    run = run_of("spes-1b")
    measured = forecast(run, [Group(4, 24 * GB, HOME, 9_000.0)], None)
    assumed = forecast(run, [Group(4, 24 * GB, HOME)], None, 0.5)
    assert measured is not None
    assert assumed is not None
    assert measured.groups[0].tokens_per_second == 9_000.0
    assert "assumed" not in in_words(measured, 0.25).replace("counted, not assumed", "")
    assert assumed.groups[0].tokens_per_second == 0.5 * 71e12 / operations_per_token(run, assumed.groups[0].plan)
    assert "50% of what the slowest common card" in " ".join(in_words(assumed, 0.5).split())


def test_a_round_that_its_deadline_cuts_gives_no_time_to_the_end() -> None:
    run = run_of("spes-1b")
    found = forecast(run, [Group(4, 8 * GB, HOME, 2_400.0)], None)
    assert found is not None
    said = " ".join(in_words(found, 0.25).split())
    assert "tokens/s, if rounds were given the time (see below)" in said
    assert re.search(
        r"A round would take 3 h \d\d min, and round_seconds \(7200\) ends it after 2 h 00 min: raise", said
    )
    costs = dict(_costs(run))
    assert costs["volunteers"].startswith("4 cards of 8 GB")
    assert re.match(r"a round would take 3 h \d\d min, and round_seconds \(7200\) ends it", costs["time"])
    patient = run.timing.model_copy(update={"round_seconds": 14_400.0, "lease_seconds": 30_000.0})
    assert re.match(
        r"9\d\.\d days at 2,\d\d\d tokens/s", dict(_costs(run.model_copy(update={"timing": patient})))["time"]
    )


def test_no_speed_is_foreseen_of_a_model_whose_steps_are_too_short_to_be_computed_only() -> None:
    run = run_of("demo")
    found = forecast(run, [Group(4, 8 * GB, HOME)], None)
    assert found is not None
    assert "nobody has measured. On two CPU cores the four volunteers of the demo" in " ".join(
        in_words(found, 0.25).split()
    )
    assert "nobody can foresee it" in dict(_costs(run))["time"]
    measured = forecast(run, [Group(4, 8 * GB, HOME, 2_000.0)], None)
    assert measured is not None
    assert not measured.is_unforeseeable
    large = forecast(run_of("spes-1b"), [Group(4, 24 * GB, HOME)], None)
    assert large is not None
    assert not large.is_unforeseeable


def test_traffic_is_of_a_day_only_where_the_run_lasts_for_one() -> None:
    short = forecast(run_of("demo"), [Group(4, 8 * GB, HOME, 2_000.0)], None)
    long = forecast(run_of("spes-1b"), [Group(4, 24 * GB, HOME)], None)
    assert short is not None
    assert long is not None
    said = " ".join(in_words(short, 0.25).split())
    assert "sends 1.61 MB a round, 161 MB in all, and receives as much" in said
    assert "a day" not in said
    assert "GB a day, and receives as much" in in_words(long, 0.25)


# ---- fleets ----


def test_a_link_is_down_and_up() -> None:
    assert link("100Mb/20Mb") == Line(up=20e6, down=100e6)
    assert link("1Gbit/s") == Line(up=200e6, down=1e9)
    with pytest.raises(argparse.ArgumentTypeError, match="not a speed"):
        link("fast")


def test_a_fleet_file_is_read_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[volunteers]]\ncount = 3\ncard = "24GB"\nlink = "50Mb/10Mb"\n[[volunteers]]\ncard = "8GB"\n')
    assert read_fleet(path) == (
        Group(3, 24 * GB, Line(10e6, 50e6)),
        Group(1, 8 * GB, Line(20e6, 100e6)),
    )
    for text, said in (
        ("", "volunteers: Field required"),
        ('[[volunteers]]\ncard = "big"', "'big' is not a size"),
        ('[[volunteers]]\ncards = "8GB"', "did you mean card"),
        *(
            (f'[[volunteers]]\ncard = "8GB"\ntokens_per_second = {speed}', "tokens_per_second: Input should be")
            for speed in ("0", "-1", "nan", "inf", "1e308", "5e-324", "1e-300", "1" + "0" * 30)
        ),
        (f'[[volunteers]]\ncard = "{"9" * 400}GB"', "is beyond all measure"),
        ('[[volunteers]]\ncard = "8GB"\ncount = 1000000000000000000000000000000', "volunteers.0.count"),
        ("[[", "not TOML"),
    ):
        path.write_text(text)
        with pytest.raises(BadConfiguration, match=said):
            read_fleet(path)


# ---- odd numbers ----


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e308", "5e-324", "1e-300", "1" + "0" * 30, "9" * 5000])
@pytest.mark.parametrize("option", ["--volunteers", "--card", "--link", "--tokens-per-second", "--part"])
def test_a_number_with_which_nothing_can_be_reckoned_is_refused_in_a_line(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(PRESETS["demo"])
    assert command("run", "plan", str(tmp_path / "run.toml"), f"{option}={value}") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert len(said.err) < 300


@pytest.mark.parametrize("fastest", [False, True])
def test_the_least_and_the_most_that_can_be_named_give_a_forecast(
    fastest: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    most = ("100000", "1000000TB", "1000000Gb", "1000000000000") if fastest else ("1", "8GB", "1b", "0.000001")
    options = zip(("--volunteers", "--card", "--link", "--tokens-per-second"), most, strict=True)
    (tmp_path / "run.toml").write_text(PRESETS["demo"])
    arguments = ("run", "plan", str(tmp_path / "run.toml"), *(part for option in options for part in option))
    assert command(*arguments) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.split())) < 40
    assert "nan" not in said
    assert command(*arguments, "--json") == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda constant: pytest.fail(constant))


# ---- words ----


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("preset", PRESETS)
def test_no_line_is_wider_than_the_terminal(preset: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    run = run_of(preset)
    found = forecast(run, [Group(run.run.min_peers, 80 * GB, HOME)], None)
    assert found is not None
    lines = "\n".join((*explained(run, None), in_words(found, 0.25))).splitlines()
    assert max(map(len, lines)) <= int(columns)


def test_every_key_of_a_run_file_is_explained_with_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run = run_of("spes-1b")
    text = " ".join("\n".join(explained(run, None)).split())
    for name in RunFile.model_fields:
        for key in type(getattr(run, name)).model_fields:
            assert re.search(rf" {key} = ", text), key
    assert f"{number(num_parameters(run))} with the shared ones" in text
    assert "80.7 billion tokens in 1,000 rounds" in text
    assert num_active(run) == 261_454_080 + 2 * 56_623_104


def test_numbers_are_said_as_people_say_them() -> None:
    said = ["999,499", "1 million", "12.3 million", "1.17 billion", "1.05 trillion", "12,345 trillion"]
    assert [number(value) for value in (999_499, 999_999, 12.34e6, 1.167e9, 1.05e12, 12_345e12)] == said


def test_a_long_label_stands_on_a_line_of_its_own() -> None:
    assert folded("label", "text", 8) == "label     text"
    assert folded("a long label", "text", 8) == "a long label\n          text"


def test_the_json_has_what_the_page_says() -> None:
    found = forecast(run_of("spes-2b"), [Group(16, 24 * GB, HOME)], None)
    assert found is not None
    raw = json.loads(json.dumps(as_json(found)))
    assert raw["seconds"] == found.seconds
    assert raw["groups"][0]["memory"][found.groups[0].chosen]["is_chosen"]
    assert raw["bootstrap_node"]["disk_bytes"] == found.node.disk_bytes


# ---- the command ----


def test_plan_answers_for_a_folder_and_refuses_what_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "my-run")
    assert command("run", "new", folder, "--preset", "spes-2b") == 0
    capsys.readouterr()
    assert command("run", "plan", folder, "--volunteers", "8", "--card", "24GB", "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_peers"] == 8
    assert command("run", "plan", folder) == 0
    assert "with 16 volunteers" in capsys.readouterr().out
    assert command("run", "plan", folder, "--card", "4GB") == 2
    assert "no part of my-run fits into a card of 4.00 GB" in capsys.readouterr().err
    assert command("run", "plan", folder, "--part", "1.5") == 2
    assert command("run", "plan", folder, "--fleet", str(tmp_path / "none.toml")) == 2
    assert command("run", "plan", str(tmp_path / "nothing")) == 2
    assert command("run", "plan", str(tmp_path)) == 2
    assert "spes-peer run new" in capsys.readouterr().err
