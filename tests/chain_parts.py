"""Records that could follow each other, and who signs them: for the tests of certificates, lineage and the chain."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rounds_swarm import BOOTSTRAP_IDENTITY, CHECKS, ORGANIZER, RUN_ID, invented

from spes_peer.identity import Identity
from spes_peer.run.certificates import sign_genesis
from spes_peer.run.chain import Chain
from spes_peer.run.records import (
    BlockId,
    CertifiedRecord,
    Contributor,
    DataRange,
    Record,
    RecordSignature,
    RosterEntry,
    SealedRecord,
    Update,
)
from spes_peer.run.signed import Signer

PEERS = sorted((Identity.from_seed(bytes([n]) * 32) for n in range(10, 14)), key=lambda one: one.peer_id)
STRANGER = Identity.from_seed(b"\x63" * 32)
FIRST = BOOTSTRAP_IDENTITY
"""The first candidate of every record here: behind an empty roster its signature is needed."""
ASSIGNED = DataRange(0, 100)
"""The data of every member: as many tokens, at a sequence length of 1."""


def roster(*identities: Identity) -> tuple[RosterEntry, ...]:
    return tuple(RosterEntry(one.peer_id, 1, (0,), (ASSIGNED,), 1) for one in identities)


def following(previous: SealedRecord, **changes: Any) -> Record:
    """A record of all `PEERS` behind `previous`."""
    first = replace(
        previous.record,
        round=previous.round + 1,
        previous_hash=previous.hash,
        genesis=(),
        roster=roster(*PEERS),
        updates=(),
        tokens=0,
    )
    return replace(first, **changes)


def trained(*tokens: int) -> tuple[Update, ...]:
    """An update by so many of `PEERS`, in order, with so many tokens each."""
    counts = zip(PEERS, tokens, strict=False)
    parts = tuple(Contributor(peer.peer_id, count, 1.0, 1.0) for peer, count in counts if count)
    return (Update(BlockId("shared/0000"), invented("an update", tokens), 1, parts, ()),)


def certify(
    record: Record, *signers: Identity, uncertified: Iterable[Identity] = (), term: int = 0, run_id: bytes = RUN_ID
) -> CertifiedRecord:
    """With votes of `signers`; those in `uncertified` just go on with it."""
    sealed = record.seal()
    words = [(one, RecordSignature(record.round, term, sealed.hash)) for one in signers]
    words += [(one, RecordSignature(record.round, term, sealed.hash, uncertified=True)) for one in uncertified]
    return CertifiedRecord(sealed.content, term, tuple(Signer(one, run_id, 1).sign(word) for one, word in words))


def begun(folder: Path, zero: SealedRecord) -> Chain:
    """A chain with record 0."""
    chain = Chain(folder, CHECKS)
    chain.append(sign_genesis(zero.record, ORGANIZER, RUN_ID))
    return chain


def grown(folder: Path, zero: SealedRecord, num_records: int) -> Chain:
    """A chain with so many records, all certified."""
    chain = begun(folder, zero)
    while chain.num_records < num_records:
        assert chain.head is not None
        chain.append(certify(following(chain.head), *PEERS[:3], FIRST))
    return chain


def branch(base: SealedRecord, *records: tuple[dict[str, Any], Iterable[Identity]]) -> list[CertifiedRecord]:
    """Records behind `base` and each other, with the changes and the voters given for each."""
    made = []
    for changes, signers in records:
        made.append(certify(following(base, **changes), *signers))
        base = made[-1].sealed
    return made
