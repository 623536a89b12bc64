"""How values lie in the public state and how they travel: names, parameters and exact sizes. Numbers only, no torch.

Little endian everywhere. n values of a block become

    fp32, bf16   n values of 4 or 2 bytes; bf16 rounds to nearest even
    int8         ceil(n / 128) scales in bf16, then n codes of 8 bits, −127 … 127, in two's complement;
                 value i = scale of its group of 128 · code
    int4         ceil(n / 64) scales in bf16, then n codes of 4 bits, −7 … 7, in two's complement, two to a byte, the
                 earlier one low; an odd n leaves the last high half 0
    topk         for each chunk of 4096 values a record of its own: two levels in bf16, 0 ≤ low ≤ high; the rising
                 indices of the kept values, 12 bits each, two in three bytes (the first is byte 0 and the low half of
                 byte 1, the second the high half of byte 1 and byte 2; one left over takes two bytes); their codes of
                 2 bits, four to a byte, the earlier one low: bit 0 chooses the high level, bit 1 the minus sign.
                 A shorter last chunk keeps its part, rounded up.

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
TOPK_CHUNK = 4096  # what 12 bits can index
TOPK_KEPT = 64


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
        return 2 * SCALE_BYTES + math.ceil(12 * kept / 8) + math.ceil(2 * kept / 8)
