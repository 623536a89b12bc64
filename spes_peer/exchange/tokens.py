"""Call tokens: what a caller shows with every call, in its metadata.

A token is signed by the caller, names the callee and ends within a minute: a callee cannot use it against a third node,
and one that leaks is soon worth nothing.
"""

from dataclasses import dataclass

from spes_peer.errors import BadMessage, BadSignature
from spes_peer.identity import PeerId
from spes_peer.run.signed import Signed, Signer
from spes_peer.wire import convert

TOKEN_KEY = "spes-token-bin"  # gRPC sends metadata as bytes when the key ends so
TOKEN_SECONDS = 60.0
CLOCK_SKEW_SECONDS = 30.0
_MAX_TOKEN_BYTES = 1_024


@dataclass(frozen=True)
class CallToken:
    """See proto/signed.proto; `expires_at` in Unix seconds."""

    callee: PeerId
    expires_at: float


def make_token(signer: Signer, callee: PeerId, now: float) -> bytes:
    """A token for calls to `callee`; `now` in Unix seconds."""
    return convert.encode(signer.sign(CallToken(callee, now + TOKEN_SECONDS)))


@dataclass(frozen=True)
class OpenToken:
    """A token that its caller made for us. Whether it still counts is `check_time`'s to say."""

    caller: PeerId
    made_at: float
    """Unix seconds, by the caller's clock."""

    def check_time(self, now: float) -> None:
        """Raise `BadSignature` if it was made too long before `now`, or behind it."""
        if self.made_at + TOKEN_SECONDS < now - CLOCK_SKEW_SECONDS:
            raise BadSignature("a call token that has expired; if it was just made, compare the clocks")
        if self.made_at > now + CLOCK_SKEW_SECONDS:
            raise BadSignature("a call token that lasts too long; if it was just made, compare the clocks")


def open_token(content: bytes | None, run_id: bytes, me: PeerId) -> OpenToken:
    """Who calls, if the token is the caller's and for us; `BadSignature` says why it is not."""
    if not content or len(content) > _MAX_TOKEN_BYTES:
        raise BadSignature("a call without a token")
    try:
        signed = convert.decode(Signed, content)
        token = signed.open(CallToken, run_id)
    except BadMessage as error:
        raise BadSignature(f"a call token that cannot be used: {error}") from None
    if token.callee != me:
        raise BadSignature("a call token for another node")
    return OpenToken(signed.peer_id, token.expires_at - TOKEN_SECONDS)
