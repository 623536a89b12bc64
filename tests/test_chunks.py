"""Chunks are packed and unpacked as protobuf's own code does it, whatever the bytes."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from spes_peer.errors import BadMessage
from spes_peer.wire.chunks import Chunk, pack_chunk, unpack_chunk
from spes_peer.wire.peer_pb2 import FetchReply

pieces = st.integers(0, 2**32 - 1)


@given(pieces, st.binary(max_size=300))
@example(0, b"")
@example(0, b"x")
@example(2**32 - 1, b"x" * (256 << 10))
def test_a_chunk_is_on_the_wire_what_protobuf_makes_of_it(piece: int, content: bytes) -> None:
    packed = pack_chunk(piece, memoryview(content))
    assert packed == FetchReply(piece=piece, content=content).SerializeToString()
    assert unpack_chunk(packed) == Chunk(b"", piece, memoryview(content))


@given(st.binary(max_size=60) | st.binary(max_size=9).map(lambda end: b"\x10\x05\x1a" + end))
@example(b"\x10\x80\x80\x80\x80\x10\x1a\x01x")  # a number of more than 32 bits
@example(b"\x10\x01\x10\x02\x1a\x01x")
@example(b"\x1a\x01x\x1a\x01y")
@example(b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x1a\x01x")
def test_any_bytes_are_what_protobuf_finds_in_them_or_refused(message: bytes) -> None:
    try:
        reply = FetchReply.FromString(message)
    except DecodeError:
        with pytest.raises(BadMessage):
            unpack_chunk(message)
        return
    assert unpack_chunk(message) == Chunk(reply.digests, reply.piece, memoryview(reply.content))
