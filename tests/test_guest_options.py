"""What a volunteer may type or write down for a good guest."""

from pathlib import Path
from typing import Any

import pytest

from spes_peer import config
from spes_peer.cli import join as join_command
from spes_peer.cli.guest import guest_rules
from spes_peer.cli.parsing import Parser
from spes_peer.guest.hours import Hours
from spes_peer.guest.rules import GuestRules
from spes_peer.training.choices import Memory


@pytest.fixture
def join() -> Any:
    return join_command.add_join(Parser(prog="spes-peer").add_subparsers())


def test_by_default_it_rests_on_battery_and_trains_with_low_priority_at_all_hours(join: Any) -> None:
    options = join.parse_args([])
    assert guest_rules(options) == GuestRules()
    assert not GuestRules().works_on_battery
    assert options.priority == "low"


def test_everything_can_be_typed_and_written_down(join: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        'hours = "22:00-08:00,12-13"\non_battery = true\nyield_gpu = true\nmax_temperature = 80\n'
        'max_upload_per_day = "5GB"\nmax_download_per_day = "10GB"\npriority = "normal"\n'
    )
    typed = "--hours 22:00-08:00,12-13 --on-battery --yield-gpu --max-temperature 80 --max-upload-per-day 5GB"
    options = join.parse_args([*typed.split(), "--max-download-per-day", "10GB", "--priority", "normal"])
    rules = guest_rules(options)
    assert rules == GuestRules(Hours.parse("22:00-08:00,12:00-13:00"), True, True, 80.0, 5 * 10**9, 10 * 10**9)
    join.set_defaults(**config.read_settings(path, join))
    assert guest_rules(join.parse_args([])) == rules
    assert 'hours = "22:00-08:00,12:00-13:00"' in config.shown(
        vars(join.parse_args([])), config.read_settings(path, join), path, join
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--hours 22", "'22' is not hours such as 22:00-08:00"),
        ("--hours 8-8", "begins when it ends"),
        ("--max-temperature 200", "'200' is not degrees Celsius from 30 to 120"),
        ("--max-temperature hot", "'hot' is not degrees Celsius"),
        ("--priority high", "invalid choice: 'high'"),
    ],
)
def test_a_mistake_is_one_line(join: Any, typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        join.parse_args(typed.split())
    assert said in capsys.readouterr().err


def test_memory_is_lent_by_size_or_by_part(join: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert join.parse_args([]).gpu_memory == Memory()
    by_size, by_part = (join.parse_args(["--gpu-memory", text]).gpu_memory for text in ("20GB", "50%"))
    assert (by_size.size_bytes, by_size.part, str(by_size)) == (20 * 10**9, 0.0, "20GB")
    assert (by_part.size_bytes, by_part.part, str(by_part)) == (0, 0.5, "50%")
    for text in ("0%", "101%", "x%", "%", "20XB"):
        with pytest.raises(SystemExit):
            join.parse_args(["--gpu-memory", text])
        assert "is not a" in capsys.readouterr().err
