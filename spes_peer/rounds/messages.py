"""What members and coordinator tell each other, as frozen values; see proto/round.proto for each field."""

from dataclasses import dataclass
from typing import Any

from spes_peer.blobs import BlobName, check_name
from spes_peer.identity import PeerId
from spes_peer.run.invitations import InvitationProof
from spes_peer.run.offers import Offer as Offer
from spes_peer.run.offers import ReduceInput as ReduceInput
from spes_peer.run.offers import ReduceTask as ReduceTask
from spes_peer.run.records import BlockId
from spes_peer.run.records import RecordSignature as RecordSignature  # the chain checks it, so it lives below
from spes_peer.run.signed import Signed


@dataclass(frozen=True)
class Beat:
    round: int
    phase: str
    steps_done: int


@dataclass(frozen=True)
class AdmissionRequest:
    subsets: tuple[int, ...]
    tokens_per_second: float
    protocol: int
    proof: InvitationProof | None = None


@dataclass(frozen=True)
class PendingAmendment:
    amendment: Signed


@dataclass(frozen=True)
class Contribution:
    round: int
    offers: tuple[Offer, ...]
    tokens: int
    steps: int
    state_root: str
    train_loss: float
    held_out_loss_sum: float
    held_out_tokens: int
    tokens_per_second: float


@dataclass(frozen=True)
class Footing:
    round: int
    state_root: str


@dataclass(frozen=True)
class Excuse:
    round: int
    why: str


@dataclass(frozen=True)
class ReduceOrder:
    round: int
    tasks: tuple[ReduceTask, ...]


@dataclass(frozen=True)
class UpdateReport:
    round: int
    block: BlockId
    blob: str
    """Empty when no sound mean could be made."""
    size_bytes: int
    rejected: tuple[PeerId, ...]
    inputs: bytes
    """`ReduceTask.digest`."""


@dataclass(frozen=True)
class MissingOffers:
    round: int
    block: BlockId
    makers: tuple[PeerId, ...]


@dataclass(frozen=True)
class UpdateNotice:
    round: int
    block: BlockId
    blob: BlobName
    size_bytes: int
    holders: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        check_name(self.blob)


@dataclass(frozen=True)
class Holding:
    round: int
    blobs: tuple[BlobName, ...]


@dataclass(frozen=True)
class Verdict:
    round: int
    expert: int
    updates: bytes
    is_tested: bool
    objects: bool
    why: str


@dataclass(frozen=True)
class Proposal:
    term: int
    record: bytes
    votes: tuple[Signed, ...] = ()
    verdicts: tuple[Signed, ...] = ()
    footings: tuple[Signed, ...] = ()
    proofs: tuple[InvitationProof, ...] = ()


@dataclass(frozen=True)
class Appeal:
    round: int
    term: int


@dataclass(frozen=True)
class VoteRequest:
    round: int
    term: int


@dataclass(frozen=True)
class Vote:
    round: int
    previous_hash: bytes
    term: int
    record_hash: bytes
    """Empty when nothing was signed."""
    signed_term: int


@dataclass(frozen=True)
class SignedBefore:
    round: int
    record: bytes
    proofs: tuple[InvitationProof, ...] = ()


@dataclass(frozen=True)
class Referral:
    round: int
    term: int


@dataclass(frozen=True)
class Departure:
    reason: str


@dataclass(frozen=True)
class CoordinatorBeat:
    term: int
    round: int
    phase: str
    since_at: float
    waiting_for: tuple[PeerId, ...]
    until_at: float
    why: str
    sent_at: float = 0.0


@dataclass(frozen=True)
class Refusal:
    why: str


def _by_name(*classes: type[Any]) -> dict[str, type[Any]]:
    return {cls.__name__: cls for cls in classes}


FROM_MEMBER = _by_name(
    Beat,
    AdmissionRequest,
    Contribution,
    Excuse,
    Footing,
    UpdateReport,
    MissingOffers,
    Holding,
    Verdict,
    RecordSignature,
    Departure,
    Appeal,
    Vote,
    SignedBefore,
    PendingAmendment,
)
"""Kinds that a coordinator takes."""
FROM_COORDINATOR = _by_name(CoordinatorBeat, ReduceOrder, UpdateNotice, Proposal, Refusal, VoteRequest, Referral)
"""Kinds that a member takes; besides them a `CertifiedRecord`, which lives in `run.records`."""
