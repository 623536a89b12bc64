"""What a crash leaves: records, ballots, the last proposal, the number of starts, the state that was applied.

The chain and the votes are the program's own; only their files are entries of a dictionary here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from spes_peer.following.voting import Voter
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.messages import Proposal, RecordSignature
from spes_peer.run.certificates import Checks
from spes_peer.run.chain import Chain, _Known
from spes_peer.run.layout import Layout
from spes_peer.run.records import CertifiedRecord, SealedRecord

_NOTHING = _Known()  # one for all nodes: what follows from it is computed once


@dataclass
class Disk:
    """Of one machine."""

    records: dict[int, CertifiedRecord] = field(default_factory=dict)
    ballots: dict[bytes, Ballot] = field(default_factory=dict)
    """By the hash of the record that they let another follow."""
    proposal: bytes | None = None
    amendment: bytes | None = None
    num_starts: int = 0
    roots: list[tuple[bytes, str]] = field(default_factory=list)
    """The hash of each record that was applied, and the state root after it."""


@dataclass(frozen=True)
class File:
    """The file of the last proposal, for who has only its path."""

    disk: Disk
    write: Callable[[bytes], None]

    def read_bytes(self) -> bytes:
        if self.disk.proposal is None:
            raise FileNotFoundError
        return self.disk.proposal


def write_whole(file: File | AmendmentFile, content: bytes) -> None:
    """In place of `files.write_whole`."""
    file.write(content)


@dataclass(frozen=True)
class AmendmentFile:
    """The file of the amendment that waits."""

    disk: Disk
    write: Callable[[bytes | None], None]

    def read_bytes(self) -> bytes:
        if self.disk.amendment is None:
            raise FileNotFoundError
        return self.disk.amendment

    def unlink(self, missing_ok: bool) -> None:
        self.write(None)


@dataclass(frozen=True)
class Ballots:
    """In place of the folder of ballots."""

    by_hash: dict[bytes, Ballot]
    write: Callable[[Ballot], None]
    on_signed: Callable[[SealedRecord, RecordSignature], None]


@dataclass(frozen=True)
class Folder:
    """What a node asks of its state folder."""

    ballots: Ballots
    proposal: File


@dataclass(frozen=True)
class _RecordFile:
    """What `Chain` does with the path of a record."""

    records: dict[int, CertifiedRecord]
    round: int

    def unlink(self) -> None:
        del self.records[self.round]


class DiskChain(Chain):
    """The chain of records in a dictionary."""

    def __init__(
        self,
        records: dict[int, CertifiedRecord],
        checks: Checks,
        write: Callable[[CertifiedRecord], None],
    ) -> None:
        self.checks = checks
        self.folder = Path()
        self._write_file = write
        self._records = records
        self._known = self._settled = _NOTHING
        self._load()

    def record(self, round: int) -> CertifiedRecord:
        return self._records[round] if 0 <= round < self.num_records else super().record(round)

    def _path(self, round: int) -> _RecordFile:  # type: ignore[override]
        return _RecordFile(self._records, round)

    def _write(self, certified: CertifiedRecord) -> None:
        self._write_file(certified)

    def _read(self, round: int) -> CertifiedRecord | None:
        return self._records.get(round)


class DiskVoter(Voter):
    """Votes and signatures by the program's rules, with ballots in a dictionary."""

    def __init__(self, ballots: Ballots, layout: Layout) -> None:
        self._ballots = ballots
        self._layout = layout

    def sign(self, proposal: Proposal, *args: object) -> RecordSignature | None:
        return self._noted(proposal, super().sign(proposal, *args))  # type: ignore[arg-type]

    def sign_late(self, proposal: Proposal, *args: object) -> RecordSignature | None:
        return self._noted(proposal, super().sign_late(proposal, *args))  # type: ignore[arg-type]

    def _noted(self, proposal: Proposal, signature: RecordSignature | None) -> RecordSignature | None:
        if signature is not None:
            self._ballots.on_signed(SealedRecord.from_bytes(proposal.record), signature)
        return signature

    def forget_before(self, certified_round: int) -> None:
        by_hash = self._ballots.by_hash
        for key in [key for key, ballot in by_hash.items() if ballot.round < certified_round]:
            del by_hash[key]

    def _ballot_behind(self, head: SealedRecord) -> Ballot:
        return self._ballots.by_hash.get(head.hash) or Ballot.behind(head)

    def _keep(self, ballot: Ballot) -> None:
        self._ballots.write(ballot)
