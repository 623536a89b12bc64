"""Values to bytes and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.errors import BadMessage, SpesError
from spes_peer.run.encodings import BYTES_PER_VALUE, Dtype, Format
from spes_peer.sync.encoding import decode, encode, from_state_bytes, state_bytes

ENCODINGS: tuple[Dtype, ...] = ("fp32", "bf16")
MODERATE = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=50)


@given(MODERATE)
def test_fp32_loses_nothing(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert torch.equal(decode(Format("fp32"), encode(Format("fp32"), tensor), len(values)), tensor)


@given(MODERATE)
def test_bf16_keeps_eight_bits_and_encodes_its_own_values_exactly(values: list[float]) -> None:
    tensor = torch.tensor(values)
    found = decode(Format("bf16"), encode(Format("bf16"), tensor), len(values))
    tiny = torch.finfo(torch.float32).tiny  # below, bf16 is as coarse as 2⁻¹³³
    assert ((found - tensor).abs() <= tensor.abs() * 2.0**-8 + tiny).all()
    assert torch.equal(decode(Format("bf16"), encode(Format("bf16"), found), len(values)), found)


def test_bf16_rounds_to_nearest_and_ties_to_even() -> None:
    step = 2.0**-7
    values = torch.tensor([1 + step / 2, 1 + 3 * step / 2, 1 + step * 0.51, -1 - step / 2])
    assert decode(Format("bf16"), encode(Format("bf16"), values), 4).tolist() == [1, 1 + 2 * step, 1 + step, -1]


def test_bytes_are_little_endian() -> None:
    assert encode(Format("fp32"), torch.tensor([1.0, -2.0])) == bytes.fromhex("0000803f000000c0")
    assert encode(Format("bf16"), torch.tensor([1.0, -2.0])) == bytes.fromhex("803f00c0")


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(content=st.binary(max_size=64), num_elements=st.integers(0, 20))
def test_hostile_bytes_are_finite_values_or_a_bad_message(encoding: Dtype, content: bytes, num_elements: int) -> None:
    try:
        found = decode(Format(encoding), content, num_elements)
    except BadMessage:
        return
    assert found.shape == (num_elements,)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    assert encode(Format(encoding), found) == content


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_neither_sent_nor_taken(encoding: Dtype, bad: float) -> None:
    values = torch.tensor([1.0, bad])
    with pytest.raises(SpesError, match="not finite"):
        encode(Format(encoding), values)
    with pytest.raises(BadMessage, match="not finite"):
        decode(Format(encoding), state_bytes(encoding, values), 2)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("change", [-1, 1, 4])
def test_a_wrong_length_is_a_bad_message(encoding: Dtype, change: int) -> None:
    with pytest.raises(BadMessage, match="bytes where 3 values"):
        decode(Format(encoding), bytes(3 * BYTES_PER_VALUE[encoding] + change), 3)


def test_a_value_beyond_bf16_is_not_sent_as_infinity() -> None:
    with pytest.raises(SpesError, match="not finite"):
        encode(Format("bf16"), torch.tensor([torch.finfo(torch.float32).max]))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_state_bytes_come_back_in_the_public_dtype(encoding: Dtype) -> None:
    content = encode(Format(encoding), torch.tensor([0.5, -3.0]))
    values = from_state_bytes(encoding, memoryview(content), 2)
    assert values.element_size() == BYTES_PER_VALUE[encoding]
    assert state_bytes(encoding, values) == content
    values += 1  # owns its memory: the bytes it came from may be read-only and shared
    assert encode(Format(encoding), torch.tensor([0.5, -3.0])) == content
