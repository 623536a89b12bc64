"""A model from nothing but an address of the run, over a real socket."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from huggingface_runs import run_file_of, tensors_in, write_run

from spes_peer import organize
from spes_peer.cli import main
from spes_peer.errors import BadConfiguration, NoBootstrap
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.server import PeerServer
from spes_peer.exporting import cache, command
from spes_peer.exporting import visit as visiting
from spes_peer.exporting.source import addresses_in
from spes_peer.exporting.visit import Wish, visit
from spes_peer.folder import StateFolder
from spes_peer.lock import holder_of
from spes_peer.node import Node, NodeSettings
from spes_peer.organize import read_manifest
from spes_peer.ports import Ports
from spes_peer.run.manifest import Origin, RunFile, SignedManifest
from spes_peer.run.peers import Role
from spes_peer.run.writing import commented
from spes_peer.training.carry import carry
from spes_peer.training.export import export
from spes_peer.training.stored_state import StoredState


@pytest.fixture(autouse=True)
def _asks_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DHT's processes take seconds to start; a node that is alone is found without."""

    async def meet_nobody(*_arguments: object) -> None:
        return

    monkeypatch.setattr(visiting, "meet_others", meet_nobody)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[NodeAddress]:
    """A bootstrap node alone, on a run folder."""
    settings = NodeSettings(Role.BOOTSTRAP, "bootstrap", "127.0.0.1", (), Ports(0, 0, 0), inbound=True)
    node = Node(StateFolder(folder), read_manifest(folder), settings)
    server = await PeerServer.start(node, node.holdings, node.tls, "127.0.0.1:0", node.folder.peer_socket, node.traffic)
    entry = dataclasses.replace(node.entry(), grpc_addresses=(f"127.0.0.1:{server.port}",))
    node.entry = lambda: entry  # type: ignore[method-assign]
    try:
        assert server.port is not None
        yield NodeAddress("127.0.0.1", server.port, node.peer_id)
    finally:
        await server.stop(0.1)
        await node.connections.close()


async def brought(address: NodeAddress, root: Path) -> Path:
    with contextlib.ExitStack() as use:
        return await visit(Wish((address,), root), use)


async def test_a_visitor_brings_the_state_and_leaves_no_key(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    async with serving(tmp_path / "run") as address:
        folder = await brought(address, tmp_path / "cache")
    assert not list(folder.glob("*.key"))
    export(tmp_path / "run", tmp_path / "theirs")
    export(folder, tmp_path / "ours")
    ours, theirs = tensors_in(tmp_path / "ours"), tensors_in(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    cache.remove(folder)
    assert not (tmp_path / "cache").exists()


async def test_a_visitor_fetches_to_a_path_of_any_length(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    async with serving(tmp_path / "run") as address:
        export(await brought(address, deep), tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


async def test_a_fetch_that_was_cut_goes_on_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    blobs = sorted((tmp_path / "run" / "blobs").glob("*/*.data"))
    async with serving(tmp_path / "run") as address:
        shutil.move(blobs[0], tmp_path / "away")
        with pytest.raises(NoBootstrap, match="what has come is kept: try again"):
            await brought(address, tmp_path / "cache")
        (folder,) = (tmp_path / "cache").iterdir()
        assert not list(folder.glob("*.key"))
        held = list((folder / "blobs").glob("*/*.data"))
        assert held
        shutil.move(tmp_path / "away", blobs[0])
        for blob in blobs[1:]:
            if (folder / "blobs" / blob.parent.name / blob.name).exists():
                blob.unlink()  # nobody has it any more, and nobody is asked for it
        assert await brought(address, tmp_path / "cache") == folder


def test_two_exports_of_one_run_leave_each_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed_manifest: SignedManifest
) -> None:
    with cache.held(tmp_path / "cache", signed_manifest) as folder, cache.visiting(folder):
        key = folder.identity_key.read_bytes()
        for seen in ("4711", ""):  # also where one has not yet seen the other
            monkeypatch.setattr(cache, "holder_of", lambda _path, seen=seen: seen)
            with pytest.raises(BadConfiguration), cache.held(tmp_path / "cache", signed_manifest):
                pass
        assert folder.identity_key.read_bytes() == key
    assert not folder.identity_key.exists()


def test_a_run_is_held_until_its_model_is_written_and_what_was_fetched_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed_manifest: SignedManifest
) -> None:
    seen: list[str] = []

    async def fetched(wish: Wish, use: contextlib.ExitStack) -> Path:
        return use.enter_context(cache.held(wish.root, signed_manifest)).path

    def holder(path: Path) -> None:
        seen.append(holder_of(path))

    monkeypatch.setattr(command, "visit", fetched)
    monkeypatch.setattr(command, "run_module", lambda _module, folder, *_more: holder(Path(folder)))
    remove = cache.remove
    monkeypatch.setattr(cache, "remove", lambda path: (holder(path), remove(path)))
    peer = "12D3KooWNnaHtZAnQABAKDvSh4wrGZaGJEMhx8cFJzk7aNRSkBKq"
    command.export(f"/ip4/127.0.0.1/tcp/9/p2p/{peer}", tmp_path / "out", root=tmp_path / "cache")
    assert seen == [str(os.getpid())] * 2
    assert not (tmp_path / "cache").exists()


def unsigned(folder: Path, run_file: RunFile) -> None:
    """With a little text as its data."""
    schedule = {"training": run_file.training.model_copy(update={"total_steps": 40, "warmup_steps": 4})}
    small = run_file.model_copy(update={**schedule, "sync": run_file.sync.model_copy(update={"merge_alpha": 0.0})})
    organize.new_run(folder, commented(small, "next"))
    texts = folder.parent / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"text {number}. " * 200)
    organize._tokenized(folder, small, organize.read_text_folder(texts, 1))


async def signed_from(folder: Path, address: NodeAddress) -> int:
    """What the command ended with."""
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(main, ("run", "sign", str(folder), "--from", address.text()))
    return int(ended.value.code or 0)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What makes the first weights, without a process; and a cache folder of this test's own."""
    monkeypatch.setattr(organize, "run_module", lambda _module, folder, old: carry(Path(folder), Path(old)))
    monkeypatch.setattr(cache, "usual", lambda: tmp_path / "cache")


async def test_a_run_begins_with_the_state_that_a_running_node_of_another_gives(
    tmp_path: Path, in_process: None
) -> None:
    write_run(tmp_path / "old", run_file_of("olmoe"))
    unsigned(tmp_path / "next", run_file_of("olmoe"))
    async with serving(tmp_path / "old") as address:
        assert await signed_from(tmp_path / "next", address) == 0
    old, new = (read_manifest(tmp_path / name) for name in ("old", "next"))
    assert new.open().origin == Origin(run_id=old.run_id.hex(), round=0)
    assert StoredState(tmp_path / "next").root == StoredState(tmp_path / "old").root  # bit for bit
    assert not (tmp_path / "cache").exists()


async def test_nothing_is_fetched_for_a_run_that_cannot_begin_with_it(
    tmp_path: Path, in_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "old", run_file_of("olmoe"))
    unsigned(tmp_path / "next", run_file_of("qwen3_moe"))
    async with serving(tmp_path / "old") as address:
        assert await signed_from(tmp_path / "next", address) == 2
        assert "model.qk_norm is head, and width in the run that it begins with" in capsys.readouterr().err
        (tmp_path / "next" / "run.toml").write_text("")
        assert await signed_from(tmp_path / "next", address) == 2
        assert "run.toml: " in capsys.readouterr().err
    assert not organize.is_signed(tmp_path / "next")
    assert not (tmp_path / "cache").exists()


async def test_an_address_where_nobody_is_costs_a_line(tmp_path: Path) -> None:
    write_run(tmp_path / "run", run_file_of("olmoe"))
    async with serving(tmp_path / "run") as address:
        pass
    with pytest.raises(NoBootstrap, match="nothing listens"):
        await brought(address, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_source_is_a_folder_or_addresses(tmp_path: Path) -> None:
    assert addresses_in(str(tmp_path)) == ()
    peer = "12D3KooWNnaHtZAnQABAKDvSh4wrGZaGJEMhx8cFJzk7aNRSkBKq"
    named = addresses_in(f"/ip4/10.0.0.1/tcp/4510/p2p/{peer},/dns4/a.example/tcp/4511/p2p/{peer}")
    assert [(one.host, one.port) for one in named] == [("10.0.0.1", 4510), ("a.example", 4511)]
    with pytest.raises(BadConfiguration, match="neither a folder nor an address"):
        addresses_in("nowhere")
