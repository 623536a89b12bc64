from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(_message.Message):
    __slots__ = ("name", "since_at", "waiting_for", "until_at", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_AT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    UNTIL_AT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    since_at: float
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    until_at: float
    why: str
    def __init__(self, name: _Optional[str] = ..., since_at: _Optional[float] = ..., waiting_for: _Optional[_Iterable[str]] = ..., until_at: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ("name", "state", "since_at", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_AT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    since_at: float
    why: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., since_at: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class RunInfo(_message.Message):
    __slots__ = ("run_id", "name", "organizer", "model", "num_experts", "num_subsets", "steps_per_round", "total_steps")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ORGANIZER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBSETS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_ROUND_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    organizer: str
    model: str
    num_experts: int
    num_subsets: int
    steps_per_round: int
    total_steps: int
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., organizer: _Optional[str] = ..., model: _Optional[str] = ..., num_experts: _Optional[int] = ..., num_subsets: _Optional[int] = ..., steps_per_round: _Optional[int] = ..., total_steps: _Optional[int] = ...) -> None: ...

class SubsetStatus(_message.Message):
    __slots__ = ("subset", "experts", "owners", "claimants", "rounds_trained", "router_share", "lapsing")
    SUBSET_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    CLAIMANTS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    ROUTER_SHARE_FIELD_NUMBER: _ClassVar[int]
    LAPSING_FIELD_NUMBER: _ClassVar[int]
    subset: int
    experts: _containers.RepeatedScalarFieldContainer[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    claimants: _containers.RepeatedScalarFieldContainer[str]
    rounds_trained: int
    router_share: float
    lapsing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subset: _Optional[int] = ..., experts: _Optional[_Iterable[int]] = ..., owners: _Optional[_Iterable[str]] = ..., claimants: _Optional[_Iterable[str]] = ..., rounds_trained: _Optional[int] = ..., router_share: _Optional[float] = ..., lapsing: _Optional[_Iterable[str]] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("transport", "bytes_sent", "bytes_received")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    transport: str
    bytes_sent: int
    bytes_received: int
    def __init__(self, transport: _Optional[str] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("peer_id", "name", "role", "state", "subsets", "transport", "sequences_per_step", "is_self", "is_coordinator", "traffic", "seen_at", "route", "transport_why", "tokens_per_second", "round_trip_seconds", "version", "standing")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    IS_SELF_FIELD_NUMBER: _ClassVar[int]
    IS_COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_WHY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    name: str
    role: str
    state: str
    subsets: _containers.RepeatedScalarFieldContainer[int]
    transport: str
    sequences_per_step: int
    is_self: bool
    is_coordinator: bool
    traffic: _containers.RepeatedCompositeFieldContainer[Traffic]
    seen_at: float
    route: str
    transport_why: str
    tokens_per_second: float
    round_trip_seconds: float
    version: str
    standing: str
    def __init__(self, peer_id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., subsets: _Optional[_Iterable[int]] = ..., transport: _Optional[str] = ..., sequences_per_step: _Optional[int] = ..., is_self: bool = ..., is_coordinator: bool = ..., traffic: _Optional[_Iterable[_Union[Traffic, _Mapping]]] = ..., seen_at: _Optional[float] = ..., route: _Optional[str] = ..., transport_why: _Optional[str] = ..., tokens_per_second: _Optional[float] = ..., round_trip_seconds: _Optional[float] = ..., version: _Optional[str] = ..., standing: _Optional[str] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("id", "what", "direction", "bytes_done", "num_bytes", "bytes_per_second", "peers", "transports", "since_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_AT_FIELD_NUMBER: _ClassVar[int]
    id: int
    what: str
    direction: str
    bytes_done: int
    num_bytes: int
    bytes_per_second: float
    peers: _containers.RepeatedScalarFieldContainer[str]
    transports: _containers.RepeatedScalarFieldContainer[str]
    since_at: float
    def __init__(self, id: _Optional[int] = ..., what: _Optional[str] = ..., direction: _Optional[str] = ..., bytes_done: _Optional[int] = ..., num_bytes: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., peers: _Optional[_Iterable[str]] = ..., transports: _Optional[_Iterable[str]] = ..., since_at: _Optional[float] = ...) -> None: ...

class ExchangeStatus(_message.Message):
    __slots__ = ("transfers", "num_queued", "ended", "max_upload", "max_download", "this_round")
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOAD_FIELD_NUMBER: _ClassVar[int]
    MAX_DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    THIS_ROUND_FIELD_NUMBER: _ClassVar[int]
    transfers: _containers.RepeatedCompositeFieldContainer[Transfer]
    num_queued: int
    ended: _containers.RepeatedCompositeFieldContainer[Transfer]
    max_upload: int
    max_download: int
    this_round: _containers.RepeatedCompositeFieldContainer[Traffic]
    def __init__(self, transfers: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ..., num_queued: _Optional[int] = ..., ended: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ..., max_upload: _Optional[int] = ..., max_download: _Optional[int] = ..., this_round: _Optional[_Iterable[_Union[Traffic, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("what", "done", "whole", "unit", "since_at")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SINCE_AT_FIELD_NUMBER: _ClassVar[int]
    what: str
    done: float
    whole: float
    unit: str
    since_at: float
    def __init__(self, what: _Optional[str] = ..., done: _Optional[float] = ..., whole: _Optional[float] = ..., unit: _Optional[str] = ..., since_at: _Optional[float] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("name", "used_bytes", "own_bytes", "total_bytes", "use", "temperature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    OWN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    used_bytes: int
    own_bytes: int
    total_bytes: int
    use: float
    temperature: float
    def __init__(self, name: _Optional[str] = ..., used_bytes: _Optional[int] = ..., own_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., use: _Optional[float] = ..., temperature: _Optional[float] = ...) -> None: ...

class Given(_message.Message):
    __slots__ = ("tokens", "rounds", "seconds", "bytes_sent")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    rounds: int
    seconds: float
    bytes_sent: int
    def __init__(self, tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., seconds: _Optional[float] = ..., bytes_sent: _Optional[int] = ...) -> None: ...

class RoundPart(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class ContributionStatus(_message.Message):
    __slots__ = ("peer_id", "tokens", "subsets", "num_updates", "is_missing")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    NUM_UPDATES_FIELD_NUMBER: _ClassVar[int]
    IS_MISSING_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    tokens: int
    subsets: _containers.RepeatedScalarFieldContainer[int]
    num_updates: int
    is_missing: bool
    def __init__(self, peer_id: _Optional[str] = ..., tokens: _Optional[int] = ..., subsets: _Optional[_Iterable[int]] = ..., num_updates: _Optional[int] = ..., is_missing: bool = ...) -> None: ...

class TrainingStatus(_message.Message):
    __slots__ = ("steps_done", "num_steps", "loss", "tokens_per_second", "device", "memory_bytes")
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    steps_done: int
    num_steps: int
    loss: float
    tokens_per_second: float
    device: str
    memory_bytes: int
    def __init__(self, steps_done: _Optional[int] = ..., num_steps: _Optional[int] = ..., loss: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., device: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class RoundStatus(_message.Message):
    __slots__ = ("round", "state_root", "held_out_loss", "own_held_out_loss_sum", "own_held_out_tokens", "train_loss", "tokens", "seconds", "traffic", "num_contributors", "contributions", "update_bytes", "num_updates", "merge", "parts", "opened_at", "coordinator")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_LOSS_FIELD_NUMBER: _ClassVar[int]
    OWN_HELD_OUT_LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    OWN_HELD_OUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_UPDATES_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    round: int
    state_root: str
    held_out_loss: float
    own_held_out_loss_sum: float
    own_held_out_tokens: int
    train_loss: float
    tokens: int
    seconds: float
    traffic: _containers.RepeatedCompositeFieldContainer[Traffic]
    num_contributors: int
    contributions: _containers.RepeatedCompositeFieldContainer[ContributionStatus]
    update_bytes: int
    num_updates: int
    merge: str
    parts: _containers.RepeatedCompositeFieldContainer[RoundPart]
    opened_at: float
    coordinator: str
    def __init__(self, round: _Optional[int] = ..., state_root: _Optional[str] = ..., held_out_loss: _Optional[float] = ..., own_held_out_loss_sum: _Optional[float] = ..., own_held_out_tokens: _Optional[int] = ..., train_loss: _Optional[float] = ..., tokens: _Optional[int] = ..., seconds: _Optional[float] = ..., traffic: _Optional[_Iterable[_Union[Traffic, _Mapping]]] = ..., num_contributors: _Optional[int] = ..., contributions: _Optional[_Iterable[_Union[ContributionStatus, _Mapping]]] = ..., update_bytes: _Optional[int] = ..., num_updates: _Optional[int] = ..., merge: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[RoundPart, _Mapping]]] = ..., opened_at: _Optional[float] = ..., coordinator: _Optional[str] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("sequence", "at", "level", "text")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at: float
    level: str
    text: str
    def __init__(self, sequence: _Optional[int] = ..., at: _Optional[float] = ..., level: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("pid", "peer_id", "name", "run", "round", "step", "phase", "round_phase", "subsets", "peers", "training", "rounds", "traffic", "log", "is_paused", "state_root", "held_out_loss_start", "reachability", "started_at", "state_folder", "troubles", "services", "disk_used_bytes", "disk_limit_bytes", "reachability_why", "pause_why", "exchange", "progress", "device", "given", "parts", "version")
    PID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_PHASE_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_LOSS_START_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_WHY_FIELD_NUMBER: _ClassVar[int]
    PAUSE_WHY_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    pid: int
    peer_id: str
    name: str
    run: RunInfo
    round: int
    step: int
    phase: Phase
    round_phase: Phase
    subsets: _containers.RepeatedCompositeFieldContainer[SubsetStatus]
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    training: TrainingStatus
    rounds: _containers.RepeatedCompositeFieldContainer[RoundStatus]
    traffic: _containers.RepeatedCompositeFieldContainer[Traffic]
    log: _containers.RepeatedCompositeFieldContainer[LogLine]
    is_paused: bool
    state_root: str
    held_out_loss_start: float
    reachability: str
    started_at: float
    state_folder: str
    troubles: _containers.RepeatedScalarFieldContainer[str]
    services: _containers.RepeatedCompositeFieldContainer[Service]
    disk_used_bytes: int
    disk_limit_bytes: int
    reachability_why: str
    pause_why: str
    exchange: ExchangeStatus
    progress: Progress
    device: DeviceStatus
    given: Given
    parts: _containers.RepeatedCompositeFieldContainer[RoundPart]
    version: str
    def __init__(self, pid: _Optional[int] = ..., peer_id: _Optional[str] = ..., name: _Optional[str] = ..., run: _Optional[_Union[RunInfo, _Mapping]] = ..., round: _Optional[int] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[Phase, _Mapping]] = ..., round_phase: _Optional[_Union[Phase, _Mapping]] = ..., subsets: _Optional[_Iterable[_Union[SubsetStatus, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., training: _Optional[_Union[TrainingStatus, _Mapping]] = ..., rounds: _Optional[_Iterable[_Union[RoundStatus, _Mapping]]] = ..., traffic: _Optional[_Iterable[_Union[Traffic, _Mapping]]] = ..., log: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., is_paused: bool = ..., state_root: _Optional[str] = ..., held_out_loss_start: _Optional[float] = ..., reachability: _Optional[str] = ..., started_at: _Optional[float] = ..., state_folder: _Optional[str] = ..., troubles: _Optional[_Iterable[str]] = ..., services: _Optional[_Iterable[_Union[Service, _Mapping]]] = ..., disk_used_bytes: _Optional[int] = ..., disk_limit_bytes: _Optional[int] = ..., reachability_why: _Optional[str] = ..., pause_why: _Optional[str] = ..., exchange: _Optional[_Union[ExchangeStatus, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., device: _Optional[_Union[DeviceStatus, _Mapping]] = ..., given: _Optional[_Union[Given, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[RoundPart, _Mapping]]] = ..., version: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("at_once",)
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    at_once: bool
    def __init__(self, at_once: bool = ...) -> None: ...

class CommandReply(_message.Message):
    __slots__ = ("said",)
    SAID_FIELD_NUMBER: _ClassVar[int]
    said: str
    def __init__(self, said: _Optional[str] = ...) -> None: ...
