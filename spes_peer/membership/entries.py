"""What stands in the DHT and what its owner signs.

Under each run there are three dictionaries. A dictionary has one entry per peer: its subkey is the peer's public key,
its value carries the peer's signature over dictionary, run, signer, value and expiration, so nobody writes or alters
another's entry. An empty value releases an entry before it expires.
"""

import contextlib
import ipaddress
import math
import re
import struct
from collections.abc import Iterable

from spes_peer.errors import BadMessage, BadSignature
from spes_peer.identity import Identity, public_key_of, verify

DICTIONARIES = ("peers", "claims", "head")
# A dictionary of 200 entries must stay far below the 4 MiB at which hivemind can no longer send it.
MAX_VALUE_BYTES = 4096
# How far the clocks of two nodes may differ before one refuses the other's entries as living too long.
CLOCK_MARGIN_SECONDS = 60.0

_DOMAIN = b"spes-peer dht entry\0"
_DHT_ADDRESS = re.compile(
    r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[0-9A-Za-z.:_-]{1,253})/tcp/(?P<port>[0-9]{1,5})/p2p/(?P<peer>[^/]+)"
)


def dictionary_key(run_id_hex: str, dictionary: str) -> str:
    """The DHT key of one of a run's `DICTIONARIES`."""
    return f"spes-peer/{run_id_hex}/{dictionary}"


def entry_bytes(dictionary: str, run_id: bytes, peer_id: str, value: bytes, expires_at: float) -> bytes:
    """What is signed: each field with its length, so that no two entries share a signature."""
    fields = (dictionary.encode(), run_id, peer_id.encode(), value, struct.pack("<d", expires_at))
    return _DOMAIN + b"".join(struct.pack("<Q", len(field)) + field for field in fields)


def sign_entry(identity: Identity, dictionary: str, run_id: bytes, value: bytes, expires_at: float) -> bytes:
    return identity.sign(entry_bytes(dictionary, run_id, identity.peer_id, value, expires_at))


def check_entry(
    dictionary: str, run_id: bytes, peer_id: str, value: bytes, expires_at: float, signature: bytes
) -> None:
    """Raise `BadMessage` or `BadSignature` unless `peer_id` wrote this. Whether it has expired is the caller's."""
    if dictionary not in DICTIONARIES:
        raise BadMessage(f"no dictionary is called {dictionary[:80]!r}")
    if len(value) > MAX_VALUE_BYTES:
        raise BadMessage(f"an entry of {len(value)} bytes, more than {MAX_VALUE_BYTES}")
    if not math.isfinite(expires_at):
        raise BadMessage("an entry that expires at no moment")
    verify(peer_id, entry_bytes(dictionary, run_id, peer_id, value, expires_at), signature)


def check_dht_address(address: str) -> str:
    """`address` if it is one whole multiaddr of a DHT node; `BadMessage` for `host:port` and anything else, as the DHT
    node would take none of several if it could not read one."""
    found = _DHT_ADDRESS.fullmatch(address)
    try:
        if found is None or not 0 < int(found["port"]) < 65536:
            raise ValueError
        if found["kind"].startswith("ip"):
            (ipaddress.IPv4Address if found["kind"] == "ip4" else ipaddress.IPv6Address)(found["host"])
        public_key_of(found["peer"])
    except (ValueError, BadSignature):
        raise BadMessage(
            f"{address[:200]!r} is not a DHT address such as /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…"
        ) from None
    return address


def dht_addresses_in(addresses: Iterable[str]) -> list[str]:
    """Those that are some: an address that is none is nobody's loss but its owner's."""
    usable = []
    for address in addresses:
        with contextlib.suppress(BadMessage):
            usable.append(check_dht_address(address))
    return usable
