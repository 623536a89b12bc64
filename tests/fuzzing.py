"""Hostile bytes for any decoder, made from good ones: seeded, so that the same number gives the same bytes.

A decoder under test takes bytes and either returns, having looked at what it got, or raises a `SpesError`. Anything
else is a fault: another error, a second for one input, or memory that grows.
"""

import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from spes_peer.errors import SpesError

SLOWEST_SECONDS = 1.0  # for one input, none of which is larger than its good one by more than a few kilobytes
MOST_GROWTH_BYTES = 128 << 20  # over all inputs of a test, behind a warm-up

_NUMBERS = [
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x00" * 8,
    b"\x80" * 9 + b"\x01",  # as varints: 2⁶³,
    b"\xff" * 9 + b"\x01",  # 2⁶⁴ − 1,
    b"\xff" * 10 + b"\x01",  # more than ten bytes,
    b"\xff\xff\xff\xff\x0f",  # 2³² − 1,
    b"\x80" * 40,  # and one without an end
    struct.pack("<d", float("nan")),
    struct.pack("<d", float("inf")),
    struct.pack("<d", 1.7e308),
    struct.pack("<d", 5e-324),
    struct.pack("<I", 0x7F800000),
    b"\x80\x7f",  # bf16: infinity,
    b"\xc0\x7f",  # and NaN
    b"\xed\xa0\x80",  # in UTF-8 half of a pair
    b"\x1b[31m\x00\n",
]
_WORDS = [
    b"1e999",
    b"-1",
    b"NaN",
    b"1" + b"0" * 400,
    b"1.5",
    b"null",
    b"{}",
    b'"x"',
    b"4294967295",
    b"[" * 30_000,
    b"true",
]


@dataclass(frozen=True)
class Decoder:
    """`decode` returns after it has looked at the value, or raises a `SpesError`."""

    name: str
    decode: Callable[[bytes], object]
    good: Sequence[bytes]
    """What it takes; the hostile bytes are made of these."""
    is_text: bool = False
    """Whether numbers stand in it as JSON has them."""
    cost: int = 1
    """How many inputs of another decoder one of this takes."""


def _with(content: bytearray, chance: random.Random, inserted: bytes) -> None:
    """At some place, in place of as much or between."""
    at = chance.randrange(len(content) + 1)
    content[at : at + (len(inserted) if chance.random() < 0.5 else 0)] = inserted


def _nested(content: bytearray, chance: random.Random) -> None:
    """In many messages, each in a field of the other."""
    tag = chance.choice((b"\x0a", b"\x12", b"\x1a", b"\x22"))
    for _ in range(chance.choice((1, 20, 150))):
        length, varint = len(content), bytearray()
        while length >= 0x80:
            varint.append(length & 0x7F | 0x80)
            length >>= 7
        content[:0] = tag + varint + bytes([length])


def _changed_number(content: bytearray, chance: random.Random) -> None:
    """One number of a text, or word, becomes another."""
    digits = [at for at, byte in enumerate(content) if 0x30 <= byte <= 0x39]
    if not digits:
        return
    start = end = chance.choice(digits)
    while end < len(content) and 0x30 <= content[end] <= 0x39:
        end += 1
    content[start:end] = chance.choice(_WORDS)


def mutated(good: Sequence[bytes], chance: random.Random, is_text: bool = False) -> bytes:
    """One of `good`, spoiled in a few ways."""
    content = bytearray(chance.choice(good))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        if is_text and chance.random() < 0.5:
            _changed_number(content, chance)
            continue
        at = chance.randrange(len(content)) if content else 0
        match chance.randrange(10):
            case 0 | 1 if content:
                content[at] ^= 1 << chance.randrange(8)
            case 2 if content:
                content[at] = chance.randrange(256)
            case 3:
                del content[at:]
            case 4:
                del content[at : at + chance.randrange(1, 9)]
            case 5:
                content[at:at] = content[at : at + chance.randrange(1, 200)]
            case 6:
                other = chance.choice(good)
                content[at:] = other[chance.randrange(len(other) + 1) :]
            case 7:
                _with(content, chance, chance.choice(_NUMBERS))
            case 8:
                _with(content, chance, chance.randbytes(chance.randrange(1, 20)))
            case _ if chance.random() < 0.1:
                _nested(content, chance)
            case _:
                _with(content, chance, bytes(chance.randrange(1, 20)))
    return bytes(content)


def fuzz(decoders: Sequence[Decoder], num_inputs: int, seed: int) -> int:
    """Give all `decoders` together some `num_inputs`; how many of those were refused. A fault fails the test with the
    bytes that show it."""
    shares = sum(1 / decoder.cost for decoder in decoders)
    num_refused, process, before = 0, psutil.Process(), 0
    for decoder in decoders:
        assert decoder.good, f"{decoder.name} has nothing good to begin with"
        for content in decoder.good:
            decoder.decode(content)
    for decoder in decoders:
        chance = random.Random(f"{seed} {decoder.name}")
        for number in range(max(8, int(num_inputs / shares / decoder.cost) + 1)):
            content = mutated(decoder.good, chance, decoder.is_text)
            started = time.process_time()
            try:
                decoder.decode(content)
            except SpesError:
                num_refused += 1
            except Exception as error:
                raise AssertionError(f"{decoder.name}, input {number}: {error!r} for {content[:2000]!r}") from error
            took = time.process_time() - started
            assert took < SLOWEST_SECONDS, f"{decoder.name}, input {number}: {took:.1f} s for {content[:2000]!r}"
        before = before or process.memory_info().rss
    grown = process.memory_info().rss - before
    assert grown < MOST_GROWTH_BYTES, f"{grown >> 20} MiB more than before"
    return num_refused
