"""Whom hole punching dials. py-libp2p runs in a process of its own, as it does in the program."""

import subprocess
import sys

SCRIPT = """
import types, trio
from multiaddr import Multiaddr
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2 import dcutr
from spes_peer.exchange.libp2p_punching import HolePunching

dcutr._HOLE_PUNCH_ROUND_TIMEOUT = 0.1
peer = ID.from_pubkey(create_new_key_pair().public_key)
named, told = "/ip4/198.51.100.7/tcp/4511", ["/ip4/192.168.1.1/tcp/80", "/ip4/203.0.113.9/udp/4001/quic-v1"]
dialled = []

class Network:
    connections = {}
    async def dial_addr(self, address, *_):
        dialled.append(str(address))
    dial_addr_as_responder = dial_addr

peerstore = types.SimpleNamespace(addrs=lambda _peer: [Multiaddr(one) for one in told])
host = types.SimpleNamespace(
    get_id=lambda: peer, get_network=Network, get_peerstore=lambda: peerstore, get_addrs=lambda: []
)

async def main():
    async def nobody(_peer): pass
    punching = HolePunching(host, 4511, nobody)
    with trio.move_on_after(5):
        await punching._perform_hole_punch(peer, [Multiaddr(named)], as_responder=True)
    print(*sorted(set(dialled)))

trio.run(main)
"""


def test_only_the_address_that_a_peer_names_for_it_is_dialled_and_none_that_it_told_of_itself_before() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["/ip4/198.51.100.7/tcp/4511"], done.stderr
