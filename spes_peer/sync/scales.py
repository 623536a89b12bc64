"""The range of what travels: values within `MAX_VALUE`, and the bf16 numbers that scale codes, which are 0 or normal
and never large enough for a value beyond it.

Scales are rounded and tried by their bits, which rise with the numbers: the same on every machine.
"""

from typing import Any

import numpy
from numpy.typing import NDArray
from torch import Tensor

from spes_peer.errors import BadEncoding, SpesError
from spes_peer.run.encodings import MAX_VALUE, MIN_SCALE

Floats = NDArray[numpy.float32]
Bits = NDArray[numpy.uint16]


def check_sendable(values: Tensor) -> None:
    """Raises `SpesError` for values that no peer would take."""
    if not are_within(values, MAX_VALUE):
        raise SpesError("values that are not finite, or beyond 2¹¹⁵, cannot be encoded: has training diverged?")


def are_within(values: Tensor, limit: float) -> bool:
    """Whether all are within ±limit, and none is NaN."""
    if values.numel() == 0:
        return True
    least, most = values.aminmax()  # of which a NaN makes both NaN
    return bool(least >= -limit) and bool(most <= limit)


def scale_bits(scales: NDArray[Any]) -> Bits:
    """Finite scales, 0 or more, rounded to bf16, ties to even; 0 where that is below `MIN_SCALE`."""
    wide = numpy.ascontiguousarray(scales, numpy.float32).view(numpy.uint32)
    bits = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(numpy.uint16)
    bits[bits < _truncated(MIN_SCALE)] = 0
    return bits


def scales_of(bits: Bits, top_code: int) -> Floats:
    """The scales with these bits; `BadEncoding` if one is none, or makes a code up to `top_code` a value too large."""
    is_small = bits - numpy.uint16(_truncated(MIN_SCALE)) <= _truncated(MAX_VALUE / top_code) - _truncated(MIN_SCALE)
    if not bool((is_small | (bits == 0)).all()):
        raise BadEncoding("a scale or level that is negative, not finite, subnormal or too large")
    return _widened(bits)


def _widened(bits: Bits) -> Floats:
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def _truncated(value: float) -> int:
    return int(numpy.float32(value).view(numpy.uint32)) >> 16
