"""Keyed permutations of numbers: no table, and the same with every library, for ever.

A four-round Feistel network over the smallest even number of bits that holds all values, keyed by sha256 and walked
along its cycle until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

import hashlib
from functools import lru_cache

_NUM_ROUNDS = 4
_MASK_64 = (1 << 64) - 1


def permuted(value: int, size: int, keys: tuple[int, ...]) -> int:
    """Where a keyed permutation of [0, size) sends `value`."""
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        left, right = value >> half_bits, value & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        value = left << half_bits | right
        if value < size:
            return value


@lru_cache(maxsize=1024)
def keys_of(*what: str | int) -> tuple[int, ...]:
    """Keys of the permutation that is for this and nothing else."""
    digest = hashlib.sha256(" ".join(map(str, ("spes-peer", *what))).encode()).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_NUM_ROUNDS))


def _mixed(value: int) -> int:
    """The finalizer of splitmix64: every input bit changes half of the output bits."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK_64
    return value ^ value >> 31
