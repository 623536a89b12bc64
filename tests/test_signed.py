"""A signature binds a message to its type, run, record, signer, start and place in a row; and counts once."""

import dataclasses
import lzma
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.errors import BadMessage, BadSignature, PeerError
from spes_peer.identity import Identity
from spes_peer.run.peers import Claim, Head
from spes_peer.run.signed import ReplayGuard, Signed, Signer, open_any, pack, unpack
from spes_peer.wire import convert

RUN, OTHER_RUN = b"r" * 32, b"o" * 32
CLAIM = Claim((1, 2), 1000.5)


@pytest.fixture
def signer(organizer: Identity) -> Signer:
    return Signer(organizer, RUN, incarnation=5, record_hash=lambda: b"h" * 32)


def test_a_signed_message_travels_and_opens(signer: Signer, organizer: Identity) -> None:
    signed = convert.decode(Signed, convert.encode(signer.sign(CLAIM)))
    assert signed.open(Claim, RUN) == CLAIM
    assert (signed.kind, signed.peer_id, signed.incarnation) == ("Claim", organizer.peer_id, 5)
    assert signed.record_hash == b"h" * 32


def test_the_counter_rises_with_each_message(signer: Signer) -> None:
    assert [signer.sign(CLAIM).counter for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Head"},
        {"run_id": OTHER_RUN},
        {"record_hash": b""},
        {"peer_id": Identity.from_seed(b"\2" * 32).peer_id},
        {"peer_id": "nobody"},
        {"incarnation": 6},
        {"counter": 9},
        {"body": b""},
        {"signature": b""},
        {"signature": bytes(64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_no_field_can_be_changed_after_signing(signer: Signer, change: dict[str, Any]) -> None:
    signed = dataclasses.replace(signer.sign(CLAIM), **change)
    with pytest.raises(BadSignature):
        signed.check(signed.run_id)


def test_bytes_cannot_move_from_one_field_to_the_next(signer: Signer) -> None:
    signed = signer.sign(CLAIM)
    moved = dataclasses.replace(signed, kind=signed.kind + "r", run_id=signed.run_id[1:])
    assert moved.signed_bytes() != signed.signed_bytes()
    with pytest.raises(BadSignature):
        moved.check(moved.run_id)


def test_a_message_of_another_run_or_type_is_refused(signer: Signer) -> None:
    signed = signer.sign(CLAIM)
    with pytest.raises(BadMessage, match="another run"):
        signed.open(Claim, OTHER_RUN)
    with pytest.raises(BadMessage, match="a 'Claim' where a Head belongs"):
        signed.open(Head, RUN)


def test_a_well_signed_body_that_is_no_message_is_refused(organizer: Identity) -> None:
    unsigned = Signed("Claim", RUN, b"", organizer.peer_id, 1, 1, b"\xff\xff", b"")
    signed = dataclasses.replace(unsigned, signature=organizer.sign(unsigned.signed_bytes()))
    with pytest.raises(BadMessage, match="bytes that are not a Claim"):
        signed.open(Claim, RUN)


def test_only_the_expected_kinds_are_opened(signer: Signer) -> None:
    signed = signer.sign(CLAIM)
    assert open_any(signed, {"Claim": Claim, "Head": Head}, RUN) == CLAIM
    with pytest.raises(BadMessage, match="a 'Claim' where one of Head belongs"):
        open_any(signed, {"Head": Head}, RUN)


@given(st.data())
def test_a_flipped_bit_anywhere_is_refused(data: st.DataObject) -> None:
    signer = Signer(Identity.from_seed(b"\1" * 32), RUN, incarnation=5)
    content = bytearray(convert.encode(signer.sign(CLAIM)))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PeerError):
        convert.decode(Signed, bytes(content)).open(Claim, RUN)


# ---- replay ----


def test_a_message_counts_once_and_only_in_rising_order(signer: Signer) -> None:
    first, second, third = (signer.sign(CLAIM) for _ in range(3))
    guard = ReplayGuard()
    guard.accept(first)
    guard.accept(third)
    for stale in (first, second, third):
        with pytest.raises(BadSignature, match="again, or out of order"):
            guard.accept(stale)


def test_a_restarted_signer_begins_anew_and_its_former_life_is_over(organizer: Identity) -> None:
    before, after = (Signer(organizer, RUN, incarnation).sign(CLAIM) for incarnation in (5, 6))
    guard = ReplayGuard()
    guard.accept(before)
    guard.accept(after)
    with pytest.raises(BadSignature):
        guard.accept(Signer(organizer, RUN, 5).sign(CLAIM))


def test_signers_do_not_disturb_each_other(signer: Signer) -> None:
    guard = ReplayGuard()
    guard.accept(signer.sign(CLAIM))
    guard.accept(Signer(Identity.from_seed(b"\2" * 32), RUN, 1).sign(CLAIM))


# ---- large bodies ----


def large_head() -> Head:
    return Head(7, b"ab" * 5000)


def test_a_large_body_travels_compressed_and_a_small_one_as_it_is(signer: Signer) -> None:
    content = convert.encode(large_head())
    signed = signer.sign(large_head())
    assert len(signed.body) < len(content) / 10
    assert signed.open(Head, RUN) == large_head()
    assert signer.sign(CLAIM).body == convert.encode(CLAIM)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (pack(bytes(5000))[:-1], "is cut"),
        (pack(bytes(5000)) + b"more", "has more behind its end"),
        (pack(bytes((8 << 20) + 1)), "over 8388608 bytes"),
        (pack(bytes(5000))[:24] + b"n" * 100, "cannot be decompressed"),
        (lzma.compress(bytes(5000), preset=9), "cannot be decompressed: Memory usage limit"),
    ],
    ids=["cut", "goes on", "bomb", "nonsense", "dictionary"],
)
def test_a_compressed_body_that_is_not_sound_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        unpack(body)


@given(st.binary(max_size=5))
def test_what_is_no_compressed_body_is_left_as_it_is(content: bytes) -> None:
    assert unpack(content) == content
