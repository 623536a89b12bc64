"""Values to bytes and back: offers, updates and the public state. Little endian; bf16 rounds to nearest even.

Decoding is for hostile bytes: exact length and only finite values, or `BadMessage`.
"""

import numpy
import torch
from torch import Tensor

from spes_peer.errors import BadMessage, SpesError
from spes_peer.run.encodings import BYTES_PER_VALUE, Dtype, Format

_TORCH_DTYPE: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def rounded(dtype: Dtype, values: Tensor) -> Tensor:
    """`values` as a tensor of that dtype."""
    return values.to(_TORCH_DTYPE[dtype])


def encode(format: Format, values: Tensor) -> bytes:
    """The bytes of a 1-D fp32 tensor; raises `SpesError` for values that no peer would take."""
    narrow = values.to(_TORCH_DTYPE[format.encoding])
    if not bool(narrow.isfinite().all()):
        raise SpesError("values that are not finite cannot be encoded: has training diverged?")
    return _bytes_of(narrow)


def decode(format: Format, content: bytes | memoryview, num_elements: int) -> Tensor:
    """The fp32 values in `content`, or `BadMessage`."""
    assert format.encoding in ("fp32", "bf16")
    return from_state_bytes(format.encoding, content, num_elements).to(torch.float32)


def state_bytes(dtype: Dtype, values: Tensor) -> bytes:
    """The bytes of a block of the public state, whose values are of that dtype already or round to it."""
    return _bytes_of(rounded(dtype, values))


def from_state_bytes(dtype: Dtype, content: bytes | memoryview, num_elements: int) -> Tensor:
    """A block of the public state in its public dtype, or `BadMessage`."""
    size_bytes = memoryview(content).nbytes
    if size_bytes != num_elements * BYTES_PER_VALUE[dtype]:
        raise BadMessage(f"{size_bytes} bytes where {num_elements} values of {dtype} belong")
    integers = numpy.frombuffer(content, "<i4" if dtype == "fp32" else "<i2")
    values = torch.from_numpy(integers.astype(integers.dtype.newbyteorder("="))).view(_TORCH_DTYPE[dtype])
    if not bool(values.isfinite().all()):
        raise BadMessage("values that are not finite")
    return values


def _bytes_of(narrow: Tensor) -> bytes:
    integers = narrow.contiguous().view(torch.int32 if narrow.dtype == torch.float32 else torch.int16).numpy()
    return integers.astype(integers.dtype.newbyteorder("<"), copy=False).tobytes()
