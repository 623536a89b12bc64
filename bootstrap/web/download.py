"""The newest model for whoever has no program of ours: a stream that takes its turn behind the volunteers.

It stays within the node's `--max-upload`, and takes no more than a part of a fast line: whoever wants a large model
fast fetches it from all peers at once with `spes-peer export`.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from http import HTTPStatus

from aiohttp import web

from bootstrap.web.checkpoint import Checkpoint, Span, read_span
from bootstrap.web.limits import visitor
from spes_peer.blobs import BlobStore
from spes_peer.errors import BlobMissing, DiskTrouble
from spes_peer.exchange.pace import Pace
from spes_peer.identity import PeerId
from spes_peer.model.huggingface import config_of
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import Snapshot

logger = logging.getLogger(__name__)

WEIGHTS_PATH, CONFIG_PATH = "/model.safetensors", "/config.json"
MOST_AT_ONCE = 4  # each another visitor's
_BYTES_PER_SECOND = 8_000_000  # of all visitors together
_STALL_SECONDS = 60.0  # so long a visitor may take nothing
_LEAST_BYTES_PER_SECOND = 128 << 10  # from then on, or the place is another's; the download can be resumed
_PART_BYTES = 64 << 10
_VISITORS = PeerId("visitors of the web page")  # all of them take turns as one peer


class Download:
    """Of what `newest` gives. What a request costs the node's loop does not grow with the model."""

    def __init__(
        self, layout: Layout, run_id: bytes, newest: Callable[[], Snapshot], blobs: BlobStore, upload: Pace
    ) -> None:
        """`newest` is asked at each request; `BadConfiguration` for a model that is nobody's."""
        self._layout = layout
        self._run_id = run_id
        self._newest = newest
        self._blobs = blobs
        self._upload = upload
        self._own = Pace(_BYTES_PER_SECOND)
        self._config = _config_of(layout.manifest)
        self._checkpoint: Checkpoint | None = None
        self._making = asyncio.Lock()
        self._visitors: list[str] = []
        """Who has a place now."""

    @property
    def num_open(self) -> int:
        return len(self._visitors)

    async def answer(
        self, request: web.BaseRequest, headers: dict[str, str], stays: Callable[[], AbstractContextManager[None]]
    ) -> web.StreamResponse | None:
        """None for another path. `stays` takes the bound off the connection's time, for as long as it is entered."""
        if request.path == CONFIG_PATH:
            return web.Response(body=self._config, headers={**headers, "Content-Type": "application/json"})
        if request.path != WEIGHTS_PATH:
            return None
        who = visitor(request.remote or "")
        self._refuse_without_room(who)
        self._visitors.append(who)
        try:
            return await self._stream(request, headers, stays)
        finally:
            self._visitors.remove(who)

    def _refuse_without_room(self, who: str) -> None:
        if who and who in self._visitors:  # whom a proxy on this machine speaks for are not told apart
            raise web.HTTPServiceUnavailable(text="a download to your address goes on; come again when it has ended")
        if self.num_open >= MOST_AT_ONCE:
            raise web.HTTPServiceUnavailable(text="others are downloading; come again later, or use: spes-peer export")

    async def _described(self) -> Checkpoint:
        """The newest state with its header, a line for every tensor: a thread makes it, once a state."""
        async with self._making:
            snapshot = self._newest()
            if self._checkpoint is None or self._checkpoint.snapshot != snapshot:
                checkpoint = Checkpoint(self._layout, snapshot, self._run_id)
                await asyncio.to_thread(lambda: checkpoint.size_bytes)
                self._checkpoint = checkpoint
            return self._checkpoint

    async def _stream(
        self, request: web.BaseRequest, headers: dict[str, str], stays: Callable[[], AbstractContextManager[None]]
    ) -> web.StreamResponse:
        checkpoint = await self._described()
        first = _first_byte(request, checkpoint)
        size = checkpoint.size_bytes
        response = web.StreamResponse(status=HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK, headers=headers)
        response.headers["Content-Type"] = "application/octet-stream"
        response.headers["Content-Disposition"] = 'attachment; filename="model.safetensors"'
        response.headers["Accept-Ranges"] = "bytes"
        response.headers["ETag"] = checkpoint.etag
        if first:
            response.headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
        response.content_length = size - first
        response.force_close()
        if request.method == "HEAD":
            return response
        patience = Patience()
        with stays():
            await response.prepare(request)
            await self._send(response, checkpoint.header[first:], patience)
            for span in checkpoint.spans(first):
                await self._send(response, await self._read(checkpoint, span), patience)
            await patience.while_taken(0, response.write_eof())
        return response

    async def _read(self, checkpoint: Checkpoint, span: Span) -> bytes:
        try:
            return await asyncio.to_thread(read_span, self._blobs, span)
        except (BlobMissing, DiskTrouble) as error:  # the length is promised: all that is left is to break off
            logger.info("a download ends early record=%d reason=%s", checkpoint.snapshot.round, error)
            raise ConnectionResetError from None

    async def _send(self, response: web.StreamResponse, content: bytes, patience: "Patience") -> None:
        for start in range(0, len(content), _PART_BYTES):
            part = content[start : start + _PART_BYTES]
            await self._own.take(len(part), _VISITORS)
            await self._upload.take(len(part), _VISITORS)
            await patience.while_taken(len(part), response.write(part))


class Patience:
    """With one visitor: used up while it does not take what is sent, and earned with every byte that it has taken. What
    our own pace costs is not the visitor's fault."""

    def __init__(self) -> None:
        self._seconds = _STALL_SECONDS

    async def while_taken(self, num_bytes: int, taking: Awaitable[None]) -> None:
        """`ConnectionResetError` when none is left."""
        begun_at = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds):
                await taking
        except TimeoutError:
            raise ConnectionResetError from None
        left = self._seconds - (time.monotonic() - begun_at) + num_bytes / _LEAST_BYTES_PER_SECOND
        if left <= 0:
            raise ConnectionResetError
        self._seconds = min(left, _STALL_SECONDS)


def _config_of(manifest: Manifest) -> bytes:
    dtype = "float32" if "fp32" in (manifest.sync.shared_dtype, manifest.sync.expert_dtype) else "bfloat16"
    config = config_of(manifest.model, dtype, manifest.data.tokenizer.end_of_text)
    return json.dumps(config, indent=1).encode() + b"\n"


def _first_byte(request: web.BaseRequest, checkpoint: Checkpoint) -> int:
    """Where a broken download goes on; from the start if it was another state's."""
    try:
        wanted = request.http_range
    except ValueError:
        return 0
    if request.headers.get("If-Range", checkpoint.etag) != checkpoint.etag or wanted.stop is not None:
        return 0
    first = wanted.start or 0
    return first if 0 < first < checkpoint.size_bytes else 0
