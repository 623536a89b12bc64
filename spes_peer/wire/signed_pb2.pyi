from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Signed(_message.Message):
    __slots__ = ("kind", "run_id", "record_hash", "peer_id", "incarnation", "counter", "body", "signature")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    run_id: bytes
    record_hash: bytes
    peer_id: str
    incarnation: int
    counter: int
    body: bytes
    signature: bytes
    def __init__(self, kind: _Optional[str] = ..., run_id: _Optional[bytes] = ..., record_hash: _Optional[bytes] = ..., peer_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., counter: _Optional[int] = ..., body: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CallToken(_message.Message):
    __slots__ = ("callee", "expires_at")
    CALLEE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    callee: str
    expires_at: float
    def __init__(self, callee: _Optional[str] = ..., expires_at: _Optional[float] = ...) -> None: ...

class PeerEntry(_message.Message):
    __slots__ = ("peer_id", "name", "version", "protocol", "role", "state", "incarnation", "grpc_addresses", "certificate", "libp2p_addresses", "dht_addresses", "max_subsets", "written_at", "is_relay")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    LIBP2P_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DHT_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBSETS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_AT_FIELD_NUMBER: _ClassVar[int]
    IS_RELAY_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    name: str
    version: str
    protocol: int
    role: str
    state: str
    incarnation: int
    grpc_addresses: _containers.RepeatedScalarFieldContainer[str]
    certificate: bytes
    libp2p_addresses: _containers.RepeatedScalarFieldContainer[str]
    dht_addresses: _containers.RepeatedScalarFieldContainer[str]
    max_subsets: int
    written_at: float
    is_relay: bool
    def __init__(self, peer_id: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., incarnation: _Optional[int] = ..., grpc_addresses: _Optional[_Iterable[str]] = ..., certificate: _Optional[bytes] = ..., libp2p_addresses: _Optional[_Iterable[str]] = ..., dht_addresses: _Optional[_Iterable[str]] = ..., max_subsets: _Optional[int] = ..., written_at: _Optional[float] = ..., is_relay: bool = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("subsets", "since_at")
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    SINCE_AT_FIELD_NUMBER: _ClassVar[int]
    subsets: _containers.RepeatedScalarFieldContainer[int]
    since_at: float
    def __init__(self, subsets: _Optional[_Iterable[int]] = ..., since_at: _Optional[float] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("round", "record_hash")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RECORD_HASH_FIELD_NUMBER: _ClassVar[int]
    round: int
    record_hash: bytes
    def __init__(self, round: _Optional[int] = ..., record_hash: _Optional[bytes] = ...) -> None: ...
