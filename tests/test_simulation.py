"""Whole runs under a virtual clock: each named misfortune once, and random ones by the thousand.

A seed that fails is replayed, as a trace that can be read, with `python -m tests.simulation SEED`.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from simulation import scale
from simulation.checking import check
from simulation.hostile import Forger, TwoFaced, Wilful, forged_record
from simulation.invariants import agreement_seconds
from simulation.machine import Machine
from simulation.node import SimulatedNode, Volunteer
from simulation.scenario import Outcome, random_run
from simulation.stage import Stage, on_stage
from simulation.world import World, small_layout

from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.messages import CoordinatorBeat, VoteRequest
from spes_peer.rounds.phases import Closing, Outgoing
from spes_peer.run.certificates import is_more_than_half
from spes_peer.run.records import RosterEntry, SealedRecord
from spes_peer.run.signed import Signed

MakeWorld = Callable[..., World]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with on_stage() as stage:
        yield stage


@pytest.fixture
def make(stage: Stage) -> Iterator[MakeWorld]:
    worlds: list[World] = []

    def make(num_peers: int = 5, num_bootstraps: int = 1, seed: int = 1, min_peers: int = 0) -> World:
        layout = small_layout(min_peers=min_peers or num_peers)
        worlds.append(World(stage, seed, num_peers, num_bootstraps, layout))
        worlds[-1].run(0.0)
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def phase(machine: Machine) -> str:
    """In which it coordinates."""
    return machine.node.state.phase.name if machine.node.leads else "follows"


def signatures(machine: Machine) -> int:
    """That it has for what it proposes."""
    closing = machine.node.state.phase
    return len(closing.signatures) if isinstance(closing, Closing) else 0


def goes_on(world: World, rounds: int = 2) -> None:
    """Everybody that lives gets new certified records within the stated time, and they are the same."""
    newest = world.watch.newest
    world.until_round(newest + 1, within_seconds=world.recovery_seconds())
    world.until_round(newest + rounds, within_seconds=rounds * world.recovery_seconds())
    world.watch.check_end([machine.node for machine in world.living])


def members(world: World) -> list[Machine]:
    """Of the newest certified record's roster."""
    return [world[entry.peer_id] for entry in world.watch.certified[world.watch.newest].record.roster]


def certified_in_secret(world: World) -> SealedRecord:
    """The next record: its coordinator dies before it can tell anybody that it is certified."""
    (boot,) = world.leaders
    boot.dies_at = lambda point: point == "kept a record"
    world.until(lambda: not boot.is_alive)
    return boot.disk.records[max(boot.disk.records)].sealed


# ---- the coordinator ----


def test_an_undisturbed_run_certifies_round_after_round(make: MakeWorld) -> None:
    world = make()
    world.run(3600.0)
    assert world.watch.newest >= 25
    assert all(machine.node.refusals == [] for machine in world.living)
    world.watch.check_end([machine.node for machine in world.living])


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("when", ["training", "reducing", "closing"])
def test_a_coordinator_that_dies_is_followed_by_the_next(make: MakeWorld, when: str, is_noticed: bool) -> None:
    world = make()
    world.until_round(2)
    boot = world["boot0"]
    world.until(lambda: phase(boot) == when)
    reached = world.watch.newest
    world.kill(boot, is_noticed)
    goes_on(world)
    opened = [world.watch.certified[round].record.opened_at for round in (reached, reached + 1)]
    assert opened[1] - opened[0] < world.layout.manifest.timing.round_seconds + 3 * 60.0
    assert world.watch.certified[reached + 1].record.tokens > 0  # the work of the round was not lost
    assert all(machine.trains for machine in world.leaders)
    world.restart(boot)
    goes_on(world, rounds=3)
    assert world.leaders == [boot]  # a bootstrap node that attends is the first candidate again


def test_the_signatures_that_a_dead_coordinator_had_bind_the_next(make: MakeWorld) -> None:
    world = make()
    boot = world["boot0"]
    world.until_round(2)
    world.until(lambda: signatures(boot) >= 2)
    signed = boot.node.state.phase.proposal  # type: ignore[union-attr]
    world.run(0.2)  # the others have signed too, if they have been asked
    voters = [machine for machine in members(world) if machine.disk.ballots.get(world.watch.certified[2].hash)]
    world.kill(boot)
    goes_on(world)
    assert is_more_than_half(len(voters), of=5)
    assert world.watch.certified[3].hash == signed.hash


def test_a_record_that_was_certified_and_told_to_nobody_is_what_the_others_make(make: MakeWorld) -> None:
    world = make()
    world.until_round(2)
    certified = certified_in_secret(world)
    assert all(machine.node.head.round == 2 for machine in world.living)
    goes_on(world)
    assert world.watch.certified[3].hash == certified.hash


def test_a_coordinator_that_freezes_with_some_signatures_and_comes_back_moves_nobody(make: MakeWorld) -> None:
    world = make()
    boot = world["boot0"]
    world.until_round(2)
    world.until(lambda: 1 <= signatures(boot) <= 2)
    world.freeze(boot)
    world.until_round(3, world.volunteers, within_seconds=world.recovery_seconds())
    world.thaw(boot)
    goes_on(world)


def test_a_coordinator_that_is_suspended_for_an_hour_comes_back_to_the_run(make: MakeWorld) -> None:
    world = make()
    boot = world["boot0"]
    world.until_round(2)
    world.freeze(boot)
    world.run(3600.0)
    assert world.watch.newest > 15
    world.thaw(boot)
    goes_on(world, rounds=3)
    assert world.leaders == [boot]


def test_two_records_for_one_round_are_never_both_certified(make: MakeWorld) -> None:
    world = make(num_peers=6)
    world.until_round(2)
    boot = world["boot0"]
    world.kill(boot)
    boot.make = TwoFaced
    world.restart(boot)
    world.run(1800.0)
    assert cast(TwoFaced, boot.node).num_lies > 0
    world.kill(boot)
    boot.make = SimulatedNode
    world.restart(boot)
    goes_on(world)


def test_an_elected_coordinator_that_ignores_what_its_votes_name_is_refused(make: MakeWorld) -> None:
    world = make()
    for machine in world.volunteers:
        world.kill(machine)
        machine.make = Wilful
        world.restart(machine)
    world.until_round(2)
    signed = certified_in_secret(world)
    world.run(900.0)
    assert sum(cast(Wilful, machine.node).num_lies for machine in world.volunteers) > 0
    assert all(machine.node.chain.certified_round == 2 for machine in world.living)
    world.restart(world["boot0"])
    goes_on(world)
    assert world.watch.certified[3].hash == signed.hash


def test_a_wilful_elected_coordinator_is_given_up_for_the_next(make: MakeWorld) -> None:
    world = make()
    world.until_round(2)
    head = world.watch.certified[2].record
    elected = world[head.candidates[1]]
    world.kill(elected)
    elected.make = Wilful
    world.restart(elected)
    signed = certified_in_secret(world)
    stalls_at = head.deadline_at + world.layout.manifest.timing.stall_timeout_seconds
    world.run(stalls_at - world.events.now)  # so long it is borne, and can certify nothing
    assert cast(Wilful, elected.node).num_lies > 0
    assert all(machine.node.chain.certified_round == 2 for machine in world.living)
    world.run(2 * world.layout.manifest.timing.coordinator_timeout_seconds)
    goes_on(world)
    assert world.watch.certified[3].hash == signed.hash


@pytest.mark.parametrize("num_laps", [1_000, 10**9])
@pytest.mark.parametrize(
    "makes", [VoteRequest, lambda round, term: CoordinatorBeat(term, round, "reducing", 0, (), 0, "")]
)
def test_a_coordinator_that_uses_up_terms_and_dies_keeps_nobody_from_electing_another(
    make: MakeWorld, makes: Callable[[int, int], Any], num_laps: int
) -> None:
    world = make()
    world.until_round(2)
    boot = world["boot0"]
    world.until(lambda: phase(boot) == "training")
    term = num_laps * len(boot.node.head.record.candidates)
    deceit = Outgoing(None, makes(boot.node.head.round, term))
    world.events.after(0.0, boot, lambda: boot.node.follower.coordinating._send(deceit))
    world.run(2.0)
    ballots = [ballot for machine in world.volunteers for ballot in machine.disk.ballots.values()]
    is_taken = makes is VoteRequest and num_laps == 1_000
    assert any(ballot.term == term for ballot in ballots) is is_taken
    world.kill(boot)
    goes_on(world)
    assert max(machine.node.follower.allegiance.term for machine in world.volunteers) < 2**20


def test_votes_in_a_far_term_do_not_hinder_that_a_record_is_certified_late(make: MakeWorld) -> None:
    world = make()
    world.until_round(3)
    head = world.watch.certified[3]
    gone = world.volunteers[:3]
    for machine in gone:
        world.kill(machine)
        machine.disk.ballots[head.hash] = Ballot.behind(head).voted(500_000)
    world.run(900.0)
    assert world.watch.newest == 3
    for machine in gone:
        world.restart(machine)
    world.run(world.recovery_seconds())
    goes_on(world)
    assert world.watch.num_lost == 0


def test_members_that_lose_the_coordinator_at_different_times_meet_at_the_next(make: MakeWorld) -> None:
    world = make(num_peers=6)
    world.until_round(2)
    world.kill(world["boot0"])
    for machine in world.volunteers:  # each starts to look for the first candidate at another time
        world.kill(machine)
    for machine in world.volunteers:
        world.restart(machine)
        world.run(17.0)
    goes_on(world)
    assert world.watch.num_lost == 0
    assert all(machine.node.lost == [] for machine in world.living)


def test_two_bootstrap_nodes_stand_in_for_each_other(make: MakeWorld) -> None:
    world = make(num_bootstraps=2)
    world.until_round(3)
    assert world.leaders == [world["boot0"]]
    world.kill(world["boot0"])
    goes_on(world, rounds=3)
    assert world.leaders == [world["boot1"]]
    world.restart(world["boot0"])
    goes_on(world)
    assert len(world.leaders) == 1


def test_peers_go_on_for_ever_without_bootstrap_nodes_and_others_join(make: MakeWorld) -> None:
    world = make(num_bootstraps=2, num_peers=4)
    world.until_round(2)
    for name in ("boot0", "boot1"):
        world.kill(world[name])
    goes_on(world)
    newcomer = world.join()
    goes_on(world, rounds=3)
    assert newcomer in members(world)
    for machine in world.volunteers[:2]:
        world.kill(machine)
        goes_on(world)
    world.run(7200.0)
    goes_on(world)
    assert world.watch.newest > 50


# ---- peers come and go ----


def test_one_peer_alone_keeps_records_that_others_can_join(make: MakeWorld) -> None:
    world = make(num_peers=1)
    world.run(1800.0)
    assert world.watch.newest > 10
    world.kill(world["boot0"])
    goes_on(world)
    newcomer = world.join()
    goes_on(world, rounds=3)
    assert newcomer in members(world)
    assert newcomer.disk.roots == world["peer0"].disk.roots


def test_everybody_restarts_at_once(make: MakeWorld) -> None:
    world = make()
    world.until_round(3)
    world.until(lambda: phase(world["boot0"]) == "reducing")
    for machine in world.living:
        world.kill(machine)
        world.restart(machine)
    world.run(1.0)
    goes_on(world)
    assert len(members(world)) == 5


def test_after_an_outage_for_everybody_the_work_of_the_open_round_is_waited_for(make: MakeWorld) -> None:
    """They train it anew, although its deadline and the stall time-out are over."""
    world = make()
    world.until_round(3)
    world.run(30.0)
    for machine in world.living:
        world.kill(machine)
    world.run(7200.0)
    for machine in world.volunteers:
        world.restart(machine)
    world.run(1.0)
    goes_on(world)
    assert world.watch.certified[4].record.tokens > 0


def test_a_newcomer_that_dies_as_it_is_asked_to_sign_does_not_hold_up_the_first_round(make: MakeWorld) -> None:
    world = make(num_peers=1)
    world.until(lambda: phase(world["boot0"]) == "closing")
    world.kill(world["peer0"])
    world.run(300.0)
    newcomer = world.join()
    world.until(lambda: newcomer.has_started)
    goes_on(world)
    assert members(world) == [newcomer]


def test_a_run_that_everybody_has_left_is_taken_up_by_who_comes(make: MakeWorld) -> None:
    world = make(num_peers=2)
    world.until_round(3)
    for machine in world.volunteers:
        world.events.after(0.0, machine, cast(Volunteer, machine.node).leave)
    world.run(900.0)
    assert world.living == [world["boot0"]]
    newcomer = world.join()
    world.until(lambda: newcomer.has_started)
    goes_on(world)
    assert members(world) == [newcomer]


@pytest.mark.parametrize("missed_seconds", [0.0, 400.0])
def test_a_bootstrap_node_goes_on_with_newcomers_when_all_veterans_are_gone_for_good(
    make: MakeWorld, missed_seconds: float
) -> None:
    world = make(num_peers=4)
    world.until_round(3)
    boot = world["boot0"]
    world.kill(boot)
    world.run(missed_seconds)  # what was made meanwhile is lost with those who have it
    for machine in world.volunteers:
        world.kill(machine)
    world.restart(boot)
    world.run(1.0)
    reached = boot.node.head.round
    newcomer = world.join()
    world.run(world.recovery_seconds() + 3 * world.layout.manifest.timing.stall_timeout_seconds)
    assert newcomer.node.head.round > reached + 2
    assert newcomer.node.head.hash == boot.node.head.hash


def test_more_peers_than_subsets_own_them_together_and_fewer_train_all_in_turn(make: MakeWorld) -> None:
    world = make(num_peers=7)
    world.until_round(6)
    record = world.watch.certified[6].record
    assert {len(record.owners_of(subset)) for subset in range(4)} <= {1, 2, 3}
    world = make(num_peers=2)
    world.run(3 * 3600.0)
    assert set(world["peer0"].node.chain.rounds_trained(world.layout)) == {0, 1, 2, 3}
    assert all(count > 5 for count in world["peer0"].node.chain.rounds_trained(world.layout).values())


# ---- partitions and majorities ----


def test_a_minority_certifies_nothing_goes_on_and_loses_what_it_reports(make: MakeWorld) -> None:
    world = make(num_peers=7)
    world.until_round(3)
    peers = world.volunteers
    minority, majority = peers[:2], [*peers[2:], world["boot0"]]
    world.part(majority, minority)
    world.run(1800.0)
    assert world.watch.newest > 9
    for machine in minority:
        assert machine.node.chain.certified_round in (3, 4)
        assert machine.node.head.round > machine.node.chain.certified_round  # it went on, uncertified
    lonely = [machine.node.head.record.round for machine in minority]
    world.heal()
    goes_on(world, rounds=3)
    for machine, round in zip(minority, lonely, strict=True):
        (switch,) = machine.node.lost
        assert len(switch.lost) == round - switch.first_round + 1
        assert switch.lost_tokens > 0
    assert all(machine.node.lost == [] for machine in majority)
    assert len(members(world)) == 7


def test_halves_certify_nothing_and_become_one_chain_again(make: MakeWorld) -> None:
    world = make(num_peers=6)
    world.until_round(3)
    peers = world.volunteers
    world.part([*peers[:3], world["boot0"]], peers[3:])
    world.run(1500.0)
    assert world.watch.newest <= 4
    world.heal()
    world.until(
        lambda: len({machine.node.head.hash for machine in world.living}) == 1, within_seconds=world.recovery_seconds()
    )
    world.run(world.recovery_seconds())
    goes_on(world)
    assert len(members(world)) == 6


def test_a_short_partition_costs_nobody_anything(make: MakeWorld) -> None:
    world = make(num_peers=6)
    world.until_round(3)
    peers = world.volunteers
    world.part([*peers[:3], world["boot0"]], peers[3:])
    world.run(60.0)
    world.heal()
    goes_on(world)
    assert world.watch.num_lost == 0


def test_a_coordinator_that_the_others_have_left_without_a_word_finds_their_chain_when_it_can(make: MakeWorld) -> None:
    """Long before its round has stalled, although nobody has told it that their streams are over."""
    world = make(num_peers=6)
    world.until_round(3)
    boot, (peer, *others) = world["boot0"], world.volunteers
    world.network.holds = lambda: False  # type: ignore[method-assign]
    world.part([boot, peer], others)
    world.run(200.0)
    assert world.watch.newest > 3
    assert boot.node.head.round == peer.node.head.round == 3
    world.heal()
    world.run(agreement_seconds(world.layout.manifest))
    assert boot.node.chain.certified_round > 3
    assert peer.node.chain.certified_round > 3
    assert world.watch.num_lost == 0


def test_when_more_than_half_are_gone_for_good_the_rest_goes_on_after_the_stall_time_out(make: MakeWorld) -> None:
    world = make(num_peers=5)
    world.until_round(3)
    head = world.watch.certified[3].record
    for machine in world.volunteers[:3]:
        world.kill(machine, is_noticed=False)
    stall_seconds = world.layout.manifest.timing.stall_timeout_seconds
    world.run(head.deadline_at + stall_seconds - world.events.now - 1.0)
    assert all(machine.node.head.round == 3 for machine in world.living)
    world.run(world.recovery_seconds())
    assert all(machine.node.head.round > 3 for machine in world.living)
    newcomer = world.join()
    reached = world["peer4"].node.head.round
    world.run(900.0)
    assert world["peer4"].node.head.round > reached + 2
    assert newcomer.node.head.record.entry_of(newcomer.peer_id) is not None
    assert world.watch.newest == 3


def test_what_went_on_uncertified_is_certified_when_the_old_roster_is_back(make: MakeWorld) -> None:
    world = make(num_peers=5)
    world.until_round(3)
    gone = world.volunteers[:3]
    for machine in gone:
        world.kill(machine)
    world.run(900.0)
    uncertified = [machine.node.head for machine in world.living]
    assert world.watch.newest == 3
    assert all(head.round > 3 for head in uncertified)
    for machine in gone:
        world.restart(machine)
    world.run(world.recovery_seconds())
    assert world.watch.newest > max(head.round for head in uncertified)
    assert all(world.watch.certified[head.round].hash == head.hash for head in uncertified)
    assert world.watch.num_lost == 0
    goes_on(world)


def test_what_went_on_uncertified_loses_to_the_record_that_more_than_half_had_signed(make: MakeWorld) -> None:
    """Their coordinator had it certified and is gone; nobody else ever saw more than its own signature."""
    world = make(num_peers=5)
    world.until_round(3)
    signers, others = world.volunteers[:3], world.volunteers[3:]
    world.until(lambda: phase(world["boot0"]) == "reducing")
    world.part([world["boot0"], *signers], others)
    certified = certified_in_secret(world)
    for machine in signers:
        world.kill(machine)
    world.heal()
    world.run(1200.0)
    assert {machine.node.chain.certified_round for machine in others} == {3}
    assert all(machine.node.head.round > 4 for machine in others)
    for machine in signers:
        world.restart(machine)
    goes_on(world)
    assert world.watch.certified[4].hash == certified.hash
    assert all(sum(len(switch.lost) for switch in machine.node.lost) >= 2 for machine in others)


def test_who_cannot_have_the_uncertified_end_certified_lets_another_coordinate(make: MakeWorld) -> None:
    """A newcomer goes on with a run whose old roster is gone; when that is back, it has the say."""
    world = make(num_peers=3)
    world.until_round(3)
    last, *gone = world.volunteers
    for machine in (world["boot0"], *gone):
        world.kill(machine)
    world.run(900.0)
    newcomer = world.join()
    world.until(lambda: newcomer.has_started and newcomer.node.head.record.entry_of(newcomer.peer_id) is not None)
    world.kill(last)
    world.run(1500.0)
    assert world.leaders == [newcomer]
    assert world.watch.newest == 3
    for machine in gone:
        world.restart(machine)
    world.until(lambda: world.watch.newest > 3)
    assert newcomer.node.head.record.candidates[0] in {machine.peer_id for machine in gone}
    world.until(lambda: newcomer.node.chain.certified_round == world.watch.newest)
    base = world.watch.certified[world.watch.newest].record
    assert base.members == {last.peer_id, newcomer.peer_id}  # that roster's majority needs both
    world.restart(last)
    world.run(world.recovery_seconds())
    goes_on(world)
    assert world.watch.num_lost == 0


def test_behind_an_empty_roster_what_goes_on_is_certified_when_the_first_candidate_is_back(make: MakeWorld) -> None:
    world = make(num_peers=2, num_bootstraps=2)
    world.until_round(3)
    for machine in world.volunteers:
        world.events.after(0.0, machine, cast(Volunteer, machine.node).leave)
    world.run(900.0)
    head = world["boot0"].node.head
    assert head.record.roster == ()
    first, second = (world[peer] for peer in head.record.candidates)
    world.kill(first)
    world.join()
    world.run(1500.0)
    reached = second.node.head.round
    assert reached > head.round + 2
    assert world.watch.newest == head.round
    world.restart(first)
    world.run(world.recovery_seconds())
    assert world.watch.newest > reached
    goes_on(world)
    assert world.watch.num_lost == 0


def test_clocks_that_are_minutes_off_hold_up_nobody(make: MakeWorld) -> None:
    world = make(num_peers=0, min_peers=5)
    for offset_seconds in (-300.0, -120.0, 0.0, 120.0, 300.0):
        world.join(offset_seconds)
    world.run(3600.0)
    assert world.watch.newest > 20
    world.kill(world["boot0"], is_noticed=False)
    goes_on(world)
    world.restart(world["boot0"])
    goes_on(world)
    assert world.watch.num_lost == 0


# ---- forged chains ----


def test_a_lone_peer_with_a_forged_heavy_chain_moves_nobody(make: MakeWorld) -> None:
    world = make(num_peers=5)
    world.until_round(3)
    forger = world.volunteers[0]
    world.kill(forger)
    forger.make = Forger
    world.restart(forger)
    world.until_round(4)
    world.kill(world["boot0"], is_noticed=False)  # so that the others look around
    world.until_round(6, world.volunteers[1:], within_seconds=3 * world.recovery_seconds())
    assert cast(Forger, forger.node).num_asked > 0
    assert all(machine.node.head.round < 20 for machine in world.volunteers[1:])
    assert world.watch.num_lost == 0


def test_a_stranger_with_a_forged_chain_cannot_take_over_a_run_that_has_stalled(make: MakeWorld) -> None:
    world = make(num_peers=6)
    world.until_round(3)
    stranger, *peers = world.volunteers
    world.kill(stranger)
    world.until_round(5)
    assert stranger not in members(world)
    stranger.make = Forger
    world.restart(stranger)
    world.kill(world["boot0"])
    for machine in peers[:3]:
        world.kill(machine)
    world.run(1500.0)
    assert cast(Forger, stranger.node).num_asked > 0
    assert all(5 < machine.node.head.round < 20 for machine in peers[3:])
    assert all(machine.node.lost == [] for machine in peers[3:])


def test_a_forged_uncertified_record_in_the_middle_of_a_round_moves_nobody(make: MakeWorld) -> None:
    world = make(num_peers=5)
    world.until_round(3)
    boot, (member, *_) = world["boot0"], members(world)
    world.until(lambda: phase(boot) == "training")
    world.run(20.0)
    head = member.node.head
    signer = world.signer_of(member.name, 10**6)
    signer.peer_id = member.peer_id  # type: ignore[attr-defined]
    forged = forged_record(head, signer, (RosterEntry(member.peer_id, 1, (0,), (), 1),), tokens=10**9)
    for machine in world.living:
        node = machine.node
        world.events.after(0.0, machine, lambda node=node: node.follower._on_message(member.peer_id, forged))  # type: ignore[misc]
    world.run(1.0)
    assert all(machine.node.head.hash == head.hash for machine in world.living)
    goes_on(world)
    assert world.watch.num_lost == 0


# ---- random runs ----


_played: dict[int, Outcome] = {}


@pytest.mark.parametrize("seed", range(40))
def test_random_misfortunes_break_nothing(seed: int) -> None:
    outcome = _played[seed] = random_run(seed)
    assert outcome.recovery_seconds <= outcome.bound_seconds


@pytest.mark.timeout(600)
def test_a_run_is_mostly_back_in_a_quarter_of_the_stated_time() -> None:
    outcomes = [_played.get(seed) or random_run(seed) for seed in range(40)]
    assert statistics.median(one.recovery_seconds / one.bound_seconds for one in outcomes) < 0.25


@pytest.mark.timeout(600)
def test_nodes_mostly_agree_on_the_time_whatever_becomes_of_their_clocks() -> None:
    outcomes = [_played.get(seed) or random_run(seed) for seed in range(40)]
    assert sum(one.clock_seconds < 10.0 for one in outcomes) > 30


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_hundreds_of_random_runs_break_nothing() -> None:
    """`python -m tests.simulation FIRST END` plays as many as one likes."""
    results = list(check(range(1000, 1400)))
    assert [result for result in results if isinstance(result, str)] == []
    outcomes = [result for result in results if isinstance(result, Outcome)]
    assert sum(outcome.rounds_certified for outcome in outcomes) > 3_000
    assert sum(outcome.rounds_lost for outcome in outcomes) > 90  # minorities did go on


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
def test_random_misfortunes_break_nothing_among_a_hundred_and_twenty(seed: int) -> None:
    """Ten times the peers, ten times as often."""
    outcome = random_run(seed, num_peers=120)
    assert outcome.num_nodes > 120
    assert outcome.num_faults > 25
    assert outcome.rounds_certified >= 3
    assert outcome.recovery_seconds <= outcome.bound_seconds


def test_a_proposal_is_signed_once_however_many_are_to_sign_it(make: MakeWorld) -> None:
    world = make(num_peers=6)
    sent: list[Signed] = []
    world.network.count = lambda _sender, _receiver, signed: sent.append(signed)
    world.until_round(3)
    proposals = [signed for signed in sent if signed.kind == "Proposal"]
    assert len(proposals) > 3 * 6
    assert len({signed.counter for signed in proposals}) == 3


def test_the_costs_of_a_round_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main(["--peers", "16", "--rounds", "3", "--report", str(tmp_path / "costs.json")]) == 0
    (row,) = json.loads((tmp_path / "costs.json").read_text())
    assert (row["num_peers"], row["num_rounds"]) == (16, 3)
    assert row["coordinator"]["messages_received"] > 16 * 10
    assert row["coordinator"]["bytes_sent"] > 10 * row["peer"]["bytes_sent"] > 0
    assert row["coordinator"]["cpu_seconds"] > row["peer"]["cpu_seconds"] > 0
    assert "| 16 | 3 | coordinator |" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_run() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        random_run(7, write=trace.append)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100
