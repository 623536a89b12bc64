"""Nodes that were met are found again after a restart; a file that somebody else has written costs hints only."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.exchange.known_nodes import MAX_NODES, KnownNodes
from spes_peer.identity import Identity
from spes_peer.run.peers import PeerEntry, PeerState, Role

RUN_ID = b"r" * 32


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(number: int, role: Role = Role.VOLUNTEER, **changes: object) -> PeerEntry:
    peer_id = Identity.from_seed(bytes([number]) * 32).peer_id
    made = PeerEntry(
        peer_id, "n", "0", 1, role, PeerState.ONLINE, 1, (f"10.0.0.{number}:4510",), b"c", (), (), 1, float(number)
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "known-nodes.json"


def read(path: Path) -> KnownNodes:
    return KnownNodes(path, RUN_ID)


def test_nodes_that_were_met_are_known_after_a_restart_bootstrap_nodes_first(path: Path) -> None:
    read(path).note([entry(1), entry(2, Role.BOOTSTRAP), entry(3, grpc_addresses=())])
    again = read(path)
    assert [one.peer_id for one in again.entries] == [entry(2).peer_id, entry(1).peer_id]
    assert again.bootstrap_nodes == (entry(2, Role.BOOTSTRAP),)
    assert [one.text() for one in again.addresses] == [
        f"/ip4/10.0.0.2/tcp/4510/p2p/{entry(2).peer_id}",
        f"/ip4/10.0.0.1/tcp/4510/p2p/{entry(1).peer_id}",
    ]


def test_those_that_are_there_push_out_those_that_are_not(path: Path) -> None:
    clock = Clock()
    known = KnownNodes(path, RUN_ID, clock)
    known.note([entry(1, Role.BOOTSTRAP), *(entry(number) for number in range(2, MAX_NODES))])
    clock.now = 100.0
    known.note([entry(number) for number in range(100, 110)])
    again = read(path)
    assert len(again.entries) == MAX_NODES
    assert [one.peer_id for one in again.entries[:11]] == [
        *(entry(number).peer_id for number in range(100, 110)),
        entry(1).peer_id,
    ]


def test_it_is_written_when_something_changed_and_not_too_often(path: Path) -> None:
    clock = Clock()
    known = KnownNodes(path, RUN_ID, clock)
    known.note([entry(1)])
    first = path.stat().st_ino
    clock.now = 10.0
    known.note([entry(1, written_at=99.0, state=PeerState.PAUSED)])
    assert path.stat().st_ino == first
    known.note([entry(1, grpc_addresses=("10.9.9.9:1",))])
    second = path.stat().st_ino
    assert second != first
    clock.now = 11.0
    known.note([entry(1), entry(2)])
    assert path.stat().st_ino == second
    clock.now = 16.0
    known.note([entry(1), entry(2)])
    assert len(read(path).entries) == 2


def test_a_disk_that_takes_nothing_is_no_reason_to_end(tmp_path: Path) -> None:
    known = KnownNodes(tmp_path / "gone" / "known-nodes.json", RUN_ID)
    known.note([entry(1)])
    assert len(known.addresses) == 1


def test_the_file_of_another_run_is_not_used(path: Path) -> None:
    read(path).note([entry(1)])
    assert KnownNodes(path, b"s" * 32).entries == ()


def test_one_bad_entry_spoils_no_other(path: Path) -> None:
    read(path).note([entry(1), entry(2)])
    content = json.loads(path.read_bytes())
    content["entries"][0] = content["entries"][0][:-8]
    content["entries"].append(7)
    path.write_text(json.dumps(content))
    assert [one.peer_id for one in read(path).entries] == [entry(2).peer_id]


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers(), st.lists, max_leaves=5).map(json.dumps))
def test_any_other_content_is_as_none(tmp_path_factory: pytest.TempPathFactory, content: bytes | str) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read(path).entries == ()
