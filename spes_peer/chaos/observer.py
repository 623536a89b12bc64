"""Watches a run from outside: what nodes say over their control APIs, what they have on disk, what they weigh."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from spes_peer.chaos.report import Observations, SeenRecord
from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.run.certificates import Checks
from spes_peer.run.lineage import Lineage, Rank
from spes_peer.run.records import CertifiedRecord, tokens_by_peer
from spes_peer.wire import convert
from spes_peer.wire.control_pb2 import Status


class DiskChain:
    """The records in one node's folder, verified; read again where a file has changed, since late signatures and better
    chains replace records."""

    def __init__(self, folder: Path, checks: Checks) -> None:
        self.records: list[SeenRecord] = []
        self._folder = folder
        self._checks = checks
        self._stamps: list[tuple[int, int]] = []
        """Of each file, by which a change is seen."""
        self._lineages: list[Lineage] = []
        """The chain up to each record."""

    @property
    def rank(self) -> Rank:
        return self._lineages[-1].rank if self._lineages else Rank(-1)

    def refresh(self) -> list[SeenRecord]:
        """Those that are new or changed."""
        same = 0
        while same < len(self._stamps) and self._stamp(same) == self._stamps[same]:
            same += 1
        del self._stamps[same:], self._lineages[same:], self.records[same:]
        while (stamp := self._stamp(len(self.records))) is not None and self._take(stamp):
            pass
        return self.records[same:]

    def _stamp(self, number: int) -> tuple[int, int] | None:
        try:
            found = self._path(number).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.record"

    def _take(self, stamp: tuple[int, int]) -> bool:
        try:
            certified = convert.decode(CertifiedRecord, self._path(len(self.records)).read_bytes())
            lineage = self._followed_by(certified)
        except (FileNotFoundError, PeerError):  # the node is changing over to another chain
            return False
        record = lineage.head.record
        self._stamps.append(stamp)
        self._lineages.append(lineage)
        self.records.append(
            SeenRecord(
                round=record.round,
                hash=lineage.head.hash.hex(),
                is_certified=lineage.certified_round == record.round,
                tokens=record.tokens,
                tokens_by_peer=tokens_by_peer(record.updates),
                opened_at=record.opened_at,
            )
        )
        return True

    def _followed_by(self, certified: CertifiedRecord) -> Lineage:
        if not self._lineages:
            return Lineage.begun(certified, self._checks)
        return self._lineages[-1].followed_by(certified)


class _Steps:
    """How far one life of a daemon was in its round when it last spoke."""

    def __init__(self) -> None:
        self.life = (0, 0)
        self.done = 0


class Observer:
    """Collects `seen`; every method but the last is called again and again while the run goes."""

    def __init__(self, checks: Checks, folder_of: Callable[[str], Path]) -> None:
        """`folder_of` says where a node keeps its records."""
        self.seen = Observations()
        self.newest: SeenRecord | None = None
        """The newest certified record that any node has."""
        self.newest_of: dict[str, SeenRecord] = {}
        """The newest record whose state each volunteer said that it holds."""
        self._checks = checks
        self._folder_of = folder_of
        self._chains: dict[str, DiskChain] = {}
        self._steps: dict[str, _Steps] = {}
        self._roots: dict[str, dict[int, str]] = {}

    def look_at_disk(self, name: str, now: float) -> None:
        """Note the certified records that nobody was seen to have before."""
        for record in self._chain_of(name).refresh():
            if record.is_certified:
                self.seen.certified_at.setdefault(record.key, now)
                if self.newest is None or record.round > self.newest.round:
                    self.newest = record

    def _chain_of(self, name: str) -> DiskChain:
        return self._chains.setdefault(name, DiskChain(self._folder_of(name), self._checks))

    def take_status(self, name: str, status: Status, now: float) -> None:
        self._count_steps(name, status)
        said = {entry.round: entry.state_root for entry in status.rounds}
        known = self._roots.setdefault(name, {})
        if news := {number: root for number, root in said.items() if known.get(number) != root}:
            known.update(news)
            self.look_at_disk(name, now)
            self._note_roots(name, news)

    def _count_steps(self, name: str, status: Status) -> None:
        """A trainer that begins a round again counts its steps from 0 again; those before were made all the same."""
        if not status.peers or not status.peers[0].is_self:
            return
        steps, life, done = (
            self._steps.setdefault(name, _Steps()),
            (status.pid, status.round),
            status.training.steps_done,
        )
        made = done - steps.done if life == steps.life and done >= steps.done else done
        steps.life, steps.done = life, done
        if made:
            tokens = made * status.peers[0].sequences_per_step * self._checks.sequence_length
            key = PeerId(status.peer_id), status.round
            self.seen.trained_tokens[key] = self.seen.trained_tokens.get(key, 0) + tokens

    def _note_roots(self, name: str, roots: Mapping[int, str]) -> None:
        """A root belongs to the record that the volunteer has at that place when it says the root."""
        records = self._chain_of(name).records
        for number, root in sorted(roots.items()):
            if number + 1 < len(records):
                record = records[number + 1]
                self.seen.roots.setdefault(record.key, {})[name] = root
                self.newest_of[name] = record

    def weigh(self, processes: Iterable[tuple[str, int, int]]) -> None:
        """Kind, process id and resident bytes of each."""
        number = self.newest.round if self.newest else 0
        for kind, pid, size in processes:
            self.seen.memory.setdefault((kind, pid), []).append((number, size))

    def conclude(self, names: Iterable[str], volunteers: Collection[str]) -> None:
        """Take the highest chain of any node as the final one, and each volunteer's root in it."""
        chains = [self._chain_of(name) for name in names]
        for chain in chains:
            chain.refresh()
        self.seen.final = tuple(max(chains, key=lambda chain: chain.rank).records)
        shared = [roots for record in self.seen.final if (roots := self.seen.roots.get(record.key, {}))]
        newest = next((roots for roots in reversed(shared) if roots.keys() >= set(volunteers)), {})
        self.seen.final_roots = {name: newest.get(name, "") for name in volunteers}
