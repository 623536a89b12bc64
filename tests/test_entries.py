import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.errors import BadMessage, BadSignature
from spes_peer.identity import Identity
from spes_peer.membership.entries import (
    DICTIONARIES,
    MAX_VALUE_BYTES,
    check_dht_address,
    check_entry,
    dictionary_key,
    entry_bytes,
    sign_entry,
)

RUN_ID = bytes(range(32))
OWNER = Identity.from_seed(b"o" * 32)
OTHER = Identity.from_seed(b"x" * 32)
DHT_ID = "12D3KooWFe2A9EgXCqsUEtt6YKpFkUh2T3fmwHEDu5kkqsRVbYn4"


def test_an_entry_passes_as_its_owner_signed_it() -> None:
    signature = sign_entry(OWNER, "peers", RUN_ID, b"value", 1000.0)
    check_entry("peers", RUN_ID, OWNER.peer_id, b"value", 1000.0, signature)


@pytest.mark.parametrize(
    "changed",
    [
        {"dictionary": "claims"},
        {"run_id": bytes(32)},
        {"peer_id": OTHER.peer_id},
        {"value": b"walue"},
        {"value": b""},
        {"expires_at": 1000.001},
        {"signature": bytes(64)},
        {"signature": b""},
    ],
)
def test_the_signature_covers_every_field(changed: dict[str, object]) -> None:
    entry = {
        "dictionary": "peers",
        "run_id": RUN_ID,
        "peer_id": OWNER.peer_id,
        "value": b"value",
        "expires_at": 1000.0,
        "signature": sign_entry(OWNER, "peers", RUN_ID, b"value", 1000.0),
    }
    with pytest.raises(BadSignature):
        check_entry(**{**entry, **changed})  # type: ignore[arg-type]


@given(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), st.tuples(st.binary(max_size=8), st.binary(max_size=8)))
def test_no_two_entries_sign_the_same_bytes(one: tuple[bytes, bytes], two: tuple[bytes, bytes]) -> None:
    signed = [entry_bytes("peers", run_id, OWNER.peer_id, value, 1.0) for run_id, value in (one, two)]
    assert (signed[0] == signed[1]) == (one == two)


@pytest.mark.parametrize(
    ("dictionary", "value", "expires_at"),
    [
        ("votes", b"", 1.0),
        ("peers", b"a" * (MAX_VALUE_BYTES + 1), 1.0),
        ("peers", b"", math.inf),
        ("peers", b"", math.nan),
    ],
)
def test_what_no_dictionary_holds_is_refused_even_if_signed(dictionary: str, value: bytes, expires_at: float) -> None:
    signature = sign_entry(OWNER, dictionary, RUN_ID, value, expires_at)
    with pytest.raises(BadMessage):
        check_entry(dictionary, RUN_ID, OWNER.peer_id, value, expires_at, signature)


def test_runs_and_dictionaries_have_keys_of_their_own() -> None:
    keys = {dictionary_key(run_id.hex(), name) for run_id in (RUN_ID, bytes(32)) for name in DICTIONARIES}
    assert len(keys) == 2 * len(DICTIONARIES)


@pytest.mark.parametrize(
    "address",
    [
        f"/ip4/127.0.0.1/tcp/4001/p2p/{DHT_ID}",
        f"/ip6/::1/tcp/1/p2p/{DHT_ID}",
        f"/dns4/spes.example.org/tcp/443/p2p/{DHT_ID}",
    ],
)
def test_whole_dht_addresses_pass(address: str) -> None:
    assert check_dht_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:4001",
        "/ip4/127.0.0.1/tcp/4001",
        f"/ip4/127.0.0.1/tcp/4001/p2p/{DHT_ID}/ip4/127.0.0.1/tcp/4002/p2p/{DHT_ID}",
        f"/ip4/127.0.0.1/tcp/4001/p2p/{DHT_ID}\n",
        f"/ip4/127.0.0.1/tcp/4001,/p2p/{DHT_ID}",
        "/ip4/127.0.0.1/tcp/4001/p2p/0OIl",
    ],
)
def test_half_and_glued_dht_addresses_are_refused(address: str) -> None:
    with pytest.raises(BadMessage):
        check_dht_address(address)
