"""Frames between a daemon and its children: a 4-byte little-endian length, then a serialized `Frame`.

Sans I/O, because the two ends run under asyncio, trio and plain blocking code. No frame exceeds `MAX_FRAME_BYTES`:
tensors never travel here, only names of blobs.
"""

import struct

from google.protobuf.message import DecodeError, Message

from spes_peer.errors import BadMessage
from spes_peer.wire.children_pb2 import Frame
from spes_peer.wire.convert import message_class

MAX_FRAME_BYTES = 64 << 20  # a table of all blocks of the 9B model is a few megabytes
_LENGTH = struct.Struct("<I")


def pack(frame: Frame) -> bytes:
    content = frame.SerializeToString()
    return _LENGTH.pack(len(content)) + content


class FrameReader:
    """Collects bytes and gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, content: bytes) -> list[Frame]:
        """The frames completed by `content`; `BadMessage` on a length or content that cannot be."""
        self._buffer += content
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise BadMessage(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                frames.append(Frame.FromString(bytes(self._buffer[_LENGTH.size : end])))
            except DecodeError:
                raise BadMessage("bytes that are not a frame") from None
            del self._buffer[:end]
        return frames


def request(number: int, message: Message) -> Frame:
    """A request; `number` is above 0 and comes back in the answer."""
    return Frame(id=number, kind=message.DESCRIPTOR.name, body=message.SerializeToString())


def answer(asked: Frame, message: Message) -> Frame:
    return Frame(id=asked.id, kind=message.DESCRIPTOR.name, body=message.SerializeToString())


def failure(asked: Frame, reason: str) -> Frame:
    """An answer that says why there is none."""
    return Frame(id=asked.id, error=reason or "failed without a reason")


def event(message: Message) -> Frame:
    """A message that answers nothing."""
    return Frame(kind=message.DESCRIPTOR.name, body=message.SerializeToString())


def message_in(frame: Frame) -> Message:
    """The message that a frame carries; `BadMessage` if it is none of ours."""
    try:
        return message_class(frame.kind).FromString(frame.body)
    except DecodeError:
        raise BadMessage(f"bytes that are not a {frame.kind}") from None
