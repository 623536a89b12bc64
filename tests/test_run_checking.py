"""Every rule that an organizer can break is said, all of them at once, and nothing is said of a run that is right."""

import argparse
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer import config
from spes_peer.data.preparing.sources import read_recipe
from spes_peer.errors import BadConfiguration
from spes_peer.experiment.config import parse_experiment
from spes_peer.planning.explaining import explained
from spes_peer.planning.fleet import read_fleet
from spes_peer.run.checking import Checked, check_text, epochs_of, found, state_bytes, update_bytes
from spes_peer.run.data import Data
from spes_peer.run.length import Length
from spes_peer.run.manifest import RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.writing import as_toml, commented
from spes_peer.training.traffic import traffic_plan

DEMO = parse_run_file(PRESETS["demo"])


def data_of(*tokens: int, ratios: tuple[float, ...] = (), num_ids: int = 257, held_out: int = 100_000) -> Data:
    """Sources of so many tokens."""
    tokenizer: dict[str, Any] = {}
    if num_ids != 257:
        json = {"kind": "json", "name": "t", "blob": "ef" * 32, "size_bytes": 9, "end_of_text": 0}
        tokenizer = {"tokenizer": {**json, "num_ids": num_ids}, "token_dtype": "uint32"}
    shards = {"shard_tokens": 1 << 20, "index": "ab" * 32}
    sources = [
        {"name": f"source {place}", "ratio": ratio, "shards": {**shards, "num_tokens": count}}
        for place, (count, ratio) in enumerate(zip(tokens, ratios or (1.0,) * len(tokens), strict=True))
    ]
    return Data.model_validate(
        {**tokenizer, "sources": sources, "held_out": {"blob": "cd" * 32, "num_tokens": held_out}}
    )


PLENTY = data_of(20_000_000)


def text_with(**values: Any) -> str:
    """The demo's run file with other values of some keys."""
    text = commented(DEMO, "demo")
    for key, value in values.items():
        text, count = re.subn(rf"^(# )?{key} = .*$", f"{key} = {as_toml(value)}", text, flags=re.MULTILINE)
        assert count == 1, key
    return text


def checked(data: Data | None = PLENTY, **values: Any) -> Checked:
    return check_text(text_with(**values), data)


def test_nothing_is_wrong_with_the_demo_and_enough_text() -> None:
    assert checked().findings == ()


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"warmup_steps": 2000}, r"warmup_steps \(2000\) must be below total_steps \(2000\)"),
    ({"total_steps": 20, "warmup_steps": 1, "snapshot_rounds": 1}, r"total_steps \(20\) is one round of 20 steps"),
    ({"batch_sequences": 3}, r"batch_sequences \(3\) must be at least min_peers \(4\)"),
    (
        {"final_phase_fraction": 0.3, "final_phase_batch_sequences": 2},
        r"final_phase_batch_sequences \(2\) must be at least min_peers \(4\)",
    ),
    ({"merge_interval_steps": 30}, r"merge_interval_steps \(30\) never meets a synchronization: make it a multiple"),
    (
        {"final_phase_fraction": 0.5, "final_phase_steps_per_round": 30, "merge_warmup_steps": 2000,
         "merge_interval_steps": 500},
        r"merge_interval_steps \(500\) never meets a synchronization of the final phase, which are 30 steps apart",
    ),
    ({"merge_interval_steps": 200}, r"merge_interval_steps \(200\) must be below merge_warmup_steps \(200\)"),
    ({"block_elements": 1024, "d_model": 1024, "num_layers": 8}, r"block_elements \(1024\) cuts the model into \d+"),
    ({"num_subsets": 3}, r"num_subsets \(3\) must divide num_experts \(8\)"),
    ({"overlap_steps": 21}, r"overlap_steps \(21\) exceeds the 20 steps of a round"),
    ({"dht_ttl_seconds": 20}, r"dht_beat_seconds \(8\) must be below dht_ttl_seconds / 3"),
    ({"lease_seconds": 230}, r"round_seconds \(120\) must be below lease_seconds / 2"),
    ({"lr": -1.0}, r"training\.lr: Input should be greater than 0"),
]  # fmt: skip
WARNINGS: list[tuple[dict[str, Any], str]] = [
    ({"snapshot_rounds": 101}, r"snapshot_rounds \(101\) exceeds the run's 100 rounds"),
    ({"min_peers": 2}, r"min_peers \(2\) is below num_subsets \(4\): .* must hold 2 subsets"),
    ({"final_phase_fraction": 0.3, "final_phase_batch_sequences": 64}, r"the batch of the final phase \(64 sequences"),
    ({"merge_warmup_steps": 3000}, r"merge_warmup_steps \(3000\) exceeds total_steps \(2000\)"),
    ({"block_elements": 1 << 22, "reducers_per_block": 1}, r"makes 1 shared blocks: with 1 reducers each"),
    ({"reducers_per_block": 1}, "reducers_per_block is 1: nobody checks"),
    ({"reducers_per_block": 8}, r"reducers_per_block \(8\) exceeds min_peers \(4\)"),
    ({"snapshot_rounds": 50}, r"snapshot_rounds \(50\): everybody keeps the updates of 100 rounds"),
    ({"lr": 0.5}, r"lr \(0\.5\) is far above"),
    ({"vocab_rows": 512}, r"vocab_rows \(512\) has 255 rows that the tokenizer 'bytes' never uses"),
]


@pytest.mark.parametrize(("values", "said"), ERRORS, ids=[said[:40] for _values, said in ERRORS])
def test_what_cannot_be_is_an_error_that_says_the_rule(values: dict[str, Any], said: str) -> None:
    assert any(re.search(said, one) for one in checked(**values).errors), checked(**values).findings


@pytest.mark.parametrize(("values", "said"), WARNINGS, ids=[said[:40] for _values, said in WARNINGS])
def test_what_hardly_anybody_wants_is_a_warning_and_no_error(values: dict[str, Any], said: str) -> None:
    result = checked(**values)
    assert result.errors == ()
    assert any(re.search(said, one) for one in result.warnings), result.findings


def test_all_faults_are_said_at_once() -> None:
    misfits = checked(heartbeat_seconds=20, num_subsets=3, top_k=9, overlap_steps=30).errors
    assert [one.split()[0] for one in misfits] == ["top_k", "heartbeat_seconds", "num_subsets", "overlap_steps"]
    values = check_text(text_with(lr=-1.0, seed=-1, dht_ttl_seconds=20) + "\n[extra]\nx = 1\n", None)
    assert values.run is None
    assert [one.split()[0] for one in values.errors[:1]] == ["unknown"]
    assert len(values.errors) == 4
    more = checked(warmup_steps=5000, batch_sequences=1, merge_interval_steps=200, max_epochs=1, data=data_of(10_000))
    assert len(more.errors) == 4


def test_text_that_is_no_toml_is_one_error() -> None:
    assert [one[:8] for one in check_text("[run", None).errors] == ["not TOML"]
    assert check_text("", None).errors != ()


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = 1" + "0" * 5000])
def test_toml_that_its_library_cannot_bear_is_refused_wherever_it_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    [error] = check_text(text, None).errors
    assert error.startswith("not TOML")
    for read in (
        lambda: parse_run_file(text),
        lambda: parse_experiment(text, "x.toml"),
        lambda: read_fleet(path),
        lambda: read_recipe(path),
        lambda: config.read_settings(path, argparse.ArgumentParser()),
    ):
        with pytest.raises(BadConfiguration, match=r"toml: not TOML") as caught:
            read()
        assert len(str(caught.value)) < 300


@given(st.text(max_size=300) | st.sampled_from(["total_steps = 1" + "0" * 400, "[run]\nseed = nan", "a = [" * 200]))
def test_whatever_stands_in_a_run_file_is_answered_in_words(text: str) -> None:
    assert check_text(text, None).errors


_LARGEST = {
    "vocab_rows": 2**24, "d_model": 2**17, "num_layers": 1024, "num_heads": 1024, "num_kv_heads": 1024,
    "num_experts": 4096, "top_k": 4096, "expert_hidden": 2**20, "sequence_length": 2**24, "num_subsets": 4096,
    "total_steps": 2**40, "batch_sequences": 2**24, "min_peers": 2**20, "snapshot_rounds": 2**40,
}  # fmt: skip


def test_numbers_beyond_measure_are_refused_and_take_no_time() -> None:
    for key, most in _LARGEST.items():
        [error] = checked(**{key: most + 1}).errors
        assert key in error
        assert "less than or equal to" in error


def test_the_largest_numbers_that_are_taken_are_counted_with_in_no_time() -> None:
    assert any("cuts the model into" in one for one in checked(**_LARGEST).errors)


def test_no_wait_is_longer_than_a_timer_can_count() -> None:
    for key in ("round_seconds", "stall_timeout_seconds", "lease_seconds", "dht_beat_seconds"):
        for value in (2e8, 1e308):
            assert f"timing.{key}: Input should be less than or equal to 100000000" in checked(**{key: value}).errors
    longest = checked(total_steps=2**40, round_seconds=4e7, lease_seconds=1e8)
    assert longest.run is not None
    assert "years for all rounds" in " ".join(explained(longest.run, None))


# ---- data ----


def test_data_shorter_than_the_schedule_is_refused_with_how_often_each_source_would_be_read() -> None:
    wanted = Length.of(DEMO).num_sequences
    data = data_of(8_192_000 // 2, 8_192_000 * 2, ratios=(3, 1))
    epochs = epochs_of(DEMO, data)
    assert epochs["source 0"] == pytest.approx(0.75 * wanted * 128 / (8_192_000 // 2), rel=0.01)
    assert epochs["source 1"] == pytest.approx(0.25 * wanted * 128 / (8_192_000 * 2), rel=0.01)
    errors = checked(data=data, max_epochs=1.0).errors
    assert [re.sub(r"\d\.\d\d", "N", one) for one in errors] == [
        "the data is shorter than the schedule: 'source 0' would be gone through N times, and max_epochs is 1; add"
        " text, shorten total_steps, or raise max_epochs"
    ]
    assert checked(data=data, max_epochs=1.6).errors == ()


def test_a_tokenizer_with_more_ids_than_rows_is_refused() -> None:
    errors = checked(data=data_of(20_000_000, num_ids=300)).errors
    assert errors == ("vocab_rows (272) must be at least the 300 ids of the tokenizer 't'",)


def test_shards_and_a_held_out_split_without_a_sequence_are_refused() -> None:
    errors = checked(data=data_of(100, held_out=100)).errors
    assert any("'source 0' has no shard with a whole sequence of 128 tokens" in one for one in errors)
    assert any("the held-out split has 100 tokens, a sequence needs 129" in one for one in errors)
    assert any("noisy" in one for one in checked(data=data_of(20_000_000, held_out=1000)).warnings)


# ---- what it counts with ----


@pytest.mark.parametrize("preset", PRESETS)
def test_sizes_are_those_of_the_traffic_plan(preset: str) -> None:
    run = parse_run_file(PRESETS[preset])
    plan = traffic_plan(run, run.run.min_peers)
    assert (state_bytes(run), update_bytes(run)) == (plan.snapshot_bytes, plan.applied_bytes)


# ---- the text of a run file ----


@pytest.mark.parametrize("preset", PRESETS)
def test_a_commented_run_file_is_read_back_and_names_every_key(preset: str) -> None:
    run = parse_run_file(PRESETS[preset])
    text = commented(run, "A heading.\n\nIn two parts.")
    assert parse_run_file(text) == run
    for name in RunFile.model_fields:
        section = getattr(run, name)
        for key in type(section).model_fields:
            assert re.search(rf"^(# )?{key} = ", text, re.MULTILINE), key
    assert all(len(line) <= 100 for line in text.splitlines() if line.startswith("# ") and "organizers" not in line)


def test_what_is_as_by_default_is_commented_out_and_the_rest_is_not() -> None:
    raw = tomllib.loads(commented(DEMO, ""))
    assert "weight_decay" not in raw["training"]
    assert raw["training"]["max_epochs"] == 100
    assert raw["run"]["seed"] == 1


def test_every_preset_is_found_without_fault_also_where_it_is_parsed() -> None:
    assert all(found(parse_run_file(text), None) == [] for text in PRESETS.values())
