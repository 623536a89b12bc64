"""Which blobs go: by what needs them, by how many records have passed, and by room; nothing else counts."""

import random

from hypothesis import given
from hypothesis import strategies as st

from spes_peer.blobs import BlobName, Found
from spes_peer.collection import GRACE_RECORDS, Key, Mark, Needs, Stored, Use, judged, marked, to_remove


def name_of(number: int) -> BlobName:
    return BlobName(f"{number:064x}")


def found(number: int, written_at: int = 0, size_bytes: int = 1, is_partial: bool = False) -> Found:
    return Found(name_of(number), size_bytes, (number, written_at), is_partial)


stored_blobs = st.lists(
    st.tuples(st.integers(0, 100), st.sampled_from(Use), st.integers(0, 5)), max_size=30
).map(lambda rows: [Stored(found(i, 0, size), use, later) for i, (size, use, later) in enumerate(rows)])  # fmt: skip


@given(stored_blobs, st.integers(-50, 2000))
def test_what_stays_never_goes_and_what_nothing_needs_always_does(stored: list[Stored], room_bytes: int) -> None:
    gone = set(to_remove(stored, room_bytes))
    assert not gone & {one.found for one in stored if one.use == Use.STAYS}
    assert gone >= {one.found for one in stored if one.use == Use.NONE}


@given(stored_blobs, st.integers(-50, 2000))
def test_no_more_goes_than_must_and_what_is_left_fits_if_it_can(stored: list[Stored], room_bytes: int) -> None:
    gone = to_remove(stored, room_bytes)
    by_found = {one.found: one for one in stored}
    left = [one for one in stored if one.found not in set(gone)]
    left_bytes = sum(one.found.size_bytes for one in left)
    assert left_bytes <= room_bytes or all(one.use == Use.STAYS for one in left)
    for_room = [one for one in gone if by_found[one].use != Use.NONE]
    if for_room:  # without the last there would be too little room
        assert left_bytes + for_room[-1].size_bytes > room_bytes


@given(stored_blobs, st.integers(-50, 2000))
def test_the_least_valuable_goes_first_and_of_data_what_comes_last(stored: list[Stored], room_bytes: int) -> None:
    gone = set(to_remove(stored, room_bytes))
    for here in stored:
        for there in stored:
            if here.found in gone and there.found not in gone:
                assert here.use < there.use or (here.use == there.use and here.later >= there.later)


@given(stored_blobs, st.integers(0, 1000), st.integers(0, 1000))
def test_more_room_never_costs_a_blob(stored: list[Stored], room_bytes: int, more_bytes: int) -> None:
    assert set(to_remove(stored, room_bytes + more_bytes)) <= set(to_remove(stored, room_bytes))


class Looks:
    """One blob from look to look."""

    def __init__(self) -> None:
        self.marks: dict[Key, Mark] = {}

    def use(self, round: int, written_at: int = 0, newest: int = 0, **needs: object) -> Use:
        here, needed = found(7, written_at), Needs(round, **{"stays": frozenset(), **needs})  # type: ignore[arg-type]
        self.marks = marked([here], needed, self.marks, max(round, newest))
        return next(judged([here], needed, self.marks)).use


NEEDED = {"stays": frozenset({name_of(7)})}


def test_a_blob_made_since_the_newest_record_stays_until_the_next_and_goes_for_good_one_later() -> None:
    looks = Looks()
    assert [looks.use(round) for round in (5, 5, 6, 6, 7)] == [Use.STAYS, Use.STAYS, Use.PASSED, Use.PASSED, Use.NONE]


def test_a_blob_that_came_with_a_record_during_the_look_is_of_that_records_round() -> None:
    looks = Looks()
    assert [looks.use(5, newest=6), looks.use(6), looks.use(7)] == [Use.STAYS, Use.STAYS, Use.PASSED]


def test_a_blob_that_is_renewed_is_as_one_just_made_whatever_its_clock_says() -> None:
    looks = Looks()
    assert looks.use(5, written_at=1000) == Use.STAYS
    assert looks.use(9, written_at=4) == Use.STAYS
    assert looks.use(10, written_at=4) == Use.PASSED


def test_what_was_needed_until_now_goes_only_for_room_and_needed_again_it_stays() -> None:
    looks = Looks()
    assert looks.use(5, **NEEDED) == Use.STAYS
    assert looks.use(8) == Use.PASSED
    assert looks.use(8 + GRACE_RECORDS - 1) == Use.PASSED
    assert looks.use(8 + GRACE_RECORDS, **NEEDED) == Use.STAYS
    assert looks.use(8 + GRACE_RECORDS + 1) == Use.PASSED
    assert looks.use(8 + 2 * GRACE_RECORDS + 1) == Use.NONE


def test_a_chain_that_goes_back_costs_no_blob_of_its_open_round() -> None:
    looks = Looks()
    assert looks.use(9) == Use.STAYS
    assert [looks.use(round) for round in (7, 8, 9)] == [Use.STAYS] * 3


def test_what_is_made_while_a_snapshot_is_written_does_not_grow_old_before_that_is_done() -> None:
    looks = Looks()
    assert [looks.use(round, writing_since=4) for round in (5, 6, 9)] == [Use.STAYS] * 3
    assert [looks.use(round) for round in (9, 10, 11)] == [Use.STAYS, Use.PASSED, Use.NONE]


def test_what_was_there_before_a_snapshot_is_written_grows_old_all_the_same() -> None:
    looks = Looks()
    looks.use(5)
    assert [looks.use(round, writing_since=6) for round in (6, 7)] == [Use.PASSED, Use.NONE]


def test_what_is_served_goes_only_for_room_and_first_and_grows_old_meanwhile() -> None:
    looks, served = Looks(), frozenset({name_of(7)})
    looks.use(5)
    assert looks.use(6, served=served) == Use.PASSED
    assert Use.NONE < looks.use(9, served=served) < Use.PASSED
    assert looks.use(9) == Use.NONE


def test_data_for_later_goes_only_for_room_however_old_it_is() -> None:
    looks = Looks()
    later = {"later": {name_of(7): 3}}
    assert {looks.use(round, **later) for round in (5, 50, 500)} == {Use.LATER}
    assert looks.use(501, **later, **NEEDED) == Use.STAYS


@given(st.integers(0, 2**32))
def test_over_a_long_run_of_chance_nothing_of_use_goes_and_nothing_else_stays(seed: int) -> None:
    """Records come, blobs are made, named by records, renewed and forgotten, and looks fall anywhere in between."""
    chance = random.Random(seed)
    round, clock, marks = 0, 0, {}
    on_disk: dict[int, Found] = {}
    made_in: dict[int, int] = {}
    needed_until: dict[int, int] = {}
    for _ in range(60):
        clock += chance.choice((1, 1, -100))
        number = chance.randrange(12)
        match chance.choice(("record", "put", "need", "look", "look")):
            case "record":
                round += 1
            case "put":
                on_disk[number], made_in[number] = found(number, clock + random.Random(clock).randrange(10**9)), round
            case "need" if number in on_disk:
                needed_until[number] = round + chance.randrange(4)
            case "look":
                stays = frozenset(name_of(one) for one, until in needed_until.items() if until >= round)
                needs = Needs(round, stays)
                here = list(on_disk.values())
                marks = marked(here, needs, marks, round)
                gone = to_remove(judged(here, needs, marks), chance.choice((0, 10**9)))
                for one in gone:
                    number = int(one.name, 16)
                    assert one.name not in stays
                    assert made_in[number] < round
                    del on_disk[number]
    needs = Needs(round + 10, frozenset())
    for later in range(GRACE_RECORDS + 1):
        needs = Needs(round + 10 + later, frozenset())
        marks = marked(on_disk.values(), needs, marks, needs.round)
    assert set(to_remove(judged(on_disk.values(), needs, marks), 10**9)) == set(on_disk.values())
