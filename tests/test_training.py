"""Trainers without their processes: rounds, accounts, restarts."""

import dataclasses
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from training_swarm import PEERS, SEQUENCES_PER_STEP, STEPS, Swarm, open_trainer

from spes_peer.blobs import BlobName
from spes_peer.data.sampler import Batch
from spes_peer.errors import BadConfiguration, BlobMissing, NoDevice, SpesError, StateTorn
from spes_peer.model.losses import Losses
from spes_peer.run.encodings import Format
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Training
from spes_peer.run.records import BlockId, Contributor, DataRange, Update
from spes_peer.sync.encoding import decode
from spes_peer.training import checkpoint
from spes_peer.training.checkpoint import Checkpoint, files_of, load, save
from spes_peer.training.ledger import Ledger
from spes_peer.training.machine import lent_bytes
from spes_peer.training.schedule import lr_at
from spes_peer.training.trainer import CHECKPOINT_FILE, Trainer
from spes_peer.training.work import LoadState, MeasureHeldOut, OpenTrainer


def distance(swarm: Swarm, expert: int) -> float:
    """How far the first peer's master of an expert is ahead of the public state."""
    trainer = swarm.trainers[PEERS[0]]
    return float((trainer._decoder.flatten_master(expert) - trainer._public.group(expert)).norm())


def kept_by(trainer: Trainer) -> dict[str, Tensor]:
    """Residuals, moments and masters."""
    masters = {f"master/{expert}": trainer._decoder.flatten_master(expert) for expert in trainer._decoder.owned}
    return trainer._ledger.residuals() | trainer._optimizer.moments() | masters


def test_three_peers_end_every_round_on_one_state_and_learn(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,), (1,))  # subset 1 has two owners, whose offers are averaged
    swarm.apply()
    losses, roots = [swarm.held_out_loss()], set()
    for merge_alpha in (0.0, 0.05, 0.0):
        trained = swarm.train()
        assert all(done.steps == STEPS for done in trained.values())
        assert all(done.tokens == STEPS * SEQUENCES_PER_STEP * 32 for done in trained.values())
        applied = swarm.apply(swarm.updates(trained), merge_alpha)
        assert len({one.state_root for one in applied.values()}) == 1
        roots |= {one.state_root for one in applied.values()}
        losses.append(swarm.held_out_loss())
    assert len(roots) == 3
    assert losses[0] == pytest.approx(5.6, abs=0.2)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 1.5


def test_a_peer_offers_every_shared_block_and_those_of_its_experts(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,))
    for peer_id, experts in zip(swarm.trainers, ({0, 1}, {2, 3}), strict=True):
        blocks = [offer.block for offer in swarm.trainers[peer_id].train_round(swarm.work(peer_id)).offers]
        assert blocks == sorted(blocks, key=lambda block: (not block.startswith("shared"), block))
        assert sum(block.startswith("shared/") for block in blocks) >= 4
        assert {int(block.split("/")[1]) for block in blocks if block.startswith("expert")} == experts


def test_what_the_encoding_lost_of_an_expert_stays_in_the_master(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,))
    trained = swarm.train()
    before = distance(swarm, 0)
    swarm.apply(swarm.updates(trained))
    assert 0 < distance(swarm, 0) < before / 100  # bf16 keeps 8 bits


def test_an_offer_that_no_record_used_is_offered_again(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,))
    trained = swarm.train()
    ahead = distance(swarm, 0)
    offers = {offer.block: offer for offer in trained[PEERS[0]].offers}
    swarm.apply(swarm.updates(trained, left_out={PEERS[0]}))
    assert distance(swarm, 0) == pytest.approx(ahead)
    residuals = swarm.trainers[PEERS[0]]._ledger.residuals()
    for block_id, offer in offers.items():
        if block_id.startswith("shared/"):
            assert float(residuals[str(block_id)].norm()) == pytest.approx(offer.norm, rel=1e-2)


def test_an_unused_round_is_made_up_by_the_next(tmp_path: Path) -> None:
    """With a lossless encoding and all else equal, what a peer offers after an unused round holds that round too."""
    swarm = Swarm.create(tmp_path, (0, 1), shared_offer_encoding="fp32", expert_encoding="fp32")
    trainer = swarm.trainers[PEERS[0]]
    first = trainer.train_round(swarm.work(PEERS[0]))
    swarm.apply()  # uses nothing
    public = trainer._public.group(None).clone()
    second = trainer.train_round(swarm.work(PEERS[0]))
    progress = trainer._decoder.flatten_shared() - public
    for offer, again in zip(first.offers, second.offers, strict=True):
        block = trainer._layout.by_id[offer.block]
        if block.expert is None:
            values, total = (
                decode(Format("fp32"), swarm.blobs.read(one.blob), block.num_elements) for one in (offer, again)
            )
            assert torch.equal(total, progress[block.start : block.end] + values)


def test_a_reducer_offers_again_what_its_encoding_of_the_mean_lost(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,))
    trained = swarm.train()
    before = {peer: dict(trainer._ledger.residuals()) for peer, trainer in swarm.trainers.items()}
    updates = swarm.updates(trained)
    swarm.apply(updates)
    block = BlockId("shared/0000")
    size = swarm.trainers[PEERS[0]]._layout.by_id[block].num_elements
    values = [
        decode(
            Format("bf16"), swarm.blobs.read(next(offer.blob for offer in done.offers if offer.block == block)), size
        )
        for done in trained.values()
    ]
    mean = values[0] * 0.5 + values[1] * 0.5
    lost = mean - decode(Format("bf16"), swarm.blobs.read(updates[0].blob), size)
    assert lost.norm() > 0
    first, second = (trainer._ledger.residuals()[block] for trainer in swarm.trainers.values())
    assert torch.equal(first, before[PEERS[0]][block] + lost / 0.5)
    assert torch.equal(second, before[PEERS[1]][block])


def test_what_a_mean_lost_is_kept_by_the_first_of_its_reducers_that_has_an_offer_in_it(tmp_path: Path) -> None:
    layout = Swarm.create(tmp_path, (0, 1)).trainers[PEERS[0]]._layout
    block, blob = layout.shared_blocks[0], BlobName("ab" * 32)
    lost = torch.ones(block.num_elements)
    contributors = (Contributor(PEERS[1], 3, 1.0, 1.0), Contributor(PEERS[2], 1, 1.0, 1.0))
    update = Update(block.id, blob, 1, contributors, (PEERS[0], PEERS[2], PEERS[1]))
    kept = {}
    for peer in PEERS:
        ledger = Ledger(layout, peer)
        ledger.averaged(block, blob, lost, 0.25)
        ledger.close_shared({block.id: update})
        kept[peer] = ledger.residuals()
    assert [set(kept[peer]) for peer in PEERS] == [set(), set(), {str(block.id)}]
    assert torch.equal(kept[PEERS[2]][str(block.id)], lost * 4)


def test_an_only_offer_counts_by_its_clip_factor(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1), shared_offer_encoding="fp32")
    trainer = swarm.trainers[PEERS[0]]
    before = trainer._public.group(None)
    update = swarm.updates(swarm.train())[0]
    clipped = dataclasses.replace(update, contributors=(dataclasses.replace(update.contributors[0], clip=0.25),))
    swarm.apply((clipped,))
    moved = trainer._public.group(None) - before
    size = trainer._layout.by_id[update.block].num_elements
    offered = decode(Format("fp32"), swarm.blobs.read(update.blob), size)
    torch.testing.assert_close(moved[:size], offered * 0.25)
    assert not moved[size:].any()


def test_a_bad_offer_is_left_out_of_the_mean_and_its_peer_named(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,))
    trained = swarm.train()
    offers = [(peer_id, done.offers[0]) for peer_id, done in trained.items()]
    block, tokens = offers[0][1].block, {peer_id: done.tokens for peer_id, done in trained.items()}
    reducer = swarm.trainers[PEERS[0]]
    lie = dataclasses.replace(offers[1][1], norm=offers[1][1].norm * 2)
    reduced = reducer.reduce_block(swarm.reduce_task(block, [offers[0], (PEERS[1], lie)], tokens))
    assert reduced.rejected == (PEERS[1],)
    assert reduced.blob == offers[0][1].blob
    nothing = reducer.reduce_block(swarm.reduce_task(block, [(PEERS[1], lie)], tokens))
    assert (nothing.blob, nothing.rejected) == ("", (PEERS[1],))


def test_a_record_that_cannot_be_applied_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    root = trainer._public.root()
    updates = swarm.updates(swarm.train())
    missing = dataclasses.replace(updates[-1], blob="0" * 64)
    with pytest.raises(BlobMissing):
        trainer.apply_record(swarm.record_of(1, (*updates[:-1], missing)), keep_snapshot=False)
    with pytest.raises(SpesError, match="no block"):
        trainer.apply_record(
            swarm.record_of(1, (dataclasses.replace(updates[0], block=BlockId("x")),)), keep_snapshot=False
        )
    with pytest.raises(SpesError, match="asked to apply record 2, but the state is that of round 0"):
        trainer.apply_record(swarm.record_of(2, updates), keep_snapshot=False)
    assert (trainer.round, trainer._public.root()) == (0, root)
    swarm.apply(updates)
    assert trainer._public.root() != root


def test_a_trainer_whose_state_stopped_half_way_has_none_until_it_loads_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    updates = swarm.updates(swarm.train())
    for broken in ("spes_peer.sync.state.merge_experts", "spes_peer.training.ledger.Ledger.close_shared"):
        with monkeypatch.context() as patched:

            def out_of_memory(*_arguments: object) -> None:
                raise MemoryError("no memory")

            patched.setattr(broken, out_of_memory)
            with pytest.raises(StateTorn, match=r"must.* load.* anew: no memory"):
                trainer.apply_record(swarm.record_of(1, updates, merge_alpha=0.1), keep_snapshot=False)
        with pytest.raises(SpesError, match="no state yet"):
            trainer.train_round(swarm.work(PEERS[0]))
        with pytest.raises(SpesError, match="no state yet"):
            swarm.apply(updates)
        swarm.round = 0
        trainer.load_state(LoadState(0, swarm.genesis))
    swarm.apply(updates)
    assert trainer.round == 1


def test_outer_momentum_goes_through_genesis_rounds_and_snapshots(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,), shared_outer="nesterov", expert_outer="nesterov")
    layout = Layout(swarm.manifest)
    assert [name.block for name in swarm.genesis] == [block.id for block in layout.state_blocks]
    assert [name.size_bytes for name in swarm.genesis] == [layout.state_bytes(block) for block in layout.state_blocks]
    losses = [swarm.held_out_loss()]
    for _ in range(3):
        updates = swarm.updates(swarm.train())
        applied = swarm.apply(updates, keep_snapshot=True)
        assert len({one.state_root for one in applied.values()}) == 1
        losses.append(swarm.held_out_loss())
    assert losses[-1] < losses[0] - 0.5
    newcomer = open_trainer(swarm.manifest, swarm.blobs, tmp_path, PEERS[2])
    assert newcomer.load_state(LoadState(3, applied[PEERS[0]].blocks)).state_root == applied[PEERS[0]].state_root
    swarm.trainers[PEERS[2]] = newcomer
    assert len({one.state_root for one in swarm.apply(updates).values()}) == 1


def test_the_held_out_loss_is_of_the_public_state_and_measuring_changes_nothing(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    before = trainer.measure_held_out(MeasureHeldOut(0, 2))
    trainer.train_round(swarm.work(PEERS[0]))
    ours = trainer._decoder.flatten_master(1), trainer._decoder.flatten_shared()
    assert trainer.measure_held_out(MeasureHeldOut(0, 2)) == before
    assert torch.equal(ours[0], trainer._decoder.flatten_master(1))
    assert torch.equal(ours[1], trainer._decoder.flatten_shared())
    other = trainer.measure_held_out(MeasureHeldOut(1, 2))
    assert before.tokens + other.tokens == 2048
    with pytest.raises(SpesError, match="no slice"):
        trainer.measure_held_out(MeasureHeldOut(2, 2))


def test_every_choice_of_the_router_in_a_rounds_steps_is_counted_once(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    swarm.apply()
    model = swarm.manifest.model
    per_round = STEPS * SEQUENCES_PER_STEP * model.sequence_length * model.num_layers * model.top_k
    for _ in range(2):
        swarm.held_out_loss()  # which is no training
        (trained,) = swarm.train().values()
        assert len(trained.router_choices) == model.num_experts
        assert sum(trained.router_choices) == per_round
        assert trained.encode_seconds > 0
        swarm.apply(swarm.updates({PEERS[0]: trained}))


def test_a_round_ends_with_the_steps_made_when_it_is_told_to(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    heard: list[int] = []
    done = trainer.train_round(
        swarm.work(PEERS[0]), lambda steps, _loss, _speed: heard.append(steps), lambda: len(heard) < 3
    )
    assert heard == [1, 2, 3]
    assert (done.steps, done.tokens) == (3, 3 * SEQUENCES_PER_STEP * 32)
    assert done.offers
    assert done.tokens_per_second > 0


def test_a_round_ends_where_its_ranges_end(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    work = dataclasses.replace(swarm.work(PEERS[0]), ranges=(DataRange(0, 12),))
    done = swarm.trainers[PEERS[0]].train_round(work)
    assert (done.steps, done.tokens) == (2, 12 * 32)


def test_a_round_without_a_step_and_one_of_another_round_are_refused(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer, work = swarm.trainers[PEERS[0]], swarm.work(PEERS[0])
    with pytest.raises(SpesError, match="before this peer made a step"):
        trainer.train_round(dataclasses.replace(work, stop_at=0.0))
    with pytest.raises(SpesError, match="asked to train round 5"):
        trainer.train_round(dataclasses.replace(work, round=5))


def test_steps_that_are_not_finite_are_skipped_and_a_round_of_them_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    bad_steps = {0, 1}
    seen = 0
    forward = trainer._decoder.forward

    def sometimes_infinite(tokens: torch.Tensor, targets: torch.Tensor) -> Losses:
        nonlocal seen
        losses = forward(tokens, targets)
        seen += 1
        if seen - 1 in bad_steps:
            return dataclasses.replace(losses, total=losses.total * float("inf"))  # finite loss, infinite gradients
        return losses

    monkeypatch.setattr(trainer._decoder, "forward", sometimes_infinite)
    done = trainer.train_round(swarm.work(PEERS[0]))
    assert (done.steps, done.tokens) == (STEPS - 2, (STEPS - 2) * SEQUENCES_PER_STEP * 32)
    swarm.apply()
    bad_steps = set(range(STEPS, STEPS + 4))
    with pytest.raises(SpesError, match="the last 4 steps of round 1 had a loss or gradient that is not finite"):
        trainer.train_round(swarm.work(PEERS[0], steps=4))


def test_many_steps_in_a_row_that_are_not_finite_end_the_round_and_poison_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    step, seen = trainer._stepper.step, 0

    def diverging(batch: Batch, lr: float) -> float | None:
        nonlocal seen
        seen += 1
        return step(batch, lr) if seen <= 2 else None

    monkeypatch.setattr(trainer._stepper, "step", diverging)
    work = dataclasses.replace(swarm.work(PEERS[0], steps=50), num_steps=50)
    with pytest.raises(SpesError, match="the last 8 steps of round 0 had a loss or gradient that is not finite"):
        trainer.train_round(work)
    assert seen == 2 + 8
    monkeypatch.undo()
    done = trainer.train_round(swarm.work(PEERS[0]))  # tries the round again
    assert done.steps == STEPS
    assert all(math.isfinite(offer.norm) for offer in done.offers)


def test_moments_of_a_subset_that_is_given_up_are_taken_up_when_it_comes_back(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,))
    trainer = swarm.trainers[PEERS[0]]
    swarm.apply(swarm.updates(swarm.train()))
    moments = trainer._optimizer.moments()
    assert moments["expert/01/0000/exp_avg"].abs().sum() > 0
    trainer._optimizer.own((2, 3))
    assert trainer._decoder.owned == (2, 3)
    assert torch.equal(trainer._decoder.flatten_master(2), trainer._public.group(2))
    assert not trainer._optimizer.moments()["expert/02/0000/exp_avg"].any()
    trainer._optimizer.own((1, 2))
    after = trainer._optimizer.moments()
    assert {name.partition("/")[0] for name in moments} == {"num_steps", "shared", "expert"}
    for name, values in moments.items():  # those of expert 0 too, which is given up
        assert torch.equal(after[name], values)


@pytest.mark.parametrize("encoding", ["bf16", "int4"])
def test_a_subset_that_changes_its_owner_starts_from_the_public_state(tmp_path: Path, encoding: str) -> None:
    """What its owner before had not published is dropped, also when the subset comes back; its moments are not."""
    swarm = Swarm.create(tmp_path, (0,), (1,), expert_encoding=encoding)
    first, second = swarm.trainers.values()
    swarm.apply(swarm.updates(swarm.train()))
    swarm.apply(swarm.updates(swarm.train(), left_out={PEERS[0]}))
    unpublished = distance(swarm, 0)  # a whole round
    moments = first._optimizer.moments()["expert/00/0000/exp_avg"]
    for subsets in (((1,), (0,)), ((0,), (1,))):
        swarm.subsets = dict(zip(PEERS, subsets, strict=False))
        public = {expert: first._public.group(expert) for expert in range(4)}
        for peer, trainer in swarm.trainers.items():
            trainer._prepare(swarm.work(peer))
            experts = swarm.manifest.experts_of(swarm.subsets[peer][0])
            assert all(torch.equal(trainer._decoder.flatten_master(expert), public[expert]) for expert in experts)
        assert first._decoder.owned == swarm.manifest.experts_of(swarm.subsets[PEERS[0]][0])
        trained = swarm.train()
        offers = {offer.block: offer for offer in trained[PEERS[1]].offers}
        applied = swarm.apply(swarm.updates(trained))
        assert len({one.state_root for one in applied.values()}) == 1
        block = second._layout.expert_blocks(second._decoder.owned[0])[0]
        content = swarm.blobs.read(offers[block.id].blob)
        moved = second._public.block(block) - public[block.expert or 0][block.start : block.end]
        torch.testing.assert_close(decode(Format(encoding), content, block.num_elements), moved)  # type: ignore[arg-type]
        if subsets[0] == (1,):
            assert torch.equal(first._optimizer.moments()["expert/00/0000/exp_avg"], moments)
    assert not torch.equal(first._optimizer.moments()["expert/00/0000/exp_avg"], moments)
    assert distance(swarm, 0) < unpublished / 5  # what the last encoding lost


def test_offers_of_a_subset_that_was_given_up_are_forgotten(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), expert_encoding="fp32")
    trainer, work = swarm.trainers[PEERS[0]], swarm.work(PEERS[0])
    offered = trainer.train_round(work).offers[-1]
    assert offered.block.startswith("expert/01/")
    trainer.train_round(dataclasses.replace(work, subsets=(1,)))
    swarm.subsets[PEERS[0]] = (0,)
    trainer._prepare(work)
    assert not trainer._ledger._unanswered
    by = (Contributor(PEERS[0], 1, 1.0, offered.norm),)
    late = Update(offered.block, offered.blob, offered.size_bytes, by, ())
    swarm.apply((late,))  # moves a master by another's offer: nothing is subtracted from it
    assert torch.equal(trainer._decoder.flatten_master(1), trainer._public.group(1))


@pytest.mark.parametrize("encoding", ["bf16", "int4", "topk"])
def test_all_that_one_peer_learns_is_public_or_owed(tmp_path: Path, encoding: str) -> None:
    """It alone trains, and some rounds are used by no record. `topk` without decay."""
    swarm = Swarm.create(
        tmp_path, (0, 1), shared_offer_encoding=encoding, expert_encoding=encoding, topk_residual_decay=1.0
    )
    trainer = swarm.trainers[PEERS[0]]
    start = {expert: trainer._public.group(expert).clone() for expert in (None, 1)}
    progress = {expert: torch.zeros_like(flat) for expert, flat in start.items()}
    for round_ in range(4):
        work = swarm.work(PEERS[0])
        trainer._prepare(work)
        before: dict[int | None, Tensor]
        before = {None: trainer._decoder.flatten_shared(), 1: trainer._decoder.flatten_master(1)}
        trained = trainer.train_round(work)
        progress[None] += trainer._decoder.flatten_shared() - before[None]
        progress[1] += trainer._decoder.flatten_master(1) - before[1]
        swarm.apply(swarm.updates({PEERS[0]: trained}, left_out={PEERS[0]} if round_ == 1 else ()))
    residuals = trainer._ledger.residuals()
    owed: dict[int | None, Tensor]
    owed = {None: torch.cat([residuals[block.id] for block in trainer._layout.shared_blocks])}
    owed[1] = trainer._decoder.flatten_master(1) - trainer._public.group(1)
    for expert, values in start.items():
        assert owed[expert].norm() > 0
        published = trainer._public.group(expert) - values
        torch.testing.assert_close(published + owed[expert], progress[expert], rtol=0, atol=1e-5)


def test_the_residual_of_topk_decays_and_that_of_others_does_not(tmp_path: Path) -> None:
    residuals = {}
    for decay in (1.0, 0.25):
        for encoding in ("topk", "int4"):
            swarm = Swarm.create(
                tmp_path / f"{encoding}-{decay}", (0, 1), shared_offer_encoding=encoding, topk_residual_decay=decay
            )
            swarm.apply(swarm.updates(swarm.train()))
            residuals[encoding, decay] = swarm.trainers[PEERS[0]]._ledger.residuals()["shared/0000"]
    assert torch.equal(residuals["topk", 0.25], residuals["topk", 1.0] * 0.25)
    assert torch.equal(residuals["int4", 0.25], residuals["int4", 1.0])


@pytest.mark.parametrize("encoding", ["bf16", "int4", "topk"])
def test_a_restarted_trainer_goes_on_exactly_where_it_was(tmp_path: Path, encoding: str) -> None:
    outer = {"shared_outer": "nesterov", "expert_outer": "nesterov"} if encoding == "topk" else {}
    swarm = Swarm.create(tmp_path, (0,), (1,), shared_offer_encoding=encoding, expert_encoding=encoding, **outer)
    peer = PEERS[0]
    snapshot = swarm.apply(swarm.updates(swarm.train()), keep_snapshot=True)[peer]
    trained = swarm.train()
    updates = swarm.updates(trained)
    swarm.apply(updates)
    for _ in range(2):  # killed again after the replay, which must not have spoiled the checkpoint
        restarted = open_trainer(swarm.manifest, swarm.blobs, tmp_path, peer)
        assert restarted.load_state(LoadState(1, snapshot.blocks)).state_root == snapshot.state_root
        restarted.apply_record(swarm.record_of(2, updates), keep_snapshot=False)
    work, twin = swarm.work(peer), swarm.trainers[peer]
    restarted._prepare(work)
    accounts, expected = kept_by(restarted), kept_by(twin)
    assert accounts.keys() == expected.keys()
    assert all(torch.equal(values, expected[name]) for name, values in accounts.items())
    assert restarted.train_round(work).offers == twin.train_round(work).offers


def test_a_trainer_killed_after_it_offered_offers_the_same_again(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1), shared_offer_encoding="topk", expert_encoding="topk")
    peer = PEERS[0]
    snapshot = swarm.apply(swarm.updates(swarm.train()), keep_snapshot=True)[peer]
    work = swarm.work(peer)
    trained = swarm.trainers[peer].train_round(work)
    restarted = open_trainer(swarm.manifest, swarm.blobs, tmp_path, peer)
    restarted.load_state(LoadState(1, snapshot.blocks))
    assert restarted.train_round(work).offers == trained.offers
    updates = swarm.updates({peer: trained})
    swarm.apply(updates)
    restarted.apply_record(swarm.record_of(2, updates), keep_snapshot=False)
    expected = kept_by(swarm.trainers[peer])
    assert all(torch.equal(values, expected[name]) for name, values in kept_by(restarted).items())


def test_a_trainer_with_every_saving_learns_and_goes_on_exactly_after_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    savings = {"resident": "int4", "checkpointing": "on", "optimizer_bits": 8}
    swarm = Swarm.create(tmp_path / "exact", (0,), (1,))
    swarm.trainers = {
        peer: open_trainer(swarm.manifest, swarm.blobs, tmp_path, peer, **savings) for peer in swarm.trainers
    }
    for trainer in swarm.trainers.values():
        trainer.load_state(LoadState(0, swarm.genesis))
    losses = [swarm.held_out_loss()]
    for _ in range(2):
        snapshots = swarm.apply(swarm.updates(swarm.train()), keep_snapshot=True)
        losses.append(swarm.held_out_loss())
    assert losses[2] < losses[1] < losses[0] - 0.5
    restarted = open_trainer(swarm.manifest, swarm.blobs, tmp_path, PEERS[0], **savings)
    restarted.load_state(LoadState(2, snapshots[PEERS[0]].blocks))
    work = swarm.work(PEERS[0])
    assert restarted.train_round(work).offers == swarm.trainers[PEERS[0]].train_round(work).offers


def test_a_checkpoint_of_an_earlier_round_gives_its_moments_only(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    peer = PEERS[0]
    swarm.apply(swarm.updates(swarm.train()))
    restarted = open_trainer(swarm.manifest, swarm.blobs, tmp_path, peer)
    restarted.load_state(LoadState(0, swarm.genesis))
    restarted._prepare(swarm.work(peer))
    assert torch.equal(restarted._decoder.flatten_master(3), restarted._public.group(3))
    assert restarted._ledger.residuals() == {}
    saved = swarm.trainers[peer]._optimizer.moments()
    assert all(torch.equal(values, saved[name]) for name, values in restarted._optimizer.moments().items())


def test_a_damaged_or_foreign_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FILE
    assert load(path, "run", "peer") is None
    save(path, "run", "peer", Checkpoint(3, "root", {"x": torch.arange(1000)}))
    found = load(path, "run", "peer")
    assert found is not None
    assert (found.round, found.state_root, found.tensors["x"].sum()) == (3, "root", 499500)
    for run, peer, name in (("other", "peer", "run"), ("run", "other", "peer")):
        with pytest.raises(BadConfiguration, match=f"another {name}"):
            load(path, run, peer)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0x10
    for damaged in (content[:-1], content[:20], bytes(flipped), b"", b"{}" * 100):
        path.write_bytes(damaged)
        with pytest.raises(BadConfiguration, match=r"trainer\.safetensors is damaged"):
            load(path, "run", "peer")


def test_a_checkpoint_that_is_damaged_costs_one_record(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FILE
    for round in range(5):
        save(path, "run", "peer", Checkpoint(round, "root", {"x": torch.full((1000,), round)}))
        found = load(path, "run", "peer")
        assert found is not None
        assert (found.round, int(found.tensors["x"][0])) == (round, round)
    newest = max(files_of(path), key=lambda file: file.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1])
    found = load(path, "run", "peer")
    assert found is not None
    assert found.round == 3
    save(path, "run", "peer", Checkpoint(5, "root", {"x": torch.ones(3)}))  # over the damaged one
    assert sorted(_round_in(file) for file in files_of(path)) == [3, 5]


def _round_in(file: Path) -> int:
    return checkpoint._read(file)[1].round


def test_a_checkpoint_written_before_generations_were_counted_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FILE
    about = {"version": 1, "run_id": "run", "peer_id": "peer", "round": 7, "state_root": "root"}
    save_file({"x": torch.ones(3)}, path, {"spes_peer": json.dumps(about)})
    found = load(path, "run", "peer")
    assert found is not None
    assert found.round == 7
    save(path, "run", "peer", Checkpoint(8, "root", {"x": torch.ones(3)}))
    assert [_round_in(file) for file in files_of(path)] == [7, 8]


KILLED_FIFTY_TIMES = """
import os, pathlib, random, signal, sys, time
import torch
from spes_peer.training.checkpoint import Checkpoint, files_of, load, save, _read

torch.set_num_threads(1)
path, seeded = pathlib.Path(sys.argv[1]), random.Random(5)
tensors = {"moments": torch.arange(200_000)}
for round in range(2):
    save(path, "run", "peer", Checkpoint(round, "root", tensors))
newest = 1
for kill in range(50):
    child = os.fork()
    if child == 0:
        for round in range(newest + 1, 10**9):
            save(path, "run", "peer", Checkpoint(round, "root", tensors))
    time.sleep(seeded.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = load(path, "run", "peer")
    rounds = sorted(_read(file)[1].round for file in files_of(path))
    assert rounds == [found.round - 1, found.round], rounds
    assert torch.equal(found.tensors["moments"], tensors["moments"])
    assert found.round >= newest
    newest = found.round
print(newest)
"""


def test_saving_killed_fifty_times_always_loads_and_keeps_two_generations(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_FIFTY_TIMES, str(tmp_path / CHECKPOINT_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5  # it did save between the kills, however busy the machine


@pytest.mark.parametrize("error", ["I/O error: No space left on device (os error 28)", "unheard of"])
def test_a_full_disk_costs_no_round_and_leaves_the_older_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer, folder = swarm.trainers[PEERS[0]], tmp_path / PEERS[0]
    for _ in range(2):
        swarm.apply(swarm.updates(swarm.train()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 2

    def half(_tensors: object, path: Path, _metadata: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError(error)

    with monkeypatch.context() as context:
        context.setattr(checkpoint, "save_file", half)
        swarm.apply(swarm.updates(swarm.train()))
    assert trainer.round == 3
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    swarm.apply(swarm.updates(swarm.train()))
    assert sorted(_round_in(file) for file in files_of(folder / CHECKPOINT_FILE)) == [2, 4]


def test_the_clock_may_be_set_while_a_round_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    work = dataclasses.replace(swarm.work(PEERS[0]), stop_at=time.time() + 100)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + (3600 if trainer._activity.steps_begun else 0))
    trainer = swarm.trainers[PEERS[0]]
    assert trainer.train_round(work).steps == work.num_steps


def test_a_checkpoint_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    trainer = swarm.trainers[PEERS[0]]
    tensors = {"moments/num_steps": torch.tensor([5])}
    tensors |= {f"moments/shared/0000/{name}": torch.zeros(7) for name in ("exp_avg", "exp_avg_sq")}
    trainer._to_resume = Checkpoint(0, "root", tensors)
    with pytest.raises(BadConfiguration, match="does not fit the run"):
        trainer.train_round(swarm.work(PEERS[0]))


def test_a_device_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1))
    for name in ("cuda:99", "toaster"):
        with pytest.raises(NoDevice, match=f"the device '{name}' cannot be used"):
            open_trainer(swarm.manifest, swarm.blobs, tmp_path, PEERS[0], name)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    training = Training(num_subsets=1, steps_per_round=1, total_steps=110, batch_sequences=1, lr=1.0, warmup_steps=10)
    assert [lr_at(step, training) for step in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert lr_at(60, training) == pytest.approx(0.55)
    assert lr_at(110, training) == lr_at(10_000, training) == pytest.approx(0.1)


def test_at_least_one_subset_and_at_most_all_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Swarm.create(tmp_path, (0, 1)).trainers[PEERS[0]]
    for available, expected in ((2_000_000, 1), (1 << 40, 2)):  # of which a half is used: less than one subset needs
        monkeypatch.setattr("psutil.virtual_memory", lambda available=available: _Memory(available))
        restarted = open_trainer(trainer.manifest, trainer._blobs, tmp_path, PEERS[0])
        assert restarted.opened().max_subsets == expected


@dataclasses.dataclass
class _Memory:
    available: int
    total: int = 1 << 40


def test_an_update_that_nobody_can_read_moves_nothing_and_its_owner_offers_again(tmp_path: Path) -> None:
    """An only offer is not averaged, so nobody looked into it before it was listed."""
    swarm = Swarm.create(tmp_path, (0,), (1,))
    owner, other = (swarm.trainers[peer] for peer in PEERS[:2])
    trained, ahead = swarm.train(), distance(swarm, 0)
    updates = swarm.updates(trained)
    place = next(index for index, update in enumerate(updates) if update.block == "expert/00/0000")
    junk = swarm.blobs.put(b"\xff" * updates[place].size_bytes)
    bad = dataclasses.replace(updates[place], blob=junk.name)
    before = owner._public.group(0)
    applied = swarm.apply((*updates[:place], bad, *updates[place + 1 :]))
    assert len({one.state_root for one in applied.values()}) == 1
    size = owner._layout.by_id[bad.block].num_elements
    for trainer in (owner, other):
        assert torch.equal(trainer._public.group(0)[:size], before[:size])
    assert distance(swarm, 0) > ahead / 10  # of that block the master is as far ahead as it was
    swarm.apply(swarm.updates(swarm.train()))
    assert distance(swarm, 0) < ahead / 10


def test_a_subset_that_comes_back_after_another_owner_starts_from_the_public_values(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0,), (1,), expert_encoding="topk")  # which leaves the master far ahead
    trained, (first, second) = swarm.train(), PEERS[:2]
    swarm.subsets = {first: (), second: (0, 1)}
    swarm.apply(swarm.updates(trained))
    trainer = swarm.trainers[first]
    assert trainer._decoder.owned == ()
    trained = {second: swarm.trainers[second].train_round(swarm.work(second))}
    swarm.subsets = {first: (0,), second: (1,)}
    swarm.apply(swarm.updates(trained))
    trainer._prepare(swarm.work(first))
    assert trainer._decoder.owned == (0, 1)
    assert torch.equal(trainer._decoder.flatten_master(0), trainer._public.group(0))
    assert trainer._optimizer.moments()["expert/00/0000/exp_avg"].abs().sum() > 0


@pytest.mark.parametrize(
    ("size_bytes", "part", "is_gpu", "lent"),
    [
        (0, 0.0, True, 10),
        (20, 0.0, True, 10),  # more than is free
        (4, 0.0, True, 4),
        (0, 0.25, True, 6),
        (0, 0.25, False, 8),
        (20, 0.0, False, 20),
        (3, 0.25, False, 3),  # what was found to fit goes before
    ],
)
def test_no_more_memory_is_used_than_its_owner_lends(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int, part: float, is_gpu: bool, lent: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10, 24))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=32, available=16))
    request = OpenTrainer(b"", "", "", "", 1, PEERS[0], memory_bytes=size_bytes, memory_part=part)
    assert lent_bytes(request, torch.device("cuda" if is_gpu else "cpu")) == lent
