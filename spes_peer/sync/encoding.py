"""Values to bytes and back: offers, updates and the public state, by the layouts in `run.encodings`.

One thread of arithmetic or many, any machine: the same bytes. Decoding is for hostile bytes: the exact length first,
before anything is allocated, and then only what an encoder could have meant, or `BadEncoding`.
"""

import io
from collections.abc import Callable

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from spes_peer.errors import BadEncoding, SpesError
from spes_peer.run.encodings import MAX_VALUE, Dtype, Format
from spes_peer.sync.quantized import decode_groups, encode_groups
from spes_peer.sync.topk import decode_chunks, encode_chunks

_TORCH_DTYPE: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def rounded(dtype: Dtype, values: Tensor) -> Tensor:
    """`values` as a tensor of that dtype."""
    return values.to(_TORCH_DTYPE[dtype])


def encode(format: Format, values: Tensor) -> bytes:
    """The bytes of a 1-D fp32 tensor; raises `SpesError` for values that no peer would take."""
    values = values.contiguous()
    if not _are_within(values, MAX_VALUE):
        raise SpesError("values that are not finite, or beyond 2¹¹⁵, cannot be encoded: has training diverged?")
    match format.encoding:
        case "int8" | "int4" as encoding:
            return _filled(format, values, lambda content: encode_groups(encoding, values, content))
        case "topk":
            return _filled(format, values, lambda content: encode_chunks(format, values.numpy(), content))
        case dtype:
            return state_bytes(dtype, values)


def decode(format: Format, content: bytes | memoryview, num_elements: int) -> Tensor:
    """The fp32 values in `content`, or `BadEncoding`. Takes the memory of the result and that of a piece of it."""
    _check_size(format, content, num_elements)
    if format.encoding == "fp32" or format.encoding == "bf16":
        return _narrow_values(format.encoding, content, MAX_VALUE).to(torch.float32)
    values = torch.zeros(num_elements)
    if num_elements == 0:
        return values
    if format.encoding == "topk":
        decode_chunks(format, numpy.frombuffer(content, numpy.uint8), values.numpy())
    else:
        decode_groups(format.encoding, numpy.frombuffer(content, numpy.uint8), values)
    return values


def state_bytes(dtype: Dtype, values: Tensor) -> bytes:
    """The bytes of a block of the public state, whose values are of that dtype already or round to it."""
    narrow = rounded(dtype, values)
    integers = narrow.contiguous().view(torch.int32 if narrow.dtype == torch.float32 else torch.int16).numpy()
    return integers.astype(integers.dtype.newbyteorder("<"), copy=False).tobytes()


def from_state_bytes(dtype: Dtype, content: bytes | memoryview, num_elements: int) -> Tensor:
    """A block of the public state in its public dtype, or `BadEncoding`."""
    _check_size(Format(dtype), content, num_elements)
    return _narrow_values(dtype, content, torch.finfo(_TORCH_DTYPE[dtype]).max)


def _narrow_values(dtype: Dtype, content: bytes | memoryview, limit: float) -> Tensor:
    integers = numpy.frombuffer(content, "<i4" if dtype == "fp32" else "<i2")
    values = torch.from_numpy(integers.astype(integers.dtype.newbyteorder("="))).view(_TORCH_DTYPE[dtype])
    if not _are_within(values, limit):
        raise BadEncoding(f"values that are not finite, or beyond ±{limit:g}")
    return values


def _are_within(values: Tensor, limit: float) -> bool:
    if values.numel() == 0:
        return True
    least, most = values.aminmax()  # of which a NaN makes both NaN
    return bool(least >= -limit) and bool(most <= limit)


def _check_size(format: Format, content: bytes | memoryview, num_elements: int) -> None:
    found, right = memoryview(content).nbytes, format.encoded_bytes(num_elements)
    if found != right:
        raise BadEncoding(f"{found} bytes where {num_elements} values of {format.encoding} belong: {right} bytes")


def _filled(format: Format, values: Tensor, fill: Callable[[NDArray[numpy.uint8]], None]) -> bytes:
    """The bytes that `fill` writes. A BytesIO gives them away without a copy."""
    buffer = io.BytesIO(bytes(format.encoded_bytes(values.numel())))
    if values.numel():
        fill(numpy.frombuffer(buffer.getbuffer(), numpy.uint8))
    return buffer.getvalue()
