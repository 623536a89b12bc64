"""The chain of records on disk: what is verified gets in, and a better chain takes the place of an uncertified end.

Files are written one at a time and read in order, so that a crash at any instant leaves a shorter chain that is whole.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spes_peer.errors import BadMessage, BlobMissing, DiskTrouble, PeerError
from spes_peer.files import our_disk, write_whole
from spes_peer.run.certificates import Checks
from spes_peer.run.layout import Layout
from spes_peer.run.leases import Leases
from spes_peer.run.lineage import Lineage, Rank, branch_of
from spes_peer.run.marks import Marks
from spes_peer.run.norms import Norms
from spes_peer.run.records import BlockId, CertifiedRecord, SealedRecord
from spes_peer.run.tallies import Tallies
from spes_peer.wire import convert

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Switch:
    """Another chain has taken the place of the end of ours."""

    first_round: int
    """The first round in which they differ."""
    lost: tuple[SealedRecord, ...]
    """Records of ours that count no more; all were uncertified."""

    @property
    def lost_tokens(self) -> int:
        return sum(one.record.tokens for one in self.lost)


@dataclass(frozen=True)
class _Known:
    """What is remembered of the records up to some round."""

    lineage: Lineage | None = None
    times_updated: Mapping[BlockId, int] = field(default_factory=dict)
    last_updated: Mapping[BlockId, int] = field(default_factory=dict)
    leases: Leases = field(default_factory=Leases)
    norms: Norms = field(default_factory=Norms)
    marks: Marks = field(default_factory=Marks)
    tallies: Tallies = field(default_factory=Tallies)

    def followed_by(self, lineage: Lineage) -> "_Known":
        """… with one record more, at the head of `lineage`."""
        record = lineage.head.record
        blocks = [update.block for update in record.updates]
        times = {block: self.times_updated.get(block, 0) + 1 for block in blocks}
        return _Known(
            lineage,
            {**self.times_updated, **times},
            {**self.last_updated, **dict.fromkeys(blocks, record.round)},
            self.leases.after(record),
            self.norms.after(record),
            self.marks.after(record),
            self.tallies.after(record),
        )


class Chain:
    """The records of one run in `<folder>/records/00000012.record`."""

    def __init__(self, folder: Path, checks: Checks) -> None:
        """Reads what is on disk and stops, with a warning, before the first file that cannot be used."""
        self.folder = folder / "records"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checks = checks
        self._known = self._settled = _Known()
        self._load()

    @property
    def _lineage(self) -> Lineage | None:
        return self._known.lineage

    @property
    def head(self) -> SealedRecord | None:
        """The newest record; None before record 0 is here."""
        return None if self._lineage is None else self._lineage.head

    @property
    def num_records(self) -> int:
        return 0 if self._lineage is None else self._lineage.head.round + 1

    @property
    def certified_round(self) -> int:
        """Of the newest record that counts as certified; -1 before record 0 is here."""
        return -1 if self._lineage is None else self._lineage.certified_round

    @property
    def rank(self) -> Rank:
        return Rank(-1) if self._lineage is None else self._lineage.rank

    def append(self, certified: CertifiedRecord, may_be_uncertified: bool = True) -> SealedRecord:
        """Verify the next record and keep it; on disk when this returns. Raises like `check_record`."""
        lineage = self._followed_by(certified)
        if not may_be_uncertified and lineage.tail:
            raise BadMessage(f"record {lineage.head.round} is not certified, and the run has not stalled")
        self._write(certified)
        self._take(lineage)
        return lineage.head

    def improve(self, certified: CertifiedRecord) -> bool:
        """Take a better certificate of a record that does not count as certified; whether more records do now.

        Raises like `check_record`."""
        round, before = certified.sealed.round, self._lineage
        if before is None or not before.certified_round < round < self.num_records:
            return False
        lineage = before.improved(certified, self.record(round - 1).sealed)
        if lineage == before:
            return False
        self._write(certified)
        self._keep(replace(self._known, lineage=lineage))
        return lineage.certified_round > before.certified_round

    def adopt(self, branch: Sequence[CertifiedRecord]) -> Switch | None:
        """Follow `branch`, which begins behind our newest certified record, if it ranks above what is here; None if
        not. Raises like `check_record`, and `DiskTrouble` if nothing of it can be kept."""
        assert self._lineage is not None
        base = self.record(self.certified_round).sealed
        rank = branch_of(base, branch, self.checks).rank
        if rank <= self.rank:
            return None
        ours = [self.record(round).sealed for round in range(base.round + 1, self.num_records)]
        same = 0
        while same < min(len(ours), len(branch)) and ours[same].hash == branch[same].sealed.hash:
            same += 1
        for certified in branch[:same]:
            self.improve(certified)
        if rank <= self.rank:  # it was no more than better certificates of what is here
            return None
        return self._replace_end(ours[same:], branch[same:])

    def _replace_end(self, ours: Sequence[SealedRecord], theirs: Sequence[CertifiedRecord]) -> Switch:
        """Where the disk does not take it all, the chain ends earlier and the rest is fetched again; `DiskTrouble`
        where it takes nothing."""
        before, trouble = self.head, None
        try:
            with our_disk(self.folder):
                for sealed in reversed(ours):
                    self._path(sealed.round).unlink()
            for certified in theirs:
                self._write(certified)
        except DiskTrouble as error:
            trouble = error
        self._load()
        if trouble is not None:
            if self.head == before:
                raise trouble
            log.warning(
                "only a part of a better chain could be kept newest=%d reason=%s", self.num_records - 1, trouble
            )
        gone = tuple(one for one in ours if one.round >= self.num_records or self.record(one.round).sealed != one)
        return Switch(gone[0].round if gone else theirs[0].sealed.round, gone)

    def record(self, round: int) -> CertifiedRecord:
        """The record that opened `round`; `BlobMissing` if it is not here, or the disk has changed it."""
        if not 0 <= round < self.num_records:
            raise BlobMissing(f"record {round} is not here")
        if (certified := self._read(round)) is None:
            raise BlobMissing(f"record {round} cannot be read, the next start fetches it again")
        return certified

    def from_round(self, first: int) -> Iterator[CertifiedRecord]:
        """Records from `first` on, oldest first; nothing if there are none so new."""
        for round in range(max(first, 0), self.num_records):
            yield self.record(round)

    def first_uncertified(self) -> CertifiedRecord | None:
        """The first record that does not count as certified; once that is, those behind it may count too."""
        return self.record(self.certified_round + 1) if self.certified_round < self.num_records - 1 else None

    def rounds_trained(self, layout: Layout) -> dict[int, int]:
        """For each subset the rounds in which its experts were updated."""
        return self._by_subset(layout, self._known.times_updated)

    def last_trained(self, layout: Layout) -> dict[int, int]:
        """For each subset the newest record with an update of its experts; 0 for none."""
        return self._by_subset(layout, self._known.last_updated)

    @property
    def leases(self) -> Leases:
        """Of everybody that ever stood in a roster."""
        return self._known.leases

    @property
    def marks(self) -> Marks:
        """Against owners of harmful experts."""
        return self._known.marks

    @property
    def tallies(self) -> Tallies:
        """What everybody has given."""
        return self._known.tallies

    def norms_at(self, round: int) -> Norms:
        """What was usual when this record was the newest one; `BlobMissing` as from `record`."""
        if round == self.num_records - 1:
            return self._known.norms
        settled = self._settled.lineage
        first, norms = (settled.head.round + 1, self._settled.norms) if settled else (0, Norms())
        if first > round + 1:
            first, norms = 0, Norms()
        for before in range(first, round + 1):
            norms = norms.after(self.record(before).sealed.record)
        return norms

    def _by_subset(self, layout: Layout, by_block: Mapping[BlockId, int]) -> dict[int, int]:
        numbers = dict.fromkeys(range(layout.manifest.training.num_subsets), 0)
        for block in layout.blocks:
            subset = layout.subset_of(block)
            if subset is not None:
                numbers[subset] = max(numbers[subset], by_block.get(block.id, 0))
        return numbers

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:08d}.record"

    def _write(self, certified: CertifiedRecord) -> None:
        write_whole(self._path(certified.sealed.round), convert.encode(certified))

    def _followed_by(self, certified: CertifiedRecord) -> Lineage:
        if self._lineage is None:
            return Lineage.begun(certified, self.checks)
        return self._lineage.followed_by(certified)

    def _take(self, lineage: Lineage) -> None:
        self._keep(self._known.followed_by(lineage))

    def _keep(self, known: _Known) -> None:
        self._known = known
        if self.certified_round == self.num_records - 1:
            self._settled = known

    def _load(self) -> None:
        """Read again what lies behind the records that are settled: those count as certified and do not change."""
        self._known = self._settled
        while (certified := self._read(self.num_records)) is not None:
            try:
                self._take(self._followed_by(certified))
            except PeerError as error:
                log.warning("a record does not belong where it is: %s: %s", self._path(self.num_records), error)
                return

    def _read(self, round: int) -> CertifiedRecord | None:
        """From disk; None for a record that is not there, or cannot be used: it and later ones are fetched again."""
        path = self._path(round)
        try:
            return convert.decode(CertifiedRecord, path.read_bytes()) if path.exists() else None
        except (PeerError, OSError) as error:
            log.warning("a record on disk cannot be read, it and later ones are fetched again: %s: %s", path, error)
            return None
