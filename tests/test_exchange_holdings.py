"""Holdings: pieces on their way are verified, served, and found again after a restart."""

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.blobs import PIECE_BYTES, BlobStore, digests_of, name_of, num_pieces_of
from spes_peer.errors import BadMessage, BlobMissing
from spes_peer.exchange.holdings import Have, Holdings
from spes_peer.exchange.limits import Busy, Slots
from spes_peer.identity import Identity

CONTENT = random.Random(1).randbytes(2 * PIECE_BYTES + 5)
DIGESTS = b"".join(digests_of(CONTENT))
NAME = name_of(digests_of(CONTENT))


def piece(index: int) -> bytes:
    return CONTENT[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]


@pytest.fixture
def holdings(tmp_path: Path) -> Holdings:
    return Holdings(BlobStore(tmp_path))


@given(st.integers(0, 40 * PIECE_BYTES), st.data())
def test_a_bitmap_says_what_is_there(size_bytes: int, data: st.DataObject) -> None:
    pieces = data.draw(st.frozensets(st.integers(0, num_pieces_of(size_bytes) - 1)))
    assert Have.from_bitmap(size_bytes, Have(size_bytes, pieces).bitmap()).pieces == pieces


@given(st.integers(0, 1 << 63), st.binary(max_size=40))
def test_any_bitmap_from_a_peer_is_bounded_by_the_size_or_refused(size_bytes: int, bitmap: bytes) -> None:
    try:
        have = Have.from_bitmap(size_bytes, bitmap)
    except BadMessage:
        return
    assert all(index < num_pieces_of(size_bytes) for index in have.pieces)


def test_a_piece_is_served_as_soon_as_it_is_verified(holdings: Holdings) -> None:
    partial = holdings.begin(NAME, len(CONTENT))
    partial.accept_digests(DIGESTS)
    partial.accept_piece(1, piece(1))
    assert holdings.have(NAME) == Have(len(CONTENT), frozenset({1}))
    assert holdings.read_piece(NAME, 1) == piece(1)
    assert holdings.digests(NAME) == DIGESTS
    with pytest.raises(BlobMissing):
        holdings.read_piece(NAME, 0)


def test_bytes_that_are_not_the_piece_are_refused_and_not_kept(holdings: Holdings) -> None:
    partial = holdings.begin(NAME, len(CONTENT))
    partial.accept_digests(DIGESTS)
    for index, content in ((0, piece(1)), (0, piece(0)[:-1]), (2, piece(2) + b"x"), (3, b"")):
        with pytest.raises(BadMessage):
            partial.accept_piece(index, content)
    assert partial.held == set()


def test_digests_of_another_blob_or_another_size_are_refused(holdings: Holdings) -> None:
    with pytest.raises(BadMessage):
        holdings.begin(NAME, len(CONTENT)).accept_digests(DIGESTS[:-32] + hashlib.sha256(b"").digest())
    with pytest.raises(BadMessage):
        holdings.begin(NAME, len(CONTENT) + PIECE_BYTES).accept_digests(DIGESTS)


def test_what_was_damaged_while_we_were_away_is_fetched_again(holdings: Holdings, tmp_path: Path) -> None:
    partial = holdings.begin(NAME, len(CONTENT))
    partial.accept_digests(DIGESTS)
    for index in range(2):
        partial.accept_piece(index, piece(index))
    with (tmp_path / "partial" / f"{NAME}.data").open("r+b") as file:
        file.write(b"\0damaged")
    again = Holdings(BlobStore(tmp_path))
    assert again.begin(NAME, len(CONTENT)).held == {1}


def test_a_complete_blob_moves_into_the_store(holdings: Holdings) -> None:
    partial = holdings.begin(NAME, len(CONTENT))
    partial.accept_digests(DIGESTS)
    for index in range(3):
        partial.accept_piece(index, piece(index))
    assert [one.name for one in holdings.unfinished()] == [NAME]
    holdings.finish(partial)
    assert holdings.unfinished() == []
    assert holdings.store.read(NAME) == CONTENT
    assert holdings.store.digests(NAME) == DIGESTS
    assert list(holdings.store.names()) == [NAME]
    assert holdings.read_piece(NAME, 2) == piece(2)


def test_a_blob_that_nobody_wants_any_more_leaves_nothing_behind(holdings: Holdings, tmp_path: Path) -> None:
    holdings.begin(NAME, len(CONTENT)).accept_digests(DIGESTS)
    holdings.forget(NAME)
    assert list((tmp_path / "partial").iterdir()) == []
    assert holdings.have(NAME).pieces == frozenset()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "\0" * 64])
def test_a_strange_name_never_becomes_a_path(holdings: Holdings, name: str) -> None:
    for use in (holdings.have, holdings.digests, holdings.forget, lambda name: holdings.begin(name, 1)):
        with pytest.raises(BadMessage):
            use(name)


def test_one_caller_cannot_take_all_slots_and_gives_them_back() -> None:
    slots = Slots(total=3, per_caller=2)
    one, two = Identity.generate().peer_id, Identity.generate().peer_id
    with slots.hold(one), slots.hold(one):
        with pytest.raises(Busy), slots.hold(one):
            pass
        with slots.hold(two), pytest.raises(Busy), slots.hold(Identity.generate().peer_id):
            pass
    with slots.hold(one):
        pass
