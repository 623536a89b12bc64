"""Training on while the exchange runs: what is kept, what is dropped, and what counts."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor
from training_swarm import FOR_EVER, PEERS, SEQUENCES_PER_STEP, STEPS, Swarm, open_trainer

from spes_peer.errors import SpesError
from spes_peer.identity import PeerId
from spes_peer.run.records import DataRange
from spes_peer.sync.encoding import decode
from spes_peer.training.trainer import Trainer
from spes_peer.training.work import LoadState, RoundTrained, TrainAhead, TrainRound, TryExpert

OVERLAP = 4
SEQUENCE = 32
FP32 = {"shared_offer_encoding": "fp32", "shared_update_encoding": "fp32", "expert_encoding": "fp32"}
AHEAD_SEQUENCES = OVERLAP * SEQUENCES_PER_STEP


class Overlapping:
    """A swarm whose peers train ahead; ranges as `rounds.assignment` gives them."""

    def __init__(self, folder: Path, *subsets: tuple[int, ...], **sync: object) -> None:
        self.swarm = Swarm.create(folder, *subsets, overlap_steps=OVERLAP, **sync)
        self.ahead: dict[PeerId, DataRange] = {}

    def take(self, num_sequences: int) -> DataRange:
        part = DataRange(self.swarm.next_position, self.swarm.next_position + num_sequences)
        self.swarm.next_position = part.end
        return part

    def work(self, peer: PeerId) -> TrainRound:
        carried = OVERLAP if peer in self.ahead else 0
        new = self.take((STEPS - carried) * SEQUENCES_PER_STEP)
        ranges = (self.ahead[peer], new) if carried else (new,)
        self.ahead[peer] = self.take(AHEAD_SEQUENCES)
        return TrainRound(
            self.swarm.round,
            self.swarm.round * STEPS,
            STEPS,
            self.swarm.subsets[peer],
            ranges,
            SEQUENCES_PER_STEP,
            FOR_EVER,
            carried,
            SEQUENCES_PER_STEP if carried else 0,
        )

    def train(self) -> dict[PeerId, RoundTrained]:
        return {peer: trainer.train_round(self.work(peer)) for peer, trainer in self.swarm.trainers.items()}

    def train_ahead(self, peer: PeerId, steps: int = OVERLAP) -> int:
        round = self.swarm.round
        work = TrainAhead(round, (round + 1) * STEPS, steps, (self.ahead[peer],), SEQUENCES_PER_STEP, FOR_EVER)
        return self.swarm.trainers[peer].train_ahead(work).steps

    def __getitem__(self, number: int) -> Trainer:
        return self.swarm.trainers[PEERS[number]]


def shared(trainer: Trainer) -> Tensor:
    return trainer._decoder.flatten_shared().clone()


def master(trainer: Trainer, expert: int) -> Tensor:
    return trainer._decoder.flatten_master(expert).clone()


def test_a_peer_alone_learns_the_same_as_without_a_break(tmp_path: Path) -> None:
    """Nobody to average with, nothing lost: training ahead is then training on."""
    overlapping, plain = Overlapping(tmp_path / "a", (0, 1), **FP32), Swarm.create(tmp_path / "b", (0, 1), **FP32)
    for _ in range(3):
        trained = overlapping.train()
        assert (trained[PEERS[0]].steps, trained[PEERS[0]].tokens) == (STEPS, STEPS * SEQUENCES_PER_STEP * SEQUENCE)
        assert overlapping.train_ahead(PEERS[0]) == OVERLAP
        overlapping.swarm.apply(overlapping.swarm.updates(trained))
        plain.apply(plain.updates(plain.train()))
    mine, theirs = overlapping.swarm.held_out_loss(), plain.held_out_loss()
    assert mine == pytest.approx(theirs, rel=1e-3)  # sums in another order
    assert mine < 4.5


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_shared_parameters_keep_what_they_gained_since_the_encode(tmp_path: Path, keep: float) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,), overlap_keep=keep)
    trained, trainer = overlapping.train(), overlapping[0]
    encoded = shared(trainer)
    overlapping.train_ahead(PEERS[0])
    gained = shared(trainer) - encoded
    assert gained.norm() > 0
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    public = trainer._public.group(None)
    assert torch.equal(shared(trainer), public + (encoded - public) * keep + gained)
    other = overlapping[1]  # trained nothing ahead
    assert torch.equal(shared(other), other._public.group(None))


@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_all_progress_is_offered_once(tmp_path: Path, keep: float) -> None:
    """What a peer keeps of its own lead is no progress: it has been offered."""
    overlapping = Overlapping(tmp_path, (0,), (1,), overlap_keep=keep, **FP32)
    trained, trainer = overlapping.train(), overlapping[0]
    encoded = shared(trainer)
    overlapping.train_ahead(PEERS[0])
    gained = shared(trainer) - encoded
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    begun = shared(trainer)
    second = trainer.train_round(overlapping.work(PEERS[0]))
    progress = gained + shared(trainer) - begun
    offers = {offer.block: offer for offer in second.offers}
    for block in trainer._layout.shared_blocks:
        content = overlapping.swarm.blobs.read(offers[block.id].blob)
        values = decode(trainer._layout.offer_format(block), content, block.num_elements)
        torch.testing.assert_close(values, progress[block.start : block.end], rtol=0, atol=1e-6)


def test_a_master_keeps_what_was_trained_ahead_and_offers_it_with_the_next_round(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,), **FP32)
    trained, trainer = overlapping.train(), overlapping[0]
    offered = master(trainer, 0)
    overlapping.train_ahead(PEERS[0])
    gained = master(trainer, 0) - offered
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    ahead = master(trainer, 0) - trainer._public.group(0)
    torch.testing.assert_close(ahead, gained, rtol=0, atol=1e-7)
    public = trainer._public.group(0)
    second = trainer.train_round(overlapping.work(PEERS[0]))
    offers = {offer.block: offer for offer in second.offers}
    for block in trainer._layout.expert_blocks(0):
        content = overlapping.swarm.blobs.read(offers[block.id].blob)
        values = decode(trainer._layout.offer_format(block), content, block.num_elements)
        expected = (master(trainer, 0) - public)[block.start : block.end]
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-7)


def test_an_unused_offer_is_owed_and_what_was_trained_ahead_stays(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,), **FP32)
    trained, trainer = overlapping.train(), overlapping[0]
    encoded, public = shared(trainer), trainer._public.group(None).clone()
    overlapping.train_ahead(PEERS[0])
    gained = shared(trainer) - encoded
    overlapping.swarm.apply(overlapping.swarm.updates(trained, left_out={PEERS[0]}))
    public_new = trainer._public.group(None)
    assert torch.equal(shared(trainer), public_new + (encoded - public_new) * 0.5 + gained)
    residuals = trainer._ledger.residuals()
    owed = torch.cat([residuals[block.id] for block in trainer._layout.shared_blocks])
    torch.testing.assert_close(owed, encoded - public, rtol=0, atol=1e-7)


def test_work_on_a_subset_that_the_record_takes_away_is_dropped(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,))
    trained, trainer = overlapping.train(), overlapping[0]
    overlapping.train_ahead(PEERS[0])
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    overlapping.swarm.subsets[PEERS[0]] = (1,)
    trainer.train_round(dataclasses.replace(overlapping.work(PEERS[0]), num_steps=OVERLAP + 1))
    overlapping.swarm.subsets[PEERS[0]] = (0,)
    overlapping.swarm.apply()
    trainer._prepare(overlapping.work(PEERS[0]))
    assert torch.equal(master(trainer, 0), trainer._public.group(0))


def test_only_the_steps_that_were_not_made_ahead_are_made_in_the_round(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,))
    trained = overlapping.train()
    assert overlapping.train_ahead(PEERS[0], steps=3) == 3  # the record came before the fourth
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    made: list[int] = []
    second = overlapping[0].train_round(overlapping.work(PEERS[0]), lambda steps, _loss, _speed: made.append(steps))
    assert made == list(range(4, STEPS + 1))
    assert (second.steps, second.tokens) == (STEPS, STEPS * SEQUENCES_PER_STEP * SEQUENCE)


def test_a_round_ahead_as_a_whole_is_offered_at_once(tmp_path: Path) -> None:
    swarm = Swarm.create(tmp_path, (0, 1), overlap_steps=STEPS)
    trainer, part = swarm.trainers[PEERS[0]], DataRange(80, 160)
    trained = {PEERS[0]: trainer.train_round(swarm.work(PEERS[0]))}
    trainer.train_ahead(TrainAhead(0, STEPS, STEPS, (part,), SEQUENCES_PER_STEP, FOR_EVER))
    swarm.apply(swarm.updates(trained))
    made: list[int] = []
    again = TrainRound(1, STEPS, STEPS, (0, 1), (part,), SEQUENCES_PER_STEP, FOR_EVER, STEPS, SEQUENCES_PER_STEP)
    second = trainer.train_round(again, lambda steps, _loss, _speed: made.append(steps))
    assert (made, second.steps) == ([], STEPS)
    assert all(offer.norm > 0 for offer in second.offers)


def test_a_record_that_overtakes_the_round_drops_what_was_trained_of_it(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,))
    trained, trainer = overlapping.train(), overlapping[0]
    overlapping.train_ahead(PEERS[0])
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    overlapping.swarm.apply()  # closed without us
    assert torch.equal(shared(trainer), trainer._public.group(None))
    del overlapping.ahead[PEERS[0]]
    made: list[int] = []
    trainer.train_round(overlapping.work(PEERS[0]), lambda steps, _loss, _speed: made.append(steps))
    assert made == list(range(1, STEPS + 1))


def test_measuring_the_held_out_loss_leaves_what_was_trained_ahead(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,))
    trained, trainer = overlapping.train(), overlapping[0]
    overlapping.train_ahead(PEERS[0])
    overlapping.swarm.apply(overlapping.swarm.updates(trained))
    before = shared(trainer)
    overlapping.swarm.held_out_loss()
    assert torch.equal(shared(trainer), before)


def test_a_restart_takes_up_what_was_trained_ahead_bit_for_bit(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0,), (1,))
    trained, first = overlapping.train(), overlapping[0]
    overlapping.train_ahead(PEERS[0])
    updates = overlapping.swarm.updates(trained)
    applied = first.apply_record(overlapping.swarm.record_of(1, updates), keep_snapshot=True)
    overlapping.swarm.round = 1
    work = overlapping.work(PEERS[0])
    again = open_trainer(overlapping.swarm.manifest, overlapping.swarm.blobs, tmp_path, PEERS[0])
    again.load_state(LoadState(1, applied.blocks))
    assert again.train_round(work).offers == first.train_round(work).offers


def test_nothing_is_trained_ahead_of_a_round_that_was_not_offered(tmp_path: Path) -> None:
    overlapping = Overlapping(tmp_path, (0, 1))
    overlapping.work(PEERS[0])
    with pytest.raises(SpesError, match="before round 0 is offered"):
        overlapping.train_ahead(PEERS[0])


def test_to_test_anothers_expert_between_steps_changes_nothing_of_them(tmp_path: Path) -> None:
    """With momentum, too: of that a test uses what is there, and leaves it."""
    found = []
    for folder in ("tested", "untested"):
        overlapping = Overlapping(tmp_path / folder, (0,), (1,), expert_outer="nesterov", shared_outer="nesterov")
        for _ in range(2):
            trained, trainer = overlapping.train(), overlapping[0]
            blocks = {block.id for block in trainer._layout.expert_blocks(2)}
            blobs = tuple(offer.blob for offer in trained[PEERS[1]].offers if offer.block in blocks)
            task = TryExpert(overlapping.swarm.round, 2, blobs, 0, 2)
            work = TrainAhead(
                overlapping.swarm.round,
                (overlapping.swarm.round + 1) * STEPS,
                OVERLAP,
                (overlapping.ahead[PEERS[0]],),
                SEQUENCES_PER_STEP,
                FOR_EVER,
            )
            losses = []

            def between_steps(trainer: Trainer = trainer, task: TryExpert = task, losses: list[float] = losses) -> bool:
                if folder == "tested":  # noqa: B023
                    losses.append(trainer.try_expert(task).loss_after)
                return True

            trainer.train_ahead(work, between_steps=between_steps)
            assert len(set(losses)) <= 1  # what is tried is the public state, however far training has come
            applied = overlapping.swarm.apply(overlapping.swarm.updates(trained))
        found.append((applied[PEERS[0]].state_root, shared(trainer), master(trainer, 0), trainer._optimizer.moments()))
    (root, ours, owned, moments), (other_root, others, others_owned, other_moments) = found
    assert root == other_root
    assert torch.equal(ours, others)
    assert torch.equal(owned, others_owned)
    assert all(torch.equal(moments[name], other_moments[name]) for name in moments)
