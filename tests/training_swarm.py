"""A few trainers in one process on real text, and the coordinator's part done by hand."""

import dataclasses
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from spes_peer.blobs import BlobStore
from spes_peer.data.corpus import Corpus, standard_library
from spes_peer.data.shards import make_shards
from spes_peer.identity import Identity, PeerId
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest, Model, parse_run_file
from spes_peer.run.offers import Offer, ReduceInput, ReduceTask
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import BlockId, BlockName, Contributor, DataRange, Record, RosterEntry, Update
from spes_peer.training.genesis import make_genesis
from spes_peer.training.trainer import Trainer
from spes_peer.training.work import LoadState, MeasureHeldOut, OpenTrainer, RecordApplied, RoundTrained, TrainRound

PEERS = tuple(sorted(Identity.from_seed(bytes([seed]) * 32).peer_id for seed in range(3)))
FOR_EVER = 1e12
STEPS = 10
SEQUENCES_PER_STEP = 8
BF16 = dict.fromkeys(("shared_offer_encoding", "shared_update_encoding", "expert_encoding"), "bf16")


@cache
def corpus() -> Corpus:
    return standard_library(seed=1, max_bytes=300_000)


def small_manifest(blobs: BlobStore, model: dict[str, Any] | None = None, **sync: Any) -> Manifest:
    """Four experts in two subsets, several blocks in each group."""
    run_file = parse_run_file(PRESETS["demo"])
    raw = run_file.model_dump()
    raw["model"] |= {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "num_experts": 4}
    raw["model"] |= {"expert_hidden": 32, "sequence_length": 32, **(model or {})}
    raw["training"] |= {"num_subsets": 2, "steps_per_round": STEPS, "lr": 1e-2, "warmup_steps": 5}
    raw["sync"] |= {"block_elements": 4096, "merge_interval_steps": STEPS, **BF16, **sync}
    data = make_shards(corpus(), blobs, Model.model_validate(raw["model"]), held_out_tokens=2048)
    return Manifest.model_validate({**raw, "data": data.model_dump(), "organizers": [PEERS[0]]})


def record_of(round: int, updates: tuple[Update, ...] = (), merge_alpha: float = 0.0) -> Record:
    """A record of which trainers read the round, the updates and the merge."""
    return Record(
        version=1,
        run_id=b"r" * 32,
        round=round,
        previous_hash=b"p" * 32,
        state_root="",
        held_out_loss=-1.0,
        train_loss=-1.0,
        tokens=0,
        step=0,
        updates=updates,
        merge_alpha=merge_alpha,
        roster=(),
        reducers=(),
        candidates=(),
        next_position=0,
        returned=(),
        opened_at=0.0,
        deadline_at=0.0,
    )


def open_trainer(
    manifest: Manifest, blobs: BlobStore, folder: Path, peer_id: PeerId, device: str = "cpu", **choices: Any
) -> Trainer:
    request = OpenTrainer(manifest.to_bytes(), str(blobs.folder), str(folder / peer_id), device, 1, peer_id, **choices)
    return Trainer(request)


@dataclasses.dataclass
class Swarm:
    """All trainers stand on the state of `round`."""

    manifest: Manifest
    blobs: BlobStore
    trainers: dict[PeerId, Trainer]
    subsets: dict[PeerId, tuple[int, ...]]
    genesis: tuple[BlockName, ...]
    round: int = 0
    next_position: int = 0

    @classmethod
    def create(
        cls, folder: Path, *subsets: tuple[int, ...], model: dict[str, Any] | None = None, **sync: Any
    ) -> "Swarm":
        """One trainer for each entry of `subsets`, at genesis."""
        blobs = BlobStore(folder / "blobs")
        manifest = small_manifest(blobs, model, **sync)
        peers = PEERS[: len(subsets)]
        trainers = {peer_id: open_trainer(manifest, blobs, folder, peer_id) for peer_id in peers}
        genesis = make_genesis(manifest, blobs)
        for trainer in trainers.values():
            trainer.load_state(LoadState(0, genesis))
        return cls(manifest, blobs, trainers, dict(zip(peers, subsets, strict=True)), genesis)

    def work(self, peer_id: PeerId, steps: int = STEPS) -> TrainRound:
        """This round's work of a peer, on data that nobody had yet."""
        num_sequences = steps * SEQUENCES_PER_STEP
        part = DataRange(self.next_position, self.next_position + num_sequences)
        self.next_position = part.end
        first_step = self.round * STEPS
        subsets = self.subsets[peer_id]
        return TrainRound(self.round, first_step, steps, subsets, (part,), SEQUENCES_PER_STEP, FOR_EVER)

    def train(self) -> dict[PeerId, RoundTrained]:
        return {peer_id: trainer.train_round(self.work(peer_id)) for peer_id, trainer in self.trainers.items()}

    def updates(self, trained: dict[PeerId, RoundTrained], left_out: Collection[PeerId] = ()) -> tuple[Update, ...]:
        """What the offers come to; every average is made by two reducers, who must agree."""
        offers: dict[BlockId, list[tuple[PeerId, Offer]]] = {}
        for peer_id, done in trained.items():
            for offer in done.offers if peer_id not in left_out else ():
                offers.setdefault(offer.block, []).append((peer_id, offer))
        blocks = (block.id for block in Layout(self.manifest).blocks if block.id in offers)
        return tuple(self._update(block, offers[block], trained) for block in blocks)

    def record_of(self, round: int, updates: tuple[Update, ...] = (), merge_alpha: float = 0.0) -> Record:
        """A record whose roster leaves all peers their subsets."""
        roster = tuple(RosterEntry(peer_id, 1, subsets, (), 1) for peer_id, subsets in self.subsets.items())
        return dataclasses.replace(record_of(round, updates, merge_alpha), roster=roster)

    def apply(
        self, updates: tuple[Update, ...] = (), merge_alpha: float = 0.0, keep_snapshot: bool = False
    ) -> dict[PeerId, RecordApplied]:
        self.round += 1
        record = self.record_of(self.round, updates, merge_alpha)
        return {peer_id: trainer.apply_record(record, keep_snapshot) for peer_id, trainer in self.trainers.items()}

    def held_out_loss(self) -> float:
        parts = [
            trainer.measure_held_out(MeasureHeldOut(part, len(self.trainers)))
            for part, trainer in enumerate(self.trainers.values())
        ]
        return sum(part.loss_sum for part in parts) / sum(part.tokens for part in parts)

    def reduce_task(self, block: BlockId, offers: list[tuple[PeerId, Offer]], tokens: dict[PeerId, int]) -> ReduceTask:
        inputs = tuple(
            ReduceInput(peer_id, offer.blob, offer.size_bytes, offer.norm, tokens[peer_id], 1.0)
            for peer_id, offer in offers
        )
        return ReduceTask(block, tuple(self.trainers)[:2], inputs)

    def _update(
        self, block: BlockId, offers: list[tuple[PeerId, Offer]], trained: dict[PeerId, RoundTrained]
    ) -> Update:
        contributors = tuple(
            Contributor(peer_id, trained[peer_id].tokens, 1.0, offer.norm) for peer_id, offer in offers
        )
        if len(offers) == 1:
            (_, only) = offers[0]
            return Update(block, only.blob, only.size_bytes, contributors, ())
        task = self.reduce_task(block, offers, {peer_id: done.tokens for peer_id, done in trained.items()})
        made = [self.trainers[reducer].reduce_block(task) for reducer in task.reducers]
        assert len({one.blob for one in made}) == 1
        assert not made[0].rejected
        return Update(block, made[0].blob, made[0].size_bytes, contributors, task.reducers)  # type: ignore[arg-type]
