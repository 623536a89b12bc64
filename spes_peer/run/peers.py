"""What peers say of themselves in the DHT: entries, claims and heads, as frozen values."""

from dataclasses import dataclass
from enum import StrEnum

from spes_peer.identity import PeerId

MAX_NAME_CHARACTERS = 48


class PeerState(StrEnum):
    JOINING = "JOINING"
    ONLINE = "ONLINE"
    PAUSED = "PAUSED"
    LEAVING = "LEAVING"


class Role(StrEnum):
    VOLUNTEER = "volunteer"
    BOOTSTRAP = "bootstrap"


@dataclass(frozen=True)
class PeerEntry:
    """How a node can be reached and what it can do; see proto/signed.proto."""

    peer_id: PeerId
    name: str
    version: str
    protocol: int
    role: Role
    state: PeerState
    incarnation: int
    grpc_addresses: tuple[str, ...]
    certificate: bytes
    libp2p_addresses: tuple[str, ...]
    dht_addresses: tuple[str, ...]
    max_subsets: int
    written_at: float
    is_relay: bool = False

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME_CHARACTERS or not self.name.isprintable():
            raise ValueError("the name is too long or not printable")
        if max(len(self.grpc_addresses), len(self.libp2p_addresses), len(self.dht_addresses)) > 16:
            raise ValueError("too many addresses")


@dataclass(frozen=True)
class Claim:
    """The wish to train `subsets`; the earlier `since_at` wins."""

    subsets: tuple[int, ...]
    since_at: float


@dataclass(frozen=True)
class Head:
    round: int
    record_hash: bytes


@dataclass(frozen=True)
class Standing:
    """The chain a node holds and the coordinator it follows; see proto/peer.proto."""

    head_round: int
    head_hash: bytes
    certified_round: int
    term: int = 0
    hears_coordinator: bool = False
