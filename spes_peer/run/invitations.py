"""Who may join a run: everybody, whom an organizer has invited, or whom it has listed.

An *invitation* has a key of its own. An organizer signs that this key invites (the grant); who is handed the key's seed
signs its own peer id with it. That proof is public and of no use to another peer, so it can stand in a proposal, where
every signer checks it: a coordinator alone cannot admit whom nobody has invited.

Whoever has stood in a roster once has been let in, and needs no proof to come back.
"""

import base64
import binascii
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spes_peer.errors import BadConfiguration, BadMessage, BadSignature, PeerError
from spes_peer.identity import Identity, PeerId, verify
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import Record
from spes_peer.run.rules import Rules
from spes_peer.run.signed import Signed, Signer
from spes_peer.wire import convert

_SIGNED_AS = b"spes-peer invitation\0"
_BEGINS = "spes-invitation-"
MAX_TEXT_CHARACTERS = 2_000  # an invitation has about 500
MAX_GRANT_BYTES = 512


@dataclass(frozen=True)
class Grant:
    """See proto/record.proto."""

    invitation: PeerId
    expires_at: float
    peer_id: str
    """Empty for whoever has the invitation."""


@dataclass(frozen=True)
class InvitationProof:
    """That `peer_id` has been handed an invitation."""

    peer_id: PeerId
    grant: Signed
    signature: bytes


@dataclass(frozen=True)
class Invitation:
    """What is handed over; whoever has it can join."""

    grant: Signed
    seed: bytes

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise ValueError(f"a seed of {len(self.seed)} bytes")

    @property
    def granted(self) -> Grant:
        """What the organizer has signed; raises like `Signed.open`."""
        return self.grant.open(Grant, self.grant.run_id)

    def prove(self, peer_id: PeerId) -> InvitationProof:
        """That this peer was handed it."""
        key = Identity.from_seed(self.seed)
        return InvitationProof(peer_id, self.grant, key.sign(_proven(self.grant.run_id, peer_id)))

    def to_text(self) -> str:
        """One word, with a checksum, to be sent by whatever way people talk."""
        content = convert.encode(self)
        checked = content + zlib.crc32(content).to_bytes(4)
        return _BEGINS + base64.urlsafe_b64encode(checked).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> "Invitation":
        """Of a person's text, with line breaks where a mail put them; `BadConfiguration` for one that is none."""
        word = "".join(text[: 2 * MAX_TEXT_CHARACTERS].split())
        if not word.startswith(_BEGINS) or len(word) > MAX_TEXT_CHARACTERS:
            raise BadConfiguration(f"that is no invitation: one begins with {_BEGINS}; copy all of it, in one piece")
        encoded = word.removeprefix(_BEGINS)
        try:
            checked = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            content, checksum = checked[:-4], checked[-4:]
            if zlib.crc32(content).to_bytes(4) != checksum:
                raise BadMessage("its checksum is wrong")
            return convert.decode(cls, content)
        except (PeerError, binascii.Error, ValueError):
            raise BadConfiguration("the invitation is damaged or not whole; ask for it again, or for a file") from None

    def refuse_if_useless(self, run_id: bytes, peer_id: PeerId, now: float) -> None:
        """`BadConfiguration` for one with which this peer cannot join the run, as far as it says itself."""
        try:
            grant = self.granted
        except PeerError as error:
            raise BadConfiguration(f"the invitation is not good: {error}") from None
        if self.grant.run_id != run_id:
            raise BadConfiguration("the invitation is for another run; ask the organizer of this one")
        if grant.peer_id not in ("", peer_id):
            raise BadConfiguration(f"the invitation is for peer {grant.peer_id}, and this is {peer_id}")
        if grant.expires_at < now:
            raise BadConfiguration("the invitation has expired; ask the organizer for another")


def invite(organizer: Identity, run_id: bytes, expires_at: float, peer_id: str = "") -> Invitation:
    """A new one, for this peer, or for whoever has it."""
    key = Identity.generate()
    signer = Signer(organizer, run_id, incarnation=0)
    return Invitation(signer.sign(Grant(key.peer_id, expires_at, peer_id)), key.seed)


def _proven(run_id: bytes, peer_id: str) -> bytes:
    return _SIGNED_AS + run_id + peer_id.encode()


def fault_in_proof(proof: InvitationProof, rules: Rules, run_id: bytes, now: float) -> str | None:
    """Why this does not let its peer in; None if it does."""
    if len(proof.grant.body) > MAX_GRANT_BYTES:
        return "its invitation is none"
    if proof.grant.peer_id not in rules.organizers:
        return "its invitation is signed by nobody who is an organizer now"
    try:
        grant = proof.grant.open(Grant, run_id)
        if grant.peer_id not in ("", proof.peer_id):
            return "its invitation is another peer's"
        if grant.invitation in rules.revoked:
            return "its invitation has been revoked"
        if now > grant.expires_at:
            return "its invitation has expired"
        verify(grant.invitation, _proven(run_id, proof.peer_id), proof.signature)
    except (BadMessage, BadSignature) as error:
        return f"its invitation is not good: {error}"
    return None


def fault_in_newcomer(
    peer: PeerId, proof: InvitationProof | None, rules: Rules, manifest: Manifest, run_id: bytes, now: float
) -> str | None:
    """Why `peer`, who has stood in no roster yet, may not join by these rules, as a sentence's end; None if it may."""
    if peer in rules.banned:
        return "the run's organizer has banned it"
    mode = manifest.admission.mode
    if mode == "open" or peer in rules.listed:
        return None
    if mode == "list":
        return "the run is for those on its organizer's list: ask to be put there"
    if proof is None:
        return "the run is for those whom its organizer has invited: ask for an invitation, and join with --invitation"
    if proof.peer_id != peer:
        return "it shows another peer's invitation"
    return fault_in_proof(proof, rules, run_id, now)


def fault_in_newcomers(
    record: Record,
    known: Collection[PeerId],
    proofs: Iterable[InvitationProof],
    rules: Rules,
    manifest: Manifest,
    now: float,
) -> str | None:
    """Why not everybody on the roster of `record` may be there by its `rules`; None if all may. `known` have stood in
    a roster before."""
    shown: Mapping[PeerId, InvitationProof] = {proof.peer_id: proof for proof in proofs}
    for peer in sorted(record.members.difference(known)):
        if fault := fault_in_newcomer(peer, shown.get(peer), rules, manifest, record.run_id, now):
            return f"{peer} may not join: {fault}"
    return None
