"""The dashboard in a browser: who may open it, and that it opens."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest
from aiohttp import web
from control_program import Program, served, short_folder
from tui_statuses import status

from spes_peer.errors import UserError
from tui.web import make_server, serve

KEY = "a-key-of-the-test"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Where a served dashboard of a small run is."""
    others = set(psutil.Process().children())  # of other tests, such as a server that forks for them
    with short_folder() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with served(Program(status()), folder) as socket_path:
            runner = web.AppRunner(await make_server(socket_path, port, KEY)._make_app())
            await runner.setup()
            await web.SockSite(runner, listening).start()
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                await runner.cleanup()
                async with asyncio.timeout(60):
                    while set(psutil.Process().children()) - others:  # noqa: ASYNC110  # the dashboards of pages
                        await asyncio.sleep(0.02)


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def test_who_opens_the_printed_address_sees_the_run(address: str) -> None:
    async with session() as browser:
        async with browser.get(f"{address}/?key={KEY}") as page:
            assert page.status == 200
            assert page.url.query_string == ""
            assert "spes-peer" in await page.text()
        async with browser.ws_connect(f"{address}/ws?width=80&height=24", headers={"Origin": address}) as screen:
            shown = b""
            while b"alder" not in shown:
                message = await screen.receive(timeout=60)
                assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
                shown += message.data if isinstance(message.data, bytes) else b""


@pytest.mark.parametrize("path", ["/", "/?key=another", "/ws", "/static/js/textual.js"])
async def test_nobody_gets_in_without_the_key(address: str, path: str) -> None:
    async with session() as browser, browser.get(f"{address}{path}") as page:
        assert page.status == 403


@pytest.mark.parametrize("headers", [{"Origin": "http://elsewhere.example"}, {"Host": "elsewhere.example"}])
async def test_no_other_page_of_the_same_browser_gets_in(address: str, headers: dict[str, str]) -> None:
    async with session() as browser:
        async with browser.get(f"{address}/?key={KEY}") as page:
            assert page.status == 200
        async with browser.get(f"{address}/ws", headers=headers) as page:
            assert page.status == 403


def test_without_textual_serve_one_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    with pytest.raises(UserError, match="pip install"):
        serve(tmp_path / "control.sock")


def test_no_dashboard_in_a_terminal_loads_a_web_server() -> None:
    code = "import sys, tui.app, spes_peer.cli; print(sorted({'aiohttp', 'textual_serve'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
