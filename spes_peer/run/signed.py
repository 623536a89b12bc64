"""Signed envelopes: everything one node says to another, and who said it.

A signature covers the message's type, the run id, the hash of the record it answers, the signer's incarnation, a
rising counter, and the bytes; each field with its length, so that no two envelopes share a signature.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spes_peer.errors import BadMessage, BadSignature
from spes_peer.identity import Identity, PeerId, verify
from spes_peer.wire import convert

T = TypeVar("T")

_DOMAIN = b"spes-peer message\0"


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
        return convert.decode(cls, self.body)


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
            body=convert.encode(message),
            signature=b"",
        )
        return Signed(**{**unsigned.__dict__, "signature": self.identity.sign(unsigned.signed_bytes())})


@dataclass
class ReplayGuard:
    """Accepts each (peer, incarnation, counter) once and in rising order."""

    _newest: dict[PeerId, tuple[int, int]] = field(default_factory=dict)

    def accept(self, signed: Signed) -> None:
        """Raise `BadSignature` for a message that is not newer than the newest of its signer."""
        moment = (signed.incarnation, signed.counter)
        if moment <= self._newest.get(signed.peer_id, (-1, -1)):
            raise BadSignature(f"a {signed.kind} of {signed.peer_id} again, or out of order")
        self._newest[signed.peer_id] = moment
