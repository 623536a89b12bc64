from spes_peer.wire import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Event(_message.Message):
    __slots__ = ("sequence", "at", "picture", "started", "ended", "run_known", "phase_changed", "round_phase_changed", "round_opened", "subsets_changed", "round_closed", "rounds_rewound", "rounds_forgotten", "round_revised", "held_out_known", "held_out_at_start", "state_changed", "training_sample", "parts_sample", "progress_sample", "exchange_sample", "traffic_sample", "device_sample", "disk_sample", "given_changed", "peers_changed", "peers_sample", "pause_changed", "troubles_changed", "services_changed", "reachability_changed", "logged")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RUN_KNOWN_FIELD_NUMBER: _ClassVar[int]
    PHASE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ROUND_PHASE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ROUND_OPENED_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ROUND_CLOSED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_REWOUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_REVISED_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_KNOWN_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_AT_START_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    DISK_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PEERS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PEERS_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    SERVICES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_CHANGED_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at: float
    picture: _control_pb2.Status
    started: Started
    ended: Ended
    run_known: RunKnown
    phase_changed: PhaseChanged
    round_phase_changed: RoundPhaseChanged
    round_opened: RoundOpened
    subsets_changed: SubsetsChanged
    round_closed: RoundClosed
    rounds_rewound: RoundsRewound
    rounds_forgotten: RoundsForgotten
    round_revised: RoundRevised
    held_out_known: HeldOutKnown
    held_out_at_start: HeldOutAtStart
    state_changed: StateChanged
    training_sample: TrainingSample
    parts_sample: PartsSample
    progress_sample: ProgressSample
    exchange_sample: ExchangeSample
    traffic_sample: TrafficSample
    device_sample: DeviceSample
    disk_sample: DiskSample
    given_changed: GivenChanged
    peers_changed: PeersChanged
    peers_sample: PeersSample
    pause_changed: PauseChanged
    troubles_changed: TroublesChanged
    services_changed: ServicesChanged
    reachability_changed: ReachabilityChanged
    logged: Logged
    def __init__(self, sequence: _Optional[int] = ..., at: _Optional[float] = ..., picture: _Optional[_Union[_control_pb2.Status, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., run_known: _Optional[_Union[RunKnown, _Mapping]] = ..., phase_changed: _Optional[_Union[PhaseChanged, _Mapping]] = ..., round_phase_changed: _Optional[_Union[RoundPhaseChanged, _Mapping]] = ..., round_opened: _Optional[_Union[RoundOpened, _Mapping]] = ..., subsets_changed: _Optional[_Union[SubsetsChanged, _Mapping]] = ..., round_closed: _Optional[_Union[RoundClosed, _Mapping]] = ..., rounds_rewound: _Optional[_Union[RoundsRewound, _Mapping]] = ..., rounds_forgotten: _Optional[_Union[RoundsForgotten, _Mapping]] = ..., round_revised: _Optional[_Union[RoundRevised, _Mapping]] = ..., held_out_known: _Optional[_Union[HeldOutKnown, _Mapping]] = ..., held_out_at_start: _Optional[_Union[HeldOutAtStart, _Mapping]] = ..., state_changed: _Optional[_Union[StateChanged, _Mapping]] = ..., training_sample: _Optional[_Union[TrainingSample, _Mapping]] = ..., parts_sample: _Optional[_Union[PartsSample, _Mapping]] = ..., progress_sample: _Optional[_Union[ProgressSample, _Mapping]] = ..., exchange_sample: _Optional[_Union[ExchangeSample, _Mapping]] = ..., traffic_sample: _Optional[_Union[TrafficSample, _Mapping]] = ..., device_sample: _Optional[_Union[DeviceSample, _Mapping]] = ..., disk_sample: _Optional[_Union[DiskSample, _Mapping]] = ..., given_changed: _Optional[_Union[GivenChanged, _Mapping]] = ..., peers_changed: _Optional[_Union[PeersChanged, _Mapping]] = ..., peers_sample: _Optional[_Union[PeersSample, _Mapping]] = ..., pause_changed: _Optional[_Union[PauseChanged, _Mapping]] = ..., troubles_changed: _Optional[_Union[TroublesChanged, _Mapping]] = ..., services_changed: _Optional[_Union[ServicesChanged, _Mapping]] = ..., reachability_changed: _Optional[_Union[ReachabilityChanged, _Mapping]] = ..., logged: _Optional[_Union[Logged, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("pid", "name", "version", "started_at", "state_folder", "disk_limit_bytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    name: str
    version: str
    started_at: float
    state_folder: str
    disk_limit_bytes: int
    def __init__(self, pid: _Optional[int] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., started_at: _Optional[float] = ..., state_folder: _Optional[str] = ..., disk_limit_bytes: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("why", "exit_code")
    WHY_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    why: str
    exit_code: int
    def __init__(self, why: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class RunKnown(_message.Message):
    __slots__ = ("peer_id", "run")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    run: _control_pb2.RunInfo
    def __init__(self, peer_id: _Optional[str] = ..., run: _Optional[_Union[_control_pb2.RunInfo, _Mapping]] = ...) -> None: ...

class PhaseChanged(_message.Message):
    __slots__ = ("phase",)
    PHASE_FIELD_NUMBER: _ClassVar[int]
    phase: _control_pb2.Phase
    def __init__(self, phase: _Optional[_Union[_control_pb2.Phase, _Mapping]] = ...) -> None: ...

class RoundPhaseChanged(_message.Message):
    __slots__ = ("round_phase",)
    ROUND_PHASE_FIELD_NUMBER: _ClassVar[int]
    round_phase: _control_pb2.Phase
    def __init__(self, round_phase: _Optional[_Union[_control_pb2.Phase, _Mapping]] = ...) -> None: ...

class RoundOpened(_message.Message):
    __slots__ = ("round", "step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class SubsetsChanged(_message.Message):
    __slots__ = ("subsets", "num_subsets")
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBSETS_FIELD_NUMBER: _ClassVar[int]
    subsets: _containers.RepeatedCompositeFieldContainer[_control_pb2.SubsetStatus]
    num_subsets: int
    def __init__(self, subsets: _Optional[_Iterable[_Union[_control_pb2.SubsetStatus, _Mapping]]] = ..., num_subsets: _Optional[int] = ...) -> None: ...

class RoundClosed(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: _control_pb2.RoundStatus
    def __init__(self, round: _Optional[_Union[_control_pb2.RoundStatus, _Mapping]] = ...) -> None: ...

class RoundsRewound(_message.Message):
    __slots__ = ("first_gone",)
    FIRST_GONE_FIELD_NUMBER: _ClassVar[int]
    first_gone: int
    def __init__(self, first_gone: _Optional[int] = ...) -> None: ...

class RoundsForgotten(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RoundRevised(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: _control_pb2.RoundStatus
    def __init__(self, round: _Optional[_Union[_control_pb2.RoundStatus, _Mapping]] = ...) -> None: ...

class HeldOutKnown(_message.Message):
    __slots__ = ("round", "loss")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    round: int
    loss: float
    def __init__(self, round: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class HeldOutAtStart(_message.Message):
    __slots__ = ("held_out_loss_start",)
    HELD_OUT_LOSS_START_FIELD_NUMBER: _ClassVar[int]
    held_out_loss_start: float
    def __init__(self, held_out_loss_start: _Optional[float] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("state_root",)
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    state_root: str
    def __init__(self, state_root: _Optional[str] = ...) -> None: ...

class TrainingSample(_message.Message):
    __slots__ = ("training",)
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    training: _control_pb2.TrainingStatus
    def __init__(self, training: _Optional[_Union[_control_pb2.TrainingStatus, _Mapping]] = ...) -> None: ...

class PartsSample(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[_control_pb2.RoundPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[_control_pb2.RoundPart, _Mapping]]] = ...) -> None: ...

class ProgressSample(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _control_pb2.Progress
    def __init__(self, progress: _Optional[_Union[_control_pb2.Progress, _Mapping]] = ...) -> None: ...

class ExchangeSample(_message.Message):
    __slots__ = ("exchange", "num_forgotten")
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    NUM_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    exchange: _control_pb2.ExchangeStatus
    num_forgotten: int
    def __init__(self, exchange: _Optional[_Union[_control_pb2.ExchangeStatus, _Mapping]] = ..., num_forgotten: _Optional[int] = ...) -> None: ...

class TrafficSample(_message.Message):
    __slots__ = ("traffic",)
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    traffic: _containers.RepeatedCompositeFieldContainer[_control_pb2.Traffic]
    def __init__(self, traffic: _Optional[_Iterable[_Union[_control_pb2.Traffic, _Mapping]]] = ...) -> None: ...

class DeviceSample(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: _control_pb2.DeviceStatus
    def __init__(self, device: _Optional[_Union[_control_pb2.DeviceStatus, _Mapping]] = ...) -> None: ...

class DiskSample(_message.Message):
    __slots__ = ("disk_used_bytes",)
    DISK_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    disk_used_bytes: int
    def __init__(self, disk_used_bytes: _Optional[int] = ...) -> None: ...

class GivenChanged(_message.Message):
    __slots__ = ("given",)
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    given: _control_pb2.Given
    def __init__(self, given: _Optional[_Union[_control_pb2.Given, _Mapping]] = ...) -> None: ...

class PeersChanged(_message.Message):
    __slots__ = ("peers", "order")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[_control_pb2.PeerStatus]
    order: PeerOrder
    def __init__(self, peers: _Optional[_Iterable[_Union[_control_pb2.PeerStatus, _Mapping]]] = ..., order: _Optional[_Union[PeerOrder, _Mapping]] = ...) -> None: ...

class PeerOrder(_message.Message):
    __slots__ = ("peer_ids",)
    PEER_IDS_FIELD_NUMBER: _ClassVar[int]
    peer_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, peer_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PeersSample(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerSample]
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerSample, _Mapping]]] = ...) -> None: ...

class PeerSample(_message.Message):
    __slots__ = ("row", "seen_at", "traffic", "round_trip_seconds")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    row: int
    seen_at: float
    traffic: _containers.RepeatedCompositeFieldContainer[_control_pb2.Traffic]
    round_trip_seconds: float
    def __init__(self, row: _Optional[int] = ..., seen_at: _Optional[float] = ..., traffic: _Optional[_Iterable[_Union[_control_pb2.Traffic, _Mapping]]] = ..., round_trip_seconds: _Optional[float] = ...) -> None: ...

class PauseChanged(_message.Message):
    __slots__ = ("is_paused", "pause_why")
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_WHY_FIELD_NUMBER: _ClassVar[int]
    is_paused: bool
    pause_why: str
    def __init__(self, is_paused: bool = ..., pause_why: _Optional[str] = ...) -> None: ...

class TroublesChanged(_message.Message):
    __slots__ = ("troubles",)
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    troubles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, troubles: _Optional[_Iterable[str]] = ...) -> None: ...

class ServicesChanged(_message.Message):
    __slots__ = ("services",)
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[_control_pb2.Service]
    def __init__(self, services: _Optional[_Iterable[_Union[_control_pb2.Service, _Mapping]]] = ...) -> None: ...

class ReachabilityChanged(_message.Message):
    __slots__ = ("reachability", "reachability_why")
    REACHABILITY_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_WHY_FIELD_NUMBER: _ClassVar[int]
    reachability: str
    reachability_why: str
    def __init__(self, reachability: _Optional[str] = ..., reachability_why: _Optional[str] = ...) -> None: ...

class Logged(_message.Message):
    __slots__ = ("lines", "num_forgotten")
    LINES_FIELD_NUMBER: _ClassVar[int]
    NUM_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[_control_pb2.LogLine]
    num_forgotten: int
    def __init__(self, lines: _Optional[_Iterable[_Union[_control_pb2.LogLine, _Mapping]]] = ..., num_forgotten: _Optional[int] = ...) -> None: ...
