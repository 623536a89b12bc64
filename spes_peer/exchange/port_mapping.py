"""Keeps the ports of a machine behind a home's router open, where the router opens ports for those that ask.

A hint, like any other address: whether somebody gets through is found out by dialling back (reach.py). Mappings live
for a while and are renewed, so that those of a machine that is switched off close by themselves; at the end of the
program they are taken back.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from spes_peer.exchange.reach import Door, Reach
from spes_peer.ports import Ports, is_on_the_internet

logger = logging.getLogger(__name__)

LEASE_SECONDS = 1_200
_RENEW_SECONDS = LEASE_SECONDS / 2
_MAP_SECONDS = 15.0
_UNMAP_SECONDS = 3.0
_FIRST_RETRY_SECONDS = 60.0
_LAST_RETRY_SECONDS = 1_800.0
_MAX_ANSWER_BYTES = 10_000

Ask = Callable[[Sequence[str], float], Awaitable[dict[str, Any]]]
"""Runs one request of upnp.py within so many seconds."""


async def ask_router(arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """What the process says; an "error" for one that does not answer in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "spes_peer.exchange.upnp", *arguments),
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


async def keep_ports_mapped(reach: Reach, ask: Ask = ask_router) -> None:
    """Ask the router, and go on asking, until cancelled; what it opened is closed then."""
    if not wants_mapping(reach):
        return
    host, ports = reach.own_host, reach.ports
    inside = [str(port) for port in (ports.grpc, ports.libp2p, ports.dht)]
    pause_seconds, trouble = _FIRST_RETRY_SECONDS, ""
    try:
        while True:
            outside = _outside_ports(answer := await ask(("map", host, str(LEASE_SECONDS), *inside), _MAP_SECONDS))
            if outside is None:
                if trouble != (trouble := str(answer.get("error", "no ports"))[:200]):
                    logger.info("the router opens no ports reason=%s", trouble)
                _change(reach, None)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LAST_RETRY_SECONDS)
                continue
            pause_seconds, trouble = _FIRST_RETRY_SECONDS, ""
            _change(reach, Door("", outside))
            await asyncio.sleep(_RENEW_SECONDS)
    finally:
        if reach.mapped is not None:
            opened = reach.mapped.ports
            numbers = [str(port) for port in (opened.grpc, opened.libp2p, opened.dht)]
            await ask(("unmap", host, *numbers), _UNMAP_SECONDS)


def _change(reach: Reach, door: Door | None) -> None:
    if reach.mapped != door:
        if door is not None:
            logger.info("the router has opened ports for us grpc=%d", door.ports.grpc)
        reach.mapped = door
        reach.measure_soon()


def _outside_ports(answer: dict[str, Any]) -> Ports | None:
    numbers = answer.get("ports")
    if not isinstance(numbers, list) or len(numbers) != 3:
        return None
    if not all(isinstance(number, int) and 0 < number < 65536 for number in numbers):
        return None
    return Ports(*numbers)
