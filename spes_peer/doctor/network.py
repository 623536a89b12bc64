"""This machine among others: who of the run answers, what time it is there, and what a running daemon has found out."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from spes_peer.control import ControlClient, is_live
from spes_peer.doctor.finding import Finding
from spes_peer.errors import TooOld, UserError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.introduction import Introduction, describe
from spes_peer.logs import plain
from spes_peer.wire.control_pb2 import Status

_ASK_SECONDS = 10.0
_MOST_ASKED = 4
_MOST_OFF_SECONDS = 2.0


async def nodes(addresses: Sequence[NodeAddress]) -> tuple[list[Finding], Introduction | None]:
    """Each node by itself, all at once, and the clock against theirs; who answered, if anybody did."""
    if not addresses:
        advice = "give one: spes-peer doctor --bootstrap ADDRESS"
        return [Finding("run", "no node of a run is known here", advice)], None
    asked = addresses[:_MOST_ASKED]
    answers = await asyncio.gather(*(_asked(address) for address in asked))
    findings = [_of_node(address, answer) for address, answer in zip(asked, answers, strict=True)]
    offsets = [answer[1] for answer in answers if not isinstance(answer, UserError)]
    if not offsets:
        return findings, None
    introduction = next(answer[0] for answer in answers if not isinstance(answer, UserError))
    bad = (one for one in findings if one.verdict != "ok")
    return [*bad, _of_run(introduction), _clock(offsets)], introduction


async def _asked(address: NodeAddress) -> tuple[Introduction, float] | UserError:
    """What the node says, and by how many seconds its clock is ahead of ours."""
    try:
        introduction = await describe(address, _ASK_SECONDS)
    except UserError as error:
        return error
    return introduction, introduction.clock.time() - time.time()


def _of_node(address: NodeAddress, answer: tuple[Introduction, float] | UserError) -> Finding:
    if isinstance(answer, TooOld):
        return Finding("run", str(answer), "install the newest version of spes-peer", stops=True)
    if isinstance(answer, UserError):
        return Finding("run", str(answer), "ask its organizer, or give the address of another node with --bootstrap")
    return Finding("run", f"{address.endpoint} answers")


def _of_run(introduction: Introduction) -> Finding:
    run, endpoint = introduction.manifest.run, introduction.endpoint
    said = f"{plain(run.name)} {introduction.run_id.hex()[:12]}, round {introduction.head_round}, at {endpoint}"
    return Finding("run", said)


def _clock(offsets: Sequence[float]) -> Finding:
    offset = sorted(offsets)[len(offsets) // 2]
    said = f"{abs(offset):.1f} s {'behind' if offset > 0 else 'ahead of'} the run's"
    if abs(offset) > _MOST_OFF_SECONDS:
        return Finding("clock", said, "set it, best by NTP; until then the daemon goes by the others' time")
    return Finding("clock", said)


async def daemon(folder: Path) -> tuple[list[Finding], bool]:
    """What a daemon on this folder has found out, and whether there is one; it may be there and not answer."""
    socket_path = folder / "control.sock"
    if not is_live(socket_path):
        advice = "start it with: spes-peer join; how others reach this machine it finds out then"
        return [Finding("daemon", f"none runs on {folder}", advice)], False
    try:
        async with ControlClient(socket_path) as client:
            status = await client.status_once()
    except UserError as error:
        advice = "see: spes-peer logs; end it with: spes-peer leave --at-once"
        return [Finding("daemon", str(error), advice, stops=True)], True
    return [*_of_daemon(status), *_of_reach(status)], True


def _of_daemon(status: Status) -> list[Finding]:
    phase = status.phase
    said = f"pid {status.pid}, {phase.name}{f': {phase.why}' if phase.why else ''}"
    findings = [Finding("daemon", said)]
    for service in status.services:
        if service.state != "running" or service.why:
            advice = f"it is started again by itself; if it stays so, see: spes-peer logs --of {_LOGS[service.name]}"
            findings.append(Finding(service.name, f"{service.state}: {service.why or 'not there yet'}", advice))
    findings += [Finding("trouble", trouble, "see what it says") for trouble in status.troubles]
    if speed := status.training.tokens_per_second:
        findings.append(Finding("speed", f"{speed:,.0f} tokens/s on {status.training.device} with this run's model"))
    return findings


_LOGS = {"trainer": "trainer", "DHT node": "dht", "libp2p node": "libp2p"}


def _of_reach(status: Status) -> list[Finding]:
    if not status.reachability_why:
        return [Finding("reachability", "not measured yet", "ask again in a minute")]
    said = f"{status.reachability}: {status.reachability_why}"
    others = [peer for peer in status.peers if not peer.is_self]
    routes = [f"{peer.transport} {peer.route}" for peer in others if peer.transport]
    ways = ", ".join(f"{routes.count(way)} by {way}" for way in sorted(set(routes)))
    findings = [Finding("ways", f"{ways or 'none used yet'}, of {len(others)} known peers")] if others else []
    if status.reachability == "direct":
        return [Finding("reachability", said), *findings]
    advice = "slower; forward three TCP ports on the router, and tell: --port N, or --announce HOST:PORT"
    if status.reachability != "relay":
        advice = "nobody gets through yet; wait a minute, or forward three TCP ports on the router: --port N"
    return [Finding("reachability", said, advice), *findings]
