"""What an exported model's card says, and what names of strangers cannot do in it."""

import html
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from spes_peer.identity import Identity, PeerId
from spes_peer.model.huggingface import config_of
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.training.history import History, LossPoint, key_points
from spes_peer.training.known_names import known_names, write_names
from spes_peer.training.model_card import Origin, model_card, told_apart

ANNA, BEN = (Identity.from_seed(bytes([seed]) * 32).peer_id for seed in (1, 2))


def card(manifest: Manifest, names: dict[PeerId, str] | None = None, given: dict[PeerId, int] | None = None) -> str:
    losses = (LossPoint(1, 0, 5.67), LossPoint(12, 80_000, 2.0))
    history = History(13, 90_000, 260, given if given is not None else {ANNA: 60_000, BEN: 30_000}, losses)
    origin = Origin(Layout(manifest), "ab" * 32, BEN, "cd" * 32, 15, history, names or {})
    return model_card(origin, config_of(manifest.model, "float32", 256))


def test_the_card_tells_run_tokens_losses_and_who_gave(manifest: Manifest) -> None:
    text = card(manifest, {ANNA: "anna's laptop"})
    for said in ("ab" * 32, "90,000", "after record 13 (the newest known is 15)", "2.0000", "anna's laptop", "66.7%"):
        assert said in text, said
    assert "a volunteer" in text
    assert "2602.11543" in text
    assert "bytes of UTF-8" in text


def test_the_front_matter_is_what_the_hub_reads(manifest: Manifest) -> None:
    _, front, _ = card(manifest).split("---\n", 2)
    held = yaml.safe_load(front)
    assert held["library_name"] == "transformers"
    assert held["pipeline_tag"] == "text-generation"
    assert held["license"] == "other"
    assert held["license_name"]
    assert {"moe", "olmoe", "arxiv:2602.11543"} <= set(held["tags"])


def test_names_mark_up_and_link_nothing(manifest: Manifest) -> None:
    name = "<img src=x>[a](http://x) | **b** @all `c` www.x.org"
    shown = MarkdownIt("gfm-like").render(card(manifest, {ANNA: name}).partition("## Volunteers")[2])
    row = next(line for line in shown.splitlines() if "&lt;img" in line)
    assert html.unescape(row.removeprefix("<td>").removesuffix("</td>")) == name
    assert shown.count("<td>") == 6


def test_two_of_one_name_are_told_apart_and_who_has_none_is_thanked_too() -> None:
    assert told_apart(["rig", "Rig", "", "rig", ""]) == ["rig", "Rig (2)", "a volunteer", "rig (3)", "a volunteer (2)"]


def test_the_first_weights_are_nobodys(manifest: Manifest) -> None:
    assert "Nobody yet" in card(manifest, given={})


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_a_curve_is_shown_by_few_points_in_order(steps: list[int]) -> None:
    tokens = sorted(steps)
    losses = tuple(LossPoint(round, count, 1.0) for round, count in enumerate(tokens))
    shown = key_points(losses)
    assert len(shown) <= 9
    assert (shown[0], shown[-1]) == (losses[0], losses[-1])
    assert list(shown) == sorted(shown, key=lambda point: point.round)


def test_names_that_were_written_are_known_and_rubbish_is_left_out(tmp_path: Path) -> None:
    write_names(tmp_path, {ANNA: "anna"})
    assert known_names(tmp_path) == {ANNA: "anna"}
    for content in (b"[" * 10**5, b"\xff", b"{}", b'{"version": 1, "names": 3}', b'{"version": 1, "names": [[1]]}'):
        (tmp_path / "names.json").write_bytes(content)
        assert known_names(tmp_path) == {}
