"""Keeps the ports of a machine behind a home's router open, where the router opens ports for those that ask.

A hint, like any other address: whether somebody gets through is found out by dialling back (reach.py). Mappings live
for a while and are renewed, so that those of a machine that is switched off close by themselves; at the end of the
program they are taken back.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spes_peer.exchange.reach import Door, Reach
from spes_peer.ports import Ports, is_on_the_internet

logger = logging.getLogger(__name__)

LEASE_SECONDS = 1_200
_RENEW_AFTER = 0.4  # of what the router grants: before half of it, so that one renewal may fail
_MAP_SECONDS = 15.0
_UNMAP_SECONDS = 3.0
_FIRST_RETRY_SECONDS = 60.0
_LAST_RETRY_SECONDS = 1_800.0
_MAX_ANSWER_BYTES = 10_000

Ask = Callable[[Sequence[str], float], Awaitable[dict[str, Any]]]
"""Runs one request of router_request.py within so many seconds."""


@dataclass(frozen=True)
class Opened:
    """What a router has opened."""

    by: str
    """The protocol."""
    ports: Ports
    """Outside."""
    lease_seconds: float
    external: str
    """The router's own IP address, as it says; empty where it says none."""

    @property
    def words(self) -> str:
        is_hidden = self.external and not is_on_the_internet(self.external)
        behind = f", but is itself behind another, at {self.external}" if is_hidden else ""
        return f"the router has opened ports for us{behind}"


async def ask_router(arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """What the process says; an "error" for one that does not answer in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "spes_peer.exchange.router_request", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:  # no memory, no descriptors: at the next renewal, perhaps
        return {"error": f"cannot ask: {error.strerror}"}
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            said = await process.stdout.read(_MAX_ANSWER_BYTES)
        answer = json.loads(said)
        return answer if isinstance(answer, dict) else {"error": "no answer"}
    except TimeoutError:
        return {"error": f"the router does not answer in {seconds:.0f} s"}
    except ValueError:
        return {"error": "the request failed"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def wants_mapping(reach: Reach) -> bool:
    """Whether a router may be in between that could open ports: for a private address in a run on the internet."""
    is_hidden = reach.is_public and not is_on_the_internet(reach.own_host)
    return reach.has_inbound and not reach.given and is_hidden and ":" not in reach.own_host


async def keep_ports_mapped(
    reach: Reach, ask: Ask = ask_router, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Ask the router, and go on asking, until cancelled; what it opened is closed then."""
    if not wants_mapping(reach):
        return
    host, ports = reach.own_host, reach.ports
    pause_seconds, trouble = _FIRST_RETRY_SECONDS, ""
    opened: Opened | None = None
    try:
        while True:
            wanted = _doors(ports, opened.ports if opened else ports)
            answer = await ask(("map", host, str(LEASE_SECONDS), *wanted), _MAP_SECONDS)
            before, opened = opened, _opened(answer)
            if opened is None:
                if trouble != (trouble := str(answer.get("error", "no ports"))[:300]):
                    logger.info("the router opens no ports reason=%s", trouble)
                _change(reach, None)
                await pause(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LAST_RETRY_SECONDS)
                continue
            pause_seconds, trouble = _FIRST_RETRY_SECONDS, ""
            if before is None or before.words != opened.words:
                logger.info("%s by=%s grpc=%d", opened.words, opened.by, opened.ports.grpc)
            _change(reach, Door("", opened.ports))
            await pause(_RENEW_AFTER * opened.lease_seconds)
    finally:
        if opened is not None:
            await ask(("unmap", opened.by, host, *_doors(ports, opened.ports)), _UNMAP_SECONDS)


def _doors(inside: Ports, outside: Ports) -> list[str]:
    kinds = ("grpc", "libp2p", "dht")
    return [f"{getattr(inside, kind)}:{getattr(outside, kind)}" for kind in kinds]


def _change(reach: Reach, door: Door | None) -> None:
    if reach.mapped != door:
        reach.mapped = door
        reach.measure_soon()


def _opened(answer: dict[str, Any]) -> Opened | None:
    """None for an answer that opens nothing of use."""
    by, numbers, lease = answer.get("by"), answer.get("ports"), answer.get("lease_seconds")
    if not isinstance(by, str) or not isinstance(numbers, list) or len(numbers) != 3:
        return None
    if not all(isinstance(number, int) and 0 < number < 65536 for number in numbers):
        return None
    if not isinstance(lease, int) or lease <= 0:
        return None
    external = ""
    with contextlib.suppress(ValueError):
        external = str(ipaddress.ip_address(answer.get("external", "")))
    return Opened(by, Ports(*numbers), min(lease, LEASE_SECONDS), external)
