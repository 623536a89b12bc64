"""The newest whole state as one file in Hugging Face's format, streamed from blobs: no torch, nothing on disk.

Their tensors are contiguous parts of our groups, in order (`model.huggingface`). So the file is a header, and behind it
the bytes of all blocks one after another. Each piece is checked against the name of its block, which the chain vouches
for, before it is sent.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from spes_peer.blobs import DIGEST_BYTES, PIECE_BYTES, BlobStore
from spes_peer.errors import BadConfiguration, BlobMissing
from spes_peer.model.huggingface import architecture_of, tensors_of
from spes_peer.run.encodings import BYTES_PER_VALUE, Dtype
from spes_peer.run.layout import Layout
from spes_peer.run.records import Snapshot, state_root

_DTYPES: dict[Dtype, str] = {"fp32": "F32", "bf16": "BF16"}
_LENGTH_BYTES = 8


class Span(NamedTuple):
    """Part of one blob: its bytes [start, end)."""

    blob: str
    start: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """One snapshot as a safetensors file; `BadConfiguration` from `header` for a model that is nobody's."""

    layout: Layout
    snapshot: Snapshot
    run_id: bytes

    @cached_property
    def etag(self) -> str:
        """By what the state is: another branch of the chain has another one after the same record."""
        return f'"{self.run_id.hex()[:12]}-{self.snapshot.round}-{state_root(self.snapshot.blocks)[:24]}"'

    @cached_property
    def header(self) -> bytes:
        """Its length and where each tensor lies behind it."""
        model, sync = self.layout.manifest.model, self.layout.manifest.sync
        architecture_of(model)
        metadata = {"format": "pt", "run_id": self.run_id.hex(), "record": str(self.snapshot.round)}
        described: dict[str, object] = {"__metadata__": metadata}
        offset = 0
        for tensor in tensors_of(model):
            dtype = sync.shared_dtype if tensor.expert is None else sync.expert_dtype
            end = offset + tensor.num_elements * BYTES_PER_VALUE[dtype]
            described[tensor.name] = {"dtype": _DTYPES[dtype], "shape": tensor.shape, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text

    @cached_property
    def _blobs(self) -> list[tuple[str, int]]:
        """Names and sizes of the blocks in their order, outer momentum left out."""
        blob_of = {block.block: block.blob for block in self.snapshot.blocks}
        return [(blob_of[block.id], self.layout.state_bytes(block)) for block in self.layout.blocks]

    @cached_property
    def size_bytes(self) -> int:
        return len(self.header) + sum(size for _blob, size in self._blobs)

    def spans(self, first_byte: int) -> Iterator[Span]:
        """Where the bytes of the file behind its header are, from `first_byte` of the whole file on; a piece at most
        each."""
        at = len(self.header)
        for blob, size in self._blobs:
            for start in range(max(0, first_byte - at) // PIECE_BYTES * PIECE_BYTES, size, PIECE_BYTES):
                end = min(start + PIECE_BYTES, size)
                if at + end > first_byte:
                    yield Span(blob, max(start, first_byte - at), end)
            at += size


def read_span(blobs: BlobStore, span: Span) -> bytes:
    """The bytes of one span, checked; `BlobMissing` where they are gone or damaged. Blocks: call it in a thread."""
    index = span.start // PIECE_BYTES
    piece, digests = blobs.read_piece(span.blob, index), blobs.digests(span.blob)
    expected = digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
    if hashlib.sha256(digests).hexdigest() != span.blob or hashlib.sha256(piece).digest() != expected:
        raise BlobMissing(f"blob {span.blob} is damaged")
    return piece[span.start - index * PIECE_BYTES : span.end - index * PIECE_BYTES]


def is_downloadable(layout: Layout) -> bool:
    """Whether there are words for such a model."""
    try:
        architecture_of(layout.manifest.model)
    except BadConfiguration:
        return False
    return {layout.manifest.sync.shared_dtype, layout.manifest.sync.expert_dtype} <= _DTYPES.keys()
