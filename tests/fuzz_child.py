"""Decoders of the DHT node and of the libp2p node, fuzzed in a process of their own: no process can import both.

`python fuzz_child.py dht|libp2p NUM_INPUTS` prints how many inputs were refused, and fails as `fuzzing` does.
"""

import asyncio
import dataclasses
import struct
import sys

from fuzzing import Decoder, fuzz

from spes_peer.errors import BadMessage
from spes_peer.identity import Identity, peer_id_of
from spes_peer.run.peers import PeerEntry, PeerState, Role

RUN_ID, NOW = bytes(range(32)), 1e9
PLACES = ("ip4/203.0.113.7", "ip6/2001:db8::1", "ip6/::ffff:1.2.3.4", "dns/a-b.example.", "dns4/a_b.example", "dns6/x")
OWNER = Identity.from_seed(b"\x66" * 32)

ENTRY = PeerEntry(OWNER.peer_id, "", "", 5, Role.BOOTSTRAP, PeerState.ONLINE, 1, (), b"", (), (), 1, 0.0, is_relay=True)


def dht_decoders() -> list[Decoder]:
    from hivemind.dht import DHTNode
    from hivemind.dht.crypto import DHTRecord
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.proto import dht_pb2
    from hivemind.utils import MSGPackSerializer

    from spes_peer.clock import HeldClock
    from spes_peer.membership.dht_node import EntryValidator, _take_later, by_peer, key_id_of, unpacked, use_clock
    from spes_peer.membership.entries import check_dht_address, check_entry, sign_entry
    from spes_peer.run.peers import Claim
    from spes_peer.wire import convert

    assert DHTNode.__name__
    clock = HeldClock()
    clock.tell(NOW)
    use_clock(clock)
    validator = EntryValidator(RUN_ID, 50.0, clock)
    key = key_id_of(RUN_ID, "claims")
    public_key = OWNER.key.public_key().public_bytes_raw()
    subkey = MSGPackSerializer.dumps(public_key)
    value = convert.encode(Claim((0, 3), 5.0))

    def stored(expires_at: float, value: bytes = value) -> bytes:
        return MSGPackSerializer.dumps(value + sign_entry(OWNER, "claims", RUN_ID, value, expires_at))

    def check(name: bytes, packed: bytes, expires_at: float) -> None:
        """What was let in must be its owner's own word, for no longer than may be."""
        signed = unpacked(packed)
        assert expires_at <= NOW + 50 + 60 + 5
        check_entry("claims", RUN_ID, peer_id_of(name), signed[:-64], expires_at, signed[-64:])

    def record(content: bytes) -> None:
        (expires_at,) = struct.unpack("<d", content[54:62].ljust(8, b"\0"))
        found = DHTRecord(content[:20], content[20:54], content[62:], expires_at)
        if not validator.validate(found):
            raise BadMessage("refused")
        check(found.subkey[2:], found.value, expires_at)

    protocol = object.__new__(DHTProtocol)
    protocol.record_validator = validator
    protocol.node_info = dht_pb2.NodeInfo(node_id=DHTID.generate(b"x").to_bytes())

    def request(content: bytes) -> None:
        """From whoever connects to the DHT node."""
        protocol.storage, protocol.cache = DHTLocalStorage(), DHTLocalStorage(maxsize=1)
        protocol.cache.maxsize = 0
        try:
            asked = dht_pb2.StoreRequest.FromString(content)
            asked.ClearField("peer")
            answer = asyncio.run(protocol.rpc_store(asked, None))
        except Exception as error:  # which p2pd tells the caller
            raise BadMessage(str(error)) from None
        finally:
            found: dict[bytes, tuple[bytes, float]] = {}
            for key_id, item in protocol.storage.items():
                assert key_id == key
                assert isinstance(item.value, DictionaryDHTValue)
                _take_later(found, item)
            for name, (packed, expires_at) in found.items():
                check(name, packed, expires_at)
        if not all(answer.store_ok):
            raise BadMessage("refused")

    def many(dictionary: "dict[bytes, tuple[bytes, float]]") -> bytes:
        held = DictionaryDHTValue()
        for name, (packed, expires_at) in dictionary.items():
            held.store(name, packed, expires_at)
        return bytes(MSGPackSerializer.dumps(held))

    def asked(tag: bytes, content: bytes, is_cached: bool = False) -> bytes:
        request = dht_pb2.StoreRequest(
            keys=[key.to_bytes()], subkeys=[tag], values=[content], expiration_time=[NOW + 25], in_cache=[is_cached]
        )
        return bytes(request.SerializeToString())

    def address(content: bytes) -> None:
        """What passes costs no other that comes with it, whatever hivemind says to it."""
        good = f"/ip4/203.0.113.7/tcp/1/p2p/{OWNER.peer_id}"
        assert len(by_peer([check_dht_address(content.decode(errors="surrogateescape")), good])) >= 1

    at = NOW + 25
    records = [key.to_bytes() + subkey + struct.pack("<d", at) + stored(at, bytes(size)) for size in (0, 20, 300)]
    requests = [asked(subkey, stored(at)), asked(subkey, stored(at), True)]
    requests.append(asked(DHTProtocol.IS_DICTIONARY, many({public_key: (stored(at), at)})))
    return [
        Decoder("unpacked", unpacked, [stored(at, bytes(size)) for size in (0, 20, 300)]),
        Decoder("DHTRecord", record, records, cost=2),
        Decoder("StoreRequest", request, requests, cost=4),
        Decoder("DHT address", address, [f"/{at}/tcp/80/p2p/{OWNER.peer_id}".encode() for at in PLACES], is_text=True),
    ]


def libp2p_decoders() -> list[Decoder]:
    from libp2p.peer.id import ID
    from multiaddr import Multiaddr

    from spes_peer.exchange.libp2p_dial import Route, routes_to, usable_routes
    from spes_peer.exchange.libp2p_punching import HolePunching
    from spes_peer.exchange.relays import relay_addresses

    direct = f"/ip4/203.0.113.7/tcp/4511/p2p/{OWNER.peer_id}"
    addresses = [direct, f"{direct}/p2p-circuit/p2p/{OWNER.peer_id}", f"/dns6/a.example/tcp/1/p2p/{OWNER.peer_id}"]
    peer, punching = ID.from_base58(OWNER.peer_id), object.__new__(HolePunching)

    def route(content: bytes) -> None:
        text = content.decode(errors="surrogateescape")
        found = Route.parse(text)
        assert (found.relay is not None) == ("/p2p-circuit" in text)
        assert len(routes_to(peer, [text] * 100)) <= 8

    def relay(content: bytes) -> None:
        """What the daemon takes for a relay's address costs no other."""
        entry = dataclasses.replace(ENTRY, libp2p_addresses=(content.decode(errors="surrogateescape"),))
        if not (usable := relay_addresses(entry)):
            raise BadMessage("no relay")
        assert direct in usable_routes([*usable, direct])

    def observed(content: bytes) -> None:
        for found in punching._decode_observed_addrs([content, content]):
            assert str(found).split("/")[1] in ("ip4", "ip6")

    near = [Multiaddr("/ip4/8.8.8.8/tcp/4511").to_bytes(), Multiaddr("/ip6/2606:4700::1/tcp/1").to_bytes()]
    return [
        Decoder("Route.parse", route, [one.encode() for one in addresses], is_text=True),
        Decoder("relay address", relay, [f"/{at}/tcp/80/p2p/{OWNER.peer_id}".encode() for at in PLACES], is_text=True),
        Decoder("observed addresses", observed, near),
    ]


if __name__ == "__main__":
    print(fuzz({"dht": dht_decoders, "libp2p": libp2p_decoders}[sys.argv[1]](), int(sys.argv[2]), seed=3))
