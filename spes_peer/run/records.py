"""The chain of records, as frozen values.

Record 0 is the organizer's: it names the genesis blocks and the bootstrap nodes, and its roster is empty. Record r
closes round r−1 (its updates) and opens round r (its roster). A record's hash is the sha256 of its bytes as they
travelled, so `SealedRecord` keeps both.
"""

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from spes_peer.blobs import BlobName, check_name
from spes_peer.identity import PeerId
from spes_peer.run.signed import Signed
from spes_peer.wire import convert

RECORD_VERSION = 1

BlockId = NewType("BlockId", str)  # "shared/0007", "expert/03/0002"


@dataclass(frozen=True)
class DataRange:
    """Positions [start, end) of the global shuffle; a position is one sequence."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"an empty range [{self.start}, {self.end})")

    @property
    def num_sequences(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class RosterEntry:
    peer_id: PeerId
    incarnation: int
    subsets: tuple[int, ...]
    ranges: tuple[DataRange, ...]
    sequences_per_step: int
    carried_steps: int = 0
    carried_sequences_per_step: int = 0
    ahead: tuple[DataRange, ...] = ()

    def sequences_in(self, num_steps: int) -> int:
        """Sequences of the first so many steps of the round."""
        carried = min(num_steps, self.carried_steps)
        return carried * self.carried_sequences_per_step + (num_steps - carried) * self.sequences_per_step


@dataclass(frozen=True)
class Contributor:
    peer_id: PeerId
    tokens: int
    clip: float
    norm: float

    def __post_init__(self) -> None:
        if not (0 < self.clip <= 1 and self.tokens > 0 and self.norm >= 0):
            raise ValueError(f"contributor with {self.tokens} tokens, clip factor {self.clip} and norm {self.norm}")


@dataclass(frozen=True)
class Update:
    block: BlockId
    blob: BlobName
    size_bytes: int
    contributors: tuple[Contributor, ...]
    reducers: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        check_name(self.blob)
        if not self.contributors:
            raise ValueError(f"an update of {self.block} by nobody")


@dataclass(frozen=True)
class BlockReducers:
    block: BlockId
    reducers: tuple[PeerId, ...]


@dataclass(frozen=True)
class BlockName:
    block: BlockId
    blob: BlobName
    size_bytes: int

    def __post_init__(self) -> None:
        check_name(self.blob)


@dataclass(frozen=True)
class Record:
    """See proto/record.proto for what each field says."""

    version: int
    run_id: bytes
    round: int
    previous_hash: bytes
    state_root: str
    held_out_loss: float
    train_loss: float
    tokens: int
    step: int
    updates: tuple[Update, ...]
    merge_alpha: float
    roster: tuple[RosterEntry, ...]
    reducers: tuple[BlockReducers, ...]
    candidates: tuple[PeerId, ...]
    next_position: int
    returned: tuple[DataRange, ...]
    opened_at: float
    deadline_at: float
    genesis: tuple[BlockName, ...] = ()
    is_final: bool = False
    harmful: tuple[PeerId, ...] = ()
    amendment: Signed | None = None
    """The newest of the rules (`run.rules`); None until there is one."""

    def seal(self) -> "SealedRecord":
        return SealedRecord(self, convert.encode(self))

    @cached_property
    def trained(self) -> dict[PeerId, int]:
        """Whose training its updates hold, and how many tokens of it."""
        return tokens_by_peer(self.updates)

    @cached_property
    def members(self) -> frozenset[PeerId]:
        """Who is on the roster."""
        return frozenset(entry.peer_id for entry in self.roster)

    @cached_property
    def trains(self) -> bool:
        """Whether anybody trains in the round that it opens: nobody does in one that rests, nor behind the last."""
        return any(entry.sequences_per_step for entry in self.roster)

    @cached_property
    def _entries(self) -> dict[str, RosterEntry]:
        return {entry.peer_id: entry for entry in reversed(self.roster)}

    def entry_of(self, peer_id: str) -> RosterEntry | None:
        return self._entries.get(peer_id)

    def owners_of(self, subset: int) -> tuple[PeerId, ...]:
        return tuple(entry.peer_id for entry in self.roster if subset in entry.subsets)


def first_record(run_id: bytes, genesis: tuple[BlockName, ...], candidates: tuple[PeerId, ...], now: float) -> Record:
    """Record 0: the genesis blocks, and nobody on the roster yet."""
    return Record(
        version=RECORD_VERSION,
        run_id=run_id,
        round=0,
        previous_hash=b"",
        state_root=state_root(genesis),
        held_out_loss=-1.0,
        train_loss=-1.0,
        tokens=0,
        step=0,
        updates=(),
        merge_alpha=0.0,
        roster=(),
        reducers=(),
        candidates=candidates,
        next_position=0,
        returned=(),
        opened_at=now,
        deadline_at=now,
        genesis=genesis,
    )


@functools.lru_cache(maxsize=2)
def _decoded(content: bytes) -> Record:
    """A member is asked to sign a record, and then gets it again with its certificate."""
    return convert.decode(Record, content)


@dataclass(frozen=True)
class SealedRecord:
    """A record with the bytes that were hashed and signed."""

    record: Record
    content: bytes

    @classmethod
    def from_bytes(cls, content: bytes) -> "SealedRecord":
        """Raises `BadMessage`."""
        return cls(_decoded(content), content)

    @cached_property
    def hash(self) -> bytes:
        return hashlib.sha256(self.content).digest()

    @property
    def round(self) -> int:
        return self.record.round


@dataclass(frozen=True)
class CertifiedRecord:
    """A record's bytes and the signatures under it; who must have signed is `run.chain`'s to check."""

    record: bytes
    term: int
    signatures: tuple[Signed, ...]

    @cached_property
    def sealed(self) -> SealedRecord:
        return SealedRecord.from_bytes(self.record)


@dataclass(frozen=True)
class RecordSignature:
    """Inside a `Signed`: I agree to this record, and to no other in this round and term."""

    round: int
    term: int
    record_hash: bytes
    uncertified: bool = False
    """Goes on with it, and does not vote for it: it does not count towards certifying."""


@dataclass(frozen=True)
class Snapshot:
    """A whole public state by the names of its blocks, in block order."""

    round: int
    blocks: tuple[BlockName, ...]


def tokens_by_peer(updates: Iterable[Update]) -> dict[PeerId, int]:
    """Whose training the updates hold, and how many tokens of it."""
    return {part.peer_id: part.tokens for update in updates for part in update.contributors}


def state_root(blocks: tuple[BlockName, ...]) -> str:
    """sha256 over the sorted lines "block id, name of its bytes as a blob"."""
    lines = sorted(f"{block.block} {block.blob}\n" for block in blocks)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
