"""Frozen values to bytes and back, strictly.

The rest of the program holds frozen dataclasses; each has the name and the field names of a message in `proto/`, so
one converter serves all. Decoding is for hostile bytes: unknown fields, non-finite numbers, wrong types and values
that a dataclass refuses in its `__post_init__` end as `BadMessage`.
"""

import dataclasses
import functools
import math
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from spes_peer.errors import BadMessage
from spes_peer.wire import children_pb2, control_pb2, peer_pb2, record_pb2, round_pb2, signed_pb2

T = TypeVar("T")

_MODULES = (signed_pb2, record_pb2, round_pb2, peer_pb2, control_pb2, children_pb2)


@functools.cache
def message_class(name: str) -> type[Message]:
    """The generated class called `name`; `BadMessage` if there is none."""
    for module in _MODULES:
        if name in module.DESCRIPTOR.message_types_by_name:
            return typing.cast(type[Message], getattr(module, name))
    raise BadMessage(f"no message is called {name[:80]!r}")


def to_message(value: Any) -> Message:
    """The protobuf message of a dataclass value."""
    message = message_class(type(value).__name__)()
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if isinstance(content, tuple):
            items = [to_message(item) if dataclasses.is_dataclass(item) else item for item in content]
            getattr(message, field.name).extend(items)
        elif dataclasses.is_dataclass(content):
            getattr(message, field.name).CopyFrom(to_message(content))
        elif content is not None:
            setattr(message, field.name, content)
    return message


def encode(value: Any) -> bytes:
    """The bytes of a dataclass value, the same for equal values."""
    return to_message(value).SerializeToString(deterministic=True)


def from_message(cls: type[T], message: Message) -> T:
    """The value of a received message, or `BadMessage`."""
    if message.DESCRIPTOR.name != cls.__name__:
        raise BadMessage(f"a {message.DESCRIPTOR.name} where a {cls.__name__} belongs")
    if len(UnknownFieldSet(message)):
        raise BadMessage(f"{cls.__name__} has fields that this version does not know")
    try:
        return cls(**{name: read(message) for name, read in _readers_of(typing.cast(Any, cls))})
    except (ValueError, TypeError) as error:
        raise BadMessage(f"{cls.__name__}: {error}") from None


def decode(cls: type[T], content: bytes) -> T:
    """The value in `content`, or `BadMessage`."""
    message = message_class(cls.__name__)()
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise BadMessage(f"bytes that are not a {cls.__name__}") from None
    return from_message(cls, message)


_Read = Callable[[Any], Any]


@functools.cache
def _readers_of(cls: type) -> tuple[tuple[str, _Read], ...]:
    """How to read each field from a message; made once, as a record of a large run has tens of thousands of them."""
    hints = typing.get_type_hints(cls)
    return tuple((field.name, _reader(field.name, hints[field.name])) for field in dataclasses.fields(cls))


def _reader(name: str, kind: Any) -> _Read:
    content_of = operator.attrgetter(name)
    if typing.get_origin(kind) is tuple:
        item = _converter(typing.get_args(kind)[0], name)
        return lambda message: tuple(map(item, content_of(message)) if item else content_of(message))
    if typing.get_origin(kind) is types.UnionType:
        present = _reader(name, typing.get_args(kind)[0])
        return lambda message: present(message) if message.HasField(name) else None
    convert = _converter(kind, name)
    return content_of if convert is None else lambda message: convert(content_of(message))


def _converter(kind: Any, name: str) -> _Read | None:
    """From what protobuf has to what a dataclass has; None where that is the same."""
    if dataclasses.is_dataclass(kind):
        return functools.partial(from_message, typing.cast(type[Any], kind))
    base = getattr(kind, "__supertype__", kind)
    if base is float:
        return functools.partial(_finite, name)
    return None if base in (str, bytes, int, bool) else typing.cast(_Read, base)


def _finite(name: str, content: float) -> float:
    if not math.isfinite(content):
        raise BadMessage(f"{name} is not finite")
    return content
