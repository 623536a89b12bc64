from spes_peer.wire import signed_pb2 as _signed_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SignedManifest(_message.Message):
    __slots__ = ("manifest", "organizer", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ORGANIZER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    organizer: str
    signature: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., organizer: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class DataRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("peer_id", "incarnation", "subsets", "ranges", "sequences_per_step", "carried_steps", "carried_sequences_per_step", "ahead")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    CARRIED_STEPS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_SEQUENCES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    incarnation: int
    subsets: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedCompositeFieldContainer[DataRange]
    sequences_per_step: int
    carried_steps: int
    carried_sequences_per_step: int
    ahead: _containers.RepeatedCompositeFieldContainer[DataRange]
    def __init__(self, peer_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., subsets: _Optional[_Iterable[int]] = ..., ranges: _Optional[_Iterable[_Union[DataRange, _Mapping]]] = ..., sequences_per_step: _Optional[int] = ..., carried_steps: _Optional[int] = ..., carried_sequences_per_step: _Optional[int] = ..., ahead: _Optional[_Iterable[_Union[DataRange, _Mapping]]] = ...) -> None: ...

class Contributor(_message.Message):
    __slots__ = ("peer_id", "tokens", "clip", "norm")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    tokens: int
    clip: float
    norm: float
    def __init__(self, peer_id: _Optional[str] = ..., tokens: _Optional[int] = ..., clip: _Optional[float] = ..., norm: _Optional[float] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("block", "blob", "size_bytes", "contributors", "reducers")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    REDUCERS_FIELD_NUMBER: _ClassVar[int]
    block: str
    blob: str
    size_bytes: int
    contributors: _containers.RepeatedCompositeFieldContainer[Contributor]
    reducers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, block: _Optional[str] = ..., blob: _Optional[str] = ..., size_bytes: _Optional[int] = ..., contributors: _Optional[_Iterable[_Union[Contributor, _Mapping]]] = ..., reducers: _Optional[_Iterable[str]] = ...) -> None: ...

class BlockReducers(_message.Message):
    __slots__ = ("block", "reducers")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    REDUCERS_FIELD_NUMBER: _ClassVar[int]
    block: str
    reducers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, block: _Optional[str] = ..., reducers: _Optional[_Iterable[str]] = ...) -> None: ...

class BlockName(_message.Message):
    __slots__ = ("block", "blob", "size_bytes")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    block: str
    blob: str
    size_bytes: int
    def __init__(self, block: _Optional[str] = ..., blob: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("version", "run_id", "round", "previous_hash", "state_root", "held_out_loss", "train_loss", "tokens", "step", "updates", "merge_alpha", "roster", "reducers", "candidates", "next_position", "returned", "opened_at", "deadline_at", "genesis", "is_final", "harmful", "amendment")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_LOSS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    MERGE_ALPHA_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    REDUCERS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    HARMFUL_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    version: int
    run_id: bytes
    round: int
    previous_hash: bytes
    state_root: str
    held_out_loss: float
    train_loss: float
    tokens: int
    step: int
    updates: _containers.RepeatedCompositeFieldContainer[Update]
    merge_alpha: float
    roster: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    reducers: _containers.RepeatedCompositeFieldContainer[BlockReducers]
    candidates: _containers.RepeatedScalarFieldContainer[str]
    next_position: int
    returned: _containers.RepeatedCompositeFieldContainer[DataRange]
    opened_at: float
    deadline_at: float
    genesis: _containers.RepeatedCompositeFieldContainer[BlockName]
    is_final: bool
    harmful: _containers.RepeatedScalarFieldContainer[str]
    amendment: _signed_pb2.Signed
    def __init__(self, version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., round: _Optional[int] = ..., previous_hash: _Optional[bytes] = ..., state_root: _Optional[str] = ..., held_out_loss: _Optional[float] = ..., train_loss: _Optional[float] = ..., tokens: _Optional[int] = ..., step: _Optional[int] = ..., updates: _Optional[_Iterable[_Union[Update, _Mapping]]] = ..., merge_alpha: _Optional[float] = ..., roster: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ..., reducers: _Optional[_Iterable[_Union[BlockReducers, _Mapping]]] = ..., candidates: _Optional[_Iterable[str]] = ..., next_position: _Optional[int] = ..., returned: _Optional[_Iterable[_Union[DataRange, _Mapping]]] = ..., opened_at: _Optional[float] = ..., deadline_at: _Optional[float] = ..., genesis: _Optional[_Iterable[_Union[BlockName, _Mapping]]] = ..., is_final: bool = ..., harmful: _Optional[_Iterable[str]] = ..., amendment: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ...) -> None: ...

class Rules(_message.Message):
    __slots__ = ("paused_at", "finish_after_round", "round_seconds", "quorum", "banned", "organizers", "listed", "revoked")
    PAUSED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISH_AFTER_ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    BANNED_FIELD_NUMBER: _ClassVar[int]
    ORGANIZERS_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    paused_at: float
    finish_after_round: int
    round_seconds: float
    quorum: int
    banned: _containers.RepeatedScalarFieldContainer[str]
    organizers: _containers.RepeatedScalarFieldContainer[str]
    listed: _containers.RepeatedScalarFieldContainer[str]
    revoked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, paused_at: _Optional[float] = ..., finish_after_round: _Optional[int] = ..., round_seconds: _Optional[float] = ..., quorum: _Optional[int] = ..., banned: _Optional[_Iterable[str]] = ..., organizers: _Optional[_Iterable[str]] = ..., listed: _Optional[_Iterable[str]] = ..., revoked: _Optional[_Iterable[str]] = ...) -> None: ...

class Amendment(_message.Message):
    __slots__ = ("number", "follows", "amended_at", "rules")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    AMENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    number: int
    follows: bytes
    amended_at: float
    rules: Rules
    def __init__(self, number: _Optional[int] = ..., follows: _Optional[bytes] = ..., amended_at: _Optional[float] = ..., rules: _Optional[_Union[Rules, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("invitation", "expires_at", "peer_id")
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    invitation: str
    expires_at: float
    peer_id: str
    def __init__(self, invitation: _Optional[str] = ..., expires_at: _Optional[float] = ..., peer_id: _Optional[str] = ...) -> None: ...

class Invitation(_message.Message):
    __slots__ = ("grant", "seed")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    grant: _signed_pb2.Signed
    seed: bytes
    def __init__(self, grant: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ..., seed: _Optional[bytes] = ...) -> None: ...

class InvitationProof(_message.Message):
    __slots__ = ("peer_id", "grant", "signature")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    grant: _signed_pb2.Signed
    signature: bytes
    def __init__(self, peer_id: _Optional[str] = ..., grant: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CertifiedRecord(_message.Message):
    __slots__ = ("record", "term", "signatures")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    term: int
    signatures: _containers.RepeatedCompositeFieldContainer[_signed_pb2.Signed]
    def __init__(self, record: _Optional[bytes] = ..., term: _Optional[int] = ..., signatures: _Optional[_Iterable[_Union[_signed_pb2.Signed, _Mapping]]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("round", "blocks")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    round: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockName]
    def __init__(self, round: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockName, _Mapping]]] = ...) -> None: ...
