"""`int8` and `int4`: codes with a scale for each group of values. The layout is in `run.encodings`.

The same bits on every machine: largest magnitudes, exact divisions and roundings, whose order does not matter.
"""

import math

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from spes_peer.errors import BadEncoding
from spes_peer.run.encodings import INT_GROUP, INT_TOP_CODE, SCALE_BYTES
from spes_peer.sync.scales import Bits, check_sendable, scale_bits, scales_of

_PIECE = 1 << 18  # values in work at one time: they stay in a core's cache. A multiple of all groups


def encode_groups(encoding: str, values: Tensor, content: NDArray[numpy.uint8]) -> None:
    """Fill `content` with the encoded fp32 values; `SpesError` for values that no peer would take."""
    group, top_code = INT_GROUP[encoding], INT_TOP_CODE[encoding]
    scales, codes = _parts(encoding, content, values.numel())
    scratch = torch.empty(_PIECE)
    for start in range(0, values.numel(), _PIECE):
        piece = values[start : start + _PIECE]
        check_sendable(piece)
        whole = torch.nn.functional.pad(piece, (0, -piece.numel() % group)) if piece.numel() % group else piece
        bits, found = _quantized(whole.view(-1, group), top_code, scratch[: whole.numel()].view(-1, group))
        first = start // group
        scales[first : first + len(bits)] = bits
        _put_codes(encoding, codes, start, found.view(-1).numpy()[: piece.numel()])


def decode_groups(encoding: str, content: NDArray[numpy.uint8], out: Tensor) -> None:
    """Fill `out` with the values in `content`, whose length is right, or `BadEncoding`."""
    group, top_code = INT_GROUP[encoding], INT_TOP_CODE[encoding]
    scales, codes = _parts(encoding, content, out.numel())
    for start in range(0, out.numel(), _PIECE):
        piece = out[start : start + _PIECE]
        bits = scales[start // group : (start + _PIECE) // group]
        scale = scales_of(bits, top_code)
        found = _get_codes(encoding, codes, start, piece.numel())
        if found.min() < -top_code:
            raise BadEncoding(f"a code of {found.min()} in {encoding}, which ends at −{top_code}")
        _check_zeros(bits, found, group)
        _scale(piece, found, scale, group)


def _quantized(values: Tensor, top_code: int, scratch: Tensor) -> tuple[Bits, Tensor]:
    """Bits of the scales, int8 codes of (groups, values): scale = largest magnitude / top code, code = value / scale.
    `scratch` is memory of the size of `values`: what a piece needs is not asked of the system for each.

    No code exceeds the top code: a scale is rounded by at most 2⁻⁸ of it, and so exceeded by less than a half."""
    bits = scale_bits(torch.abs(values, out=scratch).amax(1).numpy() / numpy.float32(top_code))
    divisor = scales_of(bits, top_code)
    divisor[bits == 0] = numpy.inf  # all codes 0
    return bits, torch.div(values, torch.from_numpy(divisor).unsqueeze(1), out=scratch).round_().to(torch.int8)


def _scale(out: Tensor, codes: NDArray[numpy.int8], scale: NDArray[numpy.float32], group: int) -> None:
    out.copy_(torch.from_numpy(codes))
    scales = torch.from_numpy(scale)
    num_whole = out.numel() // group
    out[: num_whole * group].view(-1, group).mul_(scales[:num_whole].unsqueeze(1))
    out[num_whole * group :].mul_(scales[-1])


def _check_zeros(bits: Bits, codes: NDArray[numpy.int8], group: int) -> None:
    if bits.all():
        return
    starts = numpy.arange(0, len(codes), group)
    has_codes = numpy.logical_or.reduceat(codes, starts)
    if (has_codes & (bits == 0)).any():
        raise BadEncoding("codes other than 0 in a group whose scale is 0")


def _parts(
    encoding: str, content: NDArray[numpy.uint8], num_elements: int
) -> tuple[NDArray[numpy.uint16], NDArray[numpy.uint8]]:
    """The scales' bits and the bytes of codes, as views."""
    size_bytes = SCALE_BYTES * math.ceil(num_elements / INT_GROUP[encoding])
    return content[:size_bytes].view("<u2"), content[size_bytes:]


def _put_codes(encoding: str, into: NDArray[numpy.uint8], start: int, codes: NDArray[numpy.int8]) -> None:
    if encoding == "int8":
        into[start : start + len(codes)] = codes.view(numpy.uint8)
        return
    pairs = numpy.append(codes, numpy.zeros(len(codes) % 2, numpy.int8)).view("<u2")
    pairs &= 0x0F0F
    pairs |= pairs >> 4
    into[start // 2 : start // 2 + len(pairs)] = pairs.astype(numpy.uint8)


def _get_codes(encoding: str, codes: NDArray[numpy.uint8], start: int, num_elements: int) -> NDArray[numpy.int8]:
    """An own copy of the codes, one to a byte."""
    if encoding == "int8":
        return codes[start : start + num_elements].view(numpy.int8).copy()
    pairs = codes[start // 2 : start // 2 + math.ceil(num_elements / 2)].astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    pairs ^= 0x0808
    halves = pairs.view(numpy.int8)
    halves -= 8  # so a half of 4 bits got its sign
    if halves[num_elements:].any():
        raise BadEncoding("a last half byte that is not 0")
    return halves[:num_elements]
