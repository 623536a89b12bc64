"""Call tokens: good for one callee, one run and a minute."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.errors import BadSignature
from spes_peer.exchange.tokens import CallToken, make_token, open_token
from spes_peer.identity import Identity, PeerId
from spes_peer.run.peers import Claim
from spes_peer.run.signed import Signer
from spes_peer.wire import convert

CALLER, ME, OTHER = (Identity.from_seed(bytes([seed]) * 32) for seed in (1, 2, 3))
RUN_ID, NOW = b"r" * 32, 1_000_000.0
HOUR = 3600.0
SIGNER = Signer(CALLER, RUN_ID, incarnation=1)


def checked(token: bytes | None, now: float) -> PeerId:
    """Who calls this node with it."""
    opened = open_token(token, RUN_ID, ME.peer_id)
    opened.check_time(now)
    return opened.caller


def test_a_token_names_its_caller() -> None:
    assert checked(make_token(SIGNER, ME.peer_id, NOW), NOW + 59) == CALLER.peer_id


def test_clocks_may_differ_by_half_a_minute() -> None:
    token = make_token(SIGNER, ME.peer_id, NOW)
    assert checked(token, NOW + 60 + 29) == CALLER.peer_id
    assert checked(token, NOW - 29) == CALLER.peer_id


@pytest.mark.parametrize("ahead_seconds", [-HOUR, 0.0, HOUR])
def test_a_token_tells_what_time_it_is_for_its_caller_also_where_it_is_refused_for_that(ahead_seconds: float) -> None:
    opened = open_token(make_token(SIGNER, ME.peer_id, NOW + ahead_seconds), RUN_ID, ME.peer_id)
    assert (opened.caller, opened.made_at) == (CALLER.peer_id, NOW + ahead_seconds)


def _forged() -> bytes:
    signed = SIGNER.sign(CallToken(ME.peer_id, NOW + 60))
    return convert.encode(dataclasses.replace(signed, peer_id=OTHER.peer_id))


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (None, "without a token"),
        (b"\xff" * 40, "cannot be used"),
        (b"x" * 2_000, "without a token"),
        (make_token(SIGNER, OTHER.peer_id, NOW), "another node"),
        (make_token(SIGNER, ME.peer_id, NOW - 91), "expired"),
        (make_token(SIGNER, ME.peer_id, NOW + 31), "too long"),
        (make_token(Signer(CALLER, b"q" * 32, 1), ME.peer_id, NOW), "another run"),
        (convert.encode(SIGNER.sign(Claim((1,), NOW))), "where a CallToken belongs"),
        (_forged(), "signature"),
    ],
)
def test_any_other_token_is_refused(token: bytes | None, reason: str) -> None:
    with pytest.raises(BadSignature, match=reason):
        checked(token, NOW)


@given(st.data())
def test_no_bit_of_a_token_can_be_changed(data: st.DataObject) -> None:
    token = bytearray(make_token(SIGNER, ME.peer_id, NOW))
    bit = data.draw(st.integers(0, 8 * len(token) - 1))
    token[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadSignature):
        checked(bytes(token), NOW)
