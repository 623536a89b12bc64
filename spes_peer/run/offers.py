"""What peers offer for blocks, and who averages what: said in messages, done by trainers."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from spes_peer.blobs import BlobName, check_name
from spes_peer.identity import PeerId
from spes_peer.run.records import BlockId


@dataclass(frozen=True)
class Offer:
    """One encoded block of a contribution; see proto/round.proto."""

    block: BlockId
    blob: BlobName
    size_bytes: int
    norm: float

    def __post_init__(self) -> None:
        check_name(self.blob)


@dataclass(frozen=True)
class ReduceInput:
    """An offer as the coordinator passes it on to reducers."""

    peer_id: PeerId
    blob: BlobName
    size_bytes: int
    norm: float
    tokens: int
    clip: float

    def __post_init__(self) -> None:
        check_name(self.blob)


@dataclass(frozen=True)
class ReduceTask:
    """Average these inputs, which are in peer-id order."""

    block: BlockId
    reducers: tuple[PeerId, ...]
    inputs: tuple[ReduceInput, ...]

    @cached_property
    def digest(self) -> bytes:
        """What a report names the inputs by, weights and clip factors with them."""
        lines = (f"{one.peer_id} {one.blob} {one.tokens} {one.clip.hex()} {one.norm.hex()}\n" for one in self.inputs)
        return hashlib.sha256("".join(lines).encode()).digest()
