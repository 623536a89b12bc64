"""What an organizer has on this machine: the run's folder with its key, the records that lie there, invitations."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import BadConfiguration, PeerError
from spes_peer.exchange.addresses import NodeAddress, parse_address
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.files import write_whole
from spes_peer.folder import KNOWN_NODES_FILE, ORGANIZER_KEY_FILE
from spes_peer.identity import Identity, PeerId
from spes_peer.organize import read_manifest
from spes_peer.run.certificates import Checks
from spes_peer.run.invitations import Invitation, invite
from spes_peer.run.lineage import Lineage
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord
from spes_peer.wire import convert

_ADDRESS_FILE = "address"  # of a bootstrap node that runs in the folder
_INVITATIONS_FILE = "invitations.json"
_DAY_SECONDS = 86_400.0
_NO_MOMENT = 1e11  # three thousand years on: no calendar shows it


@dataclass(frozen=True)
class Organizer:
    """A run's folder, and the key with which its rules are changed."""

    folder: Path
    manifest: Manifest
    run_id: bytes
    key: Identity

    @classmethod
    def of(cls, folder: Path, key_file: Path | None = None) -> "Organizer":
        """`BadConfiguration` for a folder without a run or without a key."""
        signed, path = read_manifest(folder), key_file or folder / ORGANIZER_KEY_FILE
        if (key := Identity.load(path)) is None:
            raise BadConfiguration(f"there is no organizer's key at {path}; name another with --key FILE")
        return cls(folder, signed.open(), signed.run_id, key)

    def addresses(self, named: Sequence[str]) -> tuple[NodeAddress, ...]:
        """Of nodes that may be there: those named, the bootstrap node of this folder, and whom that has met."""
        given = [one for text in named for one in text.split(",")]
        beside = self.folder / _ADDRESS_FILE
        if beside.exists():
            given += beside.read_text(errors="replace").strip().split(",")
        known = KnownNodes(self.folder / KNOWN_NODES_FILE, self.run_id).addresses
        found = tuple(dict.fromkeys((*(parse_address(one) for one in given if one), *known)))
        if not found:
            raise BadConfiguration(
                f"no node of the run is known in {self.folder}; name one, of any volunteer too: --bootstrap ADDRESS"
            )
        return found

    def records(self) -> Lineage | None:
        """The chain as far as it lies in the folder, every record checked; None where not even record 0 is there."""
        lineage, checks = None, Checks.of(self.manifest, self.run_id)
        while (certified := self._record(0 if lineage is None else lineage.head.round + 1)) is not None:
            try:
                after = lineage.followed_by(certified) if lineage else Lineage.begun(certified, checks)
            except PeerError:
                break
            if after.tail:  # what is not certified may be given up yet
                break
            lineage = after
        return lineage

    def _record(self, round: int) -> CertifiedRecord | None:
        try:
            return convert.decode(CertifiedRecord, (self.folder / "records" / f"{round:08d}.record").read_bytes())
        except (OSError, PeerError):
            return None

    # ---- invitations ----

    def invite(self, days: float, peer_id: str = "") -> Invitation:
        """A new one; that it was made is noted in the folder, without the seed."""
        made = invite(self.key, self.run_id, time.time() + days * _DAY_SECONDS, peer_id)
        write_whole(self.folder / _INVITATIONS_FILE, json.dumps([*self.invitations(), _noted(made)], indent=1).encode())
        return made

    def invitations(self) -> list[dict[str, str | float]]:
        """Those that were made from this folder, oldest first."""
        path = self.folder / _INVITATIONS_FILE
        try:
            return [_read(one) for one in json.loads(path.read_bytes())] if path.exists() else []
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            raise BadConfiguration(f"{path} is damaged; move it away, and revoke by the whole id instead") from None

    def invitation_called(self, text: str) -> PeerId:
        """The whole id of one that is given by its end, or whole."""
        ids = [str(one.get("id")) for one in self.invitations()]
        found = [one for one in ids if text and one.endswith(text)]
        if len(found) > 1:
            raise BadConfiguration(f"{len(found)} invitations end with {text!r}; give more of the id")
        return PeerId(found[0] if found else text)


def _read(noted: dict[str, str | float]) -> dict[str, str | float]:
    """One of the list, as it was noted; one of several errors if it was not."""
    invitation, until, peer_id = str(noted["id"]), float(noted["expires_at"]), str(noted["for"])
    if not (0 <= until < _NO_MOMENT and f"{invitation}{peer_id}".isprintable()):
        raise ValueError
    return {"id": invitation, "expires_at": until, "for": peer_id}


def _noted(invitation: Invitation) -> dict[str, str | float]:
    grant = invitation.granted
    return {"id": grant.invitation, "expires_at": grant.expires_at, "for": grant.peer_id}
