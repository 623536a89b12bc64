"""What users of similar systems ran into, tried on ours: proxies, keep-alive, crowds, blobs that go while they come."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest
from control_program import Program, served, short_folder
from exchange_nodes import Node, eventually, running
from netlab.lab import Lab, lab, needs_lab
from tui_statuses import status

from spes_peer.blobs import PIECE_BYTES
from spes_peer.control import ControlClient
from spes_peer.errors import Unreachable
from spes_peer.exchange import connections, grpc_options, transfer
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.chunk_size import ChunkSize
from spes_peer.exchange.fetch import Fetcher
from spes_peer.exchange.holdings import Holdings
from spes_peer.exchange.introduction import describe
from spes_peer.identity import Identity
from spes_peer.run.manifest import Manifest, sign_manifest
from spes_peer.run.peers import Claim
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import HaveRequest

__all__ = ["lab"]

CONTENT = os.urandom(6 * PIECE_BYTES + 5)
_GRPC = Path(grpc._cython.cygrpc.__file__).read_bytes()
NOTHING = HaveRequest(name="0" * 64)


async def test_a_proxy_that_is_dead_and_set_in_the_shell_is_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: Manifest, organizer: Identity
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with running(tmp_path, Holdings, Holdings) as (source, asker):
        blob = source.store.put(CONTENT)
        await asker.fetcher.fetch(blob.name, blob.size_bytes, [source.peer_id])
        assert asker.store.read(blob.name) == CONTENT
        source.describe_run(sign_manifest(manifest, organizer))
        assert source.server is not None
        assert (await describe(NodeAddress("127.0.0.1", source.server.port or 0, source.peer_id))).head_round == 3
    with short_folder() as folder:
        async with served(Program(status()), folder) as path, ControlClient(path) as client:
            assert await anext(client.watch()) == status()


@pytest.mark.parametrize("name", sorted({name for name, _ in (*grpc_options.SERVER, *grpc_options.CHANNEL)}))
def test_every_option_is_one_that_grpc_knows(name: str) -> None:
    """It passes over others in silence."""
    assert f"{name}\0".encode() in _GRPC


def more_often(options: grpc_options.Options, times: int) -> grpc_options.Options:
    """With pings that much more often, and none too many forgiven; how long an answer may take stays."""
    intervals = ("grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms")
    often = [(name, int(value) // times) if name in intervals else (name, value) for name, value in options]
    return [*often, ("grpc.http2.max_ping_strikes", 1)]


async def test_pings_on_a_quiet_connection_are_never_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a second, which is as fast as gRPC sends them: of the third too many its server would make an end."""
    for name in ("SERVER", "CHANNEL"):
        monkeypatch.setattr(grpc_options, name, more_often(getattr(grpc_options, name), 20))
    async with running(tmp_path, Holdings, Holdings) as (server, quiet):
        link = await quiet.connections.to(server.peer_id)
        call = link.stub.Attend(metadata=link.metadata())
        await asyncio.sleep(4.3)
        word = convert.to_message(quiet.signer.sign(Claim((1,), 0.0)))
        await call.write(word)
        assert await call.read() == word
        assert await quiet.connections.to(server.peer_id) is link


def num_connections(*nodes: Node) -> int:
    """To the servers of these nodes, as the system counts them."""
    ports = {node.server.port for node in nodes if node.server is not None}
    found = psutil.Process().net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED and bool(one.raddr) and one.raddr.port in ports for one in found)


@pytest.fixture
async def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    options = [(name, 1_000 if "idle" in name else value) for name, value in grpc_options.CHANNEL]
    monkeypatch.setattr(grpc_options, "CHANNEL", options)
    monkeypatch.setattr(connections, "DIAL_SECONDS", 30.0)  # also where the machine does much else
    async with running(tmp_path, *[Holdings] * 31) as nodes:
        yield nodes


async def test_thirty_peers_take_a_connection_each_and_none_while_there_is_nothing_to_say(crowd: list[Node]) -> None:
    one, *others = crowd

    async def ask(other: Node) -> None:
        link = await one.connections.to(other.peer_id)
        await link.call(link.stub.Have, NOTHING, 30.0)

    await asyncio.gather(*map(ask, others))
    assert num_connections(*others) <= 30
    for _ in range(3):  # addresses that come and go leave no connections behind
        for other in others:
            one.connections.update_entry(other.entry([f"127.0.0.1:{other.server.port}", "127.0.0.1:1"]))
            one.connections.update_entry(other.entry())
        await asyncio.gather(*map(ask, others))
    await eventually(lambda: num_connections(*others) == 0)
    await asyncio.gather(*map(ask, others))
    assert num_connections(*others) <= 30


class Out(Holdings):
    """Fails from the third piece on, until it is back."""

    num_read = 0
    num_failed = 0
    is_back = False

    def read_piece(self, name: str, index: int) -> bytes:
        self.num_read += 1
        if self.num_read > 3 and not self.is_back:
            self.num_failed += 1
            raise OSError("out")
        return super().read_piece(name, index)


async def test_a_source_that_is_away_in_the_middle_is_waited_for_and_one_that_never_answers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the only relay on the way to it starts again, or its address changes."""
    monkeypatch.setattr(transfer, "_ASK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(transfer, "_MOST_RETRY_SECONDS", 0.05)
    async with running(tmp_path, Out, Holdings) as (source, asker):
        blob, out = source.store.put(CONTENT), source.holdings
        assert isinstance(out, Out)
        patient = Fetcher(asker.holdings, asker.connections, stall_seconds=60.0)
        fetching = asyncio.create_task(patient.fetch(blob.name, blob.size_bytes, [source.peer_id]))
        await eventually(lambda: out.num_failed > 20)
        out.is_back = True
        await fetching
        assert asker.store.read(blob.name) == CONTENT
        out.is_back = False
        another = source.store.put(CONTENT[1:])
        with pytest.raises(Unreachable, match="INTERNAL"):
            await patient.fetch(another.name, another.size_bytes, [source.peer_id])


class Collected(Holdings):
    """Loses a blob to the collector after three pieces."""

    num_read = 0

    def read_piece(self, name: str, index: int) -> bytes:
        self.num_read += 1
        if self.num_read > 3:
            self.store.remove(name)
        return super().read_piece(name, index)


async def test_of_a_blob_that_is_collected_while_it_is_served_the_rest_is_said_to_be_gone_and_comes_from_another(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, Collected, Holdings, Holdings) as (forgetful, other, asker):
        blob = forgetful.store.put(CONTENT)
        fetching = asyncio.create_task(asker.fetcher.fetch(blob.name, blob.size_bytes, [forgetful.peer_id]))

        def reasons() -> str:
            running = asker.fetcher._running.get(blob.name)
            return running.transfer._reasons() if running is not None and running.transfer is not None else ""

        await eventually(lambda: "has none of the missing pieces" in reasons())
        assert not forgetful.store.has(blob.name)
        other.store.put(CONTENT)
        await asker.fetcher.fetch(blob.name, blob.size_bytes, [other.peer_id])
        await fetching
        assert asker.store.read(blob.name) == CONTENT
        assert asker.traffic.received_bytes < 1.1 * len(CONTENT)  # what had come was not fetched again


def test_the_longer_a_line_takes_for_a_chunk_the_smaller_is_the_next() -> None:
    chunk_size = ChunkSize()
    sizes = []
    for seconds in (0.0,) * 5 + (0.2,) + (3.0,) * 5:
        chunk_size.note(seconds)
        sizes.append(chunk_size.num_bytes >> 10)
    assert sizes == [32, 64, 128, 256, 256, 256, 128, 64, 32, 16, 16]


@pytest.mark.slow
@needs_lab
def test_a_transfer_that_is_slow_and_moves_never_times_out(lab: Lab, tmp_path: Path) -> None:
    """19 kB a second, at which a whole chunk would take 14 s, and what waits in buffers longer than a quick answer."""
    size_bytes, stall_seconds = 500_000, 12
    source, taker = lab.public(up_mbit=0.15), lab.public()
    program = [sys.executable, str(Path(__file__).parent / "netlab" / "fetching.py")]
    serving = source.start(
        [*program, "serve", str(tmp_path), source.address, str(size_bytes)], stdout=subprocess.PIPE, text=True
    )
    entry, name = serving.stdout.readline().split()
    done = taker.run([*program, "take", str(tmp_path), entry, name, str(size_bytes), str(stall_seconds)], 120.0)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 15.0
