"""An organizer's amendment on its way into the chain: kept by every node that it was brought to, on disk, and handed to
whoever coordinates, until a certified record carries it.

An uncertified record may be given up again, and then what it carried waits as before.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import PeerError
from spes_peer.files import with_checksum, without_checksum, write_whole
from spes_peer.run.chain import Chain
from spes_peer.run.rules import Rules, amendment_in, number_of, open_amendment, supersedes
from spes_peer.run.signed import Signed
from spes_peer.wire import convert

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AmendReply:
    """Where a node stands with amendments; see proto/peer.proto."""

    why_not: str
    carried: Signed | None
    pending: Signed | None


class Pending:
    """The amendment that one node passes on. Its chain has record 0 before anything is asked of it."""

    def __init__(self, path: Path, chain: Chain) -> None:
        self.on_taken: Callable[[], None] = lambda: None
        """Called when there is another one to pass on."""
        self._path = path
        self._chain = chain
        self._kept = self._read()

    @property
    def rules(self) -> Rules:
        """What holds from the newest record on."""
        head = self._chain.head
        return self._chain.checks.rules if head is None else self._chain.checks.rules_of(head.record)

    @property
    def waiting(self) -> Signed | None:
        """What the next record may carry; None where there is nothing."""
        return self._kept if self._kept is not None and not self._fault_in(self._kept) else None

    def answer(self, brought: Signed | None) -> AmendReply:
        """Take what was brought, if anything was; `DiskTrouble` if it cannot be kept."""
        why_not = "" if brought is None else self.take(brought)
        head = self._chain.head
        return AmendReply(why_not, head.record.amendment if head else None, self.waiting)

    def take(self, amendment: Signed) -> str:
        """Keep an amendment and pass it on; why not, if not. One that is here or in the chain already is fine."""
        head = self._chain.head
        if head is not None and amendment in (head.record.amendment, self.waiting):
            return ""
        if fault := self._fault_in(amendment):
            return fault
        waiting = self.waiting
        if waiting is not None and not supersedes(amendment, waiting):
            return f"another amendment {number_of(waiting)} was signed later, and waits for the next record"
        write_whole(self._path, with_checksum(convert.encode(amendment)))
        self._kept = amendment
        logger.info("took an amendment of the rules number=%d organizer=%s", number_of(amendment), amendment.peer_id)
        self.on_taken()
        return ""

    def forget_carried(self) -> None:
        """The chain has changed: what a certified record carries, or has overtaken, need not be kept."""
        if self._kept is None:
            return
        certified = amendment_in(self._chain.record(self._chain.certified_round).sealed.record)
        if certified is not None and certified.number >= number_of(self._kept):
            self._kept = None
            self._path.unlink(missing_ok=True)

    def _fault_in(self, amendment: Signed) -> str | None:
        checks, head = self._chain.checks, self._chain.head
        if head is None:
            return "this node has no records yet"
        try:
            open_amendment(amendment, head.record, checks.rules, checks.timing)
        except PeerError as error:
            return str(error)
        return None

    def _read(self) -> Signed | None:
        """From disk; one that is damaged is brought again by whoever else has it."""
        try:
            return convert.decode(Signed, without_checksum(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        except (PeerError, OSError) as error:
            logger.warning("an amendment on disk cannot be read path=%s reason=%s", self._path, error)
            return None
