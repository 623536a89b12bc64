"""Random runs: a quarter of an hour in which everything goes wrong, then peace, and what must come of it.

The seed decides all: how many nodes, how fast, how far their clocks are off, what happens to whom and when.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from spes_peer.identity import PeerId
from spes_peer.run.certificates import is_certified_by, may_sign
from spes_peer.run.chain import Chain
from spes_peer.run.records import Record
from spes_peer.run.rules import Change, amendment_in, number_of, sign_amendment
from spes_peer.run.signed import Signed

from .invariants import Violation, agreement_seconds
from .machine import Machine
from .node import SimulatedNode, Volunteer
from .stage import Stage, on_stage
from .world import World, small_layout

FAULTS_SECONDS = 900.0
_POINTS = ("kept a proposal", "kept a ballot", "kept a record")
_MOST_PEERS = 12


@dataclass(frozen=True)
class Outcome:
    """Of a run in which nothing was violated."""

    seed: int
    num_nodes: int
    rounds_certified: int
    rounds_lost: int
    """Uncertified records that were given up, over all nodes."""
    recovery_seconds: float
    """From the end of the faults to a new certified record everywhere."""
    bound_seconds: float
    num_faults: int
    num_events: int
    clock_seconds: float
    """By which the clocks were apart when the faults ended, or the end of an open round too late."""
    together_seconds: float
    """That two nodes had a subset to themselves while everybody reached everybody, at most."""


def random_run(seed: int, write: Callable[[str], None] | None = None, num_peers: int | None = None) -> Outcome:
    """One run, of so many peers at first, or of a few; raises `Violation`, which names the seed."""
    with on_stage() as stage:
        run = _Run(stage, seed, write, num_peers)
        try:
            return run.play()
        except Violation as violation:
            raise Violation(f"seed {seed}: {violation} (replay: python -m tests.simulation {seed})") from violation
        finally:
            run.world.close()


class _Run:
    def __init__(
        self, stage: Stage, seed: int, write: Callable[[str], None] | None, num_peers: int | None = None
    ) -> None:
        self.seed = seed
        self.dice = dice = random.Random(f"faults {seed}")
        num_peers = num_peers or dice.choice((1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9))
        self._most_peers = num_peers + 3 if num_peers > _MOST_PEERS else _MOST_PEERS
        num_bootstraps = dice.choice((1, 1, 2))
        self.world = World(
            stage,
            seed,
            num_bootstraps=num_bootstraps,
            layout=small_layout(min_peers=dice.randint(1, num_peers), num_subsets=dice.choice((2, 4, 4, 8))),
            write=write,
        )
        self.world.train_seconds = dice.uniform(60.0, 160.0)
        self.world.reconsiders = dice.random() < 0.7
        self.world.objecting = dice.choice((0.0, 0.05, 0.5))
        spread_seconds = dice.choice((0.5, 0.5, 20.0, 180.0))
        for node in self.world.machines.values():
            node.clock_offset_seconds = dice.uniform(-spread_seconds, spread_seconds)
        for _ in range(num_peers):
            self._add(spread_seconds)
        self._spread_seconds = spread_seconds
        self.mean_seconds = dice.choice((30.0, 60.0, 120.0, 240.0)) * min(1.0, _MOST_PEERS / num_peers)
        """Between two faults."""
        self._has_spare_bootstrap = num_bootstraps > 1
        self.banned: set[PeerId] = set()
        """Whom an organizer has ever wanted out."""
        self.is_peace = False
        self.num_faults = 0

    def _add(self, spread_seconds: float) -> None:
        machine = self.world.join(self.dice.uniform(-spread_seconds, spread_seconds))
        machine.capacity = self.dice.choice((1, 1, 2))
        if self.dice.random() < 0.2:
            machine.train_seconds = self.dice.uniform(150.0, 400.0)

    def play(self) -> Outcome:
        world = self.world
        self._soon(self._misfortune, 60.0 + self.dice.expovariate(1 / self.mean_seconds))
        world.run(60.0 + FAULTS_SECONDS)
        self._make_peace()
        started_at, certified_before = world.events.now, world.watch.newest
        bound_seconds, clock_seconds = world.recovery_seconds(), world.clock_seconds()
        world.until_chains(lambda: self._certified_round() > certified_before or self._is_stuck, bound_seconds)
        recovery_seconds = world.events.now - started_at
        reached = self._certified_round()
        number = self._amend_at_peace()
        world.until_chains(lambda: self._all_have(reached + 2) or self._is_stuck, 2 * bound_seconds)
        if not self._is_stuck and number > self._carried_number():
            raise Violation(f"amendment {number} was brought in peace, and no record carries it")
        if self._is_stuck:
            world.run(agreement_seconds(world.layout.manifest))
        world.watch.check_end([one.node for one in world.living])
        return Outcome(
            seed=self.seed,
            num_nodes=len(world.machines),
            rounds_certified=world.watch.newest,
            rounds_lost=world.watch.num_lost,
            recovery_seconds=recovery_seconds,
            bound_seconds=bound_seconds,
            num_faults=self.num_faults,
            num_events=world.events.num_done,
            clock_seconds=clock_seconds,
            together_seconds=world.watch.together_seconds,
        )

    def _certified_round(self) -> int:
        return min(machine.node.chain.certified_round for machine in self.world.living)

    def _all_have(self, round: int) -> bool:
        """This record and what has been certified since, be it a moment ago."""
        return self._certified_round() >= max(round, self.world.watch.newest)

    @property
    def _is_stuck(self) -> bool:
        """Whether those that are up cannot certify what follows: the first record after the deaths may still count on
        those whom nobody has missed yet."""
        gone = {machine.peer_id for machine in self.world.machines.values() if not machine.has_started}
        return not _can_go_on_without(gone, self.world.watch.certified[self.world.watch.newest].record)

    @staticmethod
    def _train_again(machine: Machine) -> None:
        assert isinstance(machine.node, Volunteer)
        machine.node.train_again()

    @staticmethod
    def _resume(machine: Machine) -> None:
        assert isinstance(machine.node, Volunteer)
        machine.node.resume()

    def _make_peace(self) -> None:
        """No more faults: one network, nobody frozen, and all are up, or enough of them."""
        world, self.is_peace = self.world, True
        world.note("peace")
        world.heal()
        dead_for_good = self._some_to_spare() if self.dice.random() < 0.4 else []
        for node in world.machines.values():
            node.dies_at = lambda _point: False
            world.slow(node, 1.0)
            world.thaw(node)
            if node in dead_for_good:
                world.kill(node, is_noticed=self.dice.random() < 0.5)
                continue
            if node.has_started and isinstance(node.node, Volunteer) and node.node.is_leaving:
                world.kill(node)  # its owner has thought better of it
            world.restart(node)
            if node.cannot_train:
                world.events.after(0.01, node, self._train_again, node)
            if node.is_paused:
                world.events.after(0.01, node, self._resume, node)
        world.run(1.0)

    def _some_to_spare(self) -> list[Machine]:
        """Nodes without which more than half of every last roster are still there, and who can certify what is not."""
        world = self.world
        heads = [node.node.head.record for node in world.living] + [world.watch.certified[world.watch.newest].record]
        chains = [node.node.chain for node in world.living]
        candidates, spared = list(world.machines.values()), []
        self.dice.shuffle(candidates)
        for node in candidates:
            gone = {one.peer_id for one in (*spared, node)}
            if all(_can_go_on_without(gone, record) for record in heads) and all(
                _can_be_certified_without(gone, chain) for chain in chains
            ):
                spared.append(node)
        is_needed = not any(one.trains for one in candidates if one not in spared and one.peer_id not in self.banned)
        return [] if is_needed else spared[: self.dice.randint(0, len(spared))]

    # ---- organizers ----

    def _amend(self) -> None:
        """An organizer, or somebody who is none, brings a change of the rules to some nodes."""
        living = self.world.living
        if living:
            node = self.dice.choice(living).node
            signer = self.dice.choice((*node.rules.organizers, *node.rules.organizers, "nobody", "spare"))
            amendment = self._signed(node, self._change(), signer)
            for target in self.dice.sample(living, self.dice.randint(1, len(living))):
                self._tell(target, lambda target=target: target.node.amend(amendment))

    def _signed(self, node: SimulatedNode, change: Change, signer: str) -> Signed:
        rules = change.of(node.rules, node.now())
        self.world.note(f"{signer} amends the rules behind round {node.head.round}: {change}")
        return sign_amendment(
            rules, node.head.record.amendment, self.world.identity_of(signer), self.world.run_id, node.now()
        )

    def _change(self) -> Change:
        volunteers = [node.peer_id for node in self.world.volunteers]
        most_banned, bootstraps = len(volunteers) // 4, [one.peer_id for one in self.world.machines.values()][:1]
        kind = self.dice.choice(("pause", "resume", "ban", "unban", "seconds", "keys", "quorum"))
        if kind in ("pause", "resume"):
            return Change(is_paused=kind == "pause")
        if kind == "ban":
            named = self.dice.choice((volunteers, volunteers, bootstraps if self._has_spare_bootstrap else volunteers))
            if len(self.banned) < most_banned:
                self.banned.add(self.dice.choice(named))
            return Change(ban=tuple(self.banned))
        if kind == "unban":
            return Change(unban=(self.dice.choice(volunteers),))
        if kind == "seconds":
            return Change(round_seconds=self.dice.uniform(120.0, 180.0))
        if kind == "keys":
            return self.dice.choice((Change(add_organizers=("spare",)), Change(remove_organizers=("spare",))))
        return Change(quorum=self.dice.choice((0, 1, 2 if len(volunteers) - most_banned > 3 else 1)))

    def _amend_at_peace(self) -> int:
        """One node hears of it; all must have it in the end. The number of the amendment; 0 where nobody takes it."""
        heard = [one for one in self.world.living if one.peer_id not in one.node.rules.banned]
        node = self.dice.choice(heard or self.world.living).node
        if not heard or node.chain.certified_round < node.head.round:
            return 0
        amendment = self._signed(node, Change(is_paused=not node.rules.is_paused), node.rules.organizers[0])
        return 0 if node.amend(amendment).why_not else number_of(amendment)

    def _carried_number(self) -> int:
        carried = amendment_in(self.world.watch.certified[self.world.watch.newest].record)
        return carried.number if carried else 0

    # ---- faults ----

    def _soon(self, action: Callable[[], None], seconds: float) -> None:
        self.world.events.after(seconds, None, lambda: None if self.is_peace else action())

    def _for(self, low: float, high: float, end: Callable[[], None]) -> None:
        """What was done is undone after a while."""
        self._soon(end, low * (high / low) ** self.dice.random())

    def _tell(self, node: Machine, what: Callable[[], None]) -> None:
        """It hears it once it is not frozen; at peace its owner has thought better of it."""
        self.world.events.after(0.0, node, lambda: None if self.is_peace else what())

    def _misfortune(self) -> None:
        self.num_faults += 1
        self.dice.choice(_FAULTS)(self)
        self._soon(self._misfortune, self.dice.expovariate(1 / self.mean_seconds))

    def _one(self) -> Machine:
        return self.dice.choice(list(self.world.machines.values()))

    def _kill(self, node: Machine) -> None:
        self.world.kill(node, is_noticed=self.dice.random() < 0.6)
        self._come_back(node)

    def _come_back(self, node: Machine) -> None:
        if self.dice.random() < 0.9:
            self._for(1.0, 400.0, lambda: self.world.restart(node))

    def _kill_one(self) -> None:
        self._kill(self._one())

    def _kill_who_coordinates(self) -> None:
        if leaders := self.world.leaders:
            self._kill(self.dice.choice(leaders))

    def _kill_at_an_instant(self) -> None:
        """When the next thing is half done."""
        node, points = self._one(), self.dice.sample(_POINTS, self.dice.randint(1, 3))

        def dies_at(point: str) -> bool:
            if point in points:
                self._come_back(node)
            return point in points

        node.dies_at = dies_at

    def _restart_all(self) -> None:
        for node in self.world.living:
            self.world.kill(node, is_noticed=self.dice.random() < 0.5)
            self._soon(lambda node=node: self.world.restart(node), self.dice.uniform(1.0, 60.0))

    def _freeze(self) -> None:
        node = self._one()
        self.world.freeze(node)
        self._for(5.0, 900.0, lambda: self.world.thaw(node))

    def _freeze_who_coordinates(self) -> None:
        for node in self.world.leaders:
            self.world.freeze(node)
            self._for(5.0, 300.0, lambda node=node: self.world.thaw(node))

    def _part(self) -> None:
        if not self.world.network.parts:
            num_parts = self.dice.choice((2, 2, 2, 3))
            groups: list[list[Machine]] = [[] for _ in range(num_parts)]
            for node in self.world.machines.values():
                self.dice.choice(groups).append(node)
            self.world.part(*groups)
            self._for(20.0, 1200.0, self.world.heal)

    def _cut(self) -> None:
        """Lines between pairs: A reaches B, B reaches C, and A does not reach C."""
        names = [node.name for node in self.world.machines.values()]
        for _ in range(self.dice.randint(1, 4)):
            if len(names) > 1:
                self.world.cut(*sorted(self.dice.sample(names, 2)))
        self._for(20.0, 600.0, self.world.heal)

    def _lose(self) -> None:
        self.world.lose(0.02)
        self._for(20.0, 300.0, self.world.heal)

    def _break(self) -> None:
        node = self._one()
        self.world.note(f"breaks lines of {node.name}")
        for stream in list(node.streams):
            stream.break_off(is_noticed=self.dice.random() < 0.5)

    def _slow(self) -> None:
        node = self._one()
        self.world.slow(node, self.dice.choice((10.0, 50.0)))
        self._for(30.0, 300.0, lambda: self.world.slow(node, 1.0))

    def _set_a_clock(self) -> None:
        node, seconds = self._one(), self.dice.uniform(-3600.0, 3600.0)
        self.world.note(f"sets the wall clock of {node.name} {seconds:+.0f} s off")
        node.clock_offset_seconds = seconds
        if self.dice.random() < 0.5:
            self._kill(node)

    def _join(self) -> None:
        if len(self.world.volunteers) < self._most_peers:
            self._add(self._spread_seconds)

    def _leave(self) -> None:
        node = self._one()
        if node.has_started and isinstance(node.node, Volunteer):
            self.world.note(f"{node.name} is told to leave")
            self._tell(node, node.node.leave)
            self._for(100.0, 1000.0, lambda: self.world.restart(node))

    def _hinder(self) -> None:
        """Its trainer ends again and again."""
        node = self._one()
        if node.has_started and isinstance(node.node, Volunteer) and not node.cannot_train:
            self.world.note(f"{node.name} cannot train from the next round on")
            node.cannot_train = True
            self._for(60.0, 600.0, lambda: self.world.events.after(0.0, node, self._train_again, node))

    def _pause(self) -> None:
        node = self._one()
        if node.has_started and isinstance(node.node, Volunteer) and not node.is_paused:
            self.world.note(f"{node.name} is told to pause")
            self._tell(node, node.node.pause)
            self._for(30.0, 600.0, lambda: self.world.events.after(0.0, node, self._resume, node))


def _can_go_on_without(gone: Collection[PeerId], record: Record) -> bool:
    """Whether what follows this record can be certified; behind an empty roster its first candidate's say is needed."""
    if not record.roster:
        return record.candidates[0] not in gone
    return 2 * len(record.members.difference(gone)) > len(record.roster)


def _can_be_certified_without(gone: Collection[PeerId], chain: Chain) -> bool:
    """Whether the first record of the chain that is not certified can still be: behind an empty roster by its own."""
    number = chain.certified_round
    if chain.head is None or number == chain.head.record.round:
        return True
    previous, record = (chain.record(one).sealed.record for one in (number, number + 1))
    return is_certified_by(may_sign(record, previous).difference(gone), record, previous)


_FAULTS: tuple[Callable[[_Run], None], ...] = (
    _Run._kill_one,
    _Run._kill_one,
    _Run._kill_who_coordinates,
    _Run._kill_who_coordinates,
    _Run._kill_at_an_instant,
    _Run._kill_at_an_instant,
    _Run._restart_all,
    _Run._freeze,
    _Run._freeze_who_coordinates,
    _Run._part,
    _Run._part,
    _Run._cut,
    _Run._lose,
    _Run._break,
    _Run._slow,
    _Run._set_a_clock,
    _Run._join,
    _Run._leave,
    _Run._hinder,
    _Run._pause,
    _Run._amend,
    _Run._amend,
    _Run._amend,
)
