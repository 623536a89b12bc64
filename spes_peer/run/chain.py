"""The chain of certified records: who must have signed a record, and where records are kept.

A record takes effect once more than half of the previous record's roster has signed it; behind an empty roster (record
0's, or one from which everybody has gone) more than half of its own. Record 0 has an organizer's signature. Whatever
is not so is refused with its reason, from a peer and from disk alike.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from spes_peer.errors import BadMessage, BadSignature, BlobMissing, PeerError
from spes_peer.files import write_whole
from spes_peer.identity import Identity, PeerId
from spes_peer.run.layout import Layout
from spes_peer.run.records import (
    RECORD_VERSION,
    BlockId,
    CertifiedRecord,
    Record,
    RecordSignature,
    RosterEntry,
    SealedRecord,
    state_root,
)
from spes_peer.run.signed import Signed, Signer
from spes_peer.wire import convert

log = logging.getLogger(__name__)


def is_more_than_half(count: int, of: int) -> bool:
    """The quorum of everything: of those expected, not of those that answered."""
    return 2 * count > of


def electorate(record: Record, previous: Record) -> tuple[PeerId, ...]:
    """Whose signatures count under `record`."""
    roster: Sequence[RosterEntry] = previous.roster or record.roster
    return tuple(entry.peer_id for entry in roster)


def sign_genesis(record: Record, organizer: Identity, run_id: bytes) -> CertifiedRecord:
    """Record 0 under its organizer's signature."""
    sealed = record.seal()
    signer = Signer(organizer, run_id, incarnation=0)
    return CertifiedRecord(sealed.content, 0, (signer.sign(RecordSignature(0, 0, sealed.hash)),))


def check_certificate(
    certified: CertifiedRecord, previous: SealedRecord | None, organizers: Collection[str], run_id: bytes
) -> SealedRecord:
    """The record inside, once its place in the chain and its signatures are found good.

    Raises `BadMessage` for a record that does not belong behind `previous`, `BadSignature` for signatures that do not
    make it take effect. Any bad signature spoils the certificate: what is kept is served on.
    """
    sealed = certified.sealed
    record = sealed.record
    if record.version != RECORD_VERSION:
        raise BadMessage(f"record {record.round} has version {record.version}; this program reads {RECORD_VERSION}")
    if record.run_id != run_id:
        raise BadMessage(f"record {record.round} is of another run")
    _check_roster(record)
    if previous is None:
        _check_genesis(record)
        _check_signatures(certified, sealed, organizers, needed=1)
        return sealed
    _check_place(record, previous)
    voters = electorate(record, previous.record)
    if not voters:
        raise BadSignature(f"record {record.round} stands between two empty rosters, so nobody can sign it")
    _check_signatures(certified, sealed, voters, needed=len(voters) // 2 + 1)
    return sealed


def _check_roster(record: Record) -> None:
    peers = [entry.peer_id for entry in record.roster]
    if peers != sorted(set(peers)):
        raise BadMessage(f"the roster of record {record.round} is not in peer-id order or names a peer twice")


def _check_genesis(record: Record) -> None:
    if record.round != 0:
        raise BadMessage(f"record {record.round} where record 0 belongs")
    if record.previous_hash or record.roster or record.updates:
        raise BadMessage("record 0 may have neither a predecessor nor a roster nor updates")
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


def _check_signatures(certified: CertifiedRecord, sealed: SealedRecord, voters: Collection[str], needed: int) -> None:
    if len(certified.signatures) > len(voters):
        raise BadSignature(f"record {sealed.round} has more signatures than there are voters")
    signers = [check_signature(signed, sealed, certified.term, voters).peer_id for signed in certified.signatures]
    if len(set(signers)) != len(signers):
        raise BadSignature(f"record {sealed.round} has two signatures of one peer")
    if len(signers) < needed:
        raise BadSignature(
            f"record {sealed.round} has {len(signers)} signatures of {len(voters)} voters and needs {needed}"
        )


def check_signature(signed: Signed, sealed: SealedRecord, term: int, voters: Collection[str]) -> Signed:
    """`signed` if a voter signed this very record in this term with it; else `BadSignature` or `BadMessage`."""
    if signed.peer_id not in voters:
        raise BadSignature(f"{signed.peer_id} has no vote on record {sealed.round}")
    signature = signed.open(RecordSignature, sealed.record.run_id)
    if signature != RecordSignature(sealed.round, term, sealed.hash):
        raise BadSignature(f"{signed.peer_id} signed another record than this record {sealed.round} of term {term}")
    return signed


class Chain:
    """The certified records of one run in `<folder>/records/00000012.record`; only verified ones get in."""

    def __init__(self, folder: Path, organizers: Collection[str], run_id: bytes) -> None:
        """Reads what is on disk and stops, with a warning, before the first file that cannot be used."""
        self.folder = folder / "records"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._organizers = organizers
        self._run_id = run_id
        self._head: SealedRecord | None = None
        self._times_updated: Counter[BlockId] = Counter()
        self._load()

    @property
    def head(self) -> SealedRecord | None:
        """The newest record; None before record 0 is here."""
        return self._head

    @property
    def num_records(self) -> int:
        return 0 if self._head is None else self._head.round + 1

    def append(self, certified: CertifiedRecord) -> SealedRecord:
        """Verify the next record and keep it; on disk when this returns. Raises like `check_certificate`."""
        sealed = check_certificate(certified, self._head, self._organizers, self._run_id)
        write_whole(self._path(sealed.round), convert.encode(certified))
        self._take(sealed)
        return sealed

    def record(self, round: int) -> CertifiedRecord:
        """The record that opened `round`; `BlobMissing` if it is not here."""
        if not 0 <= round < self.num_records:
            raise BlobMissing(f"record {round} is not here")
        return convert.decode(CertifiedRecord, self._path(round).read_bytes())

    def from_round(self, first: int) -> Iterator[CertifiedRecord]:
        """Records from `first` on, oldest first; nothing if there are none so new."""
        for round in range(max(first, 0), self.num_records):
            yield self.record(round)

    def rounds_trained(self, layout: Layout) -> dict[int, int]:
        """For each subset the rounds in which its experts were updated."""
        counts = dict.fromkeys(range(layout.manifest.training.num_subsets), 0)
        for block in layout.blocks:
            subset = layout.subset_of(block)
            if subset is not None:
                counts[subset] = max(counts[subset], self._times_updated[block.id])
        return counts

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:08d}.record"

    def _take(self, sealed: SealedRecord) -> None:
        self._head = sealed
        self._times_updated.update(update.block for update in sealed.record.updates)

    def _load(self) -> None:
        while (path := self._path(self.num_records)).exists():
            try:
                certified = convert.decode(CertifiedRecord, path.read_bytes())
                self._take(check_certificate(certified, self._head, self._organizers, self._run_id))
            except (PeerError, OSError) as error:
                log.warning(
                    "a record on disk cannot be used, it and later ones are fetched again: file=%s why=%s", path, error
                )
                return
