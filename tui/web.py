"""The dashboard in a browser, on this machine: `spes-peer watch --web`. As `python -m tui.web SOCKET` one of it.

textual-serve runs a dashboard for every page that is open. Whoever reaches it can pause the daemon or end it, so that
it listens on localhost only, and answers only a browser that opened the address with the key which was printed, and
no other page of that browser.
"""

import hmac
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spes_peer.errors import UserError

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware
    from textual_serve.server import Server

PORT = 8321
_HOST = "127.0.0.1"
_COOKIE = "spes-peer-key"
_KEY_BYTES = 16


def serve(socket_path: Path, port: int = PORT) -> None:
    """Serve the daemon behind `socket_path` until interrupted. `UserError` without textual-serve or a free port."""
    try:
        server = make_server(socket_path, port, secrets.token_urlsafe(_KEY_BYTES))
    except ImportError:
        raise UserError("watch --web needs textual-serve; install it with: pip install 'spes-peer[web]'") from None
    try:
        server.serve()
    except OSError as error:
        raise UserError(f"cannot listen on port {port}: {error.strerror}; choose another: watch --web PORT") from None


def make_server(socket_path: Path, port: int, key: str) -> "Server":
    """A server that lets in who knows `key`."""
    from aiohttp import web
    from textual_serve.server import Server

    class Guarded(Server):
        async def _make_app(self) -> web.Application:
            app = await super()._make_app()
            app.middlewares.append(_guard(f"{_HOST}:{port}", key))
            return app

        def initialize_logging(self) -> None:
            """The program has logs of its own."""

        async def on_startup(self, app: web.Application) -> None:
            print(f"the dashboard is at  http://{_HOST}:{port}/?key={key}")
            print("whoever has this address can pause your daemon or end it; Ctrl-C ends the page, not the daemon")

    command = shlex.join([sys.executable, "-m", "tui.web", str(socket_path)])
    return Guarded(command, host=_HOST, port=port, title="spes-peer")


_Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


def _guard(address: str, key: str) -> "Middleware":
    """Refuses requests without the key, and those that another page sends or that come by another name."""
    from aiohttp import web

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        is_from_here = request.headers.get("Origin", f"http://{address}") == f"http://{address}"
        if request.host != address or not is_from_here:
            raise web.HTTPForbidden(text="open the address that spes-peer printed")
        given = request.query.get("key") or request.cookies.get(_COOKIE, "")
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise web.HTTPForbidden(text="open the address that spes-peer printed, with its key")
        if "key" in request.query:  # so that the address in the browser holds it no longer
            moved = web.HTTPFound("/")
            moved.set_cookie(_COOKIE, key, httponly=True, samesite="Strict")
            raise moved
        return await handler(request)

    return guard


if __name__ == "__main__":
    import tui

    tui.run(Path(sys.argv[1]), leave_ends_app=False)
