"""Who owns what in the next round. A test's name is the rule that it tries."""

import random
from collections.abc import Mapping

import pytest
from rounds_swarm import changed, genesis, invented, replaced

from spes_peer.identity import PeerId
from spes_peer.rounds.admission import Applicant, Crowd, Link, Seat, admit, depart
from spes_peer.rounds.messages import AdmissionRequest
from spes_peer.rounds.ownership import Past, owners_in, seats_after
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.records import Contributor, RosterEntry, Update

A, B, C, D = map(PeerId, "abcd")
START = 1_000_000.0
ROUND_SECONDS = 60.0  # of the demo's lease of 300


class Run:
    """A chain that only says who owns and trains what: everybody who attends trains all its subsets in every round."""

    def __init__(self, manifest: Manifest, num_subsets: int, rotation_rounds: int = 1_000_000) -> None:
        four_experts_each = changed(manifest, "model", num_experts=num_subsets * 4)
        self.manifest = changed(four_experts_each, "training", num_subsets=num_subsets, rotation_rounds=rotation_rounds)
        self.layout = Layout(self.manifest)
        self.block_of = {self.layout.subset_of(block): block.id for block in reversed(self.layout.blocks)}
        self.record = replaced(genesis(self.layout), opened_at=START)
        self.past = Past()
        self.crowd = Crowd()
        self.now = START

    def arrive(self, peer: PeerId, *subsets: int, incarnation: int = 1) -> None:
        """Attend and ask for these subsets; for none, to take up a place."""
        self.crowd = self.crowd.heard(peer, incarnation, self.now)
        if subsets:
            self.crowd = admit(self.crowd, peer, incarnation, AdmissionRequest(subsets, 1.0, PROTOCOL_VERSION))

    def go(self, *peers: PeerId) -> None:
        self.crowd = self.crowd.without(peers)

    def next_seats(self) -> tuple[Seat, ...]:
        return seats_after(self.record, self.crowd, self.past, self.manifest, self.now)

    def close(self, num_rounds: int = 1, seconds: float = ROUND_SECONDS) -> dict[PeerId, tuple[int, ...]]:
        """The next records; who owns what by the last of them."""
        for _ in range(num_rounds):
            self.now += seconds
            roster = tuple(RosterEntry(s.peer_id, s.incarnation, s.subsets, (), 1) for s in self.next_seats())
            trained = [(e.peer_id, s) for e in self.record.roster if e.peer_id in self.crowd.links for s in e.subsets]
            updates = tuple(
                Update(self.block_of[subset], invented(subset), 1, (Contributor(peer, 1, 1.0, 1.0),), ())
                for peer, subset in sorted(trained)
            )
            number = self.record.round + 1
            self.record = replaced(self.record, round=number, roster=roster, updates=updates, opened_at=self.now)
            self.past, self.crowd = self.past.after(self.record, self.layout), self.crowd.settled(self.record)
        return self.places

    @property
    def places(self) -> dict[PeerId, tuple[int, ...]]:
        return {entry.peer_id: entry.subsets for entry in self.record.roster}

    def open(self, wanted: Mapping[PeerId, tuple[int, ...]]) -> "Run":
        """… with round 1 for these peers."""
        for peer, subsets in wanted.items():
            self.arrive(peer, *subsets)
        assert self.close() == wanted
        return self


@pytest.fixture
def run(manifest: Manifest) -> Run:
    """Four subsets, two peers with one each, no rotation."""
    return Run(manifest, 4).open({A: (0,), B: (1,)})


# ---- sitting members and applicants ----


def test_a_sitting_member_keeps_its_subsets_and_an_applicant_becomes_a_further_owner(run: Run) -> None:
    run.arrive(C, 0, 2)
    assert run.close() == {A: (0,), B: (1,), C: (0, 2)}


def test_who_does_not_attend_or_departs_is_not_on_the_next_roster(run: Run) -> None:
    run.go(A)
    run.crowd = depart(run.crowd, B)
    assert run.close() == {}


def test_a_newer_start_gets_the_other_subsets_that_it_asks_for(run: Run) -> None:
    run.arrive(A, 2, 3, incarnation=2)
    assert run.close() == {A: (2, 3), B: (1,)}


# ---- coming back ----


def test_a_member_killed_and_back_in_the_round_has_one_place_the_same_by_its_new_start(
    run: Run,
) -> None:
    run.go(A)
    run.arrive(A, incarnation=2)
    assert run.next_seats() == (Seat(A, 2, (0,)), Seat(B, 1, (1,)))
    run.arrive(A, 0, incarnation=2)
    assert run.next_seats() == (Seat(A, 2, (0,)), Seat(B, 1, (1,)))


def test_what_an_earlier_start_asked_for_is_no_place(run: Run) -> None:
    run.arrive(C, 2)
    run.crowd = run.crowd.heard(C, 2, run.now)  # and has not asked yet
    assert [seat.peer_id for seat in run.next_seats()] == [A, B]


def test_a_ghost_gets_no_place(run: Run) -> None:
    run.arrive(A, incarnation=5)
    run.close()
    run.go(A)
    run.arrive(A, 2, incarnation=4)
    assert run.next_seats() == (Seat(B, 1, (1,)),)
    run.arrive(A, incarnation=6)
    assert run.next_seats() == (Seat(A, 6, (0,)), Seat(B, 1, (1,)))


def test_an_owner_that_comes_back_after_the_record_takes_up_its_subsets(run: Run) -> None:
    run.go(A)
    assert run.close() == {B: (1,)}
    run.arrive(A, 0, incarnation=2)
    assert run.close() == {A: (0,), B: (1,)}
    assert run.past.leases.of(A).since == {0: 1}


def test_an_owner_that_comes_back_is_not_kept_out_by_a_newcomer_that_asks_for_the_same(run: Run) -> None:
    run.go(A)
    run.close()
    run.arrive(C, 0)
    run.arrive(A, 0, incarnation=2)
    assert run.close() == {A: (0,), B: (1,), C: (0,)}


# ---- leases ----


def test_a_lease_stands_for_lease_seconds_behind_the_last_roster_with_the_owner(run: Run) -> None:
    lease_seconds, seen_at = run.manifest.timing.lease_seconds, run.now
    run.go(A)
    run.close()
    assert run.past.leases.standing(run.places, seen_at + lease_seconds, lease_seconds) == {0: {A}}
    assert run.past.leases.standing(run.places, seen_at + lease_seconds + 1, lease_seconds) == {}


def test_who_is_given_other_subsets_has_no_lease_on_the_old_ones(run: Run) -> None:
    run.arrive(A, 2, incarnation=2)
    run.close()
    run.go(A)
    run.close()
    assert run.past.leases.standing(run.places, run.now, 1e9) == {2: {A}}


# ---- wishes ----


def test_a_wish_to_own_more_is_granted(run: Run) -> None:
    run.arrive(A, 0, 1, 2)
    assert run.close() == {A: (0, 1, 2), B: (1,)}


def test_a_wish_that_leaves_a_subset_without_an_owner_is_not_granted(run: Run) -> None:
    run.arrive(A, 2)
    assert run.close() == {A: (0,), B: (1,)}
    assert run.close() == {A: (0,), B: (1,)}


def test_a_wish_to_own_fewer_is_granted_and_who_has_room_may_take_the_rest(manifest: Manifest) -> None:
    run = Run(manifest, 3).open({A: (0, 1), B: (2,)})
    run.arrive(A, 1)
    assert run.close() == {A: (1,), B: (2,)}
    run.arrive(B, 0, 2)
    assert run.close() == {A: (1,), B: (0, 2)}


def test_a_co_owner_may_move_to_a_vacant_subset_only(manifest: Manifest) -> None:
    run = Run(manifest, 4).open({A: (0,), B: (0,), C: (1,), D: (2,)})
    run.arrive(B, 1)
    assert run.close()[B] == (0,)
    run.arrive(B, 3)
    assert run.close()[B] == (3,)


def test_a_co_owner_may_move_to_the_subset_of_a_dead_owner_only_when_the_lease_is_over(manifest: Manifest) -> None:
    run = Run(manifest, 3).open({A: (0,), B: (0,), C: (1,)})
    run.go(C)
    while run.places[B] == (0,):
        assert run.now < START + 1000
        run.arrive(B, 1)
        run.close()
    lease_seconds = run.manifest.timing.lease_seconds
    assert lease_seconds < run.now - (START + ROUND_SECONDS) <= lease_seconds + ROUND_SECONDS


def test_who_has_moved_stays_for_a_lease(manifest: Manifest) -> None:
    run = Run(manifest, 4).open({A: (0,), B: (0,), C: (1,)})
    run.arrive(B, 2)
    assert run.close()[B] == (2,)
    moved_at = run.now
    run.arrive(C, 1, 2)
    while run.places[B] == (2,):
        assert run.now - moved_at < 1000
        run.close()
        run.arrive(B, 3)
    assert run.now - moved_at >= run.manifest.timing.lease_seconds


def test_of_many_that_would_move_to_one_vacant_subset_one_does(manifest: Manifest) -> None:
    peers = [PeerId(letter) for letter in "abcde"]
    run = Run(manifest, 2).open(dict.fromkeys(peers, (0,)))
    for peer in peers:
        run.arrive(peer, 1)
    assert list(run.close().values()) == [(1,), (0,), (0,), (0,), (0,)]


def test_a_resumed_member_that_asks_for_what_it_has_keeps_it(run: Run) -> None:
    run.crowd = depart(run.crowd, A)
    run.arrive(A, 0)
    assert run.close() == {A: (0,), B: (1,)}


# ---- rotation ----


def test_a_vacant_subset_is_swapped_in_every_rotation_rounds_and_not_between(manifest: Manifest) -> None:
    run = Run(manifest, 2, rotation_rounds=4).open({A: (0,)})
    seen = [run.close()[A][0] for _ in range(14)]
    assert seen == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]  # records 2 to 15


def test_nothing_is_swapped_while_every_subset_has_an_owner_or_a_lease(manifest: Manifest) -> None:
    run = Run(manifest, 2, rotation_rounds=1).open({A: (0,), B: (1,)})
    assert run.close(8) == {A: (0,), B: (1,)}
    run.go(B)
    until = run.now + run.manifest.timing.lease_seconds
    while run.now + ROUND_SECONDS <= until:
        assert run.close() == {A: (0,)}
    assert run.close() == {A: (1,)}


def test_an_applicant_is_given_the_vacant_subset_rather_than_a_swap(manifest: Manifest) -> None:
    run = Run(manifest, 2, rotation_rounds=3).open({A: (0,)})
    run.close()
    run.arrive(B, 1)
    assert run.close(6) == {A: (0,), B: (1,)}


def test_a_co_owner_is_moved_before_anything_is_swapped(manifest: Manifest) -> None:
    run = Run(manifest, 3, rotation_rounds=2).open({A: (0,), B: (1,), C: (1,)})
    assert run.close(8) == {A: (0,), B: (1,), C: (2,)}


def test_of_co_owners_the_one_that_came_last_is_moved(manifest: Manifest) -> None:
    run = Run(manifest, 3, rotation_rounds=4).open({B: (1,), C: (0,)})
    run.arrive(A, 1)
    assert run.close(4) == {A: (2,), B: (1,), C: (0,)}


def test_the_subset_that_its_owner_has_had_longest_is_swapped_first(manifest: Manifest) -> None:
    run = Run(manifest, 4, rotation_rounds=4).open({B: (1,)})
    run.arrive(A, 0)
    assert run.close(4) == {A: (0,), B: (2,)}
    assert run.close(4) == {A: (3,), B: (2,)}


def test_who_changes_otherwise_in_a_record_is_not_swapped_in_it(manifest: Manifest) -> None:
    run = Run(manifest, 8, rotation_rounds=4).open({A: (0,)})
    run.close(2)
    run.arrive(A, 0, 1)
    run.arrive(B, 2)
    assert run.close() == {A: (0, 1), B: (2,)}


def test_a_subset_that_was_not_trained_since_is_not_swapped(manifest: Manifest) -> None:
    run = Run(manifest, 2, rotation_rounds=1).open({A: (0,)})
    assert run.close() == {A: (0,)}  # nothing of it is in the chain yet
    assert run.close() == {A: (1,)}


@pytest.mark.parametrize(
    ("capacities", "num_subsets", "rotation_rounds"),
    [((1,), 4, 1), ((1,), 4, 5), ((1, 1, 1), 8, 3), ((1, 2), 8, 1), ((2, 2, 3), 8, 10), ((3,), 8, 2)],
)
def test_with_fewer_places_than_subsets_none_waits_longer_than_the_queue(
    manifest: Manifest, capacities: tuple[int, ...], num_subsets: int, rotation_rounds: int
) -> None:
    run = Run(manifest, num_subsets, rotation_rounds)
    first = 0
    for number, capacity in enumerate(capacities):
        run.arrive(PeerId(f"peer {number}"), *range(first, first + capacity))
        first += capacity
    num_unowned = num_subsets - sum(capacities)
    # what a record gives is trained in its round, and in the chain with the next; with 1 it is swapped only then
    longest = num_unowned * max(rotation_rounds, 2) + 2
    for _ in range(4 * longest):
        run.close()
        waited = {subset: run.record.round - run.past.trained_in.get(subset, 0) for subset in range(num_subsets)}
        assert max(waited.values()) <= longest + rotation_rounds
        assert sorted(map(len, run.places.values())) == sorted(capacities)


@pytest.mark.parametrize("rotation_rounds", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_over_random_comings_and_goings_all_subsets_are_trained_in_the_long_run(
    manifest: Manifest, seed: int, rotation_rounds: int
) -> None:
    """Of five peers some come, die, wish and restart for a hundred rounds; then three stay."""
    chance, num_subsets = random.Random(seed), 8
    run = Run(manifest, num_subsets, rotation_rounds)
    peers = [PeerId(letter) for letter in "abcde"]
    for round in range(100):
        for peer in peers:
            if chance.random() < 0.3:
                run.arrive(peer, chance.randrange(num_subsets), incarnation=round + 1)
            elif chance.random() < 0.1:
                run.go(peer)
            elif peer in run.crowd.links:
                run.arrive(peer, chance.randrange(num_subsets), incarnation=run.crowd.links[peer].incarnation)
        starts = {entry.peer_id: entry.incarnation for entry in run.record.roster}
        staying = {s.peer_id for s in run.next_seats() if starts.get(s.peer_id) == s.incarnation}
        owned = {subset for peer in staying for subset in run.places[peer]}
        run.close()
        assert run.places.keys() >= staying
        assert all(run.places.values())
        # a swap gives one up, a wish none
        assert len(owned - {s for own in run.places.values() for s in own}) <= (run.record.round % rotation_rounds == 0)
    run.go(*peers[3:])
    for peer in peers[:3]:
        run.arrive(peer, chance.randrange(num_subsets), incarnation=1000)
    run.close(num_subsets * max(rotation_rounds, 2) * 2 + 20)
    since = run.record.round
    run.close(num_subsets * max(rotation_rounds, 2))
    assert min(run.past.trained_in.get(subset, 0) for subset in range(num_subsets)) > since - 20
    assert len(owners_in({peer: frozenset(subsets) for peer, subsets in run.places.items()})) == 3


def test_the_same_facts_in_another_order_give_the_same_roster(manifest: Manifest) -> None:
    run = Run(manifest, 8, rotation_rounds=2).open({A: (0,), B: (0,), C: (1,), D: (1, 2)})
    links = dict(reversed(list(run.crowd.links.items())))
    applicants = {peer: Applicant(1, (3,)) for peer in (C, B, A)}
    crowds = [
        Crowd(links, applicants),
        Crowd(dict(sorted(links.items())), dict(sorted(applicants.items()))),
        Crowd({peer: Link(1, 5.0) for peer in links}, applicants),
    ]
    seats = {seats_after(run.record, crowd, run.past, run.manifest, run.now) for crowd in crowds}
    assert len(seats) == 1
