"""Who else of the run can be asked, and what volunteers call themselves: looked up in the DHT, for a few seconds.

A help, not a need: the node that introduced the visitor has all there is, and after the end of a run it may be alone.
"""

import asyncio
import contextlib
import logging

from spes_peer.errors import PeerError, SpesError
from spes_peer.following.records import fetch_from
from spes_peer.membership.directory import Directory
from spes_peer.node import Node
from spes_peer.ports import address_towards, choose_ports
from spes_peer.run.peers import Role
from spes_peer.training.known_names import known_names, write_names

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 40.0  # on a busy machine the DHT node's libraries take half of it to load
_LOOKS, _PAUSE_SECONDS = 20, 0.5
_ASKED = 8
"""Nodes whose chains are compared."""


async def meet_others(node: Node, towards: str) -> None:
    """Learn how the run's nodes are reached, through one of them, which is at the IP address `towards`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            try:
                await _look(node, towards)
            except (SpesError, OSError) as error:
                logger.info("asking one node only, the DHT does not answer reason=%s", error)
    names = {one.peer_id: one.name for one in node.entries.values() if one.role == Role.VOLUNTEER}
    write_names(node.folder.path, known_names(node.folder.path) | names)


async def _look(node: Node, towards: str) -> None:
    host = address_towards(towards, 9)
    directory = await Directory.start(
        identity=node.identity,
        run_id=node.run_id,
        host=host,
        port=choose_ports(host, 0).dht,
        initial_peers=tuple(address for entry in node.entries.values() for address in entry.dht_addresses),
        timing=node.manifest.timing,
        folder=node.folder.path,
        clock=node.clock,
    )
    try:
        entries = await directory.read_entries()
        for _ in range(_LOOKS):  # its DHT node may not have found another yet
            if entries:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
            entries = await directory.read_entries()
    finally:
        await directory.close()
    for entry in entries.values():
        node.take_entry(entry)


async def follow_the_best(node: Node) -> int:
    """Take the best valid chain among some nodes of the run; how many have shown theirs. Who fails costs itself."""
    num_asked = 0
    for source in node.others()[::-1][:_ASKED]:  # bootstrap nodes first: they have the records for certain
        try:
            await fetch_from(node, source)
            num_asked += 1
        except PeerError as error:
            logger.info("no records from a node peer=%s reason=%s", source[-8:], error)
    return num_asked
