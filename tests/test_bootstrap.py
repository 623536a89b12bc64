"""The bootstrap node: where it listens, what its folder must have, what it keeps, whose addresses it gives."""

import argparse
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from run_nodes import RunNodes, run_nodes

from bootstrap.address import ADDRESS_FILE, AddressFile, addresses
from bootstrap.cli import DEFAULT_PORT, listening, main
from bootstrap.ending import end_after
from bootstrap.mirror import Mirror, is_first
from bootstrap.opening import check_openable, open_folder
from bootstrap.room import refuse_if_too_small
from spes_peer.blobs import Blob, BlobStore
from spes_peer.cli.parsing import peer_id
from spes_peer.collector import least_bytes
from spes_peer.data.index import index_of
from spes_peer.errors import BadConfiguration, PeerError
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.folder import ORGANIZER_KEY_FILE, StateFolder
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.rounds.assignment import candidates_after
from spes_peer.rounds.election import owner_of
from spes_peer.run.manifest import Manifest
from spes_peer.run.peers import Role
from spes_peer.run.records import RosterEntry, first_record
from spes_peer.run.rules import Change, rules_in, sign_amendment

SHARD_BYTES = 2_000
KEPT_BYTES = SHARD_BYTES + 4 * 32  # held-out data and index


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0", ("", 0)),
        ("4610", ("", 4610)),
        ("203.0.113.7", ("203.0.113.7", DEFAULT_PORT)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("0.0.0.0:4610", ("0.0.0.0", 4610)),
        ("::", ("::", DEFAULT_PORT)),
        ("[::]:4610", ("::", 4610)),
        ("run.example.org:4610", ("run.example.org", 4610)),
    ],
)
def test_it_listens_at_a_host_a_port_or_both(text: str, place: tuple[str, int]) -> None:
    assert listening(text) == place


@pytest.mark.parametrize("text", ["", "here:", "65534", "127.0.0.1:65534", "a b", "[::]:x", "1:2:3:4:5:6:7:8:9:10"])
def test_what_is_no_place_to_listen_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        listening(text)


def test_a_folder_without_anything_is_left_as_it_is_and_the_ways_to_a_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"run new .* --join ADDRESS"):
        check_openable(tmp_path / "none", ())
    assert not (tmp_path / "none").exists()


@pytest.fixture
def held(manifest: Manifest, tmp_path: Path) -> tuple[Manifest, list[Blob]]:
    """A manifest of four shards and a held-out one, and the blobs, in a store of their own: the index comes first."""
    store = BlobStore(tmp_path / "data")
    shards = [store.put(bytes([number]) * SHARD_BYTES) for number in range(5)]
    index = store.put(index_of(shard.name for shard in shards[1:]))
    tokens = SHARD_BYTES // 2
    source = {"num_tokens": 4 * tokens, "shard_tokens": tokens, "index": index.name}
    content = manifest.model_dump(mode="json")
    content["data"]["sources"] = [{"name": "text", "shards": source}]
    content["data"]["held_out"] = {"blob": shards[0].name, "num_tokens": tokens}
    return Manifest.model_validate(content), [index, *shards]


@pytest.fixture
async def run(held: tuple[Manifest, list[Blob]], organizer: Identity, tmp_path: Path) -> AsyncIterator[RunNodes]:
    async with run_nodes(tmp_path / "run", held[0], organizer, 2) as nodes:
        yield nodes


def give_data(node: Node, blobs: list[Blob], from_folder: Path) -> None:
    store = BlobStore(from_folder)
    for blob in blobs:
        node.blobs.put(store.read(blob.name))


async def test_the_first_node_never_lets_data_go_and_a_further_one_lets_go_what_comes_last(
    run: RunNodes, held: tuple[Manifest, list[Blob]], tmp_path: Path
) -> None:
    names = [blob.name for blob in held[1]]
    first, further = run.nodes
    record = first.chain.record(0).sealed.record
    assert is_first(first)
    assert not is_first(further)
    for node in run.nodes:
        give_data(node, held[1][:1], tmp_path / "data")
        await node.shard_index.get()
    assert Mirror(first, lambda: 0).wanted(record, 0).now == set(names)
    wanted = Mirror(further, lambda: 0).wanted(record, KEPT_BYTES + 2 * SHARD_BYTES)
    assert set(names[:2]) < wanted.now
    assert len(wanted.now) == 4
    assert set(wanted.later) == set(names[2:])
    staying = [wanted.later[name] for name in wanted.now - set(names[:2])]
    assert max(staying) < min(wanted.later[name] for name in set(names) - wanted.now)


async def test_a_further_node_copies_as_much_as_has_room_and_all_when_there_is_more(
    run: RunNodes, held: tuple[Manifest, list[Blob]], tmp_path: Path
) -> None:
    first, further = run.nodes
    give_data(first, held[1], tmp_path / "data")
    room = KEPT_BYTES + 2 * SHARD_BYTES
    mirror = Mirror(further, lambda: room)
    await mirror.fetch()
    assert sum(further.blobs.has(blob.name) for blob in held[1]) == 4
    room = 10 * SHARD_BYTES
    await mirror.fetch()
    assert all(further.blobs.has(blob.name) for blob in held[1])
    assert mirror.progress is None


async def test_a_first_node_that_lost_a_shard_gets_it_back_from_a_further_one(
    run: RunNodes, held: tuple[Manifest, list[Blob]], tmp_path: Path
) -> None:
    first, further = run.nodes
    give_data(further, held[1], tmp_path / "data")
    give_data(first, held[1][:-1], tmp_path / "data")
    await Mirror(first, lambda: 0).fetch()
    assert first.blobs.has(held[1][-1].name)


async def test_a_shard_that_nobody_has_is_an_error_of_peers_and_leaves_nothing_half_said(
    run: RunNodes, held: tuple[Manifest, list[Blob]], tmp_path: Path
) -> None:
    further = run.nodes[1]
    give_data(further, held[1][:1], tmp_path / "data")
    mirror = Mirror(further, lambda: 10 * SHARD_BYTES)
    with pytest.raises(PeerError):
        await mirror.fetch()
    assert mirror.progress is None


async def test_a_limit_of_the_disk_below_what_cannot_go_is_refused_with_the_numbers(
    run: RunNodes, held: tuple[Manifest, list[Blob]], tmp_path: Path
) -> None:
    first, further = run.nodes
    give_data(first, held[1], tmp_path / "data")
    await first.shard_index.get()
    state, data = least_bytes(first.layout), KEPT_BYTES + 4 * SHARD_BYTES
    refuse_if_too_small(first, 0)
    refuse_if_too_small(first, state + data)
    with pytest.raises(BadConfiguration, match=r"--max-disk .* too small .* which no other node must have"):
        refuse_if_too_small(first, state + data - 1)
    refuse_if_too_small(further, state + data - 1)  # it keeps less data
    with pytest.raises(BadConfiguration, match="the data that everybody keeps"):
        refuse_if_too_small(further, state)


async def test_a_disk_without_room_for_what_is_still_to_come_is_refused_with_the_numbers(
    run: RunNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1_000})()
    monkeypatch.setattr("bootstrap.room.shutil.disk_usage", lambda _path: usage)
    with pytest.raises(BadConfiguration, match=r"has 0\.0 MB of free disk"):
        refuse_if_too_small(run.nodes[1], 0)


async def test_only_nodes_that_record_0_names_are_given_to_volunteers_beside_this_one(
    run: RunNodes, tmp_path: Path
) -> None:
    first, further = run.nodes
    stranger = dataclasses.replace(
        run.entry(first), peer_id=run.identities[3].peer_id, role=Role.BOOTSTRAP, grpc_addresses=("203.0.113.66:4510",)
    )
    further.take_entry(stranger)
    given = addresses(further, KnownNodes(tmp_path / "known", further.run_id))
    assert any(first.peer_id in one for one in given)
    assert not any("203.0.113.66" in one for one in given)


async def test_its_addresses_are_said_again_only_when_they_change(
    run: RunNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    further = run.nodes[1]
    file = AddressFile(further, KnownNodes(tmp_path / "known", further.run_id))
    file.tell()
    file.tell()
    further.take_entry(dataclasses.replace(run.entry(run.nodes[0]), grpc_addresses=("127.0.0.1:4999",)))
    file.tell()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert "/ip4/127.0.0.1/tcp/4999/" in said[1]
    assert (further.folder.path / ADDRESS_FILE).read_text().strip() == said[1].split()[-1]
    file.remove()
    assert not (further.folder.path / ADDRESS_FILE).exists()


async def test_a_folder_that_has_a_run_goes_on_alone_from_a_manifest_that_cannot_be_written(run: RunNodes) -> None:
    folder = run.nodes[1].folder
    (folder.path / "manifest.spes").write_bytes(run.nodes[1].signed_manifest.to_bytes())
    (folder.path / "manifest.spes").chmod(0o400)
    check_openable(folder.path, ())
    opened = await open_folder(StateFolder(folder.path), ())
    assert opened.signed.run_id == run.nodes[1].run_id
    assert opened.introduction is None
    assert opened.entries == []


def test_nodes_that_record_0_names_coordinate_one_after_the_other_and_before_any_peer() -> None:
    first, second, *volunteers = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 6))
    zero = first_record(bytes(32), (), (first, second), 0.0)
    roster = [RosterEntry(peer, 1, (0,), (), 1) for peer in sorted(volunteers)]
    opened = dataclasses.replace(
        zero, round=1, roster=tuple(roster), candidates=candidates_after(zero, 1, roster, first)
    )
    assert [owner_of(opened, term) for term in (0, 1)] == [first, second]
    assert owner_of(opened, 2) in volunteers
    after = candidates_after(opened, 2, roster, second)  # once the second has taken over, it is asked first
    assert after[:2] == (second, first)


def test_a_further_node_is_named_by_its_peer_id_alone() -> None:
    assert peer_id(Identity.from_seed(bytes(32)).peer_id)
    for text in ("", "second", "/ip4/127.0.0.1/tcp/4510/p2p/12D3KooW"):
        with pytest.raises(argparse.ArgumentTypeError, match="no peer id"):
            peer_id(text)


def test_the_peer_id_of_a_folder_is_printed_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["--run", str(tmp_path / "second"), "--peer-id"])
        assert not ended.value.code
    said = capsys.readouterr().out.split()
    assert said == [Identity.load_or_create(tmp_path / "second" / "identity.key").peer_id] * 2


async def test_an_end_given_at_the_start_is_an_amendment_and_needs_the_organizers_key(
    run: RunNodes, organizer: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    node = run.nodes[0]
    with pytest.raises(BadConfiguration, match=r"organizer\.key is not there.*run finish FOLDER --after 3"):
        end_after(node, 3)
    Identity.generate().save(node.folder.path / ORGANIZER_KEY_FILE)
    with pytest.raises(BadConfiguration, match="is no organizer of this run"):
        end_after(node, 3)
    (node.folder.path / ORGANIZER_KEY_FILE).unlink()
    organizer.save(node.folder.path / ORGANIZER_KEY_FILE)
    end_after(node, 3)
    waiting = node.amendments.waiting
    assert waiting is not None
    assert rules_in(waiting) == dataclasses.replace(node.rules, finish_after_round=3)
    end_after(node, 3)
    assert not caplog.records[1:]  # the first is that it was taken
    end_after(node, 4)
    assert node.amendments.waiting == waiting
    assert "the run has an end already" in caplog.text


async def test_an_end_given_at_the_start_keeps_what_waits_to_be_changed(run: RunNodes, organizer: Identity) -> None:
    node = run.nodes[0]
    organizer.save(node.folder.path / ORGANIZER_KEY_FILE)
    paused = Change(is_paused=True).of(node.rules, 1.0)
    node.amendments.take(sign_amendment(paused, None, organizer, node.run_id, 1.0))
    end_after(node, 3)
    waiting = node.amendments.waiting
    assert waiting is not None
    assert rules_in(waiting) == dataclasses.replace(paused, finish_after_round=3)
