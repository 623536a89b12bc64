"""What a bootstrap node starts from: the run of its folder, signed first if need be, or the word of another node.

run.toml and organizer.key      an organizer's folder: the run is signed, then served
manifest.spes                   a folder that has a run: it goes on from what is in it
neither, and --join ADDRESS     a further node of a run that is there: its folder is made from the network
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import BadConfiguration, UserError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.folder import MANIFEST_FILE, RUN_FILE, StateFolder
from spes_peer.following.arrival import Arrival
from spes_peer.organize import can_be_signed, read_manifest, sign_run
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.peers import PeerEntry

logger = logging.getLogger(__name__)

_FIRST_LOOK_SECONDS = 5.0  # for somebody who was here before


@dataclass(frozen=True)
class Opened:
    """A folder whose run is known."""

    folder: StateFolder
    signed: SignedManifest
    known: KnownNodes
    introduction: Introduction | None

    @property
    def entries(self) -> list[PeerEntry]:
        """Of nodes to join the DHT through: who answered first."""
        introducer = [self.introduction.entry] if self.introduction is not None else []
        return list({one.peer_id: one for one in (*self.known.bootstrap_nodes, *introducer)}.values())[::-1]


def check_openable(path: Path, named: Sequence[NodeAddress]) -> None:
    """`BadConfiguration` for a folder from which no node can be started, before anything is written there."""
    if (path / MANIFEST_FILE).exists():
        read_manifest(path)
    elif (path / RUN_FILE).exists() and not can_be_signed(path):
        read_manifest(path)  # says what to do
    elif not named and not can_be_signed(path):
        raise BadConfiguration(
            f"{path} holds no run; make one with: spes-peer run new {path};"
            " or join one that is there as a further node: --join ADDRESS"
        )


async def open_folder(folder: StateFolder, named: Sequence[NodeAddress]) -> Opened:
    """Signs, asks the nodes of `named` until one answers, or goes on from the folder: whichever is needed."""
    if (folder.path / MANIFEST_FILE).exists():
        return await _reopened(folder, named)
    if can_be_signed(folder.path):
        signed = await _signed_now(folder.path)
        return Opened(folder, signed, KnownNodes(folder.known_nodes, signed.run_id), None)
    arrival = Arrival(named, known=tuple, accept=lambda _introduction: None, say=_say)
    introduction = await arrival.insist(on_waiting=_nothing)
    folder.bind(introduction.signed_manifest)
    known = KnownNodes(folder.known_nodes, introduction.run_id)
    known.note([introduction.entry])
    return Opened(folder, introduction.signed_manifest, known, introduction)


async def _signed_now(path: Path) -> SignedManifest:
    logger.info("the run in %s is not signed yet: signing it now, with its organizer's key", path)
    signed = await asyncio.to_thread(sign_run, path, is_held=True)
    logger.info("signed: from now on nothing in run.toml changes this run run=%s", signed.run_id.hex()[:12])
    return signed


async def _reopened(folder: StateFolder, named: Sequence[NodeAddress]) -> Opened:
    """After a restart whoever was here before knows what time it is in the run, and where the others are."""
    signed = read_manifest(folder.path)
    known = KnownNodes(folder.known_nodes, signed.run_id)
    arrival = Arrival(
        named,
        known=lambda: known.addresses,
        accept=lambda introduction: folder.bind(introduction.signed_manifest),
        say=_say,
    )
    try:
        introduction = await arrival.ask(_FIRST_LOOK_SECONDS)
    except BadConfiguration:  # a named node of another run: a mistake that its owner must hear of
        raise
    except UserError as error:
        if arrival.addresses:
            logger.warning("nobody of the run is here, going on from our own folder reason=%s", error)
        return Opened(folder, signed, known, None)
    known.note([introduction.entry])
    return Opened(folder, signed, known, introduction)


def _say(why: str, _until_at: float) -> None:
    logger.info("%s", why)


async def _nothing() -> None:
    """To do while nobody answers."""
