"""What an organizer's word means for this daemon: that it is not let in, that it is shut out, that the run has ended.

Only what certified records say counts. A node's word that we are not wanted could be a lie, and ends nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from spes_peer.errors import NotAdmitted
from spes_peer.files import write_whole
from spes_peer.folder import StateFolder
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.run.invitations import Invitation, InvitationProof, fault_in_newcomer

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_SECOND_LOOK_SECONDS = 10.0  # for records that we have missed, which may let us in again
_SERVES_ON_SECONDS = 600.0  # when the run has ended: who comes a little later gets the last state from somebody


def moment(at: float) -> str:
    """For people, by this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def proof_for(folder: StateFolder, given: Invitation | None, run_id: bytes, peer_id: PeerId) -> InvitationProof | None:
    """By the invitation that was given now, which is kept, or before; `BadConfiguration` for one that is no use."""
    if given is not None:
        given.refuse_if_useless(run_id, peer_id, time.time())
        write_whole(folder.invitation, given.to_text().encode() + b"\n", mode=0o600)
        return given.prove(peer_id)
    if not folder.invitation.exists():
        return None
    return Invitation.from_text(folder.invitation.read_text(errors="replace")).prove(peer_id)


def why_unwanted(node: Node, proof: InvitationProof | None) -> str | None:
    """Why this peer may take no part by the newest certified record; None if it may."""
    record = node.chain.record(node.chain.certified_round).sealed.record
    rules = node.chain.checks.rules_of(record)
    if node.peer_id in rules.banned:
        return "an organizer of the run has banned this peer, for which it will have its reasons: ask it"
    if node.peer_id in node.chain.leases.by_peer:
        return None
    return fault_in_newcomer(node.peer_id, proof, rules, node.manifest, node.run_id, node.now())


async def until_unwanted(node: Node, proof: InvitationProof | None, say: Callable[[str], None]) -> None:
    """Raises `NotAdmitted` once the records say that this peer may take no part; else for ever."""
    while True:
        if why := why_unwanted(node, proof):
            say(why)
            await asyncio.sleep(_SECOND_LOOK_SECONDS)
            if why := why_unwanted(node, proof):
                raise NotAdmitted(f"not admitted to the run {node.manifest.run.name!r}: {why}")
        await asyncio.sleep(_LOOK_SECONDS)


async def until_finished(node: Node, end: Callable[[], None]) -> None:
    """Thanks when the last record is certified, serves on for a while, then calls `end`."""
    while True:
        if node.chain.record(node.chain.certified_round).sealed.record.is_final:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    given = node.chain.tallies.of(node.peer_id)
    logger.info(
        "the run has finished, thank you: this peer gave %d tokens in %d rounds; its last state is served for %.0f"
        " minutes more",
        given.tokens,
        given.rounds,
        _SERVES_ON_SECONDS / 60,
    )
    await asyncio.sleep(_SERVES_ON_SECONDS)
    end()
