"""What readers yield."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from spes_peer.errors import SpesError

PART_BYTES = 1 << 19
"""Documents larger than this are tokenized in parts (`cut`), and never held out."""
MAX_LINE_BYTES = 256 << 20
"""A longer line is left out: nothing of it can be understood before all of it has been read."""
BLOCK_BYTES = 1 << 18

_SPACES = b" \t\r\n"

Kind = Literal["text", "json", "cut off", "too long", "unreadable"]
"""Text; a line of JSON that holds text; or, in place of a document, what is wrong with the file."""


class Record(NamedTuple):
    raw: bytes
    kind: Kind = "text"
    starts: bool = True
    """A document starts with it, and …"""
    ends: bool = True
    """… ends with it: both, but for parts of a large one."""


class CutOff(SpesError):
    """A compressed file ends in the middle, or is damaged there. What came before is good."""


class Unreadable(SpesError):
    """A file that is not what its name says."""


@dataclass
class Meter:
    """How far a reader has come in its file."""

    num_bytes: int = 0


def cut(raw: bytes, limit: int = PART_BYTES) -> int:
    """Where to cut a document for tokenizing: at most `limit` bytes from its start.

    Behind a line feed that no white space follows, if there is one in the second half: tokenizers that split text
    before they merge, as all of GPT-2's family, put no token across such a place. Else before a space that follows
    something else; else between two characters."""
    if len(raw) <= limit:
        return len(raw)
    half = limit // 2
    at = limit
    while (at := raw.rfind(b"\n", half, at)) >= 0:
        if raw[at + 1] not in _SPACES:
            return at + 1
    at = limit
    while (at := raw.rfind(b" ", half, at)) >= 0:
        if raw[at - 1] not in _SPACES and raw[at + 1] not in _SPACES:
            return at
    at = limit
    while at > limit - 4 and raw[at] & 0xC0 == 0x80:  # inside a character
        at -= 1
    return at
