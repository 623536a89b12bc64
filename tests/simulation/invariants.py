"""What must hold after every event, however the world treats the nodes.

Each check runs at the events that can break it: a certificate or a signature that comes into being, a state that is
applied, a chain that changes. `Violation` says what is broken; the seed in front of it replays the run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spes_peer.identity import PeerId
from spes_peer.rounds.assignment import split
from spes_peer.rounds.messages import RecordSignature
from spes_peer.run import lineage
from spes_peer.run.certificates import is_certified_by
from spes_peer.run.chain import Switch
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import CertifiedRecord, DataRange, Record, SealedRecord, tokens_by_peer

from .trace import shown

if TYPE_CHECKING:
    from .node import SimulatedNode
    from .world import World


class Violation(AssertionError):
    """Something happened that must never happen."""


def recovery_seconds(manifest: Manifest, num_candidates: int, clock_spread_seconds: float = 0.0) -> float:
    """The longest that it takes, once the network is whole and more than half of the last roster are up, until a new
    certified record is at every node that is up. The sum of the longest waits behind each other:

    - coordinator time-out, half of it and the fetch stall time-out: a dead stream is noticed, others are asked where
      they stand, and their chain is read;
    - for every candidate of the round a coordinator time-out and a heartbeat: at worst all but the last are dead;
    - the same again for one more: who gave up on a term late is asked for its vote when it comes;
    - the round's deadline, by whichever clock: those who are up may have to train the whole round again;
    - the grace three times: to reduce, for signatures, and to ask for them again;
    - three heartbeats: from a wait that is over to who acts on it.
    """
    timing = manifest.timing
    lost_seconds = 1.5 * timing.coordinator_timeout_seconds + timing.fetch_stall_seconds
    term_seconds = timing.coordinator_timeout_seconds + timing.heartbeat_seconds
    round_seconds = timing.round_seconds + 3 * timing.round_grace_seconds + 3 * timing.heartbeat_seconds
    return lost_seconds + (num_candidates + 1) * term_seconds + round_seconds + clock_spread_seconds


@dataclass
class _Known:
    """A record that some node holds."""

    sealed: SealedRecord
    parent: _Known | None
    made_at: float
    """True seconds at which somebody had it first."""
    trained: tuple[DataRange, ...]
    """Positions of the data that its updates count."""
    children: list[_Known] = field(default_factory=list)
    has_certificate: bool = False
    counts: bool = False
    """It and all before it are certified."""


@dataclass
class _Belief:
    """That a subset is its own alone, by the newest certified record that a node has."""

    since_at: float
    until_at: float
    """True seconds at which the lease is over that this record gave."""


class Watch:
    """Sees every node at once, as nobody in the run can."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._length = world.layout.manifest.model.sequence_length
        zero = _Known(world.zero, None, world.events.now, (), has_certificate=True, counts=True)
        self._known = {world.zero.hash: zero}
        self.certified: dict[int, SealedRecord] = {0: world.zero}
        """Of each round the record that somebody has had a certificate for, and for all before it."""
        self._votes: dict[tuple[bytes, int], set[PeerId]] = defaultdict(set)
        self._chosen: dict[bytes, bytes] = {}
        """By the hash of a record the hash of the next for which more than half have voted in one term."""
        self._roots = {world.zero.hash: world.zero.record.state_root}
        self._beliefs: dict[int, dict[str, _Belief]] = defaultdict(dict)
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
            known = _Known(sealed, parent, self._world.events.now, trained)
            self._known[sealed.hash] = known
            parent.children.append(known)
            self._no_update_twice(known)
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
        if is_certified_by(votes, sealed.record, previous.record):
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
        self._believe(node, newest.record)

    # ---- owners ----

    def _believe(self, node: SimulatedNode, record: Record) -> None:
        now = self._world.events.now
        until_at = record.opened_at + node.timing.lease_seconds - node.machine.clock_offset_seconds
        alone = self._alone(record)
        for subset in range(self._world.num_subsets):
            beliefs = self._beliefs[subset]
            if alone.get(subset) == node.peer_id:
                since_at = beliefs[node.machine.name].since_at if node.machine.name in beliefs else now
                if node.machine.name in beliefs and beliefs[node.machine.name].until_at < now:
                    self._end_belief(node.machine.name, subset)
                    since_at = now
                beliefs[node.machine.name] = _Belief(since_at, until_at)
            elif node.machine.name in beliefs:
                self._end_belief(node.machine.name, subset)

    def _alone(self, record: Record) -> dict[int, PeerId]:
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

    def on_end(self, name: str) -> None:
        """A node has ended: it believes nothing."""
        for subset, beliefs in self._beliefs.items():
            if name in beliefs:
                self._end_belief(name, subset)

    def _end_belief(self, name: str, subset: int) -> None:
        """Compare with others that took the subset for theirs alone meanwhile."""
        ours, now = self._beliefs[subset].pop(name), self._world.events.now
        lease_seconds = self._world.layout.manifest.timing.lease_seconds + self._world.clock_spread_seconds
        for other, theirs in self._beliefs[subset].items():
            together = min(ours.until_at, theirs.until_at, now) - max(ours.since_at, theirs.since_at)
            if together > lease_seconds:
                raise Violation(f"{name} and {other} both owned subset {subset} alone for {together:.0f} s")

    # ---- the end ----

    def common_round(self, nodes: list[SimulatedNode], since_at: float) -> int:
        """The newest record that was made since then and is in the chain of all of these; -1 if there is none."""
        round = min(node.head.round for node in nodes)
        hashes = {node.chain.record(round).sealed.hash for node in nodes}
        return round if len(hashes) == 1 and self._known[hashes.pop()].made_at > since_at else -1

    def check_end(self, living: list[SimulatedNode]) -> None:
        """All are well again: everybody has every record that was ever certified where somebody lives."""
        for round, sealed in self.certified.items():
            holders = [node for node in living if round < node.chain.num_records]
            held = {node.chain.record(round).sealed.hash for node in holders}
            if held - {sealed.hash} or len(holders) < len(living):
                raise Violation(f"not everybody has {shown(sealed)}, which was certified")
        for node in living:
            self.on_end(node.machine.name)


def _common(one: tuple[DataRange, ...], other: tuple[DataRange, ...]) -> DataRange | None:
    """Where two ascending lists of ranges overlap first."""
    at = 0
    for part in one:
        while at < len(other) and other[at].end <= part.start:
            at += 1
        if at < len(other) and other[at].start < part.end:
            return DataRange(max(part.start, other[at].start), min(part.end, other[at].end))
    return None
