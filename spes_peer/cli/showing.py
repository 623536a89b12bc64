"""Which run a person means: one in a folder, or one that a node at an address tells of; and how far it is."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import BadConfiguration, PeerError
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.introduction import describe
from spes_peer.exchange.newcomer import newest_of
from spes_peer.organize import read_manifest
from spes_peer.run.certificates import Checks
from spes_peer.run.chain import Chain
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.records import Record
from spes_peer.run.rules import Rules, rules_of


@dataclass(frozen=True)
class Found:
    """A run, and its newest record where there is one; whoever was asked may lie about that one."""

    signed: SignedManifest
    newest: Record | None

    def rules(self) -> Rules | None:
        """Those that the newest record goes by."""
        first = Rules.of(self.signed.open())
        with contextlib.suppress(PeerError):
            return rules_of(self.newest, first) if self.newest is not None else None
        return None


def find(named: str) -> Found:
    """`BadConfiguration` where no run is, `NoBootstrap` where no node answers."""
    if Path(named).is_dir():
        return _in_folder(Path(named))
    if not named.startswith("/") or "/p2p/" not in named:
        raise BadConfiguration(f"there is no folder {named}, and it is no address of a node either (/ip4/…/p2p/…)")
    return asyncio.run(_at(named.partition(",")[0]))


def _in_folder(folder: Path) -> Found:
    signed = read_manifest(folder)
    head = Chain(folder, Checks.of(signed.open(), signed.run_id)).head
    return Found(signed, head.record if head is not None else None)


async def _at(address: str) -> Found:
    introduction = await describe(parse_address(address))
    records = await newest_of(introduction)
    return Found(introduction.signed_manifest, records[-1] if records else None)
