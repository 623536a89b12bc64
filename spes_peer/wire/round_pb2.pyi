from spes_peer.wire import record_pb2 as _record_pb2
from spes_peer.wire import signed_pb2 as _signed_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Beat(_message.Message):
    __slots__ = ("round", "phase", "steps_done")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    round: int
    phase: str
    steps_done: int
    def __init__(self, round: _Optional[int] = ..., phase: _Optional[str] = ..., steps_done: _Optional[int] = ...) -> None: ...

class AdmissionRequest(_message.Message):
    __slots__ = ("subsets", "tokens_per_second", "protocol", "proof")
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    subsets: _containers.RepeatedScalarFieldContainer[int]
    tokens_per_second: float
    protocol: int
    proof: _record_pb2.InvitationProof
    def __init__(self, subsets: _Optional[_Iterable[int]] = ..., tokens_per_second: _Optional[float] = ..., protocol: _Optional[int] = ..., proof: _Optional[_Union[_record_pb2.InvitationProof, _Mapping]] = ...) -> None: ...

class PendingAmendment(_message.Message):
    __slots__ = ("amendment",)
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    amendment: _signed_pb2.Signed
    def __init__(self, amendment: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("block", "blob", "size_bytes", "norm")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    block: str
    blob: str
    size_bytes: int
    norm: float
    def __init__(self, block: _Optional[str] = ..., blob: _Optional[str] = ..., size_bytes: _Optional[int] = ..., norm: _Optional[float] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("round", "offers", "tokens", "steps", "state_root", "train_loss", "held_out_loss_sum", "held_out_tokens", "tokens_per_second")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    round: int
    offers: _containers.RepeatedCompositeFieldContainer[Offer]
    tokens: int
    steps: int
    state_root: str
    train_loss: float
    held_out_loss_sum: float
    held_out_tokens: int
    tokens_per_second: float
    def __init__(self, round: _Optional[int] = ..., offers: _Optional[_Iterable[_Union[Offer, _Mapping]]] = ..., tokens: _Optional[int] = ..., steps: _Optional[int] = ..., state_root: _Optional[str] = ..., train_loss: _Optional[float] = ..., held_out_loss_sum: _Optional[float] = ..., held_out_tokens: _Optional[int] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class Excuse(_message.Message):
    __slots__ = ("round", "why")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    round: int
    why: str
    def __init__(self, round: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Footing(_message.Message):
    __slots__ = ("round", "state_root")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    round: int
    state_root: str
    def __init__(self, round: _Optional[int] = ..., state_root: _Optional[str] = ...) -> None: ...

class ReduceInput(_message.Message):
    __slots__ = ("peer_id", "blob", "size_bytes", "norm", "tokens", "clip")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    blob: str
    size_bytes: int
    norm: float
    tokens: int
    clip: float
    def __init__(self, peer_id: _Optional[str] = ..., blob: _Optional[str] = ..., size_bytes: _Optional[int] = ..., norm: _Optional[float] = ..., tokens: _Optional[int] = ..., clip: _Optional[float] = ...) -> None: ...

class ReduceTask(_message.Message):
    __slots__ = ("block", "reducers", "inputs")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    REDUCERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    block: str
    reducers: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.RepeatedCompositeFieldContainer[ReduceInput]
    def __init__(self, block: _Optional[str] = ..., reducers: _Optional[_Iterable[str]] = ..., inputs: _Optional[_Iterable[_Union[ReduceInput, _Mapping]]] = ...) -> None: ...

class ReduceOrder(_message.Message):
    __slots__ = ("round", "tasks")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    round: int
    tasks: _containers.RepeatedCompositeFieldContainer[ReduceTask]
    def __init__(self, round: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[ReduceTask, _Mapping]]] = ...) -> None: ...

class UpdateReport(_message.Message):
    __slots__ = ("round", "block", "blob", "size_bytes", "rejected", "inputs")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    block: str
    blob: str
    size_bytes: int
    rejected: _containers.RepeatedScalarFieldContainer[str]
    inputs: bytes
    def __init__(self, round: _Optional[int] = ..., block: _Optional[str] = ..., blob: _Optional[str] = ..., size_bytes: _Optional[int] = ..., rejected: _Optional[_Iterable[str]] = ..., inputs: _Optional[bytes] = ...) -> None: ...

class MissingOffers(_message.Message):
    __slots__ = ("round", "block", "makers")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    MAKERS_FIELD_NUMBER: _ClassVar[int]
    round: int
    block: str
    makers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., block: _Optional[str] = ..., makers: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateNotice(_message.Message):
    __slots__ = ("round", "block", "blob", "size_bytes", "holders")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    round: int
    block: str
    blob: str
    size_bytes: int
    holders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., block: _Optional[str] = ..., blob: _Optional[str] = ..., size_bytes: _Optional[int] = ..., holders: _Optional[_Iterable[str]] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("round", "blobs")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    round: int
    blobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, round: _Optional[int] = ..., blobs: _Optional[_Iterable[str]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "expert", "updates", "is_tested", "objects", "why")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    IS_TESTED_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    round: int
    expert: int
    updates: bytes
    is_tested: bool
    objects: bool
    why: str
    def __init__(self, round: _Optional[int] = ..., expert: _Optional[int] = ..., updates: _Optional[bytes] = ..., is_tested: bool = ..., objects: bool = ..., why: _Optional[str] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("term", "record", "votes", "verdicts", "footings", "proofs")
    TERM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    FOOTINGS_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    term: int
    record: bytes
    votes: _containers.RepeatedCompositeFieldContainer[_signed_pb2.Signed]
    verdicts: _containers.RepeatedCompositeFieldContainer[_signed_pb2.Signed]
    footings: _containers.RepeatedCompositeFieldContainer[_signed_pb2.Signed]
    proofs: _containers.RepeatedCompositeFieldContainer[_record_pb2.InvitationProof]
    def __init__(self, term: _Optional[int] = ..., record: _Optional[bytes] = ..., votes: _Optional[_Iterable[_Union[_signed_pb2.Signed, _Mapping]]] = ..., verdicts: _Optional[_Iterable[_Union[_signed_pb2.Signed, _Mapping]]] = ..., footings: _Optional[_Iterable[_Union[_signed_pb2.Signed, _Mapping]]] = ..., proofs: _Optional[_Iterable[_Union[_record_pb2.InvitationProof, _Mapping]]] = ...) -> None: ...

class Appeal(_message.Message):
    __slots__ = ("round", "term")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    round: int
    term: int
    def __init__(self, round: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("round", "term")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    round: int
    term: int
    def __init__(self, round: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("round", "previous_hash", "term", "record_hash", "signed_term")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNED_TERM_FIELD_NUMBER: _ClassVar[int]
    round: int
    previous_hash: bytes
    term: int
    record_hash: bytes
    signed_term: int
    def __init__(self, round: _Optional[int] = ..., previous_hash: _Optional[bytes] = ..., term: _Optional[int] = ..., record_hash: _Optional[bytes] = ..., signed_term: _Optional[int] = ...) -> None: ...

class SignedBefore(_message.Message):
    __slots__ = ("round", "record", "proofs")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    round: int
    record: bytes
    proofs: _containers.RepeatedCompositeFieldContainer[_record_pb2.InvitationProof]
    def __init__(self, round: _Optional[int] = ..., record: _Optional[bytes] = ..., proofs: _Optional[_Iterable[_Union[_record_pb2.InvitationProof, _Mapping]]] = ...) -> None: ...

class Referral(_message.Message):
    __slots__ = ("round", "term")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    round: int
    term: int
    def __init__(self, round: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("version", "round", "previous_hash", "term", "record", "signed_term", "proofs")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SIGNED_TERM_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    version: int
    round: int
    previous_hash: bytes
    term: int
    record: bytes
    signed_term: int
    proofs: _containers.RepeatedCompositeFieldContainer[_record_pb2.InvitationProof]
    def __init__(self, version: _Optional[int] = ..., round: _Optional[int] = ..., previous_hash: _Optional[bytes] = ..., term: _Optional[int] = ..., record: _Optional[bytes] = ..., signed_term: _Optional[int] = ..., proofs: _Optional[_Iterable[_Union[_record_pb2.InvitationProof, _Mapping]]] = ...) -> None: ...

class RecordSignature(_message.Message):
    __slots__ = ("round", "term", "record_hash", "uncertified")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    UNCERTIFIED_FIELD_NUMBER: _ClassVar[int]
    round: int
    term: int
    record_hash: bytes
    uncertified: bool
    def __init__(self, round: _Optional[int] = ..., term: _Optional[int] = ..., record_hash: _Optional[bytes] = ..., uncertified: bool = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CoordinatorBeat(_message.Message):
    __slots__ = ("term", "round", "phase", "since_at", "waiting_for", "until_at", "why", "sent_at")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SINCE_AT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    UNTIL_AT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    term: int
    round: int
    phase: str
    since_at: float
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    until_at: float
    why: str
    sent_at: float
    def __init__(self, term: _Optional[int] = ..., round: _Optional[int] = ..., phase: _Optional[str] = ..., since_at: _Optional[float] = ..., waiting_for: _Optional[_Iterable[str]] = ..., until_at: _Optional[float] = ..., why: _Optional[str] = ..., sent_at: _Optional[float] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...
