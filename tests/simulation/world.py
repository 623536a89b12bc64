"""A run with all its nodes, and what can be done to it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from typing import Any

from spes_peer.identity import PeerId
from spes_peer.run.certificates import Checks, sign_genesis
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, parse_run_file
from spes_peer.run.peers import Claim
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import BlockName, Record, SealedRecord, first_record

from .invariants import Violation, Watch, recovery_seconds
from .machine import Machine
from .network import Events, Network, Process
from .node import SimulatedNode, invented
from .stage import MadeUpIdentity, QuickSigner, Stage
from .trace import Trace

START_AT = 1_700_000_000.0
_ORGANIZER = "organizer"
_RUN_ID = bytes(32)

MADE_UP_DATA = {
    "sources": [{"name": "text", "shards": {"num_tokens": 100_000, "shard_tokens": 100_000, "index": "ab" * 32}}],
    "held_out": {"blob": "cd" * 32, "num_tokens": 10_000},
}
TIMING = {
    "heartbeat_seconds": 18.0,
    "round_seconds": 180.0,
    "fetch_stall_seconds": 10.0,
    "round_grace_seconds": 30.0,
    "coordinator_timeout_seconds": 60.0,
    "stall_timeout_seconds": 240.0,
    "dht_beat_seconds": 12.0,
    "dht_ttl_seconds": 50.0,
    "lease_seconds": 600.0,
}
"""Like the defaults, but of shorter rounds."""


@functools.cache
def small_layout(num_subsets: int = 4, min_peers: int = 1) -> Layout:
    """The demo's run with few blocks: one for each expert, one for all that is shared."""
    raw = parse_run_file(PRESETS["demo"]).model_dump(mode="json")
    raw["run"]["min_peers"] = min_peers
    raw["model"] |= {"num_experts": num_subsets, "top_k": min(2, num_subsets), "num_layers": 1}
    raw["training"] |= {
        "num_subsets": num_subsets,
        "steps_per_round": 8,
        "total_steps": 1_000_000,
        "batch_sequences": 16,
        "rotation_rounds": 5,
        "final_phase_fraction": 0.0,
    }
    raw["sync"] |= {"block_elements": 1 << 20, "merge_alpha": 0.0, "overlap_steps": 0, "reducers_per_block": 2}
    raw["timing"] = dict(TIMING)
    return Layout(Manifest.model_validate({**raw, "data": MADE_UP_DATA, "organizers": [_ORGANIZER]}))


class World:
    """Nodes are known by the names of their machines."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        num_peers: int = 0,
        num_bootstraps: int = 1,
        layout: Layout | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        """`write` gets every line of the trace."""
        stage.show(self)
        self.dice = random.Random(seed)
        self.layout = layout or small_layout(min_peers=max(1, num_peers))
        self.num_subsets = self.layout.manifest.training.num_subsets
        self.run_id = _RUN_ID
        self.checks = Checks.of(self.layout.manifest, _RUN_ID)
        blocks = tuple(
            BlockName(block.id, invented("genesis", block.id), self.layout.state_bytes(block))
            for block in self.layout.state_blocks
        )
        bootstraps = tuple(self.new_name("boot", number) for number in range(num_bootstraps))
        record = first_record(_RUN_ID, blocks, bootstraps, now=START_AT - 3600.0)
        self.genesis = sign_genesis(record, self.identity_of(self.layout.manifest.organizers[0]), _RUN_ID)
        self.zero: SealedRecord = self.genesis.sealed
        self.events = Events(START_AT)
        self.events.on_killed = self._on_killed
        self.network = Network(self.events, self.dice)
        self.trace = Trace(START_AT, write)
        self.watch = Watch(self)
        self.machines: dict[PeerId, Machine] = {}
        self.claims: dict[PeerId, tuple[Claim, float]] = {}
        """What the DHT has, with when it was stored."""
        self.train_seconds = 100.0
        self.reconsiders = True
        """Whether peers look for a better subset with every record."""
        self.objecting = 0.0
        """Part of the verdicts on experts that are objections."""
        self._holders: dict[str, dict[PeerId, None]] = {}
        for name in bootstraps:
            self.add(Machine(self, name, trains=False))
        for _ in range(num_peers):
            self.join()

    def add(self, machine: Machine) -> Machine:
        """Start one more."""
        self.machines[machine.peer_id] = machine
        for other in self.machines.values():
            if other.has_started and other is not machine:
                other.node.entries[machine.peer_id] = None  # type: ignore[assignment]
        self.restart(machine)
        return machine

    def join(self, clock_offset_seconds: float = 0.0) -> Machine:
        """One more volunteer."""
        return self.add(Machine(self, self.new_name("peer", len(self.volunteers)), True, clock_offset_seconds))

    @property
    def volunteers(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.trains]

    @property
    def living(self) -> list[Machine]:
        """Those on which a node runs, frozen or not."""
        return [machine for machine in self.machines.values() if machine.has_started]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[PeerId(name)]

    @property
    def leaders(self) -> list[Machine]:
        """Those that coordinate, as they see it."""
        return [machine for machine in self.living if machine.node.leads]

    def new_name(self, kind: str, number: int) -> PeerId:
        """Of a machine, which is also the peer id of what runs on it."""
        return PeerId(f"{kind}{number}")

    def identity_of(self, name: str) -> Any:
        return MadeUpIdentity(PeerId(name))

    def signer_of(self, name: str, incarnation: int) -> Any:
        return QuickSigner(self.identity_of(name), self.run_id, incarnation)

    def num_steps(self, record: Record) -> int:
        return self.layout.manifest.training.steps_per_round_at(record.step)

    # ---- what happens to nodes ----

    def note(self, what: str) -> None:
        self.trace.note(self.events.now, "world", what)

    def restart(self, machine: Machine) -> None:
        """Start its node, or start it again."""
        if not machine.is_alive:
            self.events.after(0.0, machine, machine.start)
            machine.is_alive = True

    def kill(self, machine: Machine, is_noticed: bool = True) -> None:
        """kill -9. The machine ends its streams if that `is_noticed`; else it has lost its power."""
        if machine.is_alive:
            self.note(f"kills {machine.name}, {'as all notice' if is_noticed else 'silently'}")
            self._bury(machine, is_noticed)

    def _bury(self, machine: Machine, is_noticed: bool) -> None:
        machine.crash()
        for stream in list(machine.streams):
            for end in (0, 1):
                if stream.ends[end] is machine:
                    stream.close(as_server=end == 1, why=f"{machine.name} is dead", is_told=is_noticed)
        machine.streams.clear()
        self.watch.on_end(machine.name)
        self.tell_weather()
        if machine.peer_id in self.claims:
            self.claims[machine.peer_id] = (self.claims[machine.peer_id][0], self.events.now)

    def _on_killed(self, process: Process) -> None:
        self._bury(self[process.name], is_noticed=self.dice.random() < 0.7)

    def close(self) -> None:
        """It is over."""
        for machine in self.machines.values():
            machine.crash()

    def stop(self, machine: Machine) -> None:
        """It ends as its owner asked."""
        machine.node.note("leaves the run")
        machine.node.follower.coordinating.resign()
        self.kill(machine)
        self.claims.pop(machine.peer_id, None)

    def freeze(self, machine: Machine) -> None:
        """SIGSTOP."""
        if machine.is_alive:
            self.note(f"freezes {machine.name}")
            machine.is_frozen = True
            self.tell_weather()

    def thaw(self, machine: Machine) -> None:
        """SIGCONT: all that it missed happens now."""
        if machine.is_alive and machine.is_frozen:
            self.note(f"thaws {machine.name}")
            machine.is_frozen = False
            self.tell_weather()
            backlog, machine.backlog = machine.backlog, []
            for epoch, action, args in backlog:
                self.events.at(self.events.now, machine, epoch, action, *args)

    def part(self, *groups: Iterable[Machine]) -> None:
        lists = [list(group) for group in groups]
        self.note("parts the network: " + " | ".join(" ".join(one.name for one in group) for group in lists))
        self.network.part(*lists)
        self.tell_weather()

    def cut(self, one: str, other: str) -> None:
        """The line between two machines."""
        self.note(f"cuts the line between {one} and {other}")
        self.network.cuts.add(frozenset((one, other)))
        self.tell_weather()

    def lose(self, part: float) -> None:
        """So much of the messages, each with its stream."""
        self.note("loses messages")
        self.network.loss = part
        self.tell_weather()

    def slow(self, machine: Machine, factor: float) -> None:
        """All that goes to it and comes from it."""
        self.note(f"slows {machine.name}" if factor > 1 else f"{machine.name} is quick again")
        machine.slowness = factor
        self.tell_weather()

    def heal(self) -> None:
        self.note("heals the network")
        self.network.heal(list(dict.fromkeys(stream for one in self.machines.values() for stream in one.streams)))
        self.tell_weather()

    def tell_weather(self) -> None:
        """To be called whenever it may have changed."""
        network = self.network
        is_whole = not (network.parts or network.cuts or network.loss)
        is_quick = not any(one.is_frozen or one.slowness > 1.0 for one in self.machines.values())
        self.watch.on_weather(is_whole and is_quick)

    # ---- what nodes find ----

    def is_reached(self, one: Machine, by: Machine) -> bool:
        """Whether a node on another machine answers."""
        return one.has_started and not one.is_frozen and self.network.is_joined(one, by)

    def any_reached_by(self, machine: Machine) -> SimulatedNode | None:
        """A node on another machine that answers."""
        nodes = [one.node for one in self.machines.values() if one is not machine and self.is_reached(one, machine)]
        return self.dice.choice(nodes) if nodes else None

    def claims_seen_by(self, machine: Machine) -> dict[PeerId, Claim]:
        """Everybody else's claims, until their makers are dead for a ttl."""
        now, ttl_seconds = self.events.now, self.layout.manifest.timing.dht_ttl_seconds
        return {
            peer: claim
            for peer, (claim, stored_at) in self.claims.items()
            if peer != machine.peer_id
            and (self.machines[peer].is_alive or now - stored_at < ttl_seconds)
            and self.network.is_joined(machine, self.machines[peer])
        }

    def hold(self, machine: Machine, blob: str) -> None:
        """It has this on its disk from now on."""
        self._holders.setdefault(blob, {})[machine.peer_id] = None

    def can_fetch(self, machine: Machine, blob: str) -> bool:
        """Whether somebody gives it; who does hears from the call what time it is for who asks."""
        holders = self._holders.get(blob, {})
        if machine.peer_id in holders:
            return True
        nodes = [one.node for peer in holders if self.is_reached(one := self.machines[peer], machine)]
        if nodes:
            self.dice.choice(nodes).hears_time(machine.peer_id, machine.node.now())
        return bool(nodes)

    # ---- time ----

    def run(self, seconds: float) -> None:
        end_at = self.events.now + seconds
        while self.events.next_at() <= end_at:
            self.events.step()
        self.events.now = end_at

    def until(self, condition: Callable[[], bool], within_seconds: float = 1800.0) -> None:
        """Let events happen until this holds."""
        end_at = self.events.now + within_seconds
        while not condition():
            self._step_before(end_at, within_seconds)

    def until_chains(self, condition: Callable[[], bool], within_seconds: float) -> None:
        """The same for what only new records can make true; it is asked less often."""
        end_at = self.events.now + within_seconds
        while not condition():
            num_changes = self.watch.num_changes
            while self.watch.num_changes == num_changes:
                self._step_before(end_at, within_seconds)

    def _step_before(self, end_at: float, within_seconds: float) -> None:
        if self.events.next_at() > end_at:
            raise Violation(f"not within {within_seconds:.0f} s: {self.where()}")
        self.events.step()

    def until_round(
        self, round: int, machines: Iterable[Machine] | None = None, within_seconds: float = 1800.0
    ) -> None:
        """All that live, or these, have this record, and it counts as certified for them."""
        chosen = list(machines) if machines is not None else None
        self.until_chains(
            lambda: all(one.node.chain.certified_round >= round for one in chosen or self.living), within_seconds
        )

    def recovery_seconds(self) -> float:
        """See `invariants.recovery_seconds`; for the rounds that are open where somebody lives."""
        living = self.living
        up = {machine.peer_id for machine in living}
        num_dead = max(len(set(one.node.head.record.candidates) - up) for one in living)
        return recovery_seconds(self.layout.manifest, num_dead, self.clock_seconds())

    def clock_seconds(self) -> float:
        """By which the clocks of those who live are apart, and by which the end of an open round is too late for who
        has it: a clock was wrong when it began."""
        nodes, timing = [machine.node for machine in self.living], self.layout.manifest.timing
        clocks = [node.clock.time() for node in nodes]
        late = max(node.head.record.deadline_at - node.clock.time() - timing.round_seconds for node in nodes)
        return max(clocks) - min(clocks) + max(0.0, late)

    def where(self) -> str:
        """Where everybody stands, for who has to find out why."""
        return "; ".join(map(_where, self.machines.values()))


def _where(machine: Machine) -> str:
    if not machine.has_started:
        return f"{machine.name} is dead"
    node = machine.node
    leads = f", coordinates in term {node.state.term}: {node.state.phase.name}" if node.leads else ""
    return (
        f"{machine.name}{' (frozen)' if machine.is_frozen else ''} round {node.head.round} certified "
        f"{node.chain.certified_round} term {node.follower.allegiance.term} attends {node.attending.attended}{leads}"
    )
