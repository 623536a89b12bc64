from spes_peer.wire import record_pb2 as _record_pb2
from spes_peer.wire import round_pb2 as _round_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("id", "kind", "body", "error", "error_kind")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_KIND_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    body: bytes
    error: str
    error_kind: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., body: _Optional[bytes] = ..., error: _Optional[str] = ..., error_kind: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartDht(_message.Message):
    __slots__ = ("host", "port", "run_id", "initial_peers", "watchdog_seconds", "ttl_seconds", "identity_path")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INITIAL_PEERS_FIELD_NUMBER: _ClassVar[int]
    WATCHDOG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_PATH_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    run_id: str
    initial_peers: _containers.RepeatedScalarFieldContainer[str]
    watchdog_seconds: float
    ttl_seconds: float
    identity_path: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., run_id: _Optional[str] = ..., initial_peers: _Optional[_Iterable[str]] = ..., watchdog_seconds: _Optional[float] = ..., ttl_seconds: _Optional[float] = ..., identity_path: _Optional[str] = ...) -> None: ...

class DhtStarted(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class SetDhtTime(_message.Message):
    __slots__ = ("now", "find_all")
    NOW_FIELD_NUMBER: _ClassVar[int]
    FIND_ALL_FIELD_NUMBER: _ClassVar[int]
    now: float
    find_all: bool
    def __init__(self, now: _Optional[float] = ..., find_all: bool = ...) -> None: ...

class StoreEntry(_message.Message):
    __slots__ = ("dictionary", "peer_id", "value", "expires_at", "signature")
    DICTIONARY_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    dictionary: str
    peer_id: str
    value: bytes
    expires_at: float
    signature: bytes
    def __init__(self, dictionary: _Optional[str] = ..., peer_id: _Optional[str] = ..., value: _Optional[bytes] = ..., expires_at: _Optional[float] = ..., signature: _Optional[bytes] = ...) -> None: ...

class EntryStored(_message.Message):
    __slots__ = ("stored_elsewhere",)
    STORED_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    stored_elsewhere: bool
    def __init__(self, stored_elsewhere: bool = ...) -> None: ...

class ReadDictionary(_message.Message):
    __slots__ = ("dictionary",)
    DICTIONARY_FIELD_NUMBER: _ClassVar[int]
    dictionary: str
    def __init__(self, dictionary: _Optional[str] = ...) -> None: ...

class DictionaryEntry(_message.Message):
    __slots__ = ("peer_id", "value", "expires_at")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    value: bytes
    expires_at: float
    def __init__(self, peer_id: _Optional[str] = ..., value: _Optional[bytes] = ..., expires_at: _Optional[float] = ...) -> None: ...

class Dictionary(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DictionaryEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DictionaryEntry, _Mapping]]] = ...) -> None: ...

class DhtHealth(_message.Message):
    __slots__ = ("num_neighbours", "trouble")
    NUM_NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    num_neighbours: int
    trouble: str
    def __init__(self, num_neighbours: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class AddDhtPeers(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RelayLimits(_message.Message):
    __slots__ = ("max_circuits", "max_circuits_per_peer", "bytes_per_second")
    MAX_CIRCUITS_FIELD_NUMBER: _ClassVar[int]
    MAX_CIRCUITS_PER_PEER_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    max_circuits: int
    max_circuits_per_peer: int
    bytes_per_second: int
    def __init__(self, max_circuits: _Optional[int] = ..., max_circuits_per_peer: _Optional[int] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class StartLibp2p(_message.Message):
    __slots__ = ("host", "port", "seed", "relay", "relays", "inbound_socket", "tunnel_folder")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    INBOUND_SOCKET_FIELD_NUMBER: _ClassVar[int]
    TUNNEL_FOLDER_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    seed: bytes
    relay: RelayLimits
    relays: _containers.RepeatedScalarFieldContainer[str]
    inbound_socket: str
    tunnel_folder: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., seed: _Optional[bytes] = ..., relay: _Optional[_Union[RelayLimits, _Mapping]] = ..., relays: _Optional[_Iterable[str]] = ..., inbound_socket: _Optional[str] = ..., tunnel_folder: _Optional[str] = ...) -> None: ...

class UseRelays(_message.Message):
    __slots__ = ("relays", "seen_at")
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    relays: _containers.RepeatedScalarFieldContainer[str]
    seen_at: str
    def __init__(self, relays: _Optional[_Iterable[str]] = ..., seen_at: _Optional[str] = ...) -> None: ...

class Libp2pStarted(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RelayedAddresses(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenTunnel(_message.Message):
    __slots__ = ("peer_id", "addresses")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peer_id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class TunnelOpened(_message.Message):
    __slots__ = ("socket_path",)
    SOCKET_PATH_FIELD_NUMBER: _ClassVar[int]
    socket_path: str
    def __init__(self, socket_path: _Optional[str] = ...) -> None: ...

class RouteTaken(_message.Message):
    __slots__ = ("peer_id", "relay", "is_punched")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    IS_PUNCHED_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    relay: str
    is_punched: bool
    def __init__(self, peer_id: _Optional[str] = ..., relay: _Optional[str] = ..., is_punched: bool = ...) -> None: ...

class Relayed(_message.Message):
    __slots__ = ("num_bytes", "num_circuits")
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_CIRCUITS_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    num_circuits: int
    def __init__(self, num_bytes: _Optional[int] = ..., num_circuits: _Optional[int] = ...) -> None: ...

class OpenTrainer(_message.Message):
    __slots__ = ("manifest", "blob_folder", "state_folder", "device", "num_threads", "peer_id", "resident", "checkpointing", "optimizer_bits", "memory_bytes", "memory_part")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BLOB_FOLDER_FIELD_NUMBER: _ClassVar[int]
    STATE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTING_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PART_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    blob_folder: str
    state_folder: str
    device: str
    num_threads: int
    peer_id: str
    resident: str
    checkpointing: str
    optimizer_bits: int
    memory_bytes: int
    memory_part: float
    def __init__(self, manifest: _Optional[bytes] = ..., blob_folder: _Optional[str] = ..., state_folder: _Optional[str] = ..., device: _Optional[str] = ..., num_threads: _Optional[int] = ..., peer_id: _Optional[str] = ..., resident: _Optional[str] = ..., checkpointing: _Optional[str] = ..., optimizer_bits: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_part: _Optional[float] = ...) -> None: ...

class TrainerOpened(_message.Message):
    __slots__ = ("device", "max_subsets", "tokens_per_second")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBSETS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    device: str
    max_subsets: int
    tokens_per_second: float
    def __init__(self, device: _Optional[str] = ..., max_subsets: _Optional[int] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class LoadState(_message.Message):
    __slots__ = ("round", "blocks")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    round: int
    blocks: _containers.RepeatedCompositeFieldContainer[_record_pb2.BlockName]
    def __init__(self, round: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[_record_pb2.BlockName, _Mapping]]] = ...) -> None: ...

class StateLoaded(_message.Message):
    __slots__ = ("state_root",)
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    state_root: str
    def __init__(self, state_root: _Optional[str] = ...) -> None: ...

class MeasureHeldOut(_message.Message):
    __slots__ = ("slice", "num_slices")
    SLICE_FIELD_NUMBER: _ClassVar[int]
    NUM_SLICES_FIELD_NUMBER: _ClassVar[int]
    slice: int
    num_slices: int
    def __init__(self, slice: _Optional[int] = ..., num_slices: _Optional[int] = ...) -> None: ...

class HeldOut(_message.Message):
    __slots__ = ("loss_sum", "tokens")
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    loss_sum: float
    tokens: int
    def __init__(self, loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class TrainRound(_message.Message):
    __slots__ = ("round", "first_step", "num_steps", "subsets", "ranges", "sequences_per_step", "stop_at", "carried_steps", "carried_sequences_per_step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_FIELD_NUMBER: _ClassVar[int]
    CARRIED_STEPS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_SEQUENCES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    first_step: int
    num_steps: int
    subsets: _containers.RepeatedScalarFieldContainer[int]
    ranges: _containers.RepeatedCompositeFieldContainer[_record_pb2.DataRange]
    sequences_per_step: int
    stop_at: float
    carried_steps: int
    carried_sequences_per_step: int
    def __init__(self, round: _Optional[int] = ..., first_step: _Optional[int] = ..., num_steps: _Optional[int] = ..., subsets: _Optional[_Iterable[int]] = ..., ranges: _Optional[_Iterable[_Union[_record_pb2.DataRange, _Mapping]]] = ..., sequences_per_step: _Optional[int] = ..., stop_at: _Optional[float] = ..., carried_steps: _Optional[int] = ..., carried_sequences_per_step: _Optional[int] = ...) -> None: ...

class TrainAhead(_message.Message):
    __slots__ = ("round", "first_step", "num_steps", "ranges", "sequences_per_step", "stop_at")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_FIELD_NUMBER: _ClassVar[int]
    round: int
    first_step: int
    num_steps: int
    ranges: _containers.RepeatedCompositeFieldContainer[_record_pb2.DataRange]
    sequences_per_step: int
    stop_at: float
    def __init__(self, round: _Optional[int] = ..., first_step: _Optional[int] = ..., num_steps: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[_record_pb2.DataRange, _Mapping]]] = ..., sequences_per_step: _Optional[int] = ..., stop_at: _Optional[float] = ...) -> None: ...

class StopTraining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AheadTrained(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class TrainProgress(_message.Message):
    __slots__ = ("round", "steps_done", "loss", "tokens_per_second", "memory_bytes")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    round: int
    steps_done: int
    loss: float
    tokens_per_second: float
    memory_bytes: int
    def __init__(self, round: _Optional[int] = ..., steps_done: _Optional[int] = ..., loss: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class TrainerBeat(_message.Message):
    __slots__ = ("steps_begun", "is_in_step", "planned_bytes", "is_smallest_plan", "troubles", "device")
    STEPS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    IS_IN_STEP_FIELD_NUMBER: _ClassVar[int]
    PLANNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_SMALLEST_PLAN_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    steps_begun: int
    is_in_step: bool
    planned_bytes: int
    is_smallest_plan: bool
    troubles: _containers.RepeatedScalarFieldContainer[str]
    device: DeviceFigures
    def __init__(self, steps_begun: _Optional[int] = ..., is_in_step: bool = ..., planned_bytes: _Optional[int] = ..., is_smallest_plan: bool = ..., troubles: _Optional[_Iterable[str]] = ..., device: _Optional[_Union[DeviceFigures, _Mapping]] = ...) -> None: ...

class DeviceFigures(_message.Message):
    __slots__ = ("name", "used_bytes", "own_bytes", "total_bytes", "use", "others_use", "temperature", "uuid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    OWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_USE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    used_bytes: int
    own_bytes: int
    total_bytes: int
    use: float
    others_use: float
    temperature: float
    uuid: str
    def __init__(self, name: _Optional[str] = ..., used_bytes: _Optional[int] = ..., own_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., use: _Optional[float] = ..., others_use: _Optional[float] = ..., temperature: _Optional[float] = ..., uuid: _Optional[str] = ...) -> None: ...

class RoundTrained(_message.Message):
    __slots__ = ("offers", "tokens", "steps", "train_loss", "tokens_per_second", "router_choices", "encode_seconds")
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ROUTER_CHOICES_FIELD_NUMBER: _ClassVar[int]
    ENCODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    offers: _containers.RepeatedCompositeFieldContainer[_round_pb2.Offer]
    tokens: int
    steps: int
    train_loss: float
    tokens_per_second: float
    router_choices: _containers.RepeatedScalarFieldContainer[int]
    encode_seconds: float
    def __init__(self, offers: _Optional[_Iterable[_Union[_round_pb2.Offer, _Mapping]]] = ..., tokens: _Optional[int] = ..., steps: _Optional[int] = ..., train_loss: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., router_choices: _Optional[_Iterable[int]] = ..., encode_seconds: _Optional[float] = ...) -> None: ...

class ReduceBlock(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: _round_pb2.ReduceTask
    def __init__(self, task: _Optional[_Union[_round_pb2.ReduceTask, _Mapping]] = ...) -> None: ...

class BlockReduced(_message.Message):
    __slots__ = ("blob", "size_bytes", "rejected")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    blob: str
    size_bytes: int
    rejected: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, blob: _Optional[str] = ..., size_bytes: _Optional[int] = ..., rejected: _Optional[_Iterable[str]] = ...) -> None: ...

class TryExpert(_message.Message):
    __slots__ = ("round", "expert", "blobs", "slice", "num_slices")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    NUM_SLICES_FIELD_NUMBER: _ClassVar[int]
    round: int
    expert: int
    blobs: _containers.RepeatedScalarFieldContainer[str]
    slice: int
    num_slices: int
    def __init__(self, round: _Optional[int] = ..., expert: _Optional[int] = ..., blobs: _Optional[_Iterable[str]] = ..., slice: _Optional[int] = ..., num_slices: _Optional[int] = ...) -> None: ...

class ExpertTried(_message.Message):
    __slots__ = ("loss_before", "loss_after", "fault")
    LOSS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    LOSS_AFTER_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    loss_before: float
    loss_after: float
    fault: str
    def __init__(self, loss_before: _Optional[float] = ..., loss_after: _Optional[float] = ..., fault: _Optional[str] = ...) -> None: ...

class ApplyRecord(_message.Message):
    __slots__ = ("record", "keep_snapshot")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    KEEP_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    keep_snapshot: bool
    def __init__(self, record: _Optional[bytes] = ..., keep_snapshot: bool = ...) -> None: ...

class RecordApplied(_message.Message):
    __slots__ = ("state_root", "blocks")
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    state_root: str
    blocks: _containers.RepeatedCompositeFieldContainer[_record_pb2.BlockName]
    def __init__(self, state_root: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[_record_pb2.BlockName, _Mapping]]] = ...) -> None: ...
