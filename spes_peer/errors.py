"""Every error that spes-peer raises on purpose.

    SpesError
    ├── UserError            a person's mistake: one line on stderr, then an exit code
    │   ├── BadConfiguration     a file or flag that cannot be used
    │   │   └── TooNew                the run speaks an older protocol
    │   ├── NoBootstrap          nobody answers at the bootstrap address
    │   ├── TooOld               the run speaks a newer protocol
    │   ├── NotAdmitted          the run does not want this peer
    │   └── NoDevice             no device here can train the run's model
    ├── PeerError            a peer's fault: costs that one message or transfer, never the round
    │   ├── BadMessage           bytes that are not what they claim to be
    │   │   └── BadEncoding          … of an encoded block
    │   ├── BadSignature         signed by nobody we can name
    │   └── Unreachable          no transport reaches the peer, or it makes no progress
    ├── BlobMissing          a blob that nobody here has
    ├── StateTorn            the public state stopped half-way through a record, and must be loaded anew
    ├── DiskTrouble          our disk is full, read-only or failing; an OSError too
    └── ChildFailed          one of our own processes answered with an error, or died
        ├── ChildStalled         … or does not answer at all
        ├── ChildDied            … or ended before it answered
        ├── ChildOutOfMemory     … or had not enough memory for it, and ends
        ├── ChildUnfit           … or has no device that can do it
        └── ChildDiskTrouble     … or cannot write; a DiskTrouble too

Foreign errors become one of these in the adapter that met them.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import TypeVar


class SpesError(Exception):
    """Root of the tree. Its text is a sentence for a person."""


_Error = TypeVar("_Error", bound=BaseException)


def first_in(group: BaseExceptionGroup[_Error]) -> _Error:
    """The first error of tasks that ran together: the reason, from which the others follow."""
    first = group.exceptions[0]
    return first_in(first) if isinstance(first, BaseExceptionGroup) else first


class UserError(SpesError):
    """Reaches the top of a command: printed as one line, then `exit_code`."""

    exit_code = 1


class BadConfiguration(UserError):
    exit_code = 2


class TooNew(BadConfiguration):
    pass


class NoBootstrap(UserError):
    exit_code = 3


class TooOld(UserError):
    exit_code = 4


class NotAdmitted(UserError):
    exit_code = 5


class NoDevice(UserError):
    exit_code = 6


class PeerError(SpesError):
    """Some peer misbehaved or is gone. Handled where that peer's message is handled."""


class BadMessage(PeerError):
    pass


class BadEncoding(BadMessage):
    pass


class BadSignature(PeerError):
    pass


class Unreachable(PeerError):
    pass


class BlobMissing(SpesError):
    pass


class StateTorn(SpesError):
    pass


class DiskTrouble(SpesError, OSError):
    """`DiskTrouble(errno, sentence)`. Also an OSError: who can do without the disk handles both alike."""

    def __str__(self) -> str:
        return str(self.strerror)


class ChildFailed(SpesError):
    pass


class ChildStalled(ChildFailed):
    pass


class ChildDied(ChildFailed):
    pass


class ChildOutOfMemory(ChildFailed):
    pass


class ChildUnfit(ChildFailed):
    pass


class ChildDiskTrouble(ChildFailed, DiskTrouble):
    pass


@contextlib.contextmanager
def ending_in_a_line() -> Iterator[None]:
    """Of a program that one of our commands starts: its last line on standard error says what was wrong, and its exit
    code is a person's error's own, or 1."""
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except (SpesError, OSError) as error:
        sys.exit(str(error))
