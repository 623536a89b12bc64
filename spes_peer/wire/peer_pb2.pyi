from spes_peer.wire import record_pb2 as _record_pb2
from spes_peer.wire import signed_pb2 as _signed_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("manifest", "entry", "head_round", "now")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    HEAD_ROUND_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    manifest: _record_pb2.SignedManifest
    entry: _signed_pb2.Signed
    head_round: int
    now: float
    def __init__(self, manifest: _Optional[_Union[_record_pb2.SignedManifest, _Mapping]] = ..., entry: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ..., head_round: _Optional[int] = ..., now: _Optional[float] = ...) -> None: ...

class StandingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Standing(_message.Message):
    __slots__ = ("head_round", "head_hash", "certified_round", "term", "hears_coordinator")
    HEAD_ROUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_HASH_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_ROUND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARS_COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    head_round: int
    head_hash: bytes
    certified_round: int
    term: int
    hears_coordinator: bool
    def __init__(self, head_round: _Optional[int] = ..., head_hash: _Optional[bytes] = ..., certified_round: _Optional[int] = ..., term: _Optional[int] = ..., hears_coordinator: bool = ...) -> None: ...

class RecordsRequest(_message.Message):
    __slots__ = ("from_round",)
    FROM_ROUND_FIELD_NUMBER: _ClassVar[int]
    from_round: int
    def __init__(self, from_round: _Optional[int] = ...) -> None: ...

class SnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Snapshots(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[_record_pb2.Snapshot]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[_record_pb2.Snapshot, _Mapping]]] = ...) -> None: ...

class HaveRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class HaveReply(_message.Message):
    __slots__ = ("size_bytes", "bitmap", "uploads")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    bitmap: bytes
    uploads: _containers.RepeatedCompositeFieldContainer[Upload]
    def __init__(self, size_bytes: _Optional[int] = ..., bitmap: _Optional[bytes] = ..., uploads: _Optional[_Iterable[_Union[Upload, _Mapping]]] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("peer", "bitmap")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    peer: str
    bitmap: bytes
    def __init__(self, peer: _Optional[str] = ..., bitmap: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("name", "with_digests", "pieces")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WITH_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    name: str
    with_digests: bool
    pieces: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., with_digests: bool = ..., pieces: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("digests", "piece", "content")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    piece: int
    content: bytes
    def __init__(self, digests: _Optional[bytes] = ..., piece: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("grpc_addresses", "certificate", "other_addresses")
    GRPC_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    grpc_addresses: _containers.RepeatedScalarFieldContainer[str]
    certificate: bytes
    other_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, grpc_addresses: _Optional[_Iterable[str]] = ..., certificate: _Optional[bytes] = ..., other_addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("observed", "failures", "home_address")
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    HOME_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    observed: str
    failures: _containers.RepeatedScalarFieldContainer[str]
    home_address: str
    def __init__(self, observed: _Optional[str] = ..., failures: _Optional[_Iterable[str]] = ..., home_address: _Optional[str] = ...) -> None: ...

class AmendRequest(_message.Message):
    __slots__ = ("amendment",)
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    amendment: _signed_pb2.Signed
    def __init__(self, amendment: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ...) -> None: ...

class AmendReply(_message.Message):
    __slots__ = ("why_not", "carried", "pending")
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    why_not: str
    carried: _signed_pb2.Signed
    pending: _signed_pb2.Signed
    def __init__(self, why_not: _Optional[str] = ..., carried: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ..., pending: _Optional[_Union[_signed_pb2.Signed, _Mapping]] = ...) -> None: ...
