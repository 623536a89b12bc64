"""The simulator's checks can fail: with the program changed for the worse, random runs end in what they are to find."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from simulation import checking
from simulation.disk import DiskChain
from simulation.invariants import Violation
from simulation.node import SimulatedNode
from simulation.scenario import Outcome, random_run

from spes_peer.following.follower import Follower
from spes_peer.rounds import assignment, member, ownership
from spes_peer.rounds.admission import Seat
from spes_peer.run.chain import Chain, Switch
from spes_peer.run.leases import Leases
from spes_peer.run.records import CertifiedRecord

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.timeout(600)


def is_found(words: str, seeds: range = range(40)) -> None:
    """In one of these random runs, whatever else is found in those before it."""
    found = []
    for seed in seeds:
        try:
            random_run(seed)
        except Violation as violation:
            found.append(str(violation))
            if re.match(rf"seed {seed}: .*{words}", found[-1]):
                return
    pytest.fail(f"nothing like {words!r} in {len(seeds)} runs, but: {found}")


def test_that_coordinators_are_not_bound_by_what_votes_name_is_found(monkeypatch: Patch) -> None:
    for module in ("election", "mandates", "recertifying"):
        monkeypatch.setattr(f"spes_peer.rounds.{module}.bound_hash", lambda *_: b"")
    is_found("more than half have voted for", range(120, 240))  # it takes an election at the wrong moment


def test_that_a_half_certifies_is_found(monkeypatch: Patch) -> None:
    for module in ("run.certificates", *(f"rounds.{name}" for name in ("mandates", "election", "transitions"))):
        monkeypatch.setattr(f"spes_peer.{module}.is_more_than_half", lambda count, of: 2 * count >= of)
    is_found("two records are certified")


def test_that_the_longer_chain_wins_is_found(monkeypatch: Patch) -> None:
    def adopt(chain: Chain, branch: Sequence[CertifiedRecord]) -> Switch | None:
        ours = [chain.record(round).sealed for round in range(chain.certified_round + 1, chain.num_records)]
        return chain._replace_end(ours, branch) if len(branch) > len(ours) else None

    monkeypatch.setattr(Chain, "adopt", adopt)
    is_found("not within", range(20, 60))


def test_that_a_disk_loses_what_was_written_last_is_found(monkeypatch: Patch) -> None:
    load = DiskChain._load

    def load_without_the_last(chain: DiskChain) -> None:
        if len(chain._records) > 1:
            del chain._records[max(chain._records)]
        load(chain)

    monkeypatch.setattr(DiskChain, "_load", load_without_the_last)
    is_found("has lost record")


def test_that_data_is_given_out_twice_is_found(monkeypatch: Patch) -> None:
    pool_after: Any = assignment.pool_after

    def all_again(*args: Any) -> Any:
        return replace(pool_after(*args), next_position=0)

    monkeypatch.setattr(assignment, "pool_after", all_again)
    monkeypatch.setattr(member, "_RULES", ())
    is_found("both count position")


def test_that_a_node_stays_with_states_of_a_chain_that_it_has_left_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(SimulatedNode, "_forget_roots", lambda _node: None)
    is_found("another state")


def test_that_leases_are_not_kept_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Leases, "standing", lambda *_: {})
    is_found("has a lease")


def test_that_subsets_change_hands_with_every_record_is_found(monkeypatch: Patch) -> None:
    seats_after: Any = ownership.seats_after

    def all_moved(record: Any, crowd: Any, past: Any, manifest: Any, now: float) -> tuple[Seat, ...]:
        num = manifest.training.num_subsets
        seats = seats_after(record, crowd, past, manifest, now)
        return tuple(replace(seat, subsets=tuple(sorted({(s + 1) % num for s in seat.subsets}))) for seat in seats)

    monkeypatch.setattr("spes_peer.rounds.transitions.seats_after", all_moved)
    is_found("unasked")


def test_that_nobody_looks_for_a_better_chain_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Follower, "_others", lambda _: [])
    is_found("both own subset")


def test_a_run_that_will_not_end_is_named(monkeypatch: Patch) -> None:
    def endless(_seed: int) -> Outcome:
        while True:
            pass

    monkeypatch.setattr(checking, "random_run", endless)
    monkeypatch.setattr(checking, "_MOST_CPU_SECONDS", 0.2)
    assert re.match(r"seed 4711: (?s:.)*still running", str(checking.checked(4711)))
