"""The command: everything that can be looked at, as it is found."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from spes_peer.doctor import line, machine, network
from spes_peer.doctor.finding import Finding, are_fit, in_words
from spes_peer.errors import PeerError, UserError
from spes_peer.exchange.addresses import NodeAddress, parse_address
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.folder import KNOWN_NODES_FILE, MANIFEST_FILE
from spes_peer.organize import read_manifest


@dataclasses.dataclass(frozen=True)
class DoctorSettings:
    """Of `join`, what makes a difference."""

    data_dir: Path
    bootstraps: tuple[str, ...]
    device: str
    host: str
    port: int


def run_doctor(settings: DoctorSettings, as_json: bool) -> int:
    """Print the findings; 0 if a volunteer can take part like this, else 1."""
    return asyncio.run(_run(settings, as_json))


async def _run(settings: DoctorSettings, as_json: bool) -> int:
    findings = []
    async for finding in examine(settings):
        findings.append(finding)
        if not as_json:
            print(in_words(finding), flush=True)
    if as_json:
        print(json.dumps([{**dataclasses.asdict(one), "verdict": one.verdict} for one in findings], indent=2))
    return 0 if are_fit(findings) else 1


async def examine(settings: DoctorSettings) -> AsyncIterator[Finding]:
    """Quick things first."""
    folder = settings.data_dir
    yield machine.system()
    yield machine.programs()
    yield machine.memory()
    yield _looked_at("disk", lambda: machine.disk(folder))
    yield _looked_at("state folder", lambda: machine.state(folder))
    yield machine.strays()
    findings, has_daemon = await network.daemon(folder)
    for finding in findings:
        yield finding
    can_listen = True
    if not has_daemon:  # else that has them
        ports = machine.ports(settings.host, settings.port)
        can_listen = not ports.stops
        yield ports
    introduction = None
    try:
        addresses = _addresses(settings)
    except (UserError, PeerError, OSError) as error:
        yield Finding("run", _reason(error), "give the whole address that its organizer gives: --bootstrap", stops=True)
    else:
        findings, introduction = await network.nodes(addresses)
        for finding in findings:
            yield finding
        if introduction is not None and not has_daemon:  # else that has measured it
            for finding in await line.look(introduction, settings.host, settings.port, can_listen):
                yield finding
    manifest = introduction.signed_manifest.manifest if introduction is not None and not has_daemon else b""
    yield await machine.device(settings.device, manifest)


def _looked_at(what: str, look: Callable[[], Finding]) -> Finding:
    """What keeps us from looking is a finding too."""
    try:
        return look()
    except (UserError, PeerError, OSError) as error:
        return Finding(what, _reason(error), "choose another folder with --data-dir", stops=True)


def _reason(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)


def _addresses(settings: DoctorSettings) -> Sequence[NodeAddress]:
    """Those given, else those met before."""
    if settings.bootstraps:
        return [parse_address(text) for text in settings.bootstraps]
    if not (settings.data_dir / MANIFEST_FILE).exists():
        return ()
    return KnownNodes(settings.data_dir / KNOWN_NODES_FILE, read_manifest(settings.data_dir).run_id).addresses
