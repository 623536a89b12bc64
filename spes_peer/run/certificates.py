"""Who must have signed a record, and whether they have.

A record is certified by more than half of the previous record's roster. Behind an empty roster (record 0's, or one from
which everybody has gone) there is nobody to outvote a second coordinator, so only the first candidate's record can be
certified, with more than half of the record's own roster. Record 0 has an organizer's signature. Who is an organizer
under a record, the rules of the record before it say.

When more than half of a roster stays away, the rest may go on with an *uncertified* record once the round's deadline
and the stall time-out have passed. One of the previous roster must have signed it, or, where all of that are gone or
there were none, a bootstrap node that the previous record names and more than half of its own. So nobody goes on
without somebody whom the chain already names. What such a chain weighs beside others is `run.lineage`'s to say.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from spes_peer.errors import BadMessage, BadSignature
from spes_peer.identity import Identity, PeerId
from spes_peer.run.manifest import Manifest, Timing
from spes_peer.run.records import (
    RECORD_VERSION,
    CertifiedRecord,
    Record,
    RecordSignature,
    RosterEntry,
    SealedRecord,
    state_root,
)
from spes_peer.run.rules import Rules, fault_in_amendment, rules_of
from spes_peer.run.signed import Signed, Signer


@dataclass(frozen=True)
class Checks:
    """What a run's manifest says of its records."""

    run_id: bytes
    rules: Rules
    """Those with which the run began."""
    timing: Timing = field(default_factory=Timing)
    sequence_length: int = 1
    """Tokens of one position of the data."""

    @classmethod
    def of(cls, manifest: Manifest, run_id: bytes) -> "Checks":
        return cls(run_id, Rules.of(manifest), manifest.timing, manifest.model.sequence_length)

    def rules_of(self, record: Record) -> Rules:
        """What holds from `record` on."""
        return rules_of(record, self.rules)


@dataclass(frozen=True)
class Checked:
    """A record that has its place behind the one before, and what its signatures make it."""

    sealed: SealedRecord
    is_certified: bool
    """Whether it has the signatures for that; it counts only if the records before it do."""
    has_organizer: bool
    signers: frozenset[PeerId]
    """Of either kind: who voted for it, and who just goes on with it."""


@dataclass(frozen=True)
class Signatures:
    """Who has signed a record: with a vote that counts towards certifying it, or without."""

    voted: frozenset[PeerId] = frozenset()
    carried: frozenset[PeerId] = frozenset()

    @property
    def all(self) -> frozenset[PeerId]:
        return self.voted | self.carried


def is_more_than_half(count: int, of: int) -> bool:
    """The quorum of everything: of those expected, not of those that answered."""
    return 2 * count > of


def electorate(record: Record, previous: Record) -> tuple[PeerId, ...]:
    """Whose signatures certify `record`."""
    roster: Sequence[RosterEntry] = previous.roster or record.roster
    return tuple(entry.peer_id for entry in roster)


def is_certified_by(signers: Collection[PeerId], record: Record, previous: Record) -> bool:
    if not previous.roster and (not previous.candidates or previous.candidates[0] not in signers):
        return False
    voters = previous.members or record.members
    return is_more_than_half(len(voters.intersection(signers)), of=len(voters))


def is_carried_by(signers: Collection[PeerId], record: Record, previous: Record) -> bool:
    """Whether enough go on with `record` for it to stand uncertified; never without one whom the previous record names:
    a roster that strangers make up of themselves says nothing."""
    if not previous.members.isdisjoint(signers):
        return True
    is_named = any(peer in signers for peer in previous.candidates)
    return is_named and is_more_than_half(len(record.members.intersection(signers)), of=len(record.roster))


def may_sign(record: Record, previous: Record) -> frozenset[PeerId]:
    """Whose signatures may stand under `record`, besides an organizer's."""
    return previous.members.union(record.members, previous.candidates)


def stalled_at(record: Record, stall_timeout_seconds: float) -> float:
    """Unix seconds from which on an uncertified record may follow `record`."""
    return record.deadline_at + stall_timeout_seconds


def sign_genesis(record: Record, organizer: Identity, run_id: bytes) -> CertifiedRecord:
    """Record 0 under its organizer's signature."""
    sealed = record.seal()
    signer = Signer(organizer, run_id, incarnation=0)
    return CertifiedRecord(sealed.content, 0, (signer.sign(RecordSignature(0, 0, sealed.hash)),))


def check_record(certified: CertifiedRecord, previous: SealedRecord | None, checks: Checks) -> Checked:
    """The record inside, once its place in the chain and its signatures are found good.

    Raises `BadMessage` for a record that does not belong behind `previous`, `BadSignature` for signatures that do not
    make it take effect. Any bad signature spoils the certificate: what is kept is served on.
    """
    sealed = certified.sealed
    record = sealed.record
    if record.version != RECORD_VERSION:
        raise BadMessage(f"record {record.round} has version {record.version}; this program reads {RECORD_VERSION}")
    if record.run_id != checks.run_id:
        raise BadMessage(f"record {record.round} is of another run")
    _check_roster(record)
    if previous is None:
        _check_genesis(record)
        signers = _signatures(certified, sealed, checks.rules.organizers).voted
        if not signers:
            raise BadSignature("record 0 needs the signature of an organizer")
        return Checked(sealed, True, True, signers)
    _check_place(record, previous)
    if fault := fault_in_amendment(record, previous.record, checks.rules, checks.timing):
        raise BadMessage(fault)
    organizers = checks.rules_of(previous.record).organizers
    signatures = _signatures(certified, sealed, {*may_sign(record, previous.record), *organizers})
    has_organizer = not signatures.all.isdisjoint(organizers)
    if is_certified_by(signatures.voted, record, previous.record):
        return Checked(sealed, True, has_organizer, signatures.all)
    _check_uncertified(record, previous.record, signatures)
    return Checked(sealed, False, has_organizer, signatures.all)


def _check_uncertified(record: Record, previous: Record, signatures: Signatures) -> None:
    voters = electorate(record, previous)
    if not voters:
        raise BadSignature(f"record {record.round} stands between two empty rosters, so nobody can sign it")
    if not is_carried_by(signatures.all, record, previous):
        count = len(signatures.voted.intersection(voters))
        has = f"record {record.round} has {count} signatures of {len(voters)} voters"
        if is_more_than_half(count, of=len(voters)):
            raise BadSignature(f"{has}, and none of who may coordinate behind record {previous.round}")
        raise BadSignature(f"{has} and needs {len(voters) // 2 + 1}")


def _check_roster(record: Record) -> None:
    peers = [entry.peer_id for entry in record.roster]
    if peers != sorted(set(peers)):
        raise BadMessage(f"the roster of record {record.round} is not in peer-id order or names a peer twice")


def _check_genesis(record: Record) -> None:
    if record.round != 0:
        raise BadMessage(f"record {record.round} where record 0 belongs")
    if record.previous_hash or record.roster or record.updates or record.amendment is not None:
        raise BadMessage("record 0 may have neither a predecessor nor a roster nor updates nor an amendment")
    if not record.genesis or record.state_root != state_root(record.genesis):
        raise BadMessage("the state root of record 0 is not that of its genesis blocks")


def _check_place(record: Record, previous: SealedRecord) -> None:
    if previous.record.is_final:
        raise BadMessage(f"record {previous.round} is the last of the run, nothing follows it")
    if record.round != previous.round + 1:
        raise BadMessage(f"record {record.round} does not follow record {previous.round}")
    if record.previous_hash != previous.hash:
        raise BadMessage(f"record {record.round} follows another record {previous.round} than ours")
    if record.genesis:
        raise BadMessage(f"record {record.round} names genesis blocks, which only record 0 may")


def _signatures(certified: CertifiedRecord, sealed: SealedRecord, signatories: Collection[str]) -> Signatures:
    if len(certified.signatures) > len(signatories):
        raise BadSignature(f"record {sealed.round} has more signatures than there are voters")
    found = {one.peer_id: check_signature(one, sealed, certified.term, signatories) for one in certified.signatures}
    if len(found) != len(certified.signatures):
        raise BadSignature(f"record {sealed.round} has two signatures of one peer")
    carried = frozenset(peer for peer, signature in found.items() if signature.uncertified)
    return Signatures(frozenset(found) - carried, carried)


def check_signature(signed: Signed, sealed: SealedRecord, term: int, signatories: Collection[str]) -> RecordSignature:
    """What is in `signed`, if one who may signed this very record in this term with it; else `BadSignature` or
    `BadMessage`."""
    if signed.peer_id not in signatories:
        raise BadSignature(f"{signed.peer_id} has no vote on record {sealed.round}")
    signature = signed.open(RecordSignature, sealed.record.run_id)
    if signature != RecordSignature(sealed.round, term, sealed.hash, signature.uncertified):
        raise BadSignature(f"{signed.peer_id} signed another record than this record {sealed.round} of term {term}")
    return signature
