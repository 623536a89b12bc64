"""Values to bytes and back: offers, updates and the public state, by the layouts in `run.encodings`.

One thread of arithmetic or many, any machine: the same bytes. Decoding is for hostile bytes: the exact length first,
before anything is allocated, and then only what an encoder could have meant, or `BadEncoding`.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from spes_peer.errors import BadEncoding
from spes_peer.run.encodings import MAX_VALUE, Dtype, Format
from spes_peer.sync.quantized import decode_groups, encode_groups
from spes_peer.sync.scales import are_within, check_sendable
from spes_peer.sync.topk import decode_chunks, encode_chunks

_TORCH_DTYPE: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
_TORCH_INTEGERS: dict[str, torch.dtype] = {"fp32": torch.int32, "bf16": torch.int16}
_INTEGERS = {"fp32": "<i4", "bf16": "<i2"}
_PIECE = 1 << 18  # values in work at one time: they stay in a core's cache


def rounded(dtype: Dtype, values: Tensor) -> Tensor:
    """`values` as a tensor of that dtype."""
    return values.to(_TORCH_DTYPE[dtype])


def encode(format: Format, values: Tensor) -> bytes:
    """The bytes of a 1-D fp32 tensor; raises `SpesError` for values that no peer would take."""
    values = values.contiguous()
    match format.encoding:
        case "int8" | "int4" as encoding:
            return _filled(format, values, lambda content: encode_groups(encoding, values, content))
        case "topk":
            return _filled(format, values, lambda content: encode_chunks(format, values.numpy(), content))
        case dtype:
            check_sendable(values)
            return state_bytes(dtype, values)


def decode(format: Format, content: bytes | memoryview, num_elements: int) -> Tensor:
    """The fp32 values in `content`, or `BadEncoding`. Takes the memory of the result and that of a piece of it."""
    _check_size(format, content, num_elements)
    # by numpy, which asks for huge pages: three times as fast where a block is too large for memory to be used again
    values = torch.from_numpy(numpy.zeros(num_elements, numpy.float32))
    match format.encoding:
        case _ if num_elements == 0:
            pass
        case "int8" | "int4" as encoding:
            decode_groups(encoding, numpy.frombuffer(content, numpy.uint8), values)
        case "topk":
            decode_chunks(format, numpy.frombuffer(content, numpy.uint8), values.numpy())
        case dtype:
            integers = numpy.frombuffer(content, _INTEGERS[dtype])
            for start in range(0, num_elements, _PIECE):
                values[start : start + _PIECE] = _narrow(dtype, integers[start : start + _PIECE], MAX_VALUE)
    return values


def state_bytes(dtype: Dtype, values: Tensor) -> bytes:
    """The bytes of a block of the public state, whose values are of that dtype already or round to it."""

    def fill(content: NDArray[numpy.uint8]) -> None:
        integers = content.view(_INTEGERS[dtype])
        for start in range(0, values.numel(), _PIECE):
            narrow = rounded(dtype, values[start : start + _PIECE]).contiguous()
            integers[start : start + _PIECE] = narrow.view(_TORCH_INTEGERS[dtype]).numpy()

    return _filled(Format(dtype), values, fill)


def from_state_bytes(dtype: Dtype, content: bytes | memoryview, num_elements: int) -> Tensor:
    """A block of the public state in its public dtype, or `BadEncoding`."""
    _check_size(Format(dtype), content, num_elements)
    return _narrow(dtype, numpy.frombuffer(content, _INTEGERS[dtype]), torch.finfo(_TORCH_DTYPE[dtype]).max)


def _narrow(dtype: Dtype, integers: NDArray[Any], limit: float) -> Tensor:
    """The values with these bits, as a copy; `BadEncoding` unless they lie within ±limit."""
    values = torch.from_numpy(integers.astype(integers.dtype.newbyteorder("="))).view(_TORCH_DTYPE[dtype])
    if not are_within(values, limit):
        raise BadEncoding(f"values that are not finite, or beyond ±{limit:g}")
    return values


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
