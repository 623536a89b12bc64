"""A child process that does what its requests say; started by the tests of spes_peer.process.

Requests are `ReadDictionary`, whose `dictionary` says what to do.
"""

import os
import socket
import sys
import time

from spes_peer.process import socket_to_parent
from spes_peer.wire import frames
from spes_peer.wire.children_pb2 import DhtHealth, DhtStarted, Dictionary, DictionaryEntry, Frame, ReadDictionary


def act(end: socket.socket, asked: Frame) -> None:
    request = frames.message_in(asked)
    assert isinstance(request, ReadDictionary)
    match request.dictionary:
        case "fail":
            reply = frames.failure(asked, "it cannot be done")
        case "say nothing":
            return
        case "answer something else":
            reply = frames.answer(asked, DhtStarted())
        case "tell":
            end.sendall(frames.pack(frames.event(DhtHealth(num_neighbours=7))))
            reply = frames.answer(asked, Dictionary())
        case "print":
            print("said on stdout")
            print("said on stderr", file=sys.stderr)
            reply = frames.answer(asked, Dictionary())
        case "die":
            os._exit(3)
        case "read no more":
            time.sleep(600)
            return
        case "send nonsense":
            end.sendall(b"\xff" * 64)
            return
        case echoed:
            reply = frames.answer(asked, Dictionary(entries=[DictionaryEntry(peer_id=echoed)]))
    end.sendall(frames.pack(reply))


def main() -> None:
    end = socket_to_parent()
    reader = frames.FrameReader()
    while content := end.recv(1 << 16):
        for frame in reader.feed(content):
            act(end, frame)
    if os.environ.get("IGNORES_THE_END"):
        time.sleep(600)


if __name__ == "__main__":
    main()
