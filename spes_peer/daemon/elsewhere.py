"""One key, one machine: a folder that was copied to a second one makes two daemons that are the same peer.

The later one is refused if the first answers where it says that it is. Where it does not, the later goes on, and the
first ends as soon as it sees the other: in a record, which more than half of a roster have signed, or in the DHT.
Starts of a peer are numbered by the clock, so the number of a start says since when it runs.
"""

import asyncio
import time

from spes_peer.errors import ChildFailed, NotAdmitted, UserError
from spes_peer.exchange.introduction import describe
from spes_peer.exchange.known_nodes import addresses_of
from spes_peer.node import Node
from spes_peer.run.peers import PeerEntry, PeerState

_ASK_SECONDS = 3.0
_LOOK_SECONDS = 2.0


async def refuse_if_online(node: Node) -> None:
    """`NotAdmitted` if an earlier start of this peer still answers at the address that the DHT has of it."""
    assert node.directory is not None
    try:
        own = (await node.directory.read_entries()).get(node.peer_id)
    except ChildFailed:  # it is found out later
        return
    if own is None or own.incarnation >= node.signer.incarnation or own.state == PeerState.LEAVING:
        return
    if any(await asyncio.gather(*(_answers(own, node, index) for index in range(len(addresses_of(own)))))):
        raise _elsewhere(own.incarnation, own.name)


async def _answers(own: PeerEntry, node: Node, index: int) -> bool:
    """Whether it is another process than this one that answers there as this peer."""
    try:
        introduction = await describe(addresses_of(own)[index], _ASK_SECONDS)
    except UserError:
        return False
    return introduction.entry.incarnation != node.signer.incarnation


async def until_online_elsewhere(node: Node) -> None:
    """Raises `NotAdmitted` once a later start of this peer is seen; else for ever."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        record = node.chain.head.record if node.chain.head else None
        place = record.entry_of(node.peer_id) if record else None
        later = max(place.incarnation if place else 0, node.seen_incarnation)
        if later > node.signer.incarnation:
            raise _elsewhere(later, node.settings.name)


def _elsewhere(incarnation: int, name: str) -> NotAdmitted:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(incarnation / 1e9))
    return NotAdmitted(
        f"this identity is online elsewhere since {since} ({name!r}): a key is for one machine at a time; end it there"
        " with spes-peer leave, or give this machine a key of its own with a new --data-dir"
    )
