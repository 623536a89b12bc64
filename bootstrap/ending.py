"""The end that an organizer gives a run with its bootstrap node: an amendment, since members believe no node."""

import logging

from spes_peer.errors import BadConfiguration
from spes_peer.folder import ORGANIZER_KEY_FILE
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.run.rules import Change, rules_in, sign_amendment

logger = logging.getLogger(__name__)


def end_after(node: Node, round: int) -> None:
    """Let the run end with `round`, unless it has an end; the next record carries it. `BadConfiguration` without the
    organizer's key, `DiskTrouble` where the amendment cannot be kept."""
    head, waiting = node.chain.head, node.amendments.waiting
    rules = rules_in(waiting) if waiting else node.rules
    if rules.finish_after_round or (head and head.record.is_final):
        if rules.finish_after_round != round:
            logger.warning("the run has an end already, and --finish-after does not change it; run finish --after does")
        return
    key = Identity.load(node.folder.path / ORGANIZER_KEY_FILE)
    if head is None or key is None:
        raise BadConfiguration(
            f"--finish-after {round} needs the organizer's key, and {node.folder.path / ORGANIZER_KEY_FILE} is not"
            f" there; start without it, and where the key is: spes-peer run finish FOLDER --after {round}"
        )
    now = node.now()
    after = Change(finish_after_round=round).of(rules, now)
    if why := node.amendments.take(sign_amendment(after, head.record.amendment, key, node.run_id, now)):
        raise BadConfiguration(f"--finish-after {round}: the run's rules stay as they are: {why}")
