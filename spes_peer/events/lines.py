"""An event as a line of JSON: protobuf's own form of it, with the names of proto/, and whole numbers as numbers.

`at` comes second and the kind third, so that a reader finds moments and kinds without reading all (`Head`).
"""

import json
import math
import re
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import Message

from spes_peer.wire.event_pb2 import Event

_END_OF_TIME = 2.5e11  # Unix seconds, in the year 9892: what is later is damage, and no date
_HEAD = re.compile(rb'\{"sequence":(\d+),"at":([0-9.e+]+),"(\w+)":')


class Head(NamedTuple):
    """What a line begins with."""

    sequence: int
    at: float
    kind: str


def line_of(event: Event) -> bytes:
    """One line, with its end."""
    return json.dumps(plain(event), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def plain(message: Message) -> dict[str, Any]:
    """What is set in a message, as JSON has it."""
    return {field.name: _plain(value) for field, value in message.ListFields()}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value).replace("nan", "NaN").replace("inf", "Infinity")
    return value if isinstance(value, (str, int)) else [_plain(one) for one in value]


def event_of(line: bytes) -> Event | None:
    """The event that a line has, as far as this program knows its words; None where the line is damaged."""
    try:
        read = json.loads(line)
        try:
            return Event(**read)  # fast, and particular
        except (TypeError, ValueError):
            event = Event()
            json_format.ParseDict(read, event, ignore_unknown_fields=True)
            return event
    except (TypeError, ValueError, RecursionError, json_format.ParseError):
        return None


def head_of(line: bytes) -> Head | None:
    """None where the line is damaged already in its first words."""
    if (match := _HEAD.match(line)) is not None:
        try:
            head = Head(int(match[1]), float(match[2]), match[3].decode())
        except ValueError:  # such as two points, or thousands of digits
            return None
    elif (event := event_of(line)) is not None:  # written by another program
        head = Head(event.sequence, event.at, event.WhichOneof("kind") or "")
    else:
        return None
    return head if 0 <= head.at < _END_OF_TIME else None
