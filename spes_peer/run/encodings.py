"""How values lie in the public state and how they travel: names, parameters and exact sizes. Numbers only, no torch.

Little endian everywhere; bf16 rounds to nearest, ties to even. n values of a block become

    fp32, bf16   n values of 4 or 2 bytes
    int8         ceil(n / 128) scales in bf16, then n codes of 8 bits, −127 … 127, in two's complement;
                 value i = scale of its group of 128 · code i; a group whose scale is 0 has codes of 0 only
    int4         ceil(n / 64) scales in bf16, then n codes of 4 bits, −7 … 7, in two's complement, two to a byte, the
                 earlier one in the low half; an odd n leaves the last high half 0; scales as above, of groups of 64
    topk         a record for each chunk of 4096 values, in their order; of a chunk it keeps k = `topk_kept` values, of
                 a last chunk of m < 4096 ceil(m · k / 4096), and the others are 0. A record is
                     the low and the high level in bf16, low ≤ high
                     the indices of the kept values in the chunk, strictly rising, 12 bits each, two in three bytes:
                     byte 0 and the low half of byte 1 are the first (its low bits first), the high half of byte 1
                     and byte 2 the second; of an odd k the last index takes two bytes, and the high half is 0
                     the code of each kept value, 2 bits, four to a byte, the earliest in the lowest bits; bit 0
                     chooses the high level, bit 1 the minus sign; what is left of the last byte is 0

No value beyond ±2¹¹⁵ travels, in any encoding: so no sum of values overflows, and what is decodable can be averaged and
encoded again. Scales and levels are 0 or at least 2⁻¹²⁶, the smallest normal number: so no value is subnormal. An
encoder turns smaller ones to 0. A decoder refuses whatever is not as it stands here.

All of it has one length for one n, so that a size is checked before anything is fetched.
"""

import math
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["fp32", "bf16"]
Encoding = Literal["fp32", "bf16", "int8", "int4", "topk"]

BYTES_PER_VALUE: dict[str, int] = {"fp32": 4, "bf16": 2}
SCALE_BYTES = 2  # bf16
INT_GROUP = {"int8": 128, "int4": 64}
"""Values that share a scale."""
INT_TOP_CODE = {"int8": 127, "int4": 7}
TOPK_CHUNK = 4096  # what 12 bits can index
TOPK_KEPT = 64
MAX_VALUE = 2.0**115
MIN_SCALE = 2.0**-126


@dataclass(frozen=True)
class Format:
    """An encoding and its parameter: all that decoding must know besides the number of values."""

    encoding: Encoding
    topk_kept: int = TOPK_KEPT
    """Values kept of a chunk, by `topk`."""

    def encoded_bytes(self, num_elements: int) -> int:
        """Size of so many encoded values."""
        match self.encoding:
            case "int8":
                return SCALE_BYTES * math.ceil(num_elements / INT_GROUP["int8"]) + num_elements
            case "int4":
                return SCALE_BYTES * math.ceil(num_elements / INT_GROUP["int4"]) + math.ceil(num_elements / 2)
            case "topk":
                whole, rest = divmod(num_elements, TOPK_CHUNK)
                return whole * self.chunk_bytes(TOPK_CHUNK) + (self.chunk_bytes(rest) if rest else 0)
            case _:
                return num_elements * BYTES_PER_VALUE[self.encoding]

    def kept_of(self, num_elements: int) -> int:
        """Values kept of a chunk of that length."""
        return math.ceil(num_elements * self.topk_kept / TOPK_CHUNK)

    def chunk_bytes(self, num_elements: int) -> int:
        """Size of a chunk's record: levels, indices, codes."""
        kept = self.kept_of(num_elements)
        return 2 * SCALE_BYTES + index_bytes(kept) + code_bytes(kept)


def index_bytes(kept: int) -> int:
    """Of so many indices of 12 bits."""
    return math.ceil(12 * kept / 8)


def code_bytes(kept: int) -> int:
    """Of so many codes of 2 bits."""
    return math.ceil(2 * kept / 8)
