"""What anybody may write of himself into the DHT, well signed: none of it costs anybody else anything."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_parts import OTHER, FakeDirectory, make_node
from daemon_parts import Scene as MemberScene
from exchange_nodes import eventually
from test_hostile_numbers import values

from spes_peer.daemon.program import _place_among
from spes_peer.daemon.status import add_member
from spes_peer.daemon.status_words import in_words
from spes_peer.errors import PeerError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.identity import Identity, PeerId, TlsIdentity
from spes_peer.node import Node
from spes_peer.process import Service
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import Claim, PeerEntry, PeerState, Role
from spes_peer.wire.control_pb2 import Status

ATTACKER = Identity.from_seed(b"\x66" * 32)
STRINGS = [
    "",
    " ",
    "\0",
    "x" * 300,
    "unix:/run/docker.sock",
    "unix:///run/docker.sock:1",
    "[::1",
    "[fe80::1%eth0]:1",
    "127.1:80",
    "0x7f000001:80",
    "a..b:1",
    "é.example:1",
    "1.2.3.4:99999999999999",
    "1.2.3.4:-1",
    ":0",
    "/ip4/",
    "/unix/run/docker.sock/p2p/x",
    f" /ip4/1.2.3.4/tcp/1/p2p/{ATTACKER.peer_id}",
    f"/ip4/1.2.3.4/tcp/1/p2p/{ATTACKER.peer_id}/p2p-circuit",
    f"/ip4/1.2.3.4/tcp/1/p2p/{ATTACKER.peer_id}/p2p-circuit/p2p/{ATTACKER.peer_id}/p2p-circuit/p2p/x",
    f"/dns4/a_b/tcp/1/p2p/{ATTACKER.peer_id}",
]
GOOD = PeerEntry(
    peer_id=ATTACKER.peer_id,
    name="[/red][x",
    version="\x1b[2J" * 500,
    protocol=5,
    role=Role.BOOTSTRAP,
    state=PeerState.ONLINE,
    incarnation=1,
    grpc_addresses=("127.0.0.1:1",),
    certificate=TlsIdentity.generate().certificate_der,
    libp2p_addresses=(f"/ip4/127.0.0.1/tcp/1/p2p/{ATTACKER.peer_id}",),
    dht_addresses=(f"/ip4/127.0.0.1/tcp/1/p2p/{ATTACKER.peer_id}",),
    max_subsets=1,
    written_at=1e9,
    is_relay=True,
)


def hostile_entries() -> Iterator[PeerEntry]:
    """Newer and newer, so that each takes the place of the one before."""
    for _, entry in values(GOOD):
        yield entry
    for text in STRINGS:
        for field in ("grpc_addresses", "libp2p_addresses", "dht_addresses"):
            yield dataclasses.replace(GOOD, **{field: (text,) * 16})
    for certificate in (b"", b"x", GOOD.certificate[:-1], GOOD.certificate + b"x", bytes(4096)):
        yield dataclasses.replace(GOOD, certificate=certificate)


def member_of(node: Node, monkeypatch: pytest.MonkeyPatch) -> MemberScene:
    return MemberScene(node, monkeypatch)


class _Libp2p:
    """Takes the relays that it is told to use."""

    service = Service("libp2p node")
    addresses: tuple[str, ...] = ()
    standing_relays: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.relays: set[str] = set()

    async def use_relays(self, relays: typing.Sequence[str], _seen_at: str = "") -> None:
        self.relays.update(relays)

    async def open_tunnel(self, _peer_id: PeerId, _addresses: typing.Sequence[str]) -> Path:
        return Path("/nonexistent")

    def relay_of(self, _peer_id: PeerId) -> str:
        return ""

    def is_punched(self, _peer_id: PeerId) -> bool:
        return False


@pytest.fixture
def node(tmp_path: Path, manifest: Manifest, organizer: Identity) -> Node:
    return make_node(tmp_path / "self", manifest, organizer)


async def test_whatever_an_entry_says_all_others_are_found_shown_and_remembered(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.exchange.connections.DIAL_SECONDS", 0.3)
    monkeypatch.setattr("spes_peer.exchange.connections.TUNNEL_SECONDS", 0.3)
    monkeypatch.setattr("spes_peer.exchange.connections.look_up", _nothing)
    scene, libp2p = member_of(node, monkeypatch), _Libp2p()
    monkeypatch.setattr(node, "libp2p", libp2p)
    honest = dataclasses.replace(GOOD, peer_id=OTHER.peer_id, name="honest", libp2p_addresses=(_at(OTHER.peer_id),))
    known = KnownNodes(tmp_path / "known", node.run_id)
    monkeypatch.setattr("spes_peer.exchange.known_nodes._WRITE_SECONDS", 0.0)
    dialled = set()
    for number, hostile in enumerate(hostile_entries(), start=2):
        entry = dataclasses.replace(hostile, incarnation=max(hostile.incarnation, number))
        node.entries.pop(ATTACKER.peer_id, None)
        node.connections.forget(ATTACKER.peer_id)
        for one in (entry, honest):
            node.take_entry(one)
        assert OTHER.peer_id in node.others()
        await node.use_relays()
        known.note(node.entries.values())
        assert {one.peer_id for one in KnownNodes(tmp_path / "known", node.run_id).entries} >= {OTHER.peer_id}
        introduction = Introduction(
            node.signed_manifest, node.manifest, entry, 0, NodeAddress("127.0.0.1", 1, entry.peer_id), _endpoint()
        )
        _place_among(introduction, known, ())
        _place_among(None, known, ())
        status = Status()
        add_member(status, scene.member)
        lines = in_words(status).splitlines()
        assert all(map(str.isprintable, lines))
        assert any(line.startswith("peer honest  ") for line in lines)
        if (key := (entry.grpc_addresses, entry.certificate)) not in dialled:
            dialled.add(key)
            with pytest.raises(PeerError):
                await node.connections.to(ATTACKER.peer_id)
    assert libp2p.relays >= set(honest.libp2p_addresses)
    assert all(address == address.strip() for address in libp2p.relays)


def _at(peer_id: PeerId) -> str:
    return f"/ip4/127.0.0.1/tcp/2/p2p/{peer_id}"


def _endpoint() -> Any:
    return NodeAddress("127.0.0.1", 1, ATTACKER.peer_id).endpoint


async def _nothing(*_: object) -> list[str]:
    return []


async def test_whatever_others_claim_a_newcomer_claims_and_is_admitted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim from the beginning of time to all subsets, and to ones that there are not."""
    everything = tuple(range(node.manifest.training.num_subsets))
    good = Claim((*everything, 2**32 - 1), -1.7e308)
    strangers = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(30, 60)]
    hostile = dict(zip(strangers, [good, *(claim for _, claim in values(good))], strict=False))

    class Claimed(FakeDirectory):
        async def read_claims(self) -> dict[PeerId, Any]:
            return hostile

    scene = member_of(node, monkeypatch)
    monkeypatch.setattr(scene.member.claiming, "_directory", Claimed())
    async with scene.living():
        await eventually(lambda: scene.phases.message.why == "to be admitted to the next round", 20)
        (subset,) = scene.member.claiming.subsets
        assert subset in everything
        status = Status()
        add_member(status, scene.member)
        assert len(status.subsets) == len(everything)
