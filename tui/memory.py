"""What the dashboard remembers between two statuses, all of it bounded, and the `View` that every panel draws."""

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spes_peer.wire.control_pb2 import LogLine, PeerStatus, Status
from tui.look import DIM, OTHERS, SELF, safe

_LOG_LINES = 500
_SPEEDS = 240
_COLOURED_PEERS = 4096
_NAME_CHARACTERS = 24


@dataclass(frozen=True)
class View:
    """One moment, ready to be drawn."""

    status: Status
    now: float
    """Unix seconds."""
    colours: Mapping[str, str]
    """Colour of every peer id met so far."""
    speeds: Sequence[float]
    """Tokens per second of this peer, old to new."""
    log: Sequence[LogLine]
    names: Mapping[str, str]
    """What every peer calls itself, made harmless."""

    def name(self, peer_id: str) -> str:
        """What a peer calls itself; the end of its id where it has no name."""
        return self.names.get(peer_id) or f"…{safe(peer_id[-6:])}"

    def colour(self, peer_id: str) -> str:
        return SELF if peer_id == self.status.peer_id else self.colours.get(peer_id, DIM)

    def someone(self, peer_ids: Sequence[str], most: int = 3) -> str:
        """Names in a row, in their order, this peer first; the first few of many, and one word for the whole roster."""
        roster = {peer.peer_id for peer in self.status.peers if peer.subsets}
        if len(roster) > 1 and roster == set(peer_ids):
            return "everybody"
        others = sorted(self.name(peer_id) for peer_id in peer_ids if peer_id != self.status.peer_id)
        names = (["you"] if self.status.peer_id in peer_ids else []) + others
        rest = len(names) - most
        return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")

    @property
    def volunteers(self) -> list[PeerStatus]:
        return [peer for peer in self.status.peers if peer.role != "bootstrap"]

    @property
    def before_the_first_round(self) -> str:
        """What to say while there is no round to show."""
        if self.status.round:
            return "no round has closed yet"
        admitted = sum(bool(peer.subsets) for peer in self.volunteers)
        return f"waiting for the first round: {admitted} of {len(self.volunteers)} volunteers admitted"


class Memory:
    """Takes statuses in as they come."""

    def __init__(self) -> None:
        self.status: Status | None = None
        self._colours: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._palette = itertools.cycle(OTHERS)
        self._speeds: deque[float] = deque(maxlen=_SPEEDS)
        self._log: deque[LogLine] = deque(maxlen=_LOG_LINES)
        self._last_line = (0, -1)  # pid, sequence: a new daemon counts anew

    def absorb(self, status: Status) -> None:
        """Make `status` the present one and remember what moves."""
        self._remember_speed(status)
        self._remember_log(status)
        self._names = {peer.peer_id: safe(peer.name, _NAME_CHARACTERS) for peer in status.peers}
        for peer in status.peers:
            if peer.peer_id not in self._colours and len(self._colours) < _COLOURED_PEERS and not peer.is_self:
                self._colours[peer.peer_id] = next(self._palette)
        self.status = status

    def view(self, now: float) -> View | None:
        """The present moment, or none before the first status."""
        if self.status is None:
            return None
        return View(self.status, now, self._colours, self._speeds, self._log, self._names)

    def _remember_speed(self, status: Status) -> None:
        speed = status.training.tokens_per_second
        is_new = not self._speeds or self._speeds[-1] != speed
        if status.training.num_steps and math.isfinite(speed) and is_new:
            self._speeds.append(max(0.0, speed))

    def _remember_log(self, status: Status) -> None:
        for line in status.log:
            pid, sequence = self._last_line
            if pid != status.pid or line.sequence > sequence:
                self._log.append(line)
                self._last_line = (status.pid, line.sequence)
