"""Which run a person means: one in a folder, or one that a node at an address tells of."""

import asyncio
from pathlib import Path

from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.introduction import describe
from spes_peer.organize import read_manifest
from spes_peer.run.manifest import SignedManifest


def find(named: str) -> tuple[SignedManifest, int | None]:
    """The run's manifest, and its newest record's round if a node says so."""
    if Path(named).is_dir():
        return read_manifest(Path(named)), None
    if not named.startswith("/") or "/p2p/" not in named:
        raise BadConfiguration(f"there is no folder {named}, and it is no address of a node either (/ip4/…/p2p/…)")
    introduction = asyncio.run(describe(parse_address(named.partition(",")[0])))
    return introduction.signed_manifest, introduction.head_round
