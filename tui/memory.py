"""What the dashboard remembers between two statuses, all of it bounded, and the `View` that every panel draws."""

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spes_peer.wire.control_pb2 import LogLine, PeerStatus, Status
from tui.look import DIM, OTHERS, SELF, safe

_LOG_LINES = 2000
_SAMPLES = 240
_SAMPLE_SECONDS = 2.0
_COLOURED_PEERS = 4096
_NAME_CHARACTERS = 24


@dataclass(frozen=True)
class Sample:
    """How fast things went in the seconds before a moment."""

    at: float
    """Unix seconds."""
    tokens_per_second: float
    """Of this peer; nan while it does not train."""
    sent_per_second: float
    received_per_second: float
    """Bytes, over all transports; nan where they are not known."""


@dataclass(frozen=True)
class View:
    """One moment, ready to be drawn."""

    status: Status
    now: float
    """Unix seconds."""
    colours: Mapping[str, str]
    """Colour of every peer id met so far."""
    samples: Sequence[Sample]
    """The last minutes, old to new."""
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
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._counted: tuple[float, int, int, int] | None = None  # when, pid, bytes sent and received
        self._log: deque[LogLine] = deque(maxlen=_LOG_LINES)
        self._last_line = (0, -1)  # pid, sequence: a new daemon counts anew

    def absorb(self, status: Status, now: float) -> None:
        """Make `status` the present one and remember what moves; `now` is in Unix seconds. Cheap, for bursts."""
        self._remember_rates(status, now)
        self._remember_log(status)
        self.status = status

    def view(self, now: float) -> View | None:
        """The present moment, or none before the first status."""
        status = self.status
        if status is None:
            return None
        self._names = {peer.peer_id: safe(peer.name, _NAME_CHARACTERS) for peer in status.peers}
        for peer in status.peers:
            if peer.peer_id not in self._colours and len(self._colours) < _COLOURED_PEERS and not peer.is_self:
                self._colours[peer.peer_id] = next(self._palette)
        return View(status, now, self._colours, self._samples, self._log, self._names)

    def _remember_rates(self, status: Status, now: float) -> None:
        sent = sum(traffic.bytes_sent for traffic in status.traffic)
        received = sum(traffic.bytes_received for traffic in status.traffic)
        if self._counted is None or self._counted[1] != status.pid or now < self._counted[0]:
            self._counted = now, status.pid, sent, received  # another daemon counts anew
            return
        before, _, sent_before, received_before = self._counted
        if (seconds := now - before) < _SAMPLE_SECONDS:
            return
        self._counted = now, status.pid, sent, received
        speed = status.training.tokens_per_second if status.phase.name == "training" else math.nan
        up, down = max(0, sent - sent_before) / seconds, max(0, received - received_before) / seconds
        self._samples.append(Sample(now, speed if speed > 0 else math.nan, up, down))

    def _remember_log(self, status: Status) -> None:
        new: list[LogLine] = []
        for line in reversed(status.log):
            if self._last_line[0] == status.pid and line.sequence <= self._last_line[1]:
                break
            new.append(line)
        if new:
            self._log.extend(reversed(new))
            self._last_line = (status.pid, new[0].sequence)
