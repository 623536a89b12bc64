"""A caller that speaks HTTP/2 by itself, to say what no gRPC library says: RFC 9113, as little of it as that takes."""

import asyncio
import base64
import contextlib
import ssl
import struct
from types import TracebackType

from spes_peer.exchange.tokens import TOKEN_KEY

DATA, HEADERS, RESET, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4


def _literal(text: bytes) -> bytes:
    """Of a header, without an index and without Huffman's code."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, out = len(text) - 127, bytearray([127])
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest]) + text


def announced(num_bytes: int, content: bytes) -> bytes:
    """A message of gRPC that says it has so many bytes, whatever it has."""
    return b"\0" + struct.pack(">I", num_bytes) + content


class RawCaller:
    """One connection to a server on loopback."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._number = -1
        self._said = b""

    async def __aenter__(self) -> "RawCaller":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(SETTINGS, 0, 0, b""))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content

    async def begin(self, method: str, token: bytes | None, encoding: bytes = b"identity") -> int:
        """The headers of a call; its number."""
        self._number += 2
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", f"/spes_peer.wire.Peer/{method}".encode()),
            (b":authority", b"spes-peer"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"grpc-encoding", encoding),
        ]
        if token is not None:
            headers.append((TOKEN_KEY.encode(), base64.b64encode(token).rstrip(b"=")))
        block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers)
        self._writer.write(self._frame(HEADERS, END_HEADERS, self._number, block))
        await self._writer.drain()
        return self._number

    async def send(self, call: int, content: bytes, is_last: bool = False) -> None:
        """`content` as it is, in frames of at most 16 KiB, whatever windows the server allows."""
        for start in range(0, max(len(content), 1), 16_384):
            part = content[start : start + 16_384]
            flags = END_STREAM if is_last and start + 16_384 >= len(content) else 0
            self._writer.write(self._frame(DATA, flags, call, part))
        await self._writer.drain()

    async def heard(self, words: str, times: int = 1, seconds: float = 10.0) -> bool:
        """Whether the server says `words`, so many times, before it hangs up."""
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(seconds):
                while self._said.count(words.encode()) < times:
                    if not (more := await self._reader.read(65_536)):
                        break
                    self._said += more
        return self._said.count(words.encode()) >= times
