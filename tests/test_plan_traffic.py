"""What a round sends and receives: against the paper's figures, and against rounds counted fetch by fetch."""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from spes_peer.cli import main
from spes_peer.errors import BadConfiguration
from spes_peer.identity import Identity, PeerId
from spes_peer.measures import amount, duration
from spes_peer.rounds.assignment import assign_reducers
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, RunFile, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import RosterEntry
from spes_peer.training.traffic import (
    Encodings,
    Line,
    owners_of_subsets,
    round_seconds,
    traffic_plan,
    utilisation,
)
from spes_peer.training.traffic_command import speed

TOPK = Encodings("topk", "topk", "topk")
MIXED = Encodings("topk", "int8", "int4")


def preset(name: str, encodings: Encodings | None = None) -> RunFile:
    run = parse_run_file(PRESETS[name])
    return run if encodings is None else encodings.in_place_of(run)


# ---- against the paper ----


def test_in_fp32_a_peer_of_the_7b_offers_and_applies_what_the_paper_says() -> None:
    plan = traffic_plan(preset("spes-7b", Encodings()), 4)
    assert plan.offered_bytes == 4 * (890_836_992 + 6_442_450_944 // 4)
    assert plan.applied_bytes == 4 * (890_836_992 + 6_442_450_944)
    assert (amount(plan.offered_bytes), amount(plan.applied_bytes)) == ("10.0 GB", "29.3 GB")


def test_topk_offers_and_updates_of_the_7b_are_below_the_goal() -> None:
    plan = traffic_plan(preset("spes-7b", TOPK), 4)
    assert plan.offered_bytes <= 0.1e9
    assert plan.received_bytes < plan.applied_bytes <= 0.3e9
    assert plan.times_fewer_than(traffic_plan(preset("spes-7b", Encodings()), 4)) > 140


def test_the_formula_for_whole_values_is_the_count_of_parameters() -> None:
    """fp32, four peers, two reducers: half of the peers fetch a mean, each reducer fetches three offers."""
    plan = traffic_plan(preset("spes-7b", Encodings()), 4)
    assert plan.fetched_offer_bytes == 4 * 890_836_992 * 2 * 3 // 4
    assert plan.fetched_update_bytes == 4 * (890_836_992 * 2 // 4 + 6_442_450_944 * 3 // 4)


# ---- against rounds counted fetch by fetch ----


def a_roster(num_subsets: int, num_peers: int) -> tuple[RosterEntry, ...]:
    peers = sorted(Identity.from_seed(bytes([index]) * 32).peer_id for index in range(num_peers))
    subsets: dict[PeerId, list[int]] = {peer: [] for peer in peers}
    for index in range(max(num_subsets, num_peers)):
        subsets[peers[index % num_peers]].append(index % num_subsets)
    return tuple(RosterEntry(peer, 1, tuple(sorted(subsets[peer])), (), 1) for peer in peers)


@dataclasses.dataclass
class Round:
    """Bytes of a round in which everybody fetches what it lacks from whoever made it."""

    offered: int = 0
    applied: int = 0
    fetched_offers: int = 0
    fetched_updates: int = 0
    sent: Counter[PeerId] = dataclasses.field(default_factory=Counter)
    received: Counter[PeerId] = dataclasses.field(default_factory=Counter)


def a_round(layout: Layout, roster: tuple[RosterEntry, ...]) -> Round:
    counted, peers = Round(), [entry.peer_id for entry in roster]
    reducers = {one.block: one.reducers for one in assign_reducers(1, roster, layout)}
    makers: dict[str, list[PeerId]] = {}
    for entry in roster:
        for block in layout.blocks_offered_by(entry.subsets):
            makers.setdefault(block.id, []).append(entry.peer_id)
            counted.offered += layout.offer_bytes(block)

    def fetched(by: PeerId, maker: PeerId, size: int) -> int:
        counted.received[by] += size
        counted.sent[maker] += size
        return size

    for block in layout.blocks:
        offering = makers[block.id]
        have = reducers.get(block.id, tuple(offering))  # an only offer is the update
        for reducer in reducers.get(block.id, ()):
            for maker in offering:
                if maker != reducer:
                    counted.fetched_offers += fetched(reducer, maker, layout.offer_bytes(block))
        size = layout.mean_bytes(block) if block.id in reducers else layout.offer_bytes(block)
        counted.applied += size * len(peers)
        for peer in peers:
            if peer not in have:
                counted.fetched_updates += fetched(peer, have[0], size)
    return counted


def layout_in(manifest: Manifest, encodings: Encodings, block_elements: int = 5000) -> Layout:
    run = encodings.in_place_of(manifest)
    assert isinstance(run, Manifest)
    return Layout(run.model_copy(update={"sync": run.sync.model_copy(update={"block_elements": block_elements})}))


@pytest.mark.parametrize("num_peers", [1, 2, 3, 4])
@pytest.mark.parametrize("encodings", [Encodings(), MIXED], ids=["fp32", "mixed"])
def test_with_one_owner_a_subset_the_plan_is_the_average_of_a_counted_round(
    manifest: Manifest, encodings: Encodings, num_peers: int
) -> None:
    layout = layout_in(manifest, encodings)
    counted = a_round(layout, a_roster(4, num_peers))
    plan = traffic_plan(layout.manifest, num_peers)
    assert plan.offered_bytes == round(counted.offered / num_peers)
    assert plan.applied_bytes == round(counted.applied / num_peers)
    assert plan.fetched_offer_bytes == round(counted.fetched_offers / num_peers)
    assert plan.fetched_update_bytes == round(counted.fetched_updates / num_peers)


@pytest.mark.parametrize("num_peers", [6, 8])
def test_with_several_owners_it_is_so_over_many_draws_of_reducers(manifest: Manifest, num_peers: int) -> None:
    layout = layout_in(manifest, MIXED)
    counted = a_round(layout, a_roster(4, num_peers))
    plan = traffic_plan(layout.manifest, num_peers)
    assert plan.offered_bytes == round(counted.offered / num_peers)
    assert plan.applied_bytes == round(counted.applied / num_peers)
    # which reducers also own the block is drawn by hash, for hundreds of blocks: a few percent
    assert plan.fetched_offer_bytes == pytest.approx(counted.fetched_offers / num_peers, rel=0.03)
    assert plan.fetched_update_bytes == pytest.approx(counted.fetched_updates / num_peers, rel=0.03)


@pytest.mark.parametrize("num_peers", [2, 3, 4, 7])
def test_all_that_is_received_is_sent(manifest: Manifest, num_peers: int) -> None:
    layout = layout_in(manifest, MIXED)
    counted = a_round(layout, a_roster(4, num_peers))
    assert counted.sent.total() == counted.received.total() == counted.fetched_offers + counted.fetched_updates
    plan = traffic_plan(layout.manifest, num_peers)
    assert plan.sent_bytes == plan.received_bytes == plan.fetched_offer_bytes + plan.fetched_update_bytes
    assert plan.sent_bytes == pytest.approx(counted.sent.total() / num_peers, rel=0.03)


def test_a_snapshot_is_the_whole_public_state_with_its_momentum(manifest: Manifest) -> None:
    for outer in ("mean", "nesterov"):
        sync = manifest.sync.model_copy(update={"shared_outer": outer, "expert_dtype": "bf16"})
        layout = Layout(manifest.model_copy(update={"sync": sync}))
        whole = sum(layout.state_bytes(block) for block in layout.state_blocks)
        assert traffic_plan(layout.manifest, 4).snapshot_bytes == whole


# ---- rosters ----


def test_a_peer_alone_sends_and_receives_nothing() -> None:
    plan = traffic_plan(preset("demo"), 1)
    assert (plan.sent_bytes, plan.received_bytes) == (0, 0)
    assert plan.offered_bytes == plan.applied_bytes > 0
    assert plan.times_fewer_than(plan) == 1


def test_subsets_are_spread_evenly_and_none_is_left_without_an_owner() -> None:
    assert owners_of_subsets(4, 4) == (1, 1, 1, 1)
    assert owners_of_subsets(4, 3) == (1, 1, 1, 1)
    assert owners_of_subsets(4, 6) == (2, 2, 1, 1)
    assert owners_of_subsets(1, 5) == (5,)


def test_more_reducers_than_peers_are_not_had() -> None:
    run = preset("demo")
    plans = [
        traffic_plan(run.model_copy(update={"sync": run.sync.model_copy(update={"reducers_per_block": n})}), 2)
        for n in (2, 8)
    ]
    assert plans[0] == plans[1]


def test_rounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadConfiguration, match="from 1 to 1,048,576 peers, not 0"):
        traffic_plan(preset("demo"), 0)
    run = preset("demo")
    odd = run.model_copy(update={"training": run.training.model_copy(update={"num_subsets": 3})})
    with pytest.raises(BadConfiguration, match=r"num_subsets \(3\) must divide num_experts \(8\)"):
        traffic_plan(odd, 4)


# ---- time ----


def test_the_slower_direction_of_the_line_decides() -> None:
    plan = traffic_plan(preset("spes-7b"), 4)
    assert Line(20e6, 100e6).exchange_seconds(plan) == 8 * plan.sent_bytes / 20e6
    assert Line(1e9, 100e6).exchange_seconds(plan) == 8 * plan.sent_bytes / 100e6
    assert Line(1e9, 100e6).snapshot_seconds(plan) == 8 * plan.snapshot_bytes / 100e6
    assert Line(20e6, 100e6).snapshot_seconds(plan) == 8 * plan.snapshot_bytes / (4 * 20e6)


def test_utilisation_counts_only_the_exchange_that_no_step_hides() -> None:
    run = preset("spes-7b")

    def with_overlap(steps: int) -> RunFile:
        return run.model_copy(update={"sync": run.sync.model_copy(update={"overlap_steps": steps})})

    assert utilisation(run, 300, 100) == 0.75
    assert utilisation(with_overlap(10), 300, 100) == 300 / 340  # 60 of the 100 seconds hidden
    assert utilisation(with_overlap(25), 300, 100) == 1
    assert round_seconds(run, 4, 10_000) == 50 * 1024 * 2048 / 4 / 10_000


# ---- the command ----


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_a_volunteer_reads_what_a_round_costs_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--traffic", "--preset", "spes-7b", "--round-seconds", "1800")
    assert code == 0
    assert out.startswith("spes-7b: one of 4 peers (1 subset of experts each), each round of 50 steps\n")
    plan = traffic_plan(preset("spes-7b"), 4)
    rows = {line[2:22].strip(): line[22:30].strip() for line in out.splitlines() if line.startswith("  ")}
    assert rows["sends"] == rows["receives"] == amount(plan.sent_bytes)
    assert rows["its own offers"] == amount(plan.offered_bytes)
    assert rows["all updates"] == amount(plan.applied_bytes)
    assert "24× as much" in out
    assert f"20 Mb/s up and 100 Mb/s down, the exchange takes {duration(8 * plan.sent_bytes / 20e6)}" in out
    assert f"trains {1800 / (1800 + 8 * plan.sent_bytes / 20e6):.1%} of the time" in out


def test_without_a_run_every_preset_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--traffic")
    assert code == 0
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    for name in PRESETS:
        assert lines[name][1] == str(preset(name).run.min_peers)
    assert "trains" not in out
    assert "trains" in said(capsys, "--traffic", "--round-seconds", "60")[1]


def test_encodings_and_peers_are_compared_without_another_run_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(PRESETS["spes-1b"])
    chosen = ("--shared-offers", "topk", "--shared-updates", "int8", "--experts", "int4", "--peers", "9")
    code, out, _ = said(capsys, "--traffic", "--run-file", str(tmp_path / "run.toml"), *chosen, "--json")
    assert code == 0
    plan = traffic_plan(preset("spes-1b", MIXED), 9)
    told = json.loads(out)
    assert told["sent_bytes"] == plan.sent_bytes
    assert {**told, **dataclasses.asdict(plan)} == told
    assert told["encodings"] == dataclasses.asdict(MIXED)
    _, out, _ = said(capsys, "--traffic", "--preset", "spes-1b", *chosen)
    assert "one of 9 peers (2 or 3 owners for each subset of experts)" in out
    assert json.loads(said(capsys, "--traffic", "--json", *chosen)[1])["spes-1b"] == told


def test_one_peer_alone_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(capsys, "--traffic", "--preset", "demo", "--peers", "1")
    assert "demo: one peer alone" in out
    assert out.endswith("Alone it sends and receives nothing.\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--traffic --peers 0", "a round has from 1 to 1,048,576 peers, not 0"),
        ("--traffic --gpu-memory 3GB", "--gpu-memory says nothing about traffic"),
        ("--traffic --preset demo --optimizer-bits 8", "--optimizer-bits says nothing about traffic"),
        ("--preset demo --gpu-memory 3GB --shared-offers topk", "--shared-offers says nothing about memory"),
        ("--preset demo", "how much memory has the device?"),
        ("--gpu-memory 3GB", "Name a --preset or a --run-file"),
        ("--traffic --up 20MB", "'20MB' is not a speed such as 20Mb (b for bits)"),
        ("--traffic --experts fp8", "invalid choice: 'fp8'"),
        ("--traffic --round-seconds nan", "'nan' is not a number from 0.000001 to 10^12"),
        ("--traffic --run-file /nowhere/run.toml", "cannot read /nowhere/run.toml"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: str, why: str) -> None:
    code, out, err = said(capsys, *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


def test_a_speed_is_in_bits() -> None:
    assert [speed(text) for text in ("20Mb", "100 Mbit/s", "1.5G", "1Gbps", "500kb/s", "9600")] == [
        20e6, 100e6, 1.5e9, 1e9, 500e3, 9600,
    ]  # fmt: skip
    for text in ("20MB", "0Mb", "fast", "-3Mb", "", "0.0000001b", "1" + "0" * 400, "9" * 20 + "Gb"):
        with pytest.raises(argparse.ArgumentTypeError):
            speed(text)


def test_it_needs_no_torch() -> None:
    code = "import sys, spes_peer.training.traffic_command; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "False"
