"""The chunks of pieces, which are most of what nodes send: a FetchReply without copying its content on the way.

protobuf's own code copies what is put into a message, again when it is serialized, and twice more at the other end.
What is packed here is what that code makes, byte for byte; what does not look like it is left to that code.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from spes_peer.errors import BadMessage
from spes_peer.wire.peer_pb2 import FetchReply

_CONTENT_TAG = FetchReply.CONTENT_FIELD_NUMBER << 3 | 2
_PIECE_TAG = FetchReply.PIECE_FIELD_NUMBER << 3
_MAX_VARINT_BYTES = 5


@dataclass(frozen=True)
class Chunk:
    """A FetchReply."""

    digests: bytes
    piece: int
    content: memoryview


def pack_chunk(piece: int, content: memoryview) -> bytes:
    """`FetchReply(piece=piece, content=content)`, serialized."""
    head = FetchReply(piece=piece).SerializeToString()
    if not content:
        return head
    return b"".join((head, bytes((_CONTENT_TAG,)), _varint(len(content)), content))


def unpack_chunk(message: bytes) -> Chunk:
    """Its content lies in `message`; `BadMessage` for bytes that are no FetchReply."""
    piece, at = 0, 0
    if message[:1] == bytes((_PIECE_TAG,)):
        piece, at = _read_varint(message, 1)
    if at >= 0 and message[at : at + 1] == bytes((_CONTENT_TAG,)):
        num_bytes, at = _read_varint(message, at + 1)
        if at >= 0 and len(message) - at == num_bytes:
            return Chunk(b"", piece, memoryview(message)[at:])
    try:
        reply = FetchReply.FromString(message)
    except DecodeError:
        raise BadMessage("bytes that are not a FetchReply") from None
    return Chunk(reply.digests, reply.piece, memoryview(reply.content))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of 32 bits and where it ends; -1 where there is none."""
    number = 0
    for index, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return (number, at + index + 1) if number < 1 << 32 else (0, -1)
    return 0, -1
