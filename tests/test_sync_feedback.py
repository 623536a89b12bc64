"""Error feedback: what is lost on the way is offered again."""

import pytest
import torch
from torch import Tensor

from spes_peer.run.encodings import Encoding, Format
from spes_peer.run.records import BlockId
from spes_peer.sync.encoding import decode, encode
from spes_peer.sync.feedback import ExpertFeedback, SharedFeedback
from spes_peer.sync.reduce import weighted_mean

BLOCK = BlockId("shared/0000")
EXPERT = BlockId("expert/00/0000")
NUM_ELEMENTS = 500


def drawn(seed: int, scale: float = 1e-3) -> Tensor:
    return torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed)) * scale


def through(encoding: Encoding, values: Tensor) -> Tensor:
    return decode(Format(encoding), encode(Format(encoding), values), len(values))


def offered(feedback: SharedFeedback, progress: Tensor) -> Tensor:
    values = feedback.offer(BLOCK, progress)
    decoded = through("bf16", values)
    feedback.encoded(BLOCK, values, decoded)
    return decoded


def test_decoded_offers_and_what_is_left_sum_up_to_all_progress() -> None:
    feedback, sent, made = SharedFeedback(), torch.zeros(NUM_ELEMENTS), torch.zeros(NUM_ELEMENTS)
    plain = torch.zeros(NUM_ELEMENTS)
    for round_ in range(50):
        sent += offered(feedback, drawn(round_))
        made += drawn(round_)
        plain += through("bf16", drawn(round_))
    torch.testing.assert_close(sent + feedback.offer(BLOCK, torch.zeros(NUM_ELEMENTS)), made, rtol=0, atol=1e-8)
    assert (sent - made).norm() < (plain - made).norm() / 3


def test_an_offer_that_no_record_used_is_offered_again_whole() -> None:
    feedback = SharedFeedback()
    decoded = offered(feedback, drawn(1))
    feedback.unused(BLOCK, decoded)
    torch.testing.assert_close(feedback.offer(BLOCK, drawn(2)), drawn(1) + drawn(2), rtol=0, atol=1e-9)


def test_decay_forgets_a_part_of_what_encoding_lost() -> None:
    feedback = SharedFeedback(decay=0.5)
    decoded = offered(feedback, drawn(1))
    residual = feedback.offer(BLOCK, torch.zeros(NUM_ELEMENTS))
    torch.testing.assert_close(residual, (drawn(1) - decoded) / 2)


def test_what_encoding_the_mean_lost_comes_back_through_the_reducer() -> None:
    """Two peers with 1 and 3 parts of the tokens; the first reduces. Means sum up to the mean of all progress."""
    weights, feedback = (1.0, 3.0), [SharedFeedback(), SharedFeedback()]
    applied, wanted = torch.zeros(NUM_ELEMENTS), torch.zeros(NUM_ELEMENTS)
    for round_ in range(30):
        progress = [drawn(2 * round_ + peer) for peer in range(2)] if round_ < 25 else [torch.zeros(NUM_ELEMENTS)] * 2
        offers = [offered(one, made) for one, made in zip(feedback, progress, strict=True)]
        mean = weighted_mean(list(zip(weights, offers, strict=True)))
        update = through("bf16", mean)
        feedback[0].reduce_loss(BLOCK, mean - update, share=0.25)
        applied += update
        wanted += weighted_mean(list(zip(weights, progress, strict=True)))
    torch.testing.assert_close(applied, wanted, rtol=0, atol=1e-7)


def test_a_public_expert_reaches_its_master_once_training_stops() -> None:
    """Public state in bf16, which rounds as well, and the merge moves it in between."""
    feedback = ExpertFeedback()
    public = drawn(0, scale=0.02).bfloat16().float()
    master, trained, merged = public.clone(), torch.zeros(NUM_ELEMENTS), torch.zeros(NUM_ELEMENTS)
    start = public.clone()
    for round_ in range(30):
        if round_ < 20:
            master = master + drawn(round_)
            trained += drawn(round_)
        decoded = through("bf16", feedback.offer(EXPERT, master, public))
        feedback.encoded(round_, EXPERT, decoded)
        by_merge = drawn(100 + round_, scale=1e-4) if round_ == 5 else torch.zeros(NUM_ELEMENTS)
        merged += by_merge
        public = (public + decoded).bfloat16().float()
        public = (public + by_merge).bfloat16().float()
        master = feedback.answered(round_, EXPERT, master, decoded + by_merge, used=True)
    torch.testing.assert_close(master, start + trained + merged, rtol=0, atol=1e-7)
    torch.testing.assert_close(public, master, rtol=2.0**-8, atol=1e-6)  # as near as bf16 can be


def test_an_expert_offer_that_no_record_used_is_offered_again() -> None:
    feedback, public = ExpertFeedback(), torch.zeros(NUM_ELEMENTS)
    master = drawn(1)
    decoded = through("bf16", feedback.offer(EXPERT, master, public))
    feedback.encoded(4, EXPERT, decoded)
    assert torch.equal(feedback.offer(EXPERT, master, public), master - decoded)  # while it waits, only the rest
    master = feedback.answered(4, EXPERT, master, None, used=False)
    assert torch.equal(feedback.offer(EXPERT, master, public), drawn(1))


def test_owners_of_one_expert_both_move_to_their_mean() -> None:
    public = drawn(0)
    owners = [(ExpertFeedback(), public + drawn(seed)) for seed in (1, 2)]
    decoded = []
    for feedback, master in owners:
        decoded.append(through("bf16", feedback.offer(EXPERT, master, public)))
        feedback.encoded(0, EXPERT, decoded[-1])
    mean = weighted_mean([(1.0, offer) for offer in decoded])
    for feedback, master in owners:
        after = feedback.answered(0, EXPERT, master, mean, used=True)
        torch.testing.assert_close(after, public + mean, rtol=0, atol=2e-5)  # and what its encoding lost
        left = feedback.offer(EXPERT, after, public + mean)
        assert left.norm() < drawn(1).norm() * 2.0**-8


def test_rounds_in_flight_are_answered_each_for_itself() -> None:
    feedback, public = ExpertFeedback(), torch.zeros(NUM_ELEMENTS)
    first = feedback.offer(EXPERT, drawn(1), public)
    feedback.encoded(1, EXPERT, first)
    second = feedback.offer(EXPERT, drawn(1) + drawn(2), public)
    feedback.encoded(2, EXPERT, second)
    torch.testing.assert_close(second, drawn(2), rtol=0, atol=1e-9)
    master = feedback.answered(1, EXPERT, drawn(1) + drawn(2), first, used=True)
    left = feedback.offer(EXPERT, master, public + first)
    assert left.abs().max() < 1e-9


def test_a_round_without_an_offer_moves_the_master_with_the_public_state() -> None:
    master = ExpertFeedback().answered(3, EXPERT, drawn(1), drawn(2), used=False)
    assert torch.equal(master, drawn(1) + drawn(2))


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_feedback_goes_on_from_its_saved_state(decay: float) -> None:
    shared = SharedFeedback(decay)
    offered(shared, drawn(1))
    restored = SharedFeedback(decay)
    restored.load(shared.state_dict())
    assert torch.equal(restored.offer(BLOCK, drawn(2)), shared.offer(BLOCK, drawn(2)))

    expert = ExpertFeedback()
    expert.encoded(12, EXPERT, drawn(3))
    again = ExpertFeedback()
    again.load(expert.state_dict())
    assert torch.equal(again.answered(12, EXPERT, drawn(4), None, used=True), drawn(4) - drawn(3))
