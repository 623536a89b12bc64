"""What a trainer process does, without its socket: local steps, offers, reduce, apply (DESIGN.md, "State", "A round").

A trainer holds the public state after record r (`round` = r), trains round r on it, and applies record r + 1. Shared
parameters are trained in place and become the public ones again with every record, plus what was trained ahead of it
(ahead.py); what a peer is ahead of the public state lies in its ledger (shared) and in its masters (experts).
"""

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from spes_peer.blobs import BlobName, BlobStore
from spes_peer.data.sampler import Sampler
from spes_peer.errors import BadConfiguration, BadMessage, SpesError, StateTorn
from spes_peer.model.decoder import Decoder
from spes_peer.run.encodings import Format
from spes_peer.run.layout import Block, Layout
from spes_peer.run.manifest import parse_manifest
from spes_peer.run.offers import Offer, ReduceTask
from spes_peer.run.records import BlockId, BlockName, Record, Update
from spes_peer.sync.encoding import decode, encode
from spes_peer.sync.reduce import fault_in_length, reduce_offers
from spes_peer.sync.state import PublicState
from spes_peer.training import checkpoint
from spes_peer.training.activity import Activity
from spes_peer.training.ahead import Ahead, Begun, Steps
from spes_peer.training.checkpoint import Checkpoint
from spes_peer.training.device_figures import words_of
from spes_peer.training.feeding import one_ahead
from spes_peer.training.ledger import Ledger
from spes_peer.training.machine import Machine
from spes_peer.training.optimizer import LocalOptimizer
from spes_peer.training.plan import Plan
from spes_peer.training.schedule import lr_at
from spes_peer.training.stepping import Stepper
from spes_peer.training.work import (
    AheadTrained,
    BlockReduced,
    ExpertTried,
    HeldOut,
    LoadState,
    MeasureHeldOut,
    OpenTrainer,
    RecordApplied,
    RoundTrained,
    StateLoaded,
    TrainAhead,
    TrainerOpened,
    TrainRound,
    TryExpert,
)

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "trainer.safetensors"
_NO_STATE = "the trainer has no state yet: load one first"
_HELD_OUT_SEQUENCES = 16  # read at a time
_TEST_TOKENS = 256  # that an expert is tested on: honest updates raise their loss by 1 % at most, and it takes no time
_MOST_SKIPPED_IN_A_ROW = 8  # a model that has diverged; one that has not is back within a step or two


class Trainer:
    """One peer's trainer of one run."""

    def __init__(self, request: OpenTrainer, blobs: BlobStore | None = None, activity: Activity | None = None) -> None:
        """Blobs lie in `blobs`, or else in `request.blob_folder`; without a `state_folder` no checkpoint is kept. What
        is done is noted in `activity`.

        Raises `BadConfiguration` for a manifest, a device or a checkpoint that cannot be used."""
        self.manifest = parse_manifest(request.manifest)
        self.round = -1
        self._run_id = hashlib.sha256(request.manifest).hexdigest()
        self._peer_id = request.peer_id
        self._activity = activity or Activity()
        if request.num_threads:
            torch.set_num_threads(request.num_threads)
        self._machine = Machine.of(request, self.manifest)
        self._plan = self._planned()
        self._layout = Layout(self.manifest)
        self._blobs = BlobStore(Path(request.blob_folder)) if blobs is None else blobs
        self._sampler = Sampler(self.manifest, self._blobs)
        self._decoder = Decoder(
            self.manifest.model,
            self._machine.device,
            self.manifest.training,
            resident=self._machine.choices.resident,
            checkpointing=self._plan.checkpoints,
        )
        training = self.manifest.training
        self._optimizer = LocalOptimizer(self._decoder, training, self._machine.choices.optimizer_bits)
        may_recompute = self._machine.choices.checkpointing == "auto"
        self._stepper = Stepper(self._decoder, self._optimizer, training, self._plan.micro_batch, may_recompute)
        self._ledger = Ledger(self._layout, self._peer_id)
        self._state: PublicState | None = None
        self._ahead: Ahead | None = None
        self._begun: Begun | None = None
        self._base: Tensor | None = None
        """From where the next offer of shared parameters is counted; None for the public ones."""
        self._tested = (-1, 0, 0)
        """The round and slice of which `_loss_before` is the held-out loss."""
        self._loss_before = 0.0
        self._checkpoint_path: Path | None = None
        self._to_resume: Checkpoint | None = None
        if request.state_folder:
            Path(request.state_folder).mkdir(parents=True, exist_ok=True)
            self._checkpoint_path = Path(request.state_folder) / CHECKPOINT_FILE
            self._to_resume = checkpoint.load(self._checkpoint_path, self._run_id, self._peer_id)

    def opened(self) -> TrainerOpened:
        """What this machine can do. The speed is not tried before the first round."""
        return TrainerOpened(words_of(self.device), self._plan.num_subsets, 0.0)

    @property
    def device(self) -> torch.device:
        return self._machine.device

    def load_state(self, request: LoadState) -> StateLoaded:
        """Take the public state from blobs; masters and residuals that stood on another one are dropped."""
        names = {name.block: name.blob for name in request.blocks}

        def read(block: BlockId) -> bytes:
            if block not in names:
                raise BadMessage(f"a state without block {block}")
            return self._blobs.read(names[block])

        self._state = None  # there is room for one
        self._state = PublicState.from_blocks(self._layout, read)
        self.round = request.round
        self._ledger = Ledger(self._layout, self._peer_id)
        self._ahead = self._begun = self._base = None
        self._tested = (-1, 0, 0)
        self._optimizer.own(())
        for expert in (None, *range(self.manifest.model.num_experts)):
            self._decoder.load_group(expert, self._public.group(expert))
        return StateLoaded(self._public.root())

    def measure_held_out(self, request: MeasureHeldOut) -> HeldOut:
        """The cross-entropy of the public state on a slice of the held-out split."""
        if not 0 <= request.slice < request.num_slices:
            raise SpesError(f"no slice {request.slice} of {request.num_slices} of the held-out split")
        loss_sum, tokens = 0.0, 0
        ours = self._show_public()
        try:
            for batch in self._sampler.held_out(request.slice, request.num_slices, _HELD_OUT_SEQUENCES):
                loss_sum += self._stepper.cross_entropy(batch) * batch.num_tokens
                tokens += batch.num_tokens
        finally:
            self._show(ours)
        return HeldOut(loss_sum, tokens)

    def train_round(
        self,
        work: TrainRound,
        on_step: Callable[[int, float, float], None] = lambda _steps, _loss, _speed: None,
        between_steps: Callable[[], bool] = lambda: True,
    ) -> RoundTrained:
        """Train on `work.ranges` and offer what came of it.

        Ends early, with the steps made, at `work.stop_at` or when `between_steps` says False; `on_step` hears (steps
        done, loss, tokens per second). Raises `SpesError` when not one step could be made, or when so many in a row
        had a number that is not finite that the model must have diverged: then nothing is offered."""
        self._check_round(work.round, f"train round {work.round}")
        steps = self._prepare(work)
        self._make_steps(steps, work, on_step, between_steps)
        self._check(steps, work)
        choices, began_at = self._decoder.take_router_choices(), time.perf_counter()
        offers = self._offers(work.subsets)
        encode_seconds = time.perf_counter() - began_at
        return RoundTrained(
            offers, steps.tokens, steps.num_steps, steps.mean_loss, steps.tokens_per_second, choices, encode_seconds
        )

    def train_ahead(
        self,
        work: TrainAhead,
        on_step: Callable[[int, float, float], None] = lambda _steps, _loss, _speed: None,
        between_steps: Callable[[], bool] = lambda: True,
    ) -> AheadTrained:
        """Train the next round's first steps, while the exchange runs of the round that was just offered.

        Ends like `train_round`; called again it goes on. `SpesError` before the round is offered."""
        self._check_round(work.round, f"train ahead of round {work.round + 1}")
        if self._ahead is None or self._ahead.round != work.round + 1:
            raise SpesError(f"asked to train ahead before round {work.round} is offered")
        steps = self._ahead.steps
        self._make_steps(steps, work, on_step, between_steps)
        return AheadTrained(steps.num_steps)

    def reduce_block(self, task: ReduceTask) -> BlockReduced:
        """Average the offers for one block. An offer that is not what it claims is left out and its peer named."""
        block = self._block(task.block)
        size = block.num_elements
        reduced = reduce_offers(self._layout.offer_format(block), size, task.inputs, self._blobs.read)
        if reduced is None:
            return BlockReduced("", 0, tuple(sorted(given.peer_id for given in task.inputs)))
        format = self._layout.mean_format(block)
        content = encode(format, reduced.mean)
        blob = self._blobs.put(content)
        if self._peer_id in reduced.share:
            lost = reduced.mean - decode(format, content, size)
            self._ledger.averaged(block, blob.name, lost, reduced.share[self._peer_id])
        return BlockReduced(blob.name, blob.size_bytes, reduced.rejected)

    def try_expert(self, work: TryExpert) -> ExpertTried:
        """Compare the public state with and without the updates of one expert that is another's, on a few sequences of
        a slice of the held-out split. What is in training goes on as if nothing had been.

        An owner's offer is tried as it is, without the clip factor by which it will count."""
        self._check_round(work.round, f"test expert {work.expert} in round {work.round}")
        blocks = self._layout.expert_blocks(work.expert) if work.expert < self.manifest.model.num_experts else ()
        if work.expert in self._decoder.owned or not blocks or len(blocks) != len(work.blobs):
            raise SpesError(f"asked to test {len(work.blobs)} updates of expert {work.expert}")
        num_sequences = max(2, _TEST_TOKENS // self.manifest.model.sequence_length)
        batch = next(self._sampler.held_out(work.slice, work.num_slices, num_sequences), None)
        if batch is None:
            raise SpesError("the slice of the held-out split is empty")
        try:
            moved = torch.cat(
                [
                    self._public.moved(block, self._decoded(self._layout.mean_format(block), block, blob))
                    for block, blob in zip(blocks, work.blobs, strict=True)
                ]
            )
        except BadMessage as error:
            return ExpertTried(0.0, 0.0, str(error))
        ours = self._show_public()
        try:
            if self._tested != (tested := (work.round, work.slice, work.num_slices)):
                self._loss_before, self._tested = self._stepper.cross_entropy(batch), tested
            self._decoder.load_group(work.expert, moved)
            after = self._stepper.cross_entropy(batch)
        finally:
            self._decoder.load_group(work.expert, self._public.group(work.expert))
            self._show(ours)
        if not math.isfinite(self._loss_before):
            raise SpesError("the held-out loss of the public state is not finite")
        if not math.isfinite(after):
            return ExpertTried(self._loss_before, 0.0, "the held-out loss with them is not finite")
        return ExpertTried(self._loss_before, after, "")

    def apply_record(self, record: Record, keep_snapshot: bool) -> RecordApplied:
        """Apply the updates and the merge of the record that closes this round.

        An error leaves all as it was, but for `StateTorn`: the state is gone then, until another is loaded."""
        self._check_round(record.round - 1, f"apply record {record.round}")
        updates = {self._block(update.block).id: update for update in record.updates}
        try:
            self._move(updates, record.merge_alpha)
        except StateTorn:
            self._state = None
            raise
        self.round = record.round
        self._give_up(record)
        root = self._public.root()
        self._save(root)
        return RecordApplied(root, self._keep_blocks() if keep_snapshot else ())

    # ---- a round ----

    def _prepare(self, work: TrainRound) -> Steps:
        """Own exactly the experts of the round's subsets; take up what an earlier process left; start from the public
        state, or with the steps that were made ahead."""
        experts = self._experts_of(work.subsets)
        if experts != self._decoder.owned:
            self._own(experts)
            self._stepper.expect(self._planned(len(work.subsets)).micro_batch)
        if self._to_resume is not None:
            self._resume(self._to_resume)
            self._to_resume = None
        self._ahead = None
        begun, self._begun = self._begun, None
        if begun is not None and begun.round == work.round:
            return begun.steps
        # Should this round have been trained before, without a record behind it: what it offered then is offered again.
        self._settle({}, (), {})
        return Steps()

    def _make_steps(
        self,
        steps: Steps,
        work: TrainRound | TrainAhead,
        on_step: Callable[[int, float, float], None],
        between_steps: Callable[[], bool],
    ) -> None:
        """Make the steps of `work` that are not in `steps` yet, and count them there."""
        ends_at = time.monotonic() + (work.stop_at - time.time())  # the wall clock may be set while we train
        batches = self._sampler.training(work.ranges, work.step_sizes(), steps.num_tried)
        with contextlib.closing(one_ahead(batches, self._machine.device)) as coming:
            for batch in coming:
                is_done = steps.num_tried == work.num_steps
                if is_done or time.monotonic() + steps.seconds_per_step > ends_at or not between_steps():
                    break
                started_at = time.perf_counter()
                lr = lr_at(work.first_step + steps.num_tried, self.manifest.training)
                with self._activity.step():
                    loss = self._stepper.step(batch, lr)
                steps.count(batch.num_tokens, loss, time.perf_counter() - started_at)
                if loss is not None:
                    on_step(steps.num_steps, loss, steps.tokens_per_second)
                elif steps.skipped_in_a_row == _MOST_SKIPPED_IN_A_ROW:
                    break

    def _own(self, experts: tuple[int, ...]) -> None:
        """Experts taken up or given up get exactly the public values, which residents may hold rounded, or not at all
        where we were the owner."""
        before = set(self._decoder.owned)
        self._optimizer.own(experts)
        for expert in before - set(experts):
            self._decoder.load_group(expert, self._public.group(expert))
        for expert in set(experts) - before:
            self._decoder.load_master(expert, self._public.group(expert))

    def _check(self, steps: Steps, work: TrainRound) -> None:
        if steps.num_skipped:
            logger.warning("skipped steps that were not finite round=%d steps=%d", work.round, steps.num_skipped)
        if steps.skipped_in_a_row == _MOST_SKIPPED_IN_A_ROW or (steps.num_skipped and not steps.num_steps):
            raise SpesError(
                f"the last {steps.skipped_in_a_row} steps of round {work.round} had a loss or gradient that is not"
                " finite: nothing of it is offered; the run's lr may be too high"
            )
        if not steps.num_steps:
            raise SpesError(f"round {work.round} ended before this peer made a step")

    def _offers(self, subsets: tuple[int, ...]) -> tuple[Offer, ...]:
        ours: dict[int | None, Tensor] = {None: self._decoder.flatten_shared()}
        ours.update({expert: self._decoder.flatten_master(expert) for expert in self._decoder.owned})
        offers = []
        for block in self._layout.blocks_offered_by(subsets):
            values = ours[block.expert][block.start : block.end]
            base = self._public.block(block)
            if block.expert is None and self._base is not None:
                base = self._base[block.start : block.end]
            content, norm = self._ledger.offer(block, values, base)
            if not math.isfinite(norm):
                raise SpesError(f"what was trained of {block.id} is not finite: nothing is offered")
            blob = self._blobs.put(content)
            offers.append(Offer(block.id, blob.name, blob.size_bytes, norm))
        self._base = None
        if self.manifest.sync.overlap_steps:
            self._ahead = Ahead(self.round + 1, ours[None])
        return tuple(offers)

    # ---- a record ----

    def _delta(self, update: Update) -> Tensor:
        block = self._block(update.block)
        delta = self._decoded(self._layout.update_format(update), block, update.blob)
        if fault := fault_in_length(update, delta):
            raise BadMessage(f"an update of {block.id}: {fault}")
        # A mean has the clip factors inside; an only offer is its peer's own bytes, with the factor in the record.
        clip = 1.0 if update.reducers else update.contributors[0].clip
        return delta if clip == 1.0 else delta * clip

    def _decoded(self, format: Format, block: Block, blob: BlobName) -> Tensor:
        return decode(format, self._blobs.read(blob), block.num_elements)

    def _move(self, updates: dict[BlockId, Update], merge_alpha: float) -> None:
        """Move the public state, and all that stands on it; `StateTorn` when only a part of it could be."""

        def delta_of(block_id: BlockId) -> Tensor:
            return self._delta(updates[block_id])

        result = self._public.apply(tuple(updates), delta_of, merge_alpha, self._decoder.owned)
        for block_id, fault in result.bad.items():
            peers = ", ".join(part.peer_id for part in updates[block_id].contributors)
            logger.warning("left an update out block=%s by=%s reason=%s", block_id, peers, fault)
        updates = {block_id: update for block_id, update in updates.items() if block_id not in result.bad}
        moved = {self._layout.by_id[block_id].expert for block_id in updates}
        if merge_alpha > 0:
            moved.update(range(self.manifest.model.num_experts))
        try:
            ahead, self._ahead = self._ahead, None
            self._settle(updates, moved, result.displaced, ahead)
            self._begun = Begun(ahead.round, ahead.steps) if ahead else None
        except Exception as error:
            raise StateTorn(f"a trainer half behind its public state must load it anew: {error}") from error

    def _settle(
        self,
        updates: dict[BlockId, Update],
        moved: Collection[int | None],
        displaced: dict[BlockId, Tensor],
        ahead: Ahead | None = None,
    ) -> None:
        """Bring ledger, masters and decoder behind a public state of which the experts in `moved` have just moved, and
        those owned by `displaced`. Shared parameters keep what they gained `ahead` of it."""
        self._ledger.close_shared(updates)
        public, self._base = self._public.group(None), None
        if ahead is not None and ahead.steps.num_steps:
            gained = ahead.gained(self._decoder.flatten_shared())
            self._base = ahead.base(public, self.manifest.sync.overlap_keep)
            public = self._base + gained
        self._decoder.load_group(None, public)
        for expert in range(self.manifest.model.num_experts):
            if expert in self._decoder.owned:
                self._decoder.load_master(expert, self._master_after(expert, updates, displaced))
            elif expert in moved:
                self._decoder.load_group(expert, self._public.group(expert))
        self._ledger.close()

    def _master_after(self, expert: int, updates: dict[BlockId, Update], displaced: dict[BlockId, Tensor]) -> Tensor:
        master = self._decoder.flatten_master(expert)
        return torch.cat(
            [
                self._ledger.master_after(
                    block, master[block.start : block.end], displaced.get(block.id), updates.get(block.id)
                )
                for block in self._layout.expert_blocks(expert)
            ]
        )

    def _give_up(self, record: Record) -> None:
        """What the next round's roster does not leave to this peer is another's from now on."""
        entry = record.entry_of(self._peer_id)
        kept = self._experts_of(entry.subsets if entry is not None else ())
        if not set(self._decoder.owned) <= set(kept):
            self._own(tuple(expert for expert in self._decoder.owned if expert in kept))

    def _experts_of(self, subsets: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(expert for subset in sorted(subsets) for expert in self.manifest.experts_of(subset))

    def _keep_blocks(self) -> tuple[BlockName, ...]:
        for block in self._layout.state_blocks:
            self._blobs.put(self._public.block_bytes(block))
        return self._public.names()

    # ---- the public state in the decoder's place, and back ----

    def _show_public(self) -> dict[int | None, Tensor]:
        """Let the decoder work with the public state alone; what it held instead."""
        ours: dict[int | None, Tensor] = {None: self._decoder.flatten_shared()}
        ours.update({expert: self._decoder.flatten_master(expert) for expert in self._decoder.owned})
        self._show({expert: self._public.group(expert) for expert in ours})
        return ours

    def _show(self, groups: dict[int | None, Tensor]) -> None:
        for expert, flat in groups.items():
            if expert is None:
                self._decoder.load_group(None, flat)
            else:
                self._decoder.load_master(expert, flat)

    # ---- across restarts ----

    def _save(self, root: str) -> None:
        if self._checkpoint_path is None or self._to_resume is not None or not self._optimizer.num_steps:
            return  # a replay before the first training must not replace what it leads up to
        masters = {f"master/{expert:02d}": self._decoder.flatten_master(expert) for expert in self._decoder.owned}
        residuals = {f"residual/{block}": values for block, values in self._ledger.residuals().items()}
        moments = {f"moments/{name}": values for name, values in self._optimizer.moments().items()}
        rng = {"rng": torch.get_rng_state()}
        ahead = {}
        if self._begun is not None and self._base is not None:
            ahead = {"ahead/shared": self._decoder.flatten_shared(), "ahead/base": self._base}
            ahead["ahead/steps"] = self._begun.steps.to_tensor()
        content = Checkpoint(self.round, root, {**masters, **residuals, **moments, **rng, **ahead})
        try:
            checkpoint.save(self._checkpoint_path, self._run_id, self._peer_id, content)
        except OSError as error:  # the record is applied; a restart will merely go on with older moments
            logger.warning("cannot save, trying again with the next record reason=%s", error)

    def _resume(self, saved: Checkpoint) -> None:
        """Moments are of use on any state; masters and residuals only on the one they stood on."""
        try:
            self._optimizer.load_moments(_under("moments/", saved.tensors))
            if (saved.round, saved.state_root) != (self.round, self._public.root()):
                return
            for expert in self._decoder.owned:
                if (master := saved.tensors.get(f"master/{expert:02d}")) is not None:
                    self._decoder.load_master(expert, master)
            self._ledger.load_residuals(_under("residual/", saved.tensors))
            torch.set_rng_state(saved.tensors["rng"])
            if "ahead/shared" in saved.tensors:
                self._decoder.load_group(None, saved.tensors["ahead/shared"])
                self._base = saved.tensors["ahead/base"]
                self._begun = Begun(self.round, Steps.from_tensor(saved.tensors["ahead/steps"]))
        except (KeyError, ValueError, RuntimeError) as error:
            raise BadConfiguration(f"the checkpoint {self._checkpoint_path} does not fit the run: {error}") from None

    # ---- small ----

    def _planned(self, num_subsets: int = 0) -> Plan:
        """The plan to work by from now on, for so many subsets or as many as fit."""
        plan = self._machine.plan(self.manifest, num_subsets)
        self._activity.planned_bytes = plan.needed_bytes
        self._activity.is_smallest_plan = self._machine.is_smallest(self.manifest, plan)
        return plan

    @property
    def _public(self) -> PublicState:
        if self._state is None:
            raise SpesError(_NO_STATE)
        return self._state

    def _check_round(self, needed: int, request: str) -> None:
        if self._state is None:
            raise SpesError(_NO_STATE)
        if needed != self.round:
            raise SpesError(f"asked to {request}, but the state is that of round {self.round}")

    def _block(self, block_id: BlockId) -> Block:
        if block_id not in self._layout.by_id:
            raise BadMessage(f"no block is called {block_id[:80]!r}")
        return self._layout.by_id[block_id]


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
