"""Which pieces are asked of whom, and what an uploader tells others of those it gives pieces to."""

import random
from collections import Counter

import pytest

from spes_peer.blobs import PIECE_BYTES
from spes_peer.exchange.holdings import Have
from spes_peer.exchange.limits import SLOW_BYTES_PER_SECOND
from spes_peer.exchange.sources import (
    FAST_SECONDS,
    MOST_PIECES,
    Patience,
    Request,
    Source,
    Wanted,
    num_at_once,
    request_size,
)
from spes_peer.exchange.uploads import MAX_BLOBS, MAX_PEERS_PER_BLOB, Uploads
from spes_peer.identity import Identity

NUM_PIECES = 8
STALL_SECONDS = 15.0
PEERS = [Identity.generate().peer_id for _ in range(MAX_PEERS_PER_BLOB + 2)]


def source(*pieces: int, requests: tuple[Request, ...] = (), promised: tuple[int, ...] = ()) -> Source:
    have = Have(NUM_PIECES * PIECE_BYTES, frozenset(pieces))
    return Source(PEERS[0], have, requests=list(requests), promised=Counter(promised))


def asked(
    began_at: float, *pieces: int, heard_at: float | None = None, num_bytes: int = 0, num_bytes_of_piece: int = 0
) -> Request:
    """One that last heard something at that moment, after which a third of the stall is borne."""
    patience = Patience(began_at if heard_at is None else heard_at, STALL_SECONDS / 3, SLOW_BYTES_PER_SECOND)
    return Request(began_at, list(pieces), patience, num_bytes, num_bytes_of_piece)


def wanted(seed: int = 0) -> Wanted:
    return Wanted(NUM_PIECES, random.Random(seed))


def test_what_fewest_have_or_will_have_comes_first() -> None:
    origin = source(*range(NUM_PIECES), promised=(0, 1, 2, 3, 4))
    others = [source(0, 1, 2), source(0)]
    first = wanted().fresh(origin, [origin, *others], held=set())
    assert set(first[:3]) == {5, 6, 7}
    assert set(first[3:5]) == {3, 4}
    assert first[-1] == 0


def test_fetchers_of_one_blob_begin_with_different_pieces() -> None:
    origin = source(*range(NUM_PIECES))
    assert len({wanted(seed).fresh(origin, [origin], set())[0] for seed in range(30)}) > NUM_PIECES / 2


def test_what_is_held_or_was_asked_of_somebody_is_not_asked_again() -> None:
    other = source(requests=(asked(0.0, 1, 2),))
    one = source(0, 1, 2, 3)
    assert sorted(wanted().fresh(one, [one, other], held={0})) == [3]
    assert wanted().fresh(Source(PEERS[0]), [one], set()) == []  # of which nothing is known


def held_up(
    one: Source, *others: Source, now: float, piece_seconds: float | None = None, held: tuple[int, ...] = ()
) -> list[int]:
    return wanted().held_up(one, [one, *others], held, now, STALL_SECONDS, piece_seconds=piece_seconds)


def test_what_a_silent_source_was_asked_for_is_asked_of_another() -> None:
    silent, one = source(requests=(asked(0.0, 1, 2, heard_at=10.0),)), source(1, 2)
    assert held_up(one, silent, now=14.9) == []
    assert held_up(one, silent, now=15.1) == [2]  # which would be waited for longest
    assert held_up(one, silent, now=15.1, held=(2,)) == [1]


def test_what_a_slow_source_was_asked_for_is_asked_of_one_that_is_much_faster() -> None:
    slow = source(requests=(asked(0.0, 3, heard_at=5.0, num_bytes=500_000, num_bytes_of_piece=500_000),))
    assert held_up(source(3), slow, now=5.0, piece_seconds=0.1) == [3]  # 5.5 s are left
    assert held_up(source(3), slow, now=5.0, piece_seconds=1.5) == []
    assert held_up(source(3), slow, now=5.0) == []  # who knows
    assert held_up(source(4), slow, now=5.0, piece_seconds=0.1) == []  # it has not
    again = source(3, requests=(asked(4.0, 3),))
    assert held_up(source(3), slow, again, now=5.0, piece_seconds=0.1) == []  # two are enough


def test_however_many_hold_a_piece_up_a_further_one_is_asked() -> None:
    holding = [source(3, requests=(asked(5.0 * number, 3),)) for number in range(20)]
    for number in range(1, 20):
        assert held_up(source(3), *holding[:number], now=5.0 * number - 0.1) == []  # the last may still send it
        assert held_up(source(3), *holding[:number], now=5.0 * number + 0.1) == [3]


def test_a_byte_now_and_then_is_as_good_as_silence_and_what_comes_as_it_should_never_is() -> None:
    for num_bytes, is_slow in ((1, True), (SLOW_BYTES_PER_SECOND // 2, True), (SLOW_BYTES_PER_SECOND, False)):
        request = asked(0.0, 1)
        for second in range(1, 15):
            request.patience.pause(num_bytes, second)
            assert not request.is_slow(second + 1000.0, 1e9)  # while we have not asked for more
            request.patience.go_on(second)
        assert request.is_slow(15.0, 15.0) == is_slow
    request.patience.pause(1 << 30, 15.0)
    request.patience.go_on(20.0)  # it did not make us wait
    assert [request.is_slow(now, 15.0) for now in (24.9, 25.1)] == [False, True]  # whatever it has sent


def test_a_source_that_cannot_be_asked_soon_takes_nobodys_place() -> None:
    one = source(1)
    assert not one.is_slow(100.0, STALL_SECONDS)  # it was not asked
    one.num_tasks, one.preparing_since = 1, 10.0
    assert [one.is_slow(now, STALL_SECONDS) for now in (11.4, 11.6)] == [False, True]
    assert not one.is_late(11.6, STALL_SECONDS)  # others may be why
    one.requests.append(asked(11.0, 1))
    assert not one.is_slow(11.6, STALL_SECONDS)


def test_a_request_that_is_not_done_for_very_long_is_slow_however_it_goes() -> None:
    request = asked(0.0, 1, heard_at=30.0)
    assert [request.is_slow(now, STALL_SECONDS) for now in (29.9, 30.1)] == [False, True]


@pytest.mark.parametrize(
    ("piece_seconds", "num_fresh", "num_sources", "size"),
    [(None, 100, 1, 1), (0.5, 100, 1, 2), (5.0, 100, 1, 1), (0.001, 100, 1, MOST_PIECES), (0.001, 9, 3, 3)],
)
def test_the_faster_a_source_the_more_it_is_asked_for_at_a_time(
    piece_seconds: float | None, num_fresh: int, num_sources: int, size: int
) -> None:
    assert request_size(piece_seconds, num_fresh, num_sources) == size


def test_a_source_is_asked_ahead_where_it_would_wait_for_us() -> None:
    assert num_at_once(source(1), FAST_SECONDS / 2, num_sources=8) == 2
    assert num_at_once(source(1), 2.0, num_sources=1) == 2  # nobody else could use its time
    assert num_at_once(source(1), 2.0, num_sources=8) == 1
    assert num_at_once(source(1), None, num_sources=1) == 1  # untried


# ---- uploads ----


def test_others_are_told_who_has_pieces_from_here_and_who_will() -> None:
    uploads = Uploads()
    with uploads.noting("blob", PEERS[0], [1, 2]) as unsent:
        assert uploads.to_others("blob", than=PEERS[1]) == {PEERS[0]: {1, 2}}
        assert uploads.to_others("blob", than=PEERS[0]) == {}
        assert uploads.to_others("other blob", than=PEERS[1]) == {}
        unsent.discard(1)
    assert uploads.to_others("blob", than=PEERS[1]) == {PEERS[0]: {1}}


def test_who_was_sent_nothing_is_forgotten() -> None:
    uploads = Uploads()
    with pytest.raises(OSError, match="gone"), uploads.noting("blob", PEERS[0], [1]):
        raise OSError("gone")
    assert uploads.to_others("blob", than=PEERS[1]) == {}


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    uploads = Uploads()
    for peer in PEERS:
        with uploads.noting("blob", peer, [1]) as unsent:
            unsent.clear()
    told = uploads.to_others("blob", than=PEERS[-1])
    assert len(told) == MAX_PEERS_PER_BLOB - 1
    assert PEERS[0] not in told
    for number in range(MAX_BLOBS):
        with uploads.noting(f"blob {number}", PEERS[0], [1]) as unsent:
            unsent.clear()
    assert uploads.to_others("blob", than=PEERS[-1]) == {}
