"""A headless Chromium, driven over its own protocol: for tests of pages as people see them."""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY_NOT = "needs Chromium to look at the page (in Debian: apt-get install chromium)"
_SECONDS = 60.0
_OPTIONS = (
    *("--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu", "--hide-scrollbars"),
    *("--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@dataclass
class Page:
    """One tab, and all that it did."""

    session: str
    browser: "Browser"
    requested: list[str] = field(default_factory=list)
    """Addresses."""
    complaints: list[str] = field(default_factory=list)
    """What stands in the console, and what was not allowed."""

    async def do(self, method: str, **parameters: Any) -> Any:
        return await self.browser.do(method, self.session, **parameters)

    async def look(self, width: int, height: int, is_dark: bool = False) -> None:
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.do("Emulation.setEmulatedMedia", media="", features=[scheme])

    async def without_script(self) -> None:
        await self.do("Emulation.setScriptExecutionDisabled", value=True)

    async def open(self, url: str) -> None:
        loaded = self.browser.expect(self.session, "Page.loadEventFired")
        await self.do("Page.navigate", url=url)
        async with asyncio.timeout(_SECONDS):
            await loaded

    async def value(self, script: str) -> Any:
        """Of an expression; it works where the page's own scripts are off, too."""
        answer = await self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        async with asyncio.timeout(_SECONDS):
            while not await self.value(script):  # noqa: ASYNC110 - the browser is another program
                await asyncio.sleep(0.1)

    async def picture(self, path: Path, is_whole: bool = False) -> None:
        answer = await self.do("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


class Browser:
    """Use `started`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._expected: dict[tuple[str, str], asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    async def page(self) -> Page:
        target = await self.do("Target.createTarget", url="about:blank")
        attached = await self.do("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(attached["sessionId"], self)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.do(f"{domain}.enable")
        return page

    async def do(self, method: str, session: str = "", **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        await self._socket.send_json(message)
        async with asyncio.timeout(_SECONDS):
            return await answer

    def expect(self, session: str, event: str) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._expected[session, event] = future
        return future

    async def listen(self) -> None:
        async for message in self._socket:
            said = message.json()
            if (number := said.get("id")) is not None:
                answer = self._answers.pop(number)
                if "error" in said:
                    answer.set_exception(RuntimeError(str(said["error"])))
                else:
                    answer.set_result(said["result"])
            elif (page := self._pages.get(said.get("sessionId", ""))) is not None:
                _note(page, said["method"], said["params"])
                if (expected := self._expected.pop((page.session, said["method"]), None)) is not None:
                    expected.set_result(said["params"])


def _note(page: Page, event: str, parameters: Any) -> None:
    match event:
        case "Network.requestWillBeSent":
            page.requested.append(parameters["request"]["url"])
        case "Log.entryAdded":
            page.complaints.append(parameters["entry"]["text"])
        case "Runtime.exceptionThrown":
            page.complaints.append(str(parameters["exceptionDetails"]))
        case "Runtime.consoleAPICalled":
            page.complaints.append(str(parameters["args"]))


@contextlib.asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Browser]:
    """A browser that knows nothing and nobody; its profile goes into `folder`."""
    assert CHROMIUM is not None
    profile = folder / "profile"
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *_OPTIONS, *sandbox, f"--user-data-dir={profile}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        async with asyncio.timeout(_SECONDS):
            while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
                assert process.returncode is None, "Chromium has ended"
                await asyncio.sleep(0.05)
        port, path = port_file.read_text().splitlines()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=64 << 20) as socket,
        ):
            browser = Browser(socket)
            listening = asyncio.create_task(browser.listen())
            try:
                yield browser
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
