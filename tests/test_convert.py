"""Every message of ours has a frozen dataclass of the same shape, travels unchanged, and refuses hostile bytes."""

import dataclasses
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_values import descriptor_of, values_of, wire_classes

from spes_peer.errors import BadMessage
from spes_peer.run.peers import PeerEntry, PeerState, Role
from spes_peer.wire import convert, record_pb2, round_pb2, signed_pb2

CLASSES = wire_classes()
BY_NAME = {cls.__name__: cls for cls in CLASSES}
wire = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
any_value = st.sampled_from(CLASSES).flatmap(values_of)


def test_every_message_that_nodes_agree_on_has_a_dataclass() -> None:
    for module in (signed_pb2, record_pb2, round_pb2):
        assert set(module.DESCRIPTOR.message_types_by_name) <= set(BY_NAME)


@wire
def test_a_dataclass_is_frozen_and_has_the_fields_of_its_message(cls: type) -> None:
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert {field.name for field in dataclasses.fields(cls)} == {field.name for field in descriptor_of(cls).fields}


@wire
def test_a_value_travels_unchanged(cls: type) -> None:
    @given(values_of(cls))
    @settings(max_examples=15)
    def travels(value: Any) -> None:
        content = convert.encode(value)
        arrived = convert.decode(cls, content)
        assert arrived == value
        assert convert.encode(arrived) == content

    travels()


def test_a_role_or_state_that_nobody_knows_is_refused() -> None:
    message = signed_pb2.PeerEntry(role="bootstrap", state="ONLINE")
    arrived = convert.from_message(PeerEntry, message)
    assert arrived.role is Role.BOOTSTRAP
    assert arrived.state is PeerState.ONLINE
    for unknown in ({"role": "king"}, {"state": "online"}, {"name": "\x1b[31m"}, {"grpc_addresses": ["a:1"] * 17}):
        hostile = signed_pb2.PeerEntry(role="bootstrap", state="ONLINE")
        hostile.MergeFrom(signed_pb2.PeerEntry(**unknown))
        with pytest.raises(BadMessage):
            convert.from_message(PeerEntry, hostile)


# ---- hostile bytes ----


def decode_or_refuse(cls: type, content: bytes) -> Any:
    """The value, or None if it was refused as it must be; any other error fails the test."""
    try:
        return convert.decode(cls, content)
    except BadMessage:
        return None


@given(st.sampled_from(CLASSES), st.binary(max_size=200))
@settings(max_examples=1500)
def test_random_bytes_end_as_a_value_or_as_a_bad_message(cls: type, content: bytes) -> None:
    decode_or_refuse(cls, content)


@given(any_value, st.data())
@settings(max_examples=1000)
def test_mutated_bytes_end_as_a_value_or_as_a_bad_message(value: Any, data: st.DataObject) -> None:
    content = bytearray(convert.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        match data.draw(st.sampled_from(["change", "insert", "delete"])):
            case "change" if at < len(content):
                content[at] = data.draw(st.integers(0, 255))
            case "delete":
                del content[at : at + data.draw(st.integers(1, 8))]
            case _:
                content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    decode_or_refuse(type(value), bytes(content))


@given(any_value, st.data())
@settings(max_examples=300)
def test_truncated_bytes_never_pass_for_the_whole(value: Any, data: st.DataObject) -> None:
    content = convert.encode(value)
    end = data.draw(st.integers(0, len(content)))
    shorter = decode_or_refuse(type(value), content[:end])
    assert end == len(content) or shorter != value


@given(any_value, st.integers(100, 10_000), st.binary(max_size=20))
@settings(max_examples=100)
def test_an_unknown_field_is_refused(value: Any, number: int, more: bytes) -> None:
    tag = _varint(number << 3 | 2)
    content = convert.encode(value) + tag + _varint(len(more)) + more
    with pytest.raises(BadMessage, match="does not know"):
        convert.decode(type(value), content)


@wire
def test_no_float_field_of_any_message_takes_nan(cls: type) -> None:
    for field in descriptor_of(cls).fields:
        if field.type == field.TYPE_DOUBLE:
            content = _varint(field.number << 3 | 1) + struct.pack("<d", math.nan)
            with pytest.raises(BadMessage):
                convert.decode(cls, content)


def test_a_message_of_another_type_is_refused() -> None:
    with pytest.raises(BadMessage, match="a Head where a Claim belongs"):
        convert.from_message(BY_NAME["Claim"], signed_pb2.Head())
    with pytest.raises(BadMessage, match="no message is called 'Nobody'"):
        convert.message_class("Nobody")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
