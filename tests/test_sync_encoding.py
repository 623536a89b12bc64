"""Values to bytes and back: the layouts byte for byte, what each encoding loses, and hostile bytes."""

import hashlib
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spes_peer.errors import BadEncoding, SpesError
from spes_peer.run.encodings import BYTES_PER_VALUE, INT_GROUP, INT_TOP_CODE, MAX_VALUE, Dtype, Encoding, Format
from spes_peer.sync.encoding import decode, encode, from_state_bytes, state_bytes
from spes_peer.sync.topk import largest

PLAIN: tuple[Dtype, ...] = ("fp32", "bf16")
QUANTIZED: tuple[Encoding, ...] = ("int8", "int4")
ENCODINGS: tuple[Encoding, ...] = (*PLAIN, *QUANTIZED, "topk")
SIZES = [1, 2, 3, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8191, 70_000]
MODERATE = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=50)


@st.composite
def blocks(draw: st.DrawFn) -> Tensor:
    """Of odd sizes and all scales; with zeros, with values that are equal, with few that tower above the rest."""
    generator = numpy.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from(SIZES))
    values = generator.standard_normal(size) ** draw(st.sampled_from([1, 5]))
    if draw(st.booleans()):
        values *= generator.random(size) < draw(st.sampled_from([0.001, 0.5]))
    if draw(st.booleans()):
        values = numpy.round(values * 3)
    return torch.from_numpy((values * 2.0 ** draw(st.integers(-90, 90))).astype(numpy.float32))


def seeded(num_elements: int) -> Tensor:
    """Heavy-tailed values by exact operations alone, so that they are the same on every machine."""
    spread = (numpy.arange(num_elements, dtype=numpy.uint64) * 2654435761 + 12345) % 2**32
    uniform = (spread.astype(numpy.float64) - 2.0**31) / 2.0**31
    return torch.from_numpy((uniform * uniform * uniform).astype(numpy.float32))


def pairs_of(values: Tensor, found: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(values, length), torch.split(found, length), strict=True)


# What is kept


@given(MODERATE)
def test_fp32_loses_nothing(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert torch.equal(decode(Format("fp32"), encode(Format("fp32"), tensor), len(values)), tensor)


@given(MODERATE)
def test_bf16_keeps_eight_bits(values: list[float]) -> None:
    tensor = torch.tensor(values)
    found = decode(Format("bf16"), encode(Format("bf16"), tensor), len(values))
    tiny = torch.finfo(torch.float32).tiny  # below, bf16 is as coarse as 2⁻¹³³
    assert ((found - tensor).abs() <= tensor.abs() * 2.0**-8 + tiny).all()


def test_bf16_rounds_to_nearest_and_ties_to_even() -> None:
    step = 2.0**-7
    values = torch.tensor([1 + step / 2, 1 + 3 * step / 2, 1 + step * 0.51, -1 - step / 2])
    assert decode(Format("bf16"), encode(Format("bf16"), values), 4).tolist() == [1, 1 + 2 * step, 1 + step, -1]


@pytest.mark.parametrize("encoding", QUANTIZED)
@given(values=blocks())
def test_codes_are_off_by_half_a_scale_at_most(encoding: Encoding, values: Tensor) -> None:
    found = decode(Format(encoding), encode(Format(encoding), values), values.numel())
    for group, got in pairs_of(values, found, INT_GROUP[encoding]):
        scale = (group.abs().max() / INT_TOP_CODE[encoding]).to(torch.bfloat16).to(torch.float32)
        assert ((got - group).abs() <= scale * (0.5 + 1e-4)).all()


@given(values=blocks(), topk_kept=st.sampled_from([1, 64, 65, 1000, 4096]))
def test_topk_leaves_less_than_there_was(values: Tensor, topk_kept: int) -> None:
    format = Format("topk", topk_kept)
    found = decode(format, encode(format, values), values.numel())
    for chunk, got in pairs_of(values.double(), found.double(), 4096):
        assert (chunk - got).norm() < chunk.norm() or not chunk.any()
        assert int(got.count_nonzero()) <= format.kept_of(len(chunk))


@given(
    seed=st.integers(0, 2**32),
    length=st.sampled_from([1, 5, 128, 4095, 4096]),
    kinds=st.sampled_from([2, 5, 100, 10**6]),
    part=st.sampled_from([0.0, 1 / 64, 0.1, 1.0]),
)
def test_topk_keeps_the_largest_and_of_equal_ones_the_first(seed: int, length: int, kinds: int, part: float) -> None:
    rows = numpy.random.default_rng(seed).integers(0, kinds, (3, length)).astype(numpy.float32)
    rows[1] = rows[1, 0]
    kept = max(1, int(length * part))
    expected = [numpy.sort(numpy.argsort(-row, kind="stable")[:kept]) for row in rows]
    found = largest(rows, kept).reshape(3, kept) - numpy.arange(3)[:, None] * length
    assert numpy.array_equal(found, expected)


def test_topk_chooses_the_two_levels_that_lose_least() -> None:
    values = torch.zeros(4096)
    kept = torch.tensor([1.0, 1.5, 1.25, 8.0, 9.0, 40.0])
    values[[5, 9, 17, 1000, 2000, 4095]] = kept * torch.tensor([1, -1, 1, 1, -1, 1])
    found = decode(Format("topk", 6), encode(Format("topk", 6), values), 4096)
    splits = [(kept[:split], kept[split:]) for split in range(1, 6)]
    by_hand = [torch.cat([low.mean().repeat(len(low)), high.mean().repeat(len(high))]) for low, high in splits]
    best = min(float((levels - kept).square().sum()) for levels in by_hand)
    assert float((found - values).square().sum()) == pytest.approx(best, rel=0.01)  # bf16
    assert torch.equal(found.sign(), values.sign())


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(values=blocks())
def test_what_was_decoded_is_encoded_to_the_same_bytes(encoding: Encoding, values: Tensor) -> None:
    """Of all encodings: nothing is lost twice."""
    content = encode(Format(encoding), values)
    assert len(content) == Format(encoding).encoded_bytes(values.numel())
    assert encode(Format(encoding), decode(Format(encoding), content, values.numel())) == content


@pytest.mark.parametrize(("encoding", "ratio"), [("bf16", 2), ("int8", 3.9), ("int4", 7.5), ("topk", 100)])
def test_bytes_are_fewer_by_the_ratios_that_were_promised(encoding: Encoding, ratio: float) -> None:
    assert 4 * 2**20 / len(encode(Format(encoding), seeded(1 << 20))) >= ratio


# The same bytes everywhere


def test_the_layouts_are_these_bytes() -> None:
    """Worked out by hand from the layout. A change here is a change of the protocol."""
    five = torch.tensor([1.0, -2.0, 0.5, 0.0, 7.0])
    assert encode(Format("fp32"), five).hex() == "0000803f000000c00000003f000000000000e040"
    assert encode(Format("bf16"), five).hex() == "803f00c0003f0000e040"
    # 7 / 7 = 1 is the scale; −2 is 1110, 0.5 is a tie and goes to 0
    assert encode(Format("int4"), five).hex() == "803fe10007"
    # 7 / 127 in bf16 is 0x3D62 = 0.05517578: codes 18.1, −36.2, 9.06, 0, 126.9
    assert encode(Format("int8"), five).hex() == "623d12dc09007f"
    values = torch.zeros(130)
    values[[1, 0x42, 0x81]] = torch.tensor([-1.0, 4.0, -4.0])
    # levels 1 and 4; indices 0x001, 0x042, 0x081; codes low minus 10, high 01, high minus 11
    assert encode(Format("topk"), values).hex() == "803f8040012004810036"


DIGESTS = {
    "fp32": "9799640881d77d0d",
    "bf16": "0b4c290bea845ee2",
    "int8": "8542850e141b460f",
    "int4": "8b64303c612ac3d2",
    "topk": "2403c8f016b2457c",
}


def digests() -> dict[str, str]:
    values = seeded(300_001)  # more than a piece, and no whole number of groups
    return {encoding: hashlib.sha256(encode(Format(encoding), values)).hexdigest()[:16] for encoding in ENCODINGS}


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_any_number_of_threads_makes_the_same_bytes(num_threads: int) -> None:
    assert torch.get_num_threads() == num_threads
    assert digests() == DIGESTS


def test_a_processor_without_wide_registers_makes_the_same_bytes() -> None:
    script = (
        "import test_sync_encoding as t; print(t.digests() == t.DIGESTS, t.torch.backends.cpu.get_cpu_capability())"
    )
    features = numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    plain = {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": " ".join(features)}
    command = [sys.executable, "-c", script]
    folder = os.path.dirname(__file__)
    done = subprocess.run(command, cwd=folder, env={**os.environ, **plain}, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "DEFAULT"], done.stderr


# Hostile bytes


def test_bytes_with_random_faults_are_values_within_bounds_or_a_bad_encoding() -> None:
    """12,500 of them, half in a block of one piece, half in one whose last chunk, group and byte are not full."""
    generator = random.Random(4)
    outcomes: Counter[tuple[str, bool]] = Counter()
    for encoding in ENCODINGS:
        for num_elements in (4096, 4225):
            content = encode(Format(encoding), seeded(num_elements))
            for _ in range(1250):
                mutated = _mutated(generator, content)
                try:
                    found = decode(Format(encoding), mutated, num_elements)
                except BadEncoding:
                    outcomes[encoding, False] += 1
                else:
                    assert found.shape == (num_elements,)
                    assert found.dtype == torch.float32
                    assert float(found.abs().max()) <= MAX_VALUE
                    outcomes[encoding, True] += 1
    assert sum(outcomes.values()) == 12_500
    assert all(outcomes[encoding, is_good] > 50 for encoding in ENCODINGS for is_good in (True, False)), outcomes


def _mutated(generator: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    place = generator.randrange(len(changed))
    match generator.randrange(6):
        case 0:
            del changed[place:]
        case 1:
            changed += generator.randbytes(generator.randint(1, 9))
        case 2:
            part = generator.randbytes(generator.randint(1, 40))[: len(changed) - place]
            changed[place : place + len(part)] = part
        case 3:
            part = content[: min(generator.randint(1, 200), len(changed) - place)]
            changed[place : place + len(part)] = part
        case 4:
            changed[place] = generator.choice([0x00, 0x7F, 0x80, 0x88, 0xFF])
        case _:
            for _ in range(generator.randint(1, 3)):
                changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(content=st.binary(max_size=64), num_elements=st.integers(0, 20))
def test_any_bytes_are_finite_values_or_a_bad_encoding(encoding: Encoding, content: bytes, num_elements: int) -> None:
    try:
        found = decode(Format(encoding), content, num_elements)
    except BadEncoding:
        return
    assert found.shape == (num_elements,)
    assert found.isfinite().all()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("change", [-1, 1, 4])
def test_a_wrong_length_is_refused(encoding: Encoding, change: int) -> None:
    size = Format(encoding).encoded_bytes(3)
    with pytest.raises(BadEncoding, match=f"{size + change} bytes where 3 values of {encoding}"):
        decode(Format(encoding), bytes(size + change), 3)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_length_is_refused_before_memory_is_taken(encoding: Encoding) -> None:
    with pytest.raises(BadEncoding, match="10 bytes where"):
        decode(Format(encoding), bytes(10), 1 << 50)


def bf16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


def int8_block(scale: bytes, *codes: int) -> bytes:
    return scale + struct.pack(f"{len(codes)}b", *codes)


BAD_SCALES = [float("nan"), float("inf"), -1.0, -0.0, 2.0**116, 2.0**-127]


@pytest.mark.parametrize("scale", BAD_SCALES)
def test_a_scale_or_level_that_is_no_such_number_is_refused(scale: float) -> None:
    for encoding, content in (
        ("int8", int8_block(bf16(scale), 0, 0)),
        ("int4", bf16(scale) + bytes(1)),
        ("topk", bf16(min(scale, 1.0)) + bf16(scale) + bytes(3)),
    ):
        with pytest.raises(BadEncoding, match="negative, not finite, subnormal or too large"):
            decode(Format(encoding), content, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_value_travels_and_a_larger_one_does_not(encoding: Encoding, sign: int) -> None:
    values = torch.tensor([MAX_VALUE * sign, 0.0])
    found = decode(Format(encoding), encode(Format(encoding), values), 2)
    assert found.tolist() == pytest.approx(values.tolist(), rel=2.0**-7)
    assert encode(Format(encoding), found)
    with pytest.raises(SpesError, match="beyond"):
        encode(Format(encoding), values * 1.01)


def test_a_code_below_the_range_is_refused() -> None:
    with pytest.raises(BadEncoding, match="a code of -128 in int8"):
        decode(Format("int8"), int8_block(bf16(1), 5, -128), 2)
    for byte in (0x81, 0x18):
        with pytest.raises(BadEncoding, match="a code of -8 in int4"):
            decode(Format("int4"), bf16(1) + bytes([byte]), 2)


def test_codes_without_a_scale_are_refused() -> None:
    full = int8_block(bf16(0) + bf16(1), *[0] * 128, 3)
    assert decode(Format("int8"), full, 129).tolist() == [0] * 128 + [3]
    for content in (
        int8_block(bf16(0) + bf16(1), *[0] * 127, 1, 3),
        int8_block(bf16(1) + bf16(0), *[1] * 128, 3),
    ):
        with pytest.raises(BadEncoding, match="whose scale is 0"):
            decode(Format("int8"), content, 129)
    with pytest.raises(BadEncoding, match="whose scale is 0"):
        decode(Format("int4"), bf16(0) + bytes([0x10]), 2)


def test_bits_that_mean_nothing_are_refused() -> None:
    with pytest.raises(BadEncoding, match="last half byte"):
        decode(Format("int4"), bf16(1) + bytes([0x11]), 1)
    one = bf16(1) + bf16(2)
    assert decode(Format("topk"), one + bytes([0, 0, 1]), 1).tolist() == [2]
    with pytest.raises(BadEncoding, match="half byte after the last index"):
        decode(Format("topk"), one + bytes([0, 0x10, 1]), 1)
    with pytest.raises(BadEncoding, match="bits after the last code"):
        decode(Format("topk"), one + bytes([0, 0, 5]), 1)


def topk_block(low: float, high: float, first: int, second: int) -> bytes:
    """Of 128 values, of which 2 are kept: the second one as the high level, with a minus."""
    return bf16(low) + bf16(high) + (first | second << 12).to_bytes(3, "little") + bytes([0b1100])


def test_indices_and_levels_that_no_encoder_writes_are_refused() -> None:
    found = decode(Format("topk"), topk_block(1, 2, 7, 127), 128)
    assert found.nonzero().flatten().tolist() == [7, 127]
    assert found[[7, 127]].tolist() == [1, -2]
    for first, second in ((7, 7), (8, 7)):
        with pytest.raises(BadEncoding, match="indices that do not rise"):
            decode(Format("topk"), topk_block(1, 2, first, second), 128)
    with pytest.raises(BadEncoding, match="beyond a chunk of 128 values"):
        decode(Format("topk"), topk_block(1, 2, 7, 128), 128)
    with pytest.raises(BadEncoding, match="low level above the high"):
        decode(Format("topk"), topk_block(2, 1, 7, 127), 128)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 300, 5000])
def test_values_that_are_not_finite_are_not_sent(encoding: Encoding, bad: float, place: int) -> None:
    values = seeded(5001)
    values[place] = bad
    with pytest.raises(SpesError, match="not finite"):
        encode(Format(encoding), values)


@pytest.mark.parametrize("encoding", PLAIN)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_not_taken(encoding: Dtype, bad: float) -> None:
    values = seeded(5001)
    values[4999] = bad
    with pytest.raises(BadEncoding, match="not finite"):
        decode(Format(encoding), state_bytes(encoding, values), 5001)
    with pytest.raises(BadEncoding, match="not finite"):
        from_state_bytes(encoding, state_bytes(encoding, values), 5001)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nothing_has_no_bytes(encoding: Encoding) -> None:
    assert encode(Format(encoding), torch.zeros(0)) == b""
    assert decode(Format(encoding), b"", 0).shape == (0,)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_zeros_stay_zeros(encoding: Encoding) -> None:
    content = encode(Format(encoding), torch.zeros(4097))
    assert torch.equal(decode(Format(encoding), content, 4097), torch.zeros(4097))


@pytest.mark.parametrize("encoding", PLAIN)
def test_state_bytes_come_back_in_the_public_dtype(encoding: Dtype) -> None:
    content = encode(Format(encoding), torch.tensor([0.5, -3.0]))
    values = from_state_bytes(encoding, memoryview(content), 2)
    assert values.element_size() == BYTES_PER_VALUE[encoding]
    assert state_bytes(encoding, values) == content
    values += 1  # owns its memory: the bytes it came from may be read-only and shared
    assert encode(Format(encoding), torch.tensor([0.5, -3.0])) == content
