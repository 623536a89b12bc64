"""What is shown of a run: figures from records, phases in words of ours, and names without ids."""

import json
import re
from dataclasses import replace

import pytest
from rounds_swarm import BOOTSTRAP
from web_runs import STARTED_AT, MadeUp, peer

from bootstrap.web import api, chart, words
from bootstrap.web.metrics import metrics_text
from bootstrap.web.page import render
from bootstrap.web.seeing import planned_tokens, view_of
from bootstrap.web.view import Point
from spes_peer.run.manifest import Manifest, SignedManifest
from spes_peer.run.peers import PeerState


@pytest.fixture
def made_up(manifest: Manifest) -> MadeUp:
    return MadeUp(manifest)


def all_texts(run: MadeUp, **changes: object) -> str:
    view = view_of(run.facts(**changes))
    parts = [api.run_json(view), api.experts_json(view), api.volunteers_json(view), api.rounds_json(view, 0)]
    return "\n".join([render(view, True), *(part.decode() for part in parts), metrics_text(view).decode()])


# ---- nothing of a volunteer but its name ----


def test_no_peer_id_but_those_of_the_organizers_own_nodes_is_in_anything_that_is_served(made_up: MadeUp) -> None:
    text = all_texts(made_up)
    assert "tower" in text
    ids = set(re.findall(r"12D3Koo\w+|Qm\w{20,}", text))
    assert ids == {BOOTSTRAP}
    for one in made_up.peers:
        assert one[-8:] not in text


def test_who_is_not_known_by_name_is_a_volunteer_and_no_id(made_up: MadeUp) -> None:
    text = all_texts(made_up, labels={})
    assert "a volunteer" in text
    assert set(re.findall(r"12D3Koo\w+", text)) == {BOOTSTRAP}


def test_what_a_coordinator_says_of_the_phase_is_not_repeated(made_up: MadeUp) -> None:
    assert "a stranger's" not in all_texts(made_up)


def test_a_name_of_markup_is_text(manifest: Manifest) -> None:
    page = render(view_of(MadeUp(manifest, names=("<b onload=x>&amp;", '"><script>')).facts()))
    assert "&lt;b onload=x&gt;&amp;amp;" in page
    assert "<b onload" not in page
    assert page.count("<script>") == 1


def test_names_and_licences_of_the_organizer_are_text_too(manifest: Manifest) -> None:
    run = manifest.run.model_copy(update={"name": "</title><script>x()</script>"})
    data = manifest.data.model_copy(update={"licence": "<img src=//example.org>"})
    page = render(view_of(MadeUp(manifest.model_copy(update={"run": run, "data": data})).facts()))
    assert "<img" not in page
    assert page.count("<script>") == 1


# ---- phases ----


@pytest.mark.parametrize(
    ("phase", "name", "said"),
    [
        ("training", "training", "Training round 41"),
        ("reducing", "averaging", "Averaging what round 41 has trained"),
        ("closing", "signing", "Signing the record that closes round 41"),
        ("electing", "electing", "Choosing who coordinates"),
        ("<b>invented</b>", "electing", "Looking for who coordinates"),
    ],
)
def test_the_phase_is_said_in_our_words(made_up: MadeUp, phase: str, name: str, said: str) -> None:
    shown = view_of(replace(made_up, phase=phase).facts()).phase
    assert (shown.name, shown.words) == (name, said)


def test_whom_the_round_waits_for_is_named_and_many_are_counted(made_up: MadeUp) -> None:
    facts = made_up.facts()
    assert facts.beat is not None
    beat = replace(facts.beat, waiting_for=(*made_up.peers[:6], BOOTSTRAP, peer(99)))
    shown = view_of(replace(facts, beat=beat)).phase
    assert shown.waiting_for == ("tower", "old laptop", "lab-3", "räknare", "4 more")


def test_without_a_coordinator_to_be_heard_it_says_so(made_up: MadeUp) -> None:
    assert view_of(made_up.facts(beat=None)).phase.name == "electing"


def test_before_the_first_round_it_counts_who_is_here(manifest: Manifest) -> None:
    run = MadeUp(manifest, num_closed=0)
    states = {peer(1): PeerState.ONLINE, peer(2): PeerState.JOINING, peer(3): PeerState.LEAVING}
    view = view_of(run.facts(states=states, beat=None, tallies={}))
    assert view.phase.words == "Waiting for volunteers: 2 of the 4 that it takes are here"
    assert (view.num_waiting, view.round, view.volunteers) == (2, 0, ())
    assert "You could be the first" in render(view)


def test_a_finished_run_thanks_and_lets_nobody_join(manifest: Manifest) -> None:
    view = view_of(MadeUp(manifest, is_final=True).facts())
    assert view.phase.words == "Finished after 40 rounds"
    page = render(view)
    assert "Thank you" in page
    assert "spes-peer join" not in page
    assert all(not subset.owners for subset in view.subsets)
    assert view.progress.fraction == 1.0


def test_a_paused_run_says_so_and_no_time_left(made_up: MadeUp) -> None:
    view = view_of(made_up.facts(rules=replace(made_up.facts().rules, paused_at=1.0)))
    assert view.phase.name == "paused"
    assert view.progress.seconds_left is None
    assert "The organizer has paused the run" in render(view)


def test_a_run_with_too_few_members_for_a_round_rests(made_up: MadeUp) -> None:
    view = view_of(made_up.facts(rules=replace(made_up.facts().rules, quorum=9)))
    assert view.phase.words == "Resting: 8 of the 9 volunteers that a round takes are here"


# ---- figures ----


def test_speed_and_time_left_are_those_of_the_newest_rounds(made_up: MadeUp) -> None:
    progress = view_of(made_up.facts()).progress
    assert progress.tokens == 40 * 20 * 32 * 128
    assert progress.tokens_per_second == pytest.approx(20 * 32 * 128 / 610)
    assert progress.seconds_left == pytest.approx((2000 - 800) / 20 * 610)
    assert progress.fraction == pytest.approx(800 / 2000)


def test_rounds_in_which_nobody_trained_do_not_count_for_the_speed(made_up: MadeUp) -> None:
    facts = made_up.facts()
    last = facts.rows[-1]
    idle = [replace(last, round=last.round + n, opened_at=last.opened_at + 5000 * n, tokens=0) for n in range(1, 20)]
    progress = view_of(replace(facts, rows=(*facts.rows, *idle))).progress
    assert progress.tokens_per_second == pytest.approx(20 * 32 * 128 / 610)


def test_a_run_that_is_to_end_early_is_further(made_up: MadeUp) -> None:
    progress = view_of(made_up.facts(rules=replace(made_up.facts().rules, finish_after_round=50))).progress
    assert progress.fraction == pytest.approx(0.8)
    assert progress.seconds_left == pytest.approx(10 * 610)


def test_the_planned_tokens_are_those_of_every_step_of_the_schedule(manifest: Manifest) -> None:
    training = manifest.training.model_copy(update={"final_phase_fraction": 0.3, "total_steps": 977})
    each = sum(training.batch_sequences_at(step) for step in range(977))
    assert planned_tokens(training, 64) == each * 64


def test_clocks_that_stood_still_or_went_back_give_no_speed(made_up: MadeUp) -> None:
    for seconds in (0.0, -10.0):
        assert view_of(replace(made_up, round_seconds=seconds).facts()).progress.tokens_per_second is None


def test_the_held_out_loss_in_a_record_is_of_the_state_before_its_updates(made_up: MadeUp) -> None:
    view = view_of(made_up.facts())
    rows = view.rows
    assert view.held_out_curve[0] == Point(0, 0, rows[2].held_out_loss or 0)
    assert view.held_out_curve[-1] == Point(39, rows[40].total_tokens, rows[41].held_out_loss or 0)
    assert view.training_curve[-1] == Point(40, rows[41].total_tokens, rows[41].train_loss or 0)


def test_shares_add_up_and_who_gave_most_comes_first(made_up: MadeUp) -> None:
    volunteers = view_of(made_up.facts()).volunteers
    assert sum(one.share for one in volunteers) == pytest.approx(1.0)
    assert [one.tokens for one in volunteers] == sorted((one.tokens for one in volunteers), reverse=True)
    assert volunteers[0].name == "tower"


def test_what_each_does_is_what_it_says_and_the_roster_holds(made_up: MadeUp) -> None:
    facts = made_up.facts()
    states = {**facts.states, peer(1): PeerState.PAUSED, peer(2): PeerState.LEAVING, peer(9): PeerState.ONLINE}
    del states[peer(3)]
    named = {one.name: one for one in view_of(replace(facts, states=states)).volunteers}
    assert named["tower"].state == "paused"
    assert named["old laptop"].state == "away"
    assert named["lab-3"].state == "training"  # the DHT has lost it, the roster has it still
    assert named["blue whale"].state == "here"
    assert named["orchard"].state == "away"
    assert named["gpu-box"].experts == (0, 1)


def test_who_does_not_attend_the_node_that_coordinates_is_away_whatever_the_dht_still_holds(made_up: MadeUp) -> None:
    facts = made_up.facts()
    states = {**facts.states, peer(1): PeerState.PAUSED, peer(9): PeerState.ONLINE, peer(10): PeerState.ONLINE}
    facts = replace(facts, states=states, present=frozenset({peer(3), peer(9)}))
    view = view_of(facts)
    named = {one.name: one.state for one in view.volunteers}
    assert named["lab-3"] == "training"
    assert named["blue whale"] == "here"
    assert named["tower"] == "paused"
    assert named["gpu-box"] == "training"  # the roster holds until the next record
    assert named["orchard"] == "away"
    assert view.num_waiting == 1


def test_who_is_banned_is_shown_so(made_up: MadeUp) -> None:
    facts = made_up.facts()
    rules = replace(facts.rules, banned=(peer(9),))
    view = view_of(replace(facts, states={**facts.states, peer(9): PeerState.ONLINE}, rules=rules))
    assert {one.name: one.state for one in view.volunteers}["blue whale"] == "banned"
    assert view.num_waiting == 0


def test_experts_tell_how_long_nobody_has_trained_them(made_up: MadeUp) -> None:
    facts = made_up.facts(last_trained={0: 41, 1: 34, 2: 0, 3: 41})
    subsets = view_of(facts).subsets
    assert [(one.last_round, one.rounds_idle) for one in subsets] == [(40, 0), (33, 7), (None, 40), (40, 0)]
    assert "Longest untrained: experts 4–5, for 40 rounds." in render(view_of(facts))


def test_records_tell_who_coordinated_and_what_is_certified(made_up: MadeUp) -> None:
    view = view_of(made_up.facts(certified_round=40))
    newest = view.closed(38, 99)
    assert [one.record for one in newest] == [38, 39, 40, 41]
    assert [one.is_certified for one in newest] == [True, True, True, False]
    assert view.closed(36, 37)[0].coordinator == "tower"
    assert newest[0].coordinator == "this bootstrap node"
    assert view.closed(0, 3)[0].record == 1  # record 0 closes nothing


# ---- JSON, drawings and words ----


def test_rounds_come_in_stretches_that_follow_each_other(manifest: Manifest) -> None:
    view = view_of(MadeUp(manifest, num_closed=600).facts())
    found, first = [], 0
    while first is not None:
        answer = json.loads(api.rounds_json(view, first))
        assert answer["version"] == 1
        found += [one["record"] for one in answer["rounds"]]
        first = answer["next"]
    assert found == list(range(1, 602))
    assert json.loads(api.rounds_json(view, 300))["rounds"][0]["record"] == 256
    assert json.loads(api.rounds_json(view, 10**8)) == {"version": 1, "rounds": [], "next": None}


def test_json_holds_what_the_page_shows(made_up: MadeUp) -> None:
    view = view_of(made_up.facts())
    run = json.loads(api.run_json(view))
    assert run["round"] == 41
    assert run["held_out_loss"]["loss"] == pytest.approx(view.held_out_curve[-1].loss)
    assert run["join"]["command"].endswith(BOOTSTRAP)
    assert len(json.loads(api.experts_json(view))["subsets"]) == 4
    assert json.loads(api.volunteers_json(view))["volunteers"][0]["name"] == "tower"


def test_metrics_say_what_is_known_and_leave_out_the_rest(manifest: Manifest) -> None:
    text = metrics_text(view_of(MadeUp(manifest).facts())).decode()
    assert "spes_run_round 41.0" in text
    assert 'spes_run_phase{phase="training"} 1.0' in text
    empty = metrics_text(view_of(MadeUp(manifest, num_closed=0, num_gone=10).facts())).decode()
    assert "held_out_loss" not in empty
    assert "spes_run_tokens_total 0.0" in empty


def test_a_long_curve_is_thinned_and_its_steep_beginning_cut(manifest: Manifest) -> None:
    view = view_of(MadeUp(manifest, num_closed=5000).facts())
    drawn = chart.drawings(view.training_curve, view.held_out_curve)
    assert len("".join(drawn)) < 40_000
    assert chart.cut_words(view.training_curve, view.held_out_curve).startswith("Losses above 2")
    assert "went from 5.146 to" in drawn[0]


@pytest.mark.parametrize(
    "points", [(), (Point(1, 0, 3.0),), (Point(1, 0, 3.0), Point(2, 0, 3.0)), (Point(0, 10**15, 0.0),)]
)
def test_a_curve_of_next_to_nothing_can_be_drawn(points: tuple[Point, ...]) -> None:
    for size in chart.drawings(points, points):
        assert "nan" not in size
    assert len(chart.drawings(points, points)) == (2 if points else 0)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.count(0), "0"),
        (words.count(999), "999"),
        (words.count(999_600), "1.00 M"),
        (words.count(1_234_567), "1.23 M"),
        (words.count(3.2e12), "3.20 T"),
        (words.count(None), "–"),
        (words.size(28_400_000), "28.4 MB"),
        (words.duration(0.4), "0.4 s"),
        (words.duration(99.6), "2 min"),
        (words.duration(3600), "1 h 00 min"),
        (words.duration(5000), "1 h 23 min"),
        (words.duration(49 * 3600), "2.0 days"),
        (words.share(0.0004), "< 0.1 %"),
        (words.share(0.25), "25.0 %"),
        (words.moment(STARTED_AT), "24 Nov 16:00"),
        (words.iso(1e300), "2096-10-02T07:06:40Z"),
        (words.several(1, "round"), "1 round"),
        (words.several(2000, "round"), "2,000 rounds"),
    ],
)
def test_figures_in_words(said: str, expected: str) -> None:
    assert said.replace("\u00a0", " ") == expected


def test_a_run_of_thirty_two_experts_and_two_hundred_volunteers_stays_a_small_page(
    manifest: Manifest, signed_manifest: SignedManifest
) -> None:
    model = manifest.model.model_copy(update={"num_experts": 32})
    training = manifest.training.model_copy(update={"num_subsets": 32})
    large = manifest.model_copy(update={"model": model, "training": training})
    page = render(view_of(MadeUp(large, num_peers=200, num_closed=3000).facts()))
    assert len(page) < 250_000
    assert page.count("<li class=") == 32 + 1  # and one line of the legend
    assert "machine 199" in page
