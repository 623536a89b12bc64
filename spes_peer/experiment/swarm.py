"""A swarm in one process: real trainers, real records, the coordinator's part by the functions of `rounds`.

What is left out is what takes time and changes nothing: sockets, signatures, disks, and the second reducer of a
block, who would compute the same bytes. All peers are equally fast, so their shares of a batch are equal.
"""

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spes_peer.data.corpus import Corpus
from spes_peer.data.index import ShardIndex
from spes_peer.data.shards import make_shards
from spes_peer.errors import SpesError
from spes_peer.experiment.config import Cell
from spes_peer.experiment.memory import MemoryBlobs
from spes_peer.experiment.traffic import Traffic, traffic_of
from spes_peer.identity import Identity, PeerId
from spes_peer.rounds.admission import Seat
from spes_peer.rounds.contributions import Findings, findings_in
from spes_peer.rounds.messages import Contribution, UpdateReport
from spes_peer.rounds.proposal import next_record, untrained_findings
from spes_peer.rounds.reducing import Reduction, dropped, reductions_of, reported, settle
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, validated
from spes_peer.run.norms import Norms
from spes_peer.run.records import (
    BlockId,
    RosterEntry,
    SealedRecord,
    Update,
    first_record,
)
from spes_peer.training.genesis import make_genesis
from spes_peer.training.trainer import Trainer
from spes_peer.training.work import LoadState, MeasureHeldOut, OpenTrainer, TrainAhead, TrainRound

_NOW = 0.0  # nothing here depends on the time
_NEVER = math.inf
_MEMORY_BYTES = 64 << 30  # of a CPU, as planned with: were it measured, micro-batches and so sums could differ
_ONE_THREAD = 1
_INCARNATION = 1


@dataclass
class CpuSeconds:
    """Where this process's time went; other programs on the machine hardly change it."""

    training: float = 0.0
    exchange: float = 0.0
    evaluation: float = 0.0

    @contextmanager
    def spent_on(self, what: str) -> Iterator[None]:
        started_at = time.process_time()
        try:
            yield
        finally:
            setattr(self, what, getattr(self, what) + time.process_time() - started_at)


@dataclass(frozen=True)
class RoundDone:
    """What one round came to."""

    tokens: int
    train_loss: float


@dataclass
class Swarm:
    """All trainers stand on the state that `head` applies, and the round that `head` opens is next."""

    layout: Layout
    blobs: MemoryBlobs
    seats: tuple[Seat, ...]
    trainers: dict[PeerId, Trainer]
    head: SealedRecord
    to_keep: set[str]
    traffic: Traffic = field(default_factory=Traffic)
    """Of all rounds so far."""
    root: str = ""
    cpu_seconds: CpuSeconds = field(default_factory=CpuSeconds)
    past: Norms = field(default_factory=Norms)
    """What the records up to `head` have had."""

    @property
    def is_finished(self) -> bool:
        return self.head.record.is_final

    @property
    def num_rounds_done(self) -> int:
        return self.head.round - 1

    def held_out_loss(self) -> float:
        """Cross-entropy of the public state on the whole held-out split, in nats per token."""
        with self.cpu_seconds.spent_on("evaluation"):
            found = self.trainers[self.seats[0].peer_id].measure_held_out(MeasureHeldOut(0, 1))
        return found.loss_sum / found.tokens

    def run_round(self) -> RoundDone:
        """Train, exchange and apply."""
        with self.cpu_seconds.spent_on("training"):
            contributions = {entry.peer_id: self._train(entry) for entry in self.head.record.roster}
            self._train_ahead()
        with self.cpu_seconds.spent_on("exchange"):
            reductions = reductions_of(contributions, self.layout, self.head.round, _NOW, self.past)
            updates = self._updates({block: self._reduced(one) for block, one in reductions.items()})
            findings = findings_in(contributions.values())
            self.apply(updates, findings)
        tasks = (one.task for one in reductions.values())
        self.traffic += traffic_of(tasks, updates, len(self.seats), self.layout)
        return RoundDone(sum(part.tokens for part in contributions.values()), findings.train_loss)

    def apply(self, updates: tuple[Update, ...], findings: Findings) -> None:
        """Close the round with `updates` and open the next."""
        speeds = [0.0] * len(self.seats)
        self.head = next_record(self.head, updates, findings, self.seats, speeds, self.layout, None, _NOW).seal()
        self.past = self.past.after(self.head.record)
        roots = {trainer.apply_record(self.head.record, False).state_root for trainer in self.trainers.values()}
        if len(roots) > 1:
            raise SpesError(f"after record {self.head.round} peers do not hold the same public state")
        (self.root,) = roots
        self.blobs.keep_only(self.to_keep)

    def _train(self, entry: RosterEntry) -> Contribution:
        record, trainer = self.head.record, self.trainers[entry.peer_id]
        num_steps = self.layout.manifest.training.steps_per_round_at(record.step)
        done = trainer.train_round(TrainRound.of(record, entry, num_steps, _NEVER))
        if done.steps != num_steps:
            raise SpesError(
                f"a peer made {done.steps} of the {num_steps} steps of round {record.round}: the others had a loss or"
                " gradient that is not finite"
            )
        return Contribution(
            round=record.round,
            offers=done.offers,
            tokens=done.tokens,
            steps=done.steps,
            state_root=self.root,
            train_loss=done.train_loss,
            held_out_loss_sum=0.0,
            held_out_tokens=0,
            tokens_per_second=0.0,
        )

    def _train_ahead(self) -> None:
        """With `overlap_steps`, all of the next round's first steps that the record assigned: the exchange, which moves
        what was offered before them, takes just as long."""
        record, manifest = self.head.record, self.layout.manifest
        num_steps = manifest.sync.overlap_steps
        for entry in record.roster:
            if not entry.ahead:
                continue
            work = TrainAhead.of(record, entry, manifest.training, num_steps, _NEVER)
            if self.trainers[entry.peer_id].train_ahead(work).steps != num_steps:
                raise SpesError(f"a step ahead of round {record.round + 1} had a loss or gradient that is not finite")

    def _reduced(self, reduction: Reduction) -> Reduction:
        """The first reducer does the work; all say what it found."""
        if reduction.is_settled:
            return reduction
        reducers = reduction.task.reducers
        made = self.trainers[reducers[0]].reduce_block(reduction.task)
        report = UpdateReport(
            self.head.round, reduction.task.block, made.blob, made.size_bytes, made.rejected, reduction.task.digest
        )
        for reducer in reducers:
            reduction = reported(reduction, reducer, report)
        peers = tuple(self.trainers)
        return settle(reduction, self.layout, self.head.round, peers, peers, _NOW, 0.0)

    def _updates(self, reductions: dict[BlockId, Reduction]) -> tuple[Update, ...]:
        out = dropped(reductions.values())
        if out or any(one.update is None for one in reductions.values()):
            raise SpesError(f"offers of {sorted(out)} were rejected in round {self.head.round}")
        return tuple(one.update for one in reductions.values() if one.update is not None)


def open_swarm(cell: Cell, corpus: Corpus) -> Swarm:
    """All peers at genesis, and round 1 open."""
    blobs = MemoryBlobs()
    peers = [
        Identity.from_seed(hashlib.sha256(f"peer {index}".encode()).digest()).peer_id for index in range(cell.arm.peers)
    ]
    manifest = _manifest(cell, corpus, blobs, peers[0])
    shards = ShardIndex.read(manifest.data, blobs).shards()
    data_blobs = {*manifest.data.kept_by_all, *(shard.blob for shard in shards)}
    genesis = make_genesis(manifest, blobs)
    trainers = {}
    for peer_id in sorted(peers):
        trainers[peer_id] = _trainer(manifest, blobs, peer_id, cell.about.device)
        trainers[peer_id].load_state(LoadState(0, genesis))
    seats = tuple(Seat(peer, _INCARNATION, cell.arm.subsets_of(peers.index(peer))) for peer in sorted(peers))
    first = first_record(hashlib.sha256(manifest.to_bytes()).digest(), genesis, (), _NOW).seal()
    swarm = Swarm(Layout(manifest), blobs, seats, trainers, first, data_blobs)
    swarm.apply((), untrained_findings(first.record))
    return swarm


def _manifest(cell: Cell, corpus: Corpus, blobs: MemoryBlobs, organizer: PeerId) -> Manifest:
    """The run that a cell stands for: its seed draws the first weights and shuffles the data."""
    arm, about = cell.arm, cell.about
    data = make_shards(corpus, blobs, arm.model, held_out_tokens=about.held_out_tokens)
    raw = arm.model_dump(include={"model", "training", "sync"})
    raw |= {"run": {"name": about.name, "seed": cell.seed}, "data": data.model_dump(), "organizers": [organizer]}
    return validated(Manifest, raw, cell.name)


def _trainer(manifest: Manifest, blobs: MemoryBlobs, peer_id: PeerId, device: str) -> Trainer:
    memory_bytes = _MEMORY_BYTES if device == "cpu" else 0
    request = OpenTrainer(
        manifest.to_bytes(), "", "", device, _ONE_THREAD, peer_id, checkpointing="off", memory_bytes=memory_bytes
    )
    return Trainer(request, blobs=blobs)
