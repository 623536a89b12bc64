"""HTTP for strangers: GET and HEAD of a few fixed paths, everything bounded, nothing of a request ever repeated.

A connection may send so many bytes and lives so long, whatever it does; so a slow one holds a place for a while, and no
memory. A fault in here is logged and answered with 503; the node does not notice.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server as HttpServer

from bootstrap.web.download import Download
from bootstrap.web.limits import Limits, Visits, visitor
from bootstrap.web.page import policy
from bootstrap.web.shelf import Answer, Shelf
from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import Endpoint

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0  # a visitor who waits longer for the figures is asked to come again
_BACKLOG = 128
_LINE_BYTES = 4096
_FAULTS_SECONDS = 60.0  # between two faults that are logged
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "spes-peer",
}
_BARE_POLICY = "default-src 'none'; frame-ancestors 'none'"
_TEXT = "text/plain; charset=utf-8"


_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Site:
    """Answers requests from a shelf; `serving` listens."""

    def __init__(self, shelf: Shelf, download: Download | None = None, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._download = download
        self._visits = Visits(self.limits)
        self._fault_at = -_FAULTS_SECONDS
        self._pages: dict[str, Callable[[web.BaseRequest], Awaitable[Answer]]] = {
            "/": lambda _request: shelf.page(),
            "/api/run.json": lambda _request: shelf.run_json(),
            "/api/rounds.json": lambda request: shelf.rounds_json(_first_round(request)),
            "/api/experts.json": lambda _request: shelf.experts_json(),
            "/api/volunteers.json": lambda _request: shelf.volunteers_json(),
            "/metrics": lambda _request: shelf.metrics(),
        }

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Whatever happens, an answer."""
        try:
            return await self._answer(request)
        except web.HTTPException as refusal:
            return _said(HTTPStatus(refusal.status), refusal.text or "", refusal.headers.get("Allow", ""))
        except TimeoutError:
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, "the records are still being read; come again in a minute")
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:  # of the page alone: the run goes on, and so does the node
            self._log_fault()
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, "this page has a fault, the run goes on; come again later")

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._visits.ask(visitor(request.remote or ""), time.monotonic()):
            raise web.HTTPTooManyRequests(text="too many requests; come again in a few seconds")
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"), text="this page can only be read")
        if request.body_exists:
            raise web.HTTPBadRequest(text="a request with a body")
        if self._download is not None:
            headers = {**_HEADERS, "Content-Security-Policy": _BARE_POLICY, "Cache-Control": "no-cache"}
            answer = await self._download.answer(request, headers, lambda: _stays(request))
            if answer is not None:
                return answer
        make = self._pages.get(request.path)
        if make is None:
            raise web.HTTPNotFound(text="there is nothing here; the run is shown at /")
        async with asyncio.timeout(_ANSWER_SECONDS):
            return _handed_out(request, await make(request))

    def _log_fault(self) -> None:
        if time.monotonic() - self._fault_at > _FAULTS_SECONDS:
            self._fault_at = time.monotonic()
            logger.exception("a fault in the run's web page; the node goes on")

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[Endpoint]:
        """Listen meanwhile; where, with the port that it is. `BadConfiguration` if the place is taken."""
        http = _Doors(self.answer, self._visits, self.limits)
        try:
            server = await asyncio.get_running_loop().create_server(http, host, port, backlog=_BACKLOG)
        except OSError as error:
            at = Endpoint(host, port)
            raise BadConfiguration(
                f"cannot serve the web page at {at}: {error.strerror or error}; choose another place with --web"
            ) from None
        try:
            yield Endpoint(host, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            http.close()
            await http.shutdown(timeout=1.0)


class _Doors(HttpServer):
    """Bounds connections before anything is read of them."""

    def __init__(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], visits: Visits, limits: Limits
    ):
        super().__init__(
            answer,
            access_log=None,
            keepalive_timeout=limits.connection_seconds,
            lingering_time=0,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            max_headers=64,
        )
        self._visits = visits
        self._limits = limits
        self._ends: dict[RequestHandler, tuple[str, asyncio.TimerHandle]] = {}

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        peer = transport.get_extra_info("peername")
        who = visitor(str(peer[0])) if peer else ""
        if not self._visits.come(who):
            transport.abort()
            return
        self._ends[handler] = who, self._loop.call_later(self._limits.connection_seconds, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if (end := self._ends.pop(handler, None)) is not None:
            who, timer = end
            timer.cancel()
            self._visits.leave(who)

    @contextlib.contextmanager
    def staying(self, handler: RequestHandler) -> Iterator[None]:
        """Meanwhile this connection takes as long as it takes: who serves it bounds it. Then it has its time again, to
        take what is on the way."""
        if handler in self._ends:
            self._ends[handler][1].cancel()
        try:
            yield
        finally:
            if handler in self._ends and handler.transport is not None:
                timer = self._loop.call_later(self._limits.connection_seconds, handler.transport.abort)
                self._ends[handler] = self._ends[handler][0], timer

    def takes(self, handler: RequestHandler, num_bytes: int) -> bool:
        return num_bytes <= self._limits.request_bytes

    def close(self) -> None:
        for handler in self.connections:
            handler.close()


class _Connection(RequestHandler):
    """Counts what it gets."""

    __slots__ = ("num_received",)

    def data_received(self, data: bytes) -> None:
        self.num_received = getattr(self, "num_received", 0) + len(data)
        assert isinstance(self._manager, _Doors)
        if self._manager.takes(self, self.num_received):
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The library's would repeat what it could not read."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer is out already")
        return _said(HTTPStatus(status), "this is no request that can be answered")


def _stays(request: web.BaseRequest) -> AbstractContextManager[None]:
    doors = request.protocol._manager
    return doors.staying(request.protocol) if isinstance(doors, _Doors) else contextlib.nullcontext()


def _first_round(request: web.BaseRequest) -> int:
    text = request.query.get("from", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise web.HTTPBadRequest(text="from= takes a whole number")
    return int(text)


def _handed_out(request: web.BaseRequest, answer: Answer) -> web.Response:
    is_page = answer.content_type.startswith("text/html")
    headers = {
        **_HEADERS,
        "Content-Security-Policy": policy() if is_page else _BARE_POLICY,
        "Cache-Control": "public, max-age=2",
        "ETag": answer.etag,
        "Vary": "Accept-Encoding",
    }
    if not is_page:
        headers["Access-Control-Allow-Origin"] = "*"  # public figures, for other pages too
    if answer.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    headers["Content-Type"] = answer.content_type
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=answer.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=answer.body, headers=headers)


def _said(status: HTTPStatus, text: str, allow: str = "") -> web.Response:
    headers = {**_HEADERS, "Content-Security-Policy": _BARE_POLICY, "Cache-Control": "no-store", "Content-Type": _TEXT}
    if allow:
        headers["Allow"] = allow
    response = web.Response(status=status, body=f"{text}\n".encode(), headers=headers)
    if status != HTTPStatus.NOT_FOUND:
        response.force_close()
    return response
