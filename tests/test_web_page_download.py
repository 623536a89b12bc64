"""The newest model from the run's page: a safetensors file made of blobs, without torch, that can be resumed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy
import pytest
from run_nodes import small
from safetensors.numpy import load
from web_runs import MadeUp
from web_site import Shown

from bootstrap.web import download
from bootstrap.web.checkpoint import Checkpoint, Span, is_downloadable, read_span
from bootstrap.web.download import Download, Patience
from bootstrap.web.limits import Limits
from bootstrap.web.server import Site
from spes_peer.blobs import PIECE_BYTES, BlobStore
from spes_peer.errors import BlobMissing
from spes_peer.exchange.pace import Pace
from spes_peer.model.huggingface import HuggingFaceTensor, tensors_of
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockName, Snapshot

RUN_ID = bytes(range(32))


def stored(layout: Layout, blobs: BlobStore, round: int = 10) -> Snapshot:
    """A state of numbers that rise, so that each is where it belongs or seen not to be."""
    names, first = [], 0
    for block in layout.state_blocks:
        values = numpy.arange(first, first + block.num_elements, dtype="<f4")
        first += block.num_elements
        content = values.tobytes()[: layout.state_bytes(block)]
        names.append(BlockName(block.id, blobs.put(content).name, len(content)))
    return Snapshot(round, tuple(names))


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def checkpoint(manifest: Manifest, blobs: BlobStore) -> Checkpoint:
    layout = Layout(small(manifest))
    return Checkpoint(layout, stored(layout, blobs), RUN_ID)


def whole(checkpoint: Checkpoint, blobs: BlobStore, first: int = 0) -> bytes:
    return checkpoint.header[first:] + b"".join(read_span(blobs, span) for span in checkpoint.spans(first))


def test_every_tensor_is_the_part_of_its_group_that_the_layout_says(checkpoint: Checkpoint, blobs: BlobStore) -> None:
    content = whole(checkpoint, blobs)
    assert len(content) == checkpoint.size_bytes
    tensors, layout = load(content), checkpoint.layout
    described = list(tensors_of(layout.manifest.model))
    assert tensors.keys() == {one.name for one in described}
    for one in described:
        group = 0 if one.expert is None else layout.num_shared + one.expert * layout.num_per_expert
        first = group + one.start
        expected = numpy.arange(first, first + one.num_elements, dtype=numpy.float32).reshape(one.shape)
        assert numpy.array_equal(tensors[one.name], expected), one.name


def test_outer_momentum_is_left_out_and_both_dtypes_are_told(manifest: Manifest, blobs: BlobStore) -> None:
    sync = manifest.sync.model_copy(update={"shared_outer": "nesterov", "expert_dtype": "bf16"})
    layout = Layout(small(manifest.model_copy(update={"sync": sync})))
    checkpoint = Checkpoint(layout, stored(layout, blobs), RUN_ID)
    header = json.loads(checkpoint.header[8:])
    assert header.pop("__metadata__") == {"format": "pt", "run_id": RUN_ID.hex(), "record": "10"}
    assert {one["dtype"] for name, one in header.items() if ".experts." in name} == {"BF16"}
    assert {one["dtype"] for name, one in header.items() if ".experts." not in name} == {"F32"}
    assert len(whole(checkpoint, blobs)) == checkpoint.size_bytes


@pytest.mark.parametrize("first", [1, 7, 8, 1000, 5000, 20_001])
def test_it_goes_on_at_any_byte(checkpoint: Checkpoint, blobs: BlobStore, first: int) -> None:
    assert whole(checkpoint, blobs, first) == whole(checkpoint, blobs)[first:]


def test_large_blocks_are_read_a_piece_at_a_time(manifest: Manifest, blobs: BlobStore) -> None:
    sync = manifest.sync.model_copy(update={"block_elements": 1 << 20})
    model = manifest.model.model_copy(update={"vocab_rows": 6000})
    layout = Layout(manifest.model_copy(update={"sync": sync, "model": model}))
    checkpoint = Checkpoint(layout, stored(layout, blobs), RUN_ID)
    assert max(span.end - span.start for span in checkpoint.spans(0)) == PIECE_BYTES
    middle = len(checkpoint.header) + PIECE_BYTES + 12345
    assert whole(checkpoint, blobs, middle) == whole(checkpoint, blobs)[middle:]


def test_what_the_disk_has_damaged_is_not_given_away(checkpoint: Checkpoint, blobs: BlobStore) -> None:
    path = blobs.path(checkpoint.snapshot.blocks[2].blob)
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(BlobMissing, match="damaged"):
        whole(checkpoint, blobs)


def test_another_state_after_the_same_record_is_another_file(checkpoint: Checkpoint) -> None:
    blocks = checkpoint.snapshot.blocks
    other = replace(checkpoint.snapshot, blocks=(replace(blocks[0], blob=blocks[1].blob), *blocks[1:]))
    assert replace(checkpoint, snapshot=other).etag != checkpoint.etag == replace(checkpoint).etag


def test_a_model_that_is_nobodys_cannot_be_downloaded(manifest: Manifest) -> None:
    assert is_downloadable(Layout(manifest))
    model = manifest.model.model_copy(update={"renormalize_top_k": not manifest.model.renormalize_top_k})
    assert not is_downloadable(Layout(manifest.model_copy(update={"model": model})))


# ---- over HTTP ----


class Served:
    """A page with a download, and the parts to change."""

    def __init__(self, url: str, checkpoint: Checkpoint, given: Download) -> None:
        self.url = f"{url}{download.WEIGHTS_PATH}"
        self.config_url = f"{url}{download.CONFIG_PATH}"
        self.checkpoint = checkpoint
        self.given = given


@pytest.fixture
async def site(checkpoint: Checkpoint, blobs: BlobStore, manifest: Manifest) -> AsyncIterator[Served]:
    given = Download(checkpoint.layout, RUN_ID, lambda: checkpoint.snapshot, blobs, Pace())
    async with Site(Shown(MadeUp(manifest).facts()).shelf, given).serving("127.0.0.1", 0) as place:
        yield Served(f"http://{place}", checkpoint, given)


@pytest.fixture
async def visit() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_the_file_comes_whole_and_can_be_resumed(
    site: Served, visit: aiohttp.ClientSession, blobs: BlobStore
) -> None:
    expected = whole(site.checkpoint, blobs)
    async with visit.get(site.url) as answer:
        assert answer.headers["Content-Disposition"] == 'attachment; filename="model.safetensors"'
        assert await answer.read() == expected
        etag = answer.headers["ETag"]
    async with visit.get(site.url, headers={"Range": "bytes=5000-", "If-Range": etag}) as answer:
        assert (answer.status, await answer.read()) == (206, expected[5000:])
        assert answer.headers["Content-Range"] == f"bytes 5000-{len(expected) - 1}/{len(expected)}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=5000-", "If-Range": '"of another state"'},
        {"Range": "bytes=1-2,4-5"},
        {"Range": "bytes=9-3"},
        {"Range": "rows=1-2"},
        {"Range": "bytes=99999999999-"},
        {"Range": "bytes=-5"},
        {"Range": "bytes=1-2"},
    ],
)
async def test_a_part_that_cannot_be_given_is_the_whole(
    site: Served, visit: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    async with visit.get(site.url, headers=headers) as answer:
        assert answer.status == 200
        assert len(await answer.read()) == site.checkpoint.size_bytes


async def test_head_tells_the_size_of_the_file(site: Served, visit: aiohttp.ClientSession) -> None:
    async with visit.head(site.url) as answer:
        assert answer.headers["Content-Length"] == str(site.checkpoint.size_bytes)


async def test_the_configuration_lies_beside_it(site: Served, visit: aiohttp.ClientSession) -> None:
    async with visit.get(site.config_url) as answer:
        config = await answer.json()
    assert (config["model_type"], config["dtype"], config["eos_token_id"]) == ("olmoe", "float32", 256)


async def test_only_so_many_download_or_ask_for_its_size_at_a_time(
    site: Served, visit: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MOST_AT_ONCE", 0)
    async with visit.get(site.url) as answer:
        assert answer.status == 503
        assert b"spes-peer export" in await answer.read()
    async with visit.head(site.url) as answer:
        assert answer.status == 503


async def test_a_visitor_has_one_place_and_leaves_the_others_to_others(
    site: Served, visit: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "visitor", lambda address: address)  # this machine stands for nobody else
    reads, go_on = asyncio.Event(), asyncio.Event()
    read = site.given._read

    async def held(checkpoint: Checkpoint, span: Span) -> bytes:
        reads.set()
        await go_on.wait()
        return await read(checkpoint, span)

    monkeypatch.setattr(site.given, "_read", held)
    async with visit.get(site.url) as first:
        await reads.wait()
        async with visit.get(site.url) as second:
            assert second.status == 503
            assert b"a download to your address goes on" in await second.read()
        go_on.set()
        assert len(await first.read()) == site.checkpoint.size_bytes


async def test_who_takes_nothing_is_let_go_and_so_is_the_connection(
    checkpoint: Checkpoint, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_STALL_SECONDS", 0.05)
    given = Download(checkpoint.layout, RUN_ID, lambda: checkpoint.snapshot, blobs, Pace())
    monkeypatch.setattr(given, "_own", Pace())
    monkeypatch.setattr(given, "_read", lambda _checkpoint, _span: endless())
    site = Site(Shown(MadeUp(checkpoint.layout.manifest).facts()).shelf, given, Limits(connection_seconds=0.1))
    async with site.serving("127.0.0.1", 0) as place:
        reader, writer = await asyncio.open_connection(place.host, place.port, limit=1024)
        writer.write(f"GET {download.WEIGHTS_PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while not given.num_open:  # noqa: ASYNC110 - until it has begun
            await asyncio.sleep(0)
        async with asyncio.timeout(20.0):
            while given.num_open or site._visits._open.total():  # noqa: ASYNC110 - until it is let go
                await asyncio.sleep(0.01)
        writer.close()
    del reader


async def endless() -> bytes:
    """More than buffers on the way hold."""
    return bytes(8 << 20)


async def test_who_takes_little_but_always_something_is_let_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    monkeypatch.setattr(download, "time", Clock)

    async def taken(seconds: float) -> None:
        nonlocal now
        now += seconds

    steady, slow = Patience(), Patience()
    for _ in range(10_000):  # at the least pace, for as long as it likes
        await steady.while_taken(64 << 10, taken(0.5))
    for _ in range(100):  # at half of it
        await slow.while_taken(64 << 10, taken(1.0))
    await slow.while_taken(64 << 10, taken(10.0))
    with pytest.raises(ConnectionResetError):
        await slow.while_taken(64 << 10, taken(1.0))


async def test_the_header_is_made_once_a_state_and_never_in_the_loop(
    site: Served, visit: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in: list[int] = []

    def described(*given: Any) -> Iterator[HuggingFaceTensor]:
        made_in.append(threading.get_ident())
        return tensors_of(*given)

    monkeypatch.setattr("bootstrap.web.checkpoint.tensors_of", described)
    for _ in range(3):
        await (await visit.head(site.url)).read()
        await (await visit.get(site.config_url)).read()
    assert len(made_in) == 1
    assert made_in[0] != threading.get_ident()
    newer = Snapshot(12, site.checkpoint.snapshot.blocks)
    monkeypatch.setattr(site.given, "_newest", lambda: newer)
    async with visit.head(site.url) as answer:
        assert "-12-" in answer.headers["ETag"]
    assert len(made_in) == 2


async def test_a_download_that_meets_damage_ends_early_and_the_page_lives_on(
    site: Served, visit: aiohttp.ClientSession, blobs: BlobStore
) -> None:
    blobs.remove(site.checkpoint.snapshot.blocks[-1].blob)
    with pytest.raises(aiohttp.ClientError):
        async with visit.get(site.url) as answer:
            await answer.read()
    async with visit.head(site.url) as answer:
        assert answer.status == 200
    while site.given.num_open:  # noqa: ASYNC110 - until the server has noticed
        await asyncio.sleep(0)


async def test_downloads_keep_within_what_the_node_may_send(checkpoint: Checkpoint, blobs: BlobStore) -> None:
    taken: list[int] = []

    class Counted(Pace):
        async def take(self, num_bytes: int, peer: object) -> None:
            taken.append(num_bytes)

    given = Download(checkpoint.layout, RUN_ID, lambda: checkpoint.snapshot, blobs, Counted())
    run = Shown(MadeUp(checkpoint.layout.manifest).facts())
    async with (
        Site(run.shelf, given).serving("127.0.0.1", 0) as place,
        aiohttp.ClientSession() as session,
        session.get(f"http://{place}{download.WEIGHTS_PATH}") as answer,
    ):
        await answer.read()
    assert sum(taken) == checkpoint.size_bytes
