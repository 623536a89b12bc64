"""What must hold after every event, however the world treats the nodes.

Each check runs at the events that can break it: a certificate or a signature that comes into being, a state that is
applied, a chain that changes. `Violation` says what is broken; the seed in front of it replays the run.

What "no subset has two owners that both believe they are its only one" can mean where a minority may go on by itself:

- a node has a subset to itself if the newest record that it has, certified or not, gives it to nobody else; for as long
  as it runs and has no newer one. In parts of a network that do not reach each other two nodes can have that for as
  long as that lasts, lease or not: each part has a chain. Only one of these counts in the end;
- once everybody reaches everybody again they have it for at most `agreement_seconds` more, on two chains or on one;
- on one chain nobody who is there is moved to a subset on which somebody who is missing has a lease. Who comes may take
  one, as the last resort: its owner becomes the second when it is back;
- nobody's subsets change unless it asked for that, but one for one other in a rotation.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spes_peer.identity import PeerId
from spes_peer.rounds.assignment import split
from spes_peer.rounds.election import UNREACHABLE_PART
from spes_peer.rounds.messages import RecordSignature
from spes_peer.run import lineage
from spes_peer.run.chain import Switch
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord, DataRange, Record, SealedRecord, tokens_by_peer
from spes_peer.run.rules import amendment_in

from .trace import shown

if TYPE_CHECKING:
    from .node import SimulatedNode
    from .world import World


class Violation(AssertionError):
    """Something happened that must never happen."""


def recovery_seconds(manifest: Manifest, num_dead: int, clock_seconds: float = 0.0) -> float:
    """The longest that it takes, once the network is whole and more than half of the last roster are up, until a new
    certified record is at every node that is up. The sum of the longest waits behind each other:

    - coordinator time-out, half of it and the fetch stall time-out: a dead stream is noticed, others are asked where
      they stand, and their chain is read;
    - a third of the coordinator time-out and a heartbeat for every candidate of the round that is dead: its machine
      does not answer, or refuses;
    - a coordinator time-out and a heartbeat for the first that is up, and again, as who gave up on a term late is asked
      for its vote when it comes;
    - the round's deadline: those who are up may have to train the whole round again; and `clock_seconds` by which
      clocks are apart, or by which the deadline is too late because one was wrong;
    - the grace three times: to reduce, for signatures, and to ask for them again;
    - three heartbeats: from a wait that is over to who acts on it.
    """
    timing = manifest.timing
    lost_seconds = 1.5 * timing.coordinator_timeout_seconds + timing.fetch_stall_seconds
    dead_seconds = UNREACHABLE_PART * timing.coordinator_timeout_seconds + timing.heartbeat_seconds
    term_seconds = timing.coordinator_timeout_seconds + timing.heartbeat_seconds
    round_seconds = timing.round_seconds + 3 * timing.round_grace_seconds + 3 * timing.heartbeat_seconds
    return lost_seconds + num_dead * dead_seconds + 2 * term_seconds + round_seconds + clock_seconds


def agreement_seconds(manifest: Manifest) -> float:
    """The longest that two nodes go by different chains, or one by an old end of the other's, once everybody reaches
    everybody: until who coordinates one of them finds that most of its members are silent, by the next heartbeat; until
    it looks around, every half of that time-out; and to read what it finds."""
    timing = manifest.timing
    return 1.5 * timing.coordinator_timeout_seconds + timing.heartbeat_seconds + timing.fetch_stall_seconds


@dataclass
class _Known:
    """A record that some node holds."""

    sealed: SealedRecord
    parent: _Known | None
    trained: tuple[DataRange, ...]
    """Positions of the data that its updates count."""
    places: dict[PeerId, tuple[float, frozenset[int]]]
    """The newest place in a roster of everybody that ever had one up to here: when it was given, and the subsets."""
    children: list[_Known] = field(default_factory=list)
    has_certificate: bool = False
    counts: bool = False
    """It and all before it are certified."""


class Watch:
    """Sees every node at once, as nobody in the run can."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._length = world.layout.manifest.model.sequence_length
        zero = _Known(world.zero, None, (), {}, has_certificate=True, counts=True)
        self._known = {world.zero.hash: zero}
        self.certified: dict[int, SealedRecord] = {0: world.zero}
        """Of each round the record that somebody has had a certificate for, and for all before it."""
        self._votes: dict[tuple[bytes, int], set[PeerId]] = defaultdict(set)
        self._chosen: dict[bytes, bytes] = {}
        """By the hash of a record the hash of the next for which more than half have voted in one term."""
        self._roots = {world.zero.hash: world.zero.record.state_root}
        self._certain: dict[str, SealedRecord] = {}
        """The newest record that each machine has ever known to be certified."""
        self._asked: dict[PeerId, set[tuple[int, ...]]] = defaultdict(set)
        """Subsets that each peer has ever asked for."""
        self._alone: dict[int, dict[str, float]] = defaultdict(dict)
        """For each subset the nodes that have it to themselves, with the true seconds since which."""
        self._calm_since: float | None = world.events.now
        """True seconds since which everybody reaches everybody; None while something is amiss."""
        self.together_seconds = 0.0
        """That two have had a subset to themselves while all was calm."""
        self.num_changes = 0
        """Of any node's chain."""
        self.num_lost = 0
        """Uncertified records that were given up."""

    @property
    def newest(self) -> int:
        """The round of the newest certified record."""
        return max(self.certified)

    def counts(self, sealed: SealedRecord) -> bool:
        """Whether this record and all before it have been certified."""
        return self._known[sealed.hash].counts

    # ---- records ----

    def on_certificate(self, node: SimulatedNode, certified: CertifiedRecord) -> None:
        """A node has this record on its disk."""
        sealed = certified.sealed
        parent = self._known[sealed.record.previous_hash]
        known = self._known.get(sealed.hash)
        if known is None:
            trained = self._trained(parent.sealed.record, sealed.record)
            known = _Known(sealed, parent, trained, _places_after(parent, sealed.record))
            self._known[sealed.hash] = known
            parent.children.append(known)
            self._no_update_twice(known)
            self._goes_by_its_rules(sealed.record, parent.sealed.record)
            self._subsets_change_hands_well(known, parent)
        if not known.has_certificate:
            checked = lineage.check_record(certified, parent.sealed, self._world.checks)
            known.has_certificate = checked.is_certified
            if known.has_certificate and parent.counts:
                self._count(node, known)

    def _count(self, node: SimulatedNode, known: _Known) -> None:
        known.counts = True
        sealed = known.sealed
        other = self.certified.setdefault(sealed.round, sealed)
        if other.hash != sealed.hash:
            raise Violation(f"two records are certified: {shown(other)}, and at {node.machine.name} {shown(sealed)}")
        for child in known.children:
            if child.has_certificate:
                self._count(node, child)

    def on_signature(self, node: SimulatedNode, sealed: SealedRecord, signature: RecordSignature) -> None:
        """A node gives a signature. More than half of the roster may vote for one record alone, whoever knows it."""
        previous = self._known[sealed.record.previous_hash].sealed
        if signature.uncertified or not previous.record.roster:
            return
        votes = self._votes[sealed.hash, signature.term]
        votes.add(node.peer_id)
        if 2 * len(votes & previous.record.members) > len(previous.record.roster):
            other = self._chosen.setdefault(previous.hash, sealed.hash)
            if other != sealed.hash:
                raise Violation(f"more than half have voted for {shown(sealed)}, and for {other.hex()[:6]} before it")

    def _trained(self, record: Record, closing: Record) -> tuple[DataRange, ...]:
        """Positions that `closing` counts as trained in the round of `record`."""
        tokens = tokens_by_peer(closing.updates)
        trained: list[DataRange] = []
        for entry in record.roster:
            done, _ = split(entry.ranges, tokens.get(entry.peer_id, 0) // self._length)
            trained += done
        return tuple(sorted(trained, key=lambda part: part.start))

    def _no_update_twice(self, known: _Known) -> None:
        """Neither a position of the data nor an update stands in two records of one chain."""
        blobs = {update.blob for update in known.sealed.record.updates}
        before = known.parent
        while before is not None:
            if not blobs.isdisjoint(update.blob for update in before.sealed.record.updates):
                raise Violation(f"{shown(known.sealed)} has an update that {shown(before.sealed)} had")
            if twice := _common(known.trained, before.trained):
                raise Violation(f"{shown(known.sealed)} and {shown(before.sealed)} both count position {twice.start}")
            before = before.parent

    def _goes_by_its_rules(self, record: Record, previous: Record) -> None:
        """Nobody who is banned has a part in it, nobody trains where nobody shall, and no change of rules is undone."""
        rules, before = self._world.checks.rules_of(record), amendment_in(previous)
        if there := set(rules.banned).intersection((*record.members, *record.candidates)):
            raise Violation(f"record {record.round} names {min(there)}, who is banned")
        if record.trains and rules.rests(len(record.roster)):
            raise Violation(f"record {record.round} has members train in a round that rests")
        after = amendment_in(record)
        if before is not None and (after is None or after.number < before.number):
            raise Violation(f"record {record.round} takes amendment {before.number} back")

    # ---- what nodes make of them ----

    def on_applied(self, node: SimulatedNode, sealed: SealedRecord, root: str) -> None:
        """The state of a node is now that after this record."""
        if self._roots.setdefault(sealed.hash, root) != root:
            raise Violation(f"after {shown(sealed)} {node.machine.name} has another state than the others")
        said = sealed.record.state_root
        if said not in ("", self._roots.get(sealed.record.previous_hash, said)):
            raise Violation(f"{shown(sealed)} says another state root than that before it")

    def chain_of(self, node: SimulatedNode) -> list[SealedRecord]:
        """The newest record that counts as certified for a node, and what it holds behind that."""
        chain = node.chain
        return [chain.record(round).sealed for round in range(chain.certified_round, chain.num_records)]

    def on_switch(self, node: SimulatedNode, before: list[SealedRecord], switch: Switch) -> None:
        """A node has changed over to another chain; what it had there is `before`. It may not have known that somebody
        has certified this: then it comes back to it, and has lost nothing."""
        now = {node.chain.record(round).sealed.hash for round in range(before[0].round, node.chain.num_records)}
        gone = [sealed for sealed in before if sealed.hash not in now]
        if [sealed.hash for sealed in gone] != [sealed.hash for sealed in switch.lost]:
            raise Violation(f"{node.machine.name} gave up {len(gone)} records and reports {len(switch.lost)}")
        if before[0] in gone:
            raise Violation(f"{node.machine.name} gave up {shown(before[0])}, which it knew to be certified")
        self.num_lost += len(gone)

    def on_chain(self, node: SimulatedNode) -> None:
        """The chain of a node has changed."""
        self.num_changes += 1
        newest = node.chain.record(node.chain.certified_round).sealed
        if not self._known[newest.hash].counts:
            raise Violation(f"{node.machine.name} takes {shown(newest)} for certified, and it is not")
        self._keeps_what_was_certified(node, newest)
        self._go_by(node)

    def on_start(self, node: SimulatedNode) -> None:
        """A node has read what is on its disk."""
        self._keeps_what_was_certified(node, node.chain.record(node.chain.certified_round).sealed)
        self._go_by(node)

    def _keeps_what_was_certified(self, node: SimulatedNode, newest: SealedRecord) -> None:
        before = self._certain.get(node.machine.name)
        if before is not None and (
            newest.round < before.round or node.chain.record(before.round).sealed.hash != before.hash
        ):
            raise Violation(f"{node.machine.name} has lost {shown(before)}, which it knew to be certified")
        self._certain[node.machine.name] = newest

    # ---- owners ----

    def on_request(self, peer: PeerId, subsets: tuple[int, ...]) -> None:
        """A peer asks for a place in the next roster with these subsets."""
        self._asked[peer].add(subsets)

    def _subsets_change_hands_well(self, known: _Known, parent: _Known) -> None:
        """Everybody has the subsets that it had or asked for, but one in a rotation; and nobody is moved to a subset
        on which somebody has a lease who is not there."""
        record, previous = known.sealed.record, parent.sealed.record
        manifest = self._world.layout.manifest
        leased = {
            subset: peer
            for peer, (given_at, subsets) in parent.places.items()
            if peer not in record.members and record.opened_at - given_at <= manifest.timing.lease_seconds
            for subset in subsets
        }
        unasked: list[PeerId] = []
        for entry in record.roster:
            before = previous.entry_of(entry.peer_id)
            had, has = frozenset(before.subsets if before else ()), frozenset(entry.subsets)
            if had != has and entry.subsets not in self._asked[entry.peer_id]:
                unasked.append(entry.peer_id)
                if (
                    record.round % manifest.training.rotation_rounds
                    or len(unasked) > 1
                    or len(has - had) != 1
                    or len(had - has) != 1
                ):
                    raise Violation(f"{shown(known.sealed)} gives other subsets to {' and '.join(unasked)}, unasked")
            is_moved = before is not None and before.incarnation == entry.incarnation and had - has
            if is_moved and (taken := (has - had) & leased.keys()):
                subset, holder = min((subset, leased[subset]) for subset in taken)
                moved = f"{shown(known.sealed)} moves {entry.peer_id} to subset {subset}"
                raise Violation(f"{moved}, on which {holder} has a lease")

    def on_weather(self, is_calm: bool) -> None:
        """Whether everybody reaches everybody, quickly, from now on."""
        now = self._world.events.now
        if is_calm and self._calm_since is None:
            self._calm_since = now
        elif not is_calm and self._calm_since is not None:
            for subset, nodes in self._alone.items():
                for one, other in itertools.combinations(nodes, 2):
                    self._compare(subset, one, other)
            self._calm_since = None

    def _go_by(self, node: SimulatedNode) -> None:
        """The newest record of a node's chain, certified or not, says what it owns."""
        name, now, alone = node.machine.name, self._world.events.now, _sole_owners(node.head.record)
        for subset in range(self._world.num_subsets):
            if alone.get(subset) != node.peer_id:
                self._end_alone(name, subset)
            else:
                self._alone[subset].setdefault(name, now)

    def on_end(self, name: str) -> None:
        """A node has ended: it owns nothing any more."""
        for subset in self._alone:
            self._end_alone(name, subset)

    def _end_alone(self, name: str, subset: int) -> None:
        nodes = self._alone[subset]
        if name in nodes:
            for other in nodes:
                if other != name:
                    self._compare(subset, name, other)
            del nodes[name]

    def _compare(self, subset: int, one: str, other: str) -> None:
        """For how long two have had a subset to themselves in calm weather."""
        if self._calm_since is None:
            return
        nodes, now = self._alone[subset], self._world.events.now
        together = now - max(nodes[one], nodes[other], self._calm_since)
        self.together_seconds = max(self.together_seconds, together)
        bound_seconds = agreement_seconds(self._world.layout.manifest)
        if together > bound_seconds:
            raise Violation(f"{one} and {other} both own subset {subset} alone for {together:.0f} s, in calm weather")

    # ---- the end ----

    def check_end(self, living: list[SimulatedNode]) -> None:
        """All are well again: everybody has every record that was ever certified where somebody lives."""
        for round, sealed in self.certified.items():
            holders = [node for node in living if round < node.chain.num_records]
            held = {node.chain.record(round).sealed.hash for node in holders}
            if held - {sealed.hash} or len(holders) < len(living):
                raise Violation(f"not everybody has {shown(sealed)}, which was certified")
        for node in living:
            self.on_end(node.machine.name)


def _places_after(parent: _Known, record: Record) -> dict[PeerId, tuple[float, frozenset[int]]]:
    given = {entry.peer_id: (record.opened_at, frozenset(entry.subsets)) for entry in record.roster}
    return {**parent.places, **given}


def _sole_owners(record: Record) -> dict[int, PeerId]:
    """Subsets with one owner, and who that is."""
    alone: dict[int, PeerId] | None = record.__dict__.get("_alone")
    if alone is None:
        owners: dict[int, list[PeerId]] = {}
        for entry in record.roster:
            for subset in entry.subsets:
                owners.setdefault(subset, []).append(entry.peer_id)
        alone = {subset: peers[0] for subset, peers in owners.items() if len(peers) == 1}
        record.__dict__["_alone"] = alone
    return alone


def _common(one: tuple[DataRange, ...], other: tuple[DataRange, ...]) -> DataRange | None:
    """Where two ascending lists of ranges overlap first."""
    at = 0
    for part in one:
        while at < len(other) and other[at].end <= part.start:
            at += 1
        if at < len(other) and other[at].start < part.end:
            return DataRange(max(part.start, other[at].start), min(part.end, other[at].end))
    return None
