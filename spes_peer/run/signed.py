"""Signed envelopes: everything one node says to another, and who said it.

A signature covers the message's type, the run id, the hash of the record it answers, the signer's incarnation, a
rising counter, and the bytes; each field with its length, so that no two envelopes share a signature.

Large bodies travel compressed: a record names its peers again and again, and goes to all of them. A compressed body
begins with what no message of ours begins with.
"""

import lzma
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spes_peer.errors import BadMessage, BadSignature
from spes_peer.identity import Identity, PeerId, verify
from spes_peer.wire import convert

T = TypeVar("T")

_DOMAIN = b"spes-peer message\0"
_COMPRESSED = b"\xfd7zXZ\0"  # xz's magic; in protobuf the tag of a field 895, which is refused
_COMPRESSED_FROM_BYTES = 4096
_MOST_SIGNERS = 16_384  # far more than a run has peers
_MAX_BODY_BYTES = 8 << 20  # what a message may have on the wire without compression


def pack(content: bytes) -> bytes:
    """The body that carries these bytes of a message."""
    if len(content) < _COMPRESSED_FROM_BYTES:
        return content
    return lzma.compress(content, check=lzma.CHECK_NONE, preset=0)  # higher ones take longer and save nothing


def is_packed(body: bytes) -> bool:
    """Whether it must be decompressed."""
    return body.startswith(_COMPRESSED)


def unpack(body: bytes) -> bytes:
    """What `pack` was given; `BadMessage` for what it never gives, before that takes any memory."""
    if not is_packed(body):
        return body
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_BODY_BYTES)
    try:
        content = unpacker.decompress(body, _MAX_BODY_BYTES)
    except (lzma.LZMAError, MemoryError) as error:
        raise BadMessage(f"a body that cannot be decompressed: {error}") from None
    if not unpacker.eof or unpacker.unused_data:
        raise BadMessage(f"a compressed body that is cut or has more behind its end, or over {_MAX_BODY_BYTES} bytes")
    return content


@dataclass(frozen=True)
class Signed:
    kind: str
    run_id: bytes
    record_hash: bytes
    peer_id: PeerId
    incarnation: int
    counter: int
    body: bytes
    signature: bytes

    def signed_bytes(self) -> bytes:
        fields = (self.kind.encode(), self.run_id, self.record_hash, self.peer_id.encode(), self.body)
        numbers = struct.pack("<QQ", self.incarnation, self.counter)
        return _DOMAIN + numbers + b"".join(struct.pack("<Q", len(part)) + part for part in fields)

    def check(self, run_id: bytes) -> None:
        """Raise `BadSignature` or `BadMessage` unless this was signed by `peer_id` for this run."""
        if self.run_id != run_id:
            raise BadMessage(f"a {self.kind[:80]!r} of another run")
        verify(self.peer_id, self.signed_bytes(), self.signature)

    def open(self, cls: type[T], run_id: bytes) -> T:
        """The message inside, once signature, run and type are found good."""
        self.check(run_id)
        if self.kind != cls.__name__:
            raise BadMessage(f"a {self.kind[:80]!r} where a {cls.__name__} belongs")
        return convert.decode(cls, unpack(self.body))


def open_any(signed: Signed, kinds: dict[str, type[Any]], run_id: bytes) -> Any:
    """The message inside, of one of the `kinds` by name."""
    if signed.kind not in kinds:
        raise BadMessage(f"a {signed.kind[:80]!r} where one of {', '.join(kinds)} belongs")
    return signed.open(kinds[signed.kind], run_id)


@dataclass
class Signer:
    """Signs messages of one start of one node in one run; counts them."""

    identity: Identity
    run_id: bytes
    incarnation: int
    record_hash: Callable[[], bytes] = lambda: b""
    _counter: int = 0

    def sign(self, message: Any) -> Signed:
        self._counter += 1
        unsigned = Signed(
            kind=type(message).__name__,
            run_id=self.run_id,
            record_hash=self.record_hash(),
            peer_id=self.identity.peer_id,
            incarnation=self.incarnation,
            counter=self._counter,
            body=pack(convert.encode(message)),
            signature=b"",
        )
        return Signed(**{**unsigned.__dict__, "signature": self.identity.sign(unsigned.signed_bytes())})


@dataclass
class ReplayGuard:
    """Accepts each (peer, incarnation, counter) once and in rising order; forgets who has said nothing for longest,
    for anybody can make keys without end."""

    _newest: dict[PeerId, tuple[int, int]] = field(default_factory=dict)

    def accept(self, signed: Signed) -> None:
        """Raise `BadSignature` for a message that is not newer than the newest of its signer."""
        moment = (signed.incarnation, signed.counter)
        if moment <= self._newest.get(signed.peer_id, (-1, -1)):
            raise BadSignature(f"a {signed.kind} of {signed.peer_id} again, or out of order")
        self._newest.pop(signed.peer_id, None)  # to the end
        self._newest[signed.peer_id] = moment
        if len(self._newest) > _MOST_SIGNERS:
            del self._newest[next(iter(self._newest))]
