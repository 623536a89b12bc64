"""What happens to a run, and when: drawn from a seed alone, so that a seed says everything about a schedule.

Rules that keep it fair: a node that is struck is given time to be back before it is struck again; fewer than half of
the volunteers are away through small faults together, so that the others have a quorum; what is larger than that (the
bootstrap node gone, a partition, more than half of the volunteers gone at once) comes one at a time and passes within
seconds.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

BOOTSTRAP = "bootstrap"
CHILDREN = ("trainer", "dht node", "libp2p node")
MAX_NEWCOMERS = 2

_BACK_SECONDS = 15.0  # to start, to load the state and to be on a roster again
_CHILD_SECONDS = 5.0  # for a child to run again
_CALM_SECONDS = 20.0  # between two large faults


class Kind(StrEnum):
    KILL = "kill"
    """SIGKILL to the node alone: its children must end with it. Started again after `seconds`, on the same folder."""
    KILL_CHILD = "kill child"
    """SIGKILL to one of the node's children, which the node starts again."""
    STOP = "stop"
    """SIGSTOP to the node and its children, SIGCONT after `seconds`."""
    LEAVE = "leave"
    """The volunteer leaves in good order, and joins again `seconds` after its end."""
    JOIN = "join"
    """A volunteer that the run has never seen."""
    PARTITION = "partition"
    """The targets reach one another and nobody else, for `seconds`."""


@dataclass(frozen=True)
class Fault:
    at_seconds: float
    """After the run's first round."""
    kind: Kind
    targets: tuple[str, ...]
    seconds: float = 0.0
    child: str = ""

    def text(self) -> str:
        """As a person reads it."""
        who = ", ".join(self.targets)
        match self.kind:
            case Kind.KILL:
                return f"kill {who}, again in {self.seconds:.0f} s"
            case Kind.KILL_CHILD:
                return f"kill the {self.child} of {who}"
            case Kind.STOP:
                return f"stop {who} for {self.seconds:.0f} s"
            case Kind.LEAVE:
                return f"{who} leaves, again in {self.seconds:.0f} s"
            case Kind.JOIN:
                return f"{who} joins"
            case Kind.PARTITION:
                return f"part {who} from the others for {self.seconds:.0f} s"


def volunteer_names(num_peers: int) -> tuple[str, ...]:
    return tuple(f"volunteer-{number}" for number in range(1, num_peers + 1))


def schedule(
    seed: int, num_peers: int, seconds: float, every_seconds: float, may_part: bool = True
) -> tuple[Fault, ...]:
    """Faults of `seconds` in order, `every_seconds` on average; none lasts longer than that end."""
    planner = _Planner(random.Random(seed), num_peers, seconds, may_part)
    faults = []
    at = planner.gap(every_seconds)
    while at < seconds:
        if fault := planner.draw(at):
            faults.append(fault)
        at += planner.gap(every_seconds)
    return tuple(faults)


class _Planner:
    """Who is away until when, as far as a schedule can know."""

    def __init__(self, dice: random.Random, num_peers: int, end_seconds: float, may_part: bool) -> None:
        self._dice = dice
        self._volunteers = list(volunteer_names(num_peers))
        self._end = end_seconds
        self._busy_until: dict[str, float] = {}
        self._away_until: dict[str, float] = {}
        self._calm_from = 0.0
        self._num_newcomers = 0
        self._draws: dict[Callable[[float], Fault | None], float] = {
            self._kill: 4.0,
            self._kill_child: 4.0,
            self._stop: 4.0,
            self._leave: 2.0,
            self._join: 1.0,
            self._kill_bootstrap: 1.5,
            self._stop_bootstrap: 1.5,
            self._strike_most: 1.0,
            self._part: 3.0 if may_part else 0.0,
        }

    def gap(self, every_seconds: float) -> float:
        return every_seconds * self._dice.uniform(0.5, 1.5)

    def draw(self, at: float) -> Fault | None:
        """A fault that may happen now; None where all are struck already."""
        draws = {draw: weight for draw, weight in self._draws.items() if weight}
        while draws:
            draw = self._dice.choices(list(draws), list(draws.values()))[0]
            if fault := draw(at):
                return fault
            del draws[draw]
        return None

    # ---- small: one node, and never so many that the others have no quorum ----

    def _kill(self, at: float) -> Fault | None:
        return self._send_away(at, Kind.KILL, self._dice.uniform(2, 8))

    def _stop(self, at: float) -> Fault | None:
        return self._send_away(at, Kind.STOP, self._dice.uniform(5, 30))

    def _leave(self, at: float) -> Fault | None:
        return self._send_away(at, Kind.LEAVE, self._dice.uniform(2, 8))

    def _send_away(self, at: float, kind: Kind, seconds: float) -> Fault | None:
        free = self._free(at)
        num_away = sum(until > at for until in self._away_until.values())
        if not free or num_away >= (len(self._volunteers) - 1) // 2:
            return None
        target = self._dice.choice(free)
        seconds = self._strike((target,), at, seconds)
        return Fault(at, kind, (target,), seconds)

    def _kill_child(self, at: float) -> Fault | None:
        free = self._free(at)
        if not free:
            return None
        target = self._dice.choice(free)
        self._busy_until[target] = at + _CHILD_SECONDS
        return Fault(at, Kind.KILL_CHILD, (target,), child=self._dice.choice(CHILDREN))

    def _join(self, at: float) -> Fault | None:
        if self._num_newcomers == MAX_NEWCOMERS:
            return None
        self._num_newcomers += 1
        name = f"newcomer-{self._num_newcomers}"
        self._volunteers.append(name)
        self._strike((name,), at, 0.0)
        return Fault(at, Kind.JOIN, (name,))

    # ---- large: one at a time ----

    def _kill_bootstrap(self, at: float) -> Fault | None:
        return self._large(at, Kind.KILL, (BOOTSTRAP,), self._dice.uniform(2, 20))

    def _stop_bootstrap(self, at: float) -> Fault | None:
        return self._large(at, Kind.STOP, (BOOTSTRAP,), self._dice.uniform(5, 20))

    def _strike_most(self, at: float) -> Fault | None:
        """More than half of the volunteers at once."""
        if len(self._free(at)) < len(self._volunteers):
            return None
        targets = self._dice.sample(self._volunteers, len(self._volunteers) // 2 + 1)
        return self._large(at, self._dice.choice((Kind.KILL, Kind.STOP)), targets, self._dice.uniform(3, 8))

    def _part(self, at: float) -> Fault | None:
        """Half of the volunteers or a few less, with the bootstrap node as often as not. Of exact halves none has a
        quorum, so nothing can be certified until they are whole again."""
        if len(self._volunteers) < 2 or at < self._calm_from:
            return None
        num_volunteers = len(self._volunteers)
        half = self._dice.sample(self._volunteers, self._dice.randint((num_volunteers + 2) // 3, num_volunteers // 2))
        half += [BOOTSTRAP] * self._dice.choice((0, 1))
        seconds = self._lasting(at, self._dice.uniform(10, 30))
        self._calm_from = at + seconds + _CALM_SECONDS
        return Fault(at, Kind.PARTITION, tuple(sorted(half)), seconds)

    def _large(self, at: float, kind: Kind, targets: list[str] | tuple[str, ...], seconds: float) -> Fault | None:
        if at < self._calm_from:
            return None
        seconds = self._strike(targets, at, seconds)
        self._calm_from = at + seconds + _CALM_SECONDS
        return Fault(at, kind, tuple(sorted(targets)), seconds)

    # ---- who is struck ----

    def _free(self, at: float) -> list[str]:
        return [name for name in self._volunteers if self._busy_until.get(name, 0.0) <= at]

    def _strike(self, targets: list[str] | tuple[str, ...], at: float, seconds: float) -> float:
        """Note who is away for `seconds`, and give what of it fits before the end."""
        seconds = self._lasting(at, seconds)
        for name in targets:
            self._busy_until[name] = at + seconds + _BACK_SECONDS
            if name != BOOTSTRAP:
                self._away_until[name] = at + seconds + _BACK_SECONDS
        return seconds

    def _lasting(self, at: float, seconds: float) -> float:
        return min(seconds, self._end - at)
