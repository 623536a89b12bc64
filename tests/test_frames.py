"""Frames between a daemon and its children survive any cut, and refuse what no child of ours sends."""

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spes_peer.errors import BadMessage
from spes_peer.wire import frames
from spes_peer.wire.children_pb2 import DhtHealth, Done, Frame, ReadDictionary

short = st.text(max_size=20)
any_frame = st.builds(Frame, id=st.integers(0, 2**64 - 1), kind=short, body=st.binary(max_size=100), error=short)


@given(st.lists(any_frame, max_size=6), st.data())
def test_frames_come_out_whole_and_in_order_however_they_were_cut(sent: list[Frame], data: st.DataObject) -> None:
    content = b"".join(map(frames.pack, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    reader = frames.FrameReader()
    received = [
        frame
        for start, end in itertools.pairwise([0, *cuts, len(content)])
        for frame in reader.feed(content[start:end])
    ]
    assert received == sent


def test_frames_come_out_byte_by_byte_and_all_at_once() -> None:
    sent = [frames.request(number, ReadDictionary(dictionary="peers")) for number in range(1, 4)]
    content = b"".join(map(frames.pack, sent))
    assert frames.FrameReader().feed(content) == sent
    reader = frames.FrameReader()
    assert [frame for byte in content for frame in reader.feed(bytes([byte]))] == sent


def test_a_frame_comes_out_with_its_last_byte_and_not_before() -> None:
    content = frames.pack(frames.request(1, ReadDictionary(dictionary="peers")))
    reader = frames.FrameReader()
    assert reader.feed(content[:-1]) == []
    assert len(reader.feed(content[-1:])) == 1


@pytest.mark.parametrize("length", [frames.MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_length_above_the_limit_is_refused_before_anything_is_collected(length: int) -> None:
    with pytest.raises(BadMessage, match=f"a frame of {length} bytes"):
        frames.FrameReader().feed(struct.pack("<I", length))


def test_a_length_at_the_limit_is_waited_for() -> None:
    assert frames.FrameReader().feed(struct.pack("<I", frames.MAX_FRAME_BYTES)) == []


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_random_bytes_end_as_frames_or_as_a_bad_message(content: bytes) -> None:
    try:
        received = frames.FrameReader().feed(struct.pack("<I", len(content)) + content)
    except BadMessage:
        return
    assert len(received) == 1


def test_an_answer_and_a_failure_carry_the_number_of_their_request() -> None:
    asked = frames.request(7, ReadDictionary(dictionary="peers"))
    assert frames.message_in(asked) == ReadDictionary(dictionary="peers")
    assert frames.answer(asked, Done()) == Frame(id=7, kind="Done")
    assert frames.failure(asked, "no such thing") == Frame(id=7, error="no such thing")
    assert frames.failure(asked, "").error  # an empty error would read as an answer
    assert frames.event(DhtHealth(num_neighbours=3)).id == 0


@pytest.mark.parametrize("frame", [Frame(kind="Nonsense"), Frame(), Frame(kind="DhtHealth", body=b"\xff\xff")])
def test_a_frame_with_no_message_of_ours_is_refused(frame: Frame) -> None:
    with pytest.raises(BadMessage):
        frames.message_in(frame)
