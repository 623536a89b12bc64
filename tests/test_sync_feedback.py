"""Error feedback: what is lost on the way is offered again."""

import pytest
import torch
from torch import Tensor

from spes_peer.run.encodings import Encoding, Format
from spes_peer.run.records import BlockId
from spes_peer.sync.encoding import decode, encode
from spes_peer.sync.feedback import SharedFeedback, expert_offer, master_after
from spes_peer.sync.reduce import weighted_mean

BLOCK = BlockId("shared/0000")
NUM_ELEMENTS = 5000  # more than a chunk of topk
LOSSY: tuple[Encoding, ...] = ("bf16", "int8", "int4", "topk")


def drawn(seed: int, scale: float = 1e-3) -> Tensor:
    return torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed)) * scale


def through(encoding: Encoding, values: Tensor) -> Tensor:
    return decode(Format(encoding), encode(Format(encoding), values), len(values))


def offered(feedback: SharedFeedback, progress: Tensor, encoding: Encoding = "bf16") -> Tensor:
    values = feedback.offer(BLOCK, progress)
    decoded = through(encoding, values)
    feedback.encoded(BLOCK, values, decoded)
    return decoded


def owed(feedback: SharedFeedback) -> Tensor:
    return feedback.offer(BLOCK, torch.zeros(NUM_ELEMENTS))


@pytest.mark.parametrize("encoding", LOSSY)
def test_used_offers_and_what_is_owed_sum_up_to_all_progress(encoding: Encoding) -> None:
    feedback, used, made = SharedFeedback(), torch.zeros(NUM_ELEMENTS), torch.zeros(NUM_ELEMENTS)
    plain = torch.zeros(NUM_ELEMENTS)
    for round_ in range(50):
        decoded = offered(feedback, drawn(round_), encoding)
        if round_ % 7 == 3:
            feedback.unused(BLOCK, decoded)
        else:
            used += decoded
        made += drawn(round_)
        plain += through(encoding, drawn(round_))
    torch.testing.assert_close(used + owed(feedback), made, rtol=0, atol=1e-5)
    assert owed(feedback).norm() > 0
    assert (used - made).norm() < (plain - made).norm() or encoding == "topk"  # which is still to send the most of it


def test_what_topk_leaves_out_comes_once_training_stops() -> None:
    feedback = SharedFeedback()
    sent = offered(feedback, drawn(1), "topk")
    assert (sent - drawn(1)).norm() > drawn(1).norm() / 2
    for _ in range(200):
        sent += offered(feedback, torch.zeros(NUM_ELEMENTS), "topk")
    assert (sent - drawn(1)).norm() < drawn(1).norm() / 20


def test_an_offer_that_no_record_used_is_offered_again_whole() -> None:
    feedback = SharedFeedback()
    decoded = offered(feedback, drawn(1))
    feedback.unused(BLOCK, decoded)
    torch.testing.assert_close(feedback.offer(BLOCK, drawn(2)), drawn(1) + drawn(2), rtol=0, atol=1e-9)


def test_decay_forgets_a_part_of_what_encoding_lost_and_none_of_what_was_not_used() -> None:
    feedback = SharedFeedback(decay=0.5)
    decoded = offered(feedback, drawn(1))
    torch.testing.assert_close(owed(feedback), (drawn(1) - decoded) / 2)
    feedback.unused(BLOCK, decoded)
    torch.testing.assert_close(owed(feedback), decoded + (drawn(1) - decoded) / 2)


@pytest.mark.parametrize("encoding", ["bf16", "int4"])
def test_what_encoding_the_mean_lost_comes_back_through_the_reducer(encoding: Encoding) -> None:
    """Two peers with 1 and 3 parts of the tokens; the first reduces. Means sum up to the mean of all progress."""
    weights, feedback = (1.0, 3.0), [SharedFeedback(), SharedFeedback()]
    applied, wanted = torch.zeros(NUM_ELEMENTS), torch.zeros(NUM_ELEMENTS)
    for round_ in range(30):
        progress = [drawn(2 * round_ + peer) for peer in range(2)]
        offers = [offered(one, made, encoding) for one, made in zip(feedback, progress, strict=True)]
        mean = weighted_mean(list(zip(weights, offers, strict=True)))
        update = through(encoding, mean)
        feedback[0].reduce_loss(BLOCK, mean - update, share=0.25)
        applied += update
        wanted += weighted_mean(list(zip(weights, progress, strict=True)))
    left = weighted_mean(list(zip(weights, map(owed, feedback), strict=True)))
    torch.testing.assert_close(applied + left, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("encoding", LOSSY)
def test_a_public_expert_reaches_its_master_once_training_stops(encoding: Encoding) -> None:
    """Public state in bf16, which rounds as well; some offers are not used; and the merge moves it in between."""
    public = drawn(0, scale=0.02).bfloat16().float()
    start, master = public.clone(), public.clone()
    trained, merged = torch.zeros(NUM_ELEMENTS), torch.zeros(NUM_ELEMENTS)
    for round_ in range(230):
        if round_ < 20:
            master = master + drawn(round_)
            trained += drawn(round_)
        decoded = through(encoding, expert_offer(master, public))
        by_merge = drawn(100 + round_, scale=1e-4) if round_ == 5 else torch.zeros(NUM_ELEMENTS)
        merged += by_merge
        is_used = round_ != 7
        displacement = (decoded if is_used else torch.zeros(NUM_ELEMENTS)) + by_merge
        public = (public + displacement - by_merge).bfloat16().float()
        public = (public + by_merge).bfloat16().float()
        master = master_after(master, displacement, decoded if is_used else None, None, 1.0)
        # all progress is in the master: in the public state, or owed
        torch.testing.assert_close(master, start + trained + merged, rtol=0, atol=1e-5)
    # as near as bf16 can be; coarse codes say nothing of what is small beside that rounding of a neighbour
    tolerance = 1e-6 if encoding in ("bf16", "int8") else 2e-4
    torch.testing.assert_close(public, master, rtol=2.0**-8, atol=tolerance)


def test_an_outer_step_moves_the_master_with_the_public_state_and_what_was_lost_stays_owed() -> None:
    public, master = drawn(0), drawn(0) + drawn(1)
    decoded = through("int4", expert_offer(master, public))
    lost = master - public - decoded
    displacement = decoded * 1.7  # more than was offered, with momentum
    after = master_after(master, displacement, decoded, None, 1.0)
    torch.testing.assert_close(expert_offer(after, public + displacement), lost, rtol=0, atol=1e-8)


def test_owners_of_one_expert_both_move_to_their_mean_and_owe_what_was_lost() -> None:
    public = drawn(0)
    masters = [public + drawn(seed) for seed in (1, 2)]
    decoded = [through("int4", expert_offer(master, public)) for master in masters]
    mean = weighted_mean([(1.0, offer) for offer in decoded])
    update = through("int4", mean)
    after = [
        master_after(masters[0], update, decoded[0], mean - update, 0.5),  # the reducer
        master_after(masters[1], update, decoded[1], None, 1.0),
    ]
    left = [expert_offer(master, public + update) for master in after]
    torch.testing.assert_close(left[1], drawn(2) - decoded[1], rtol=0, atol=1e-8)
    # together they still owe whatever of their mean progress is not public
    torch.testing.assert_close(update + (left[0] + left[1]) / 2, (drawn(1) + drawn(2)) / 2, rtol=0, atol=1e-8)


def test_a_round_without_an_offer_moves_the_master_with_the_public_state() -> None:
    assert torch.equal(master_after(drawn(1), drawn(2), None, None, 1.0), drawn(1) + drawn(2))
    assert torch.equal(master_after(drawn(1), None, None, None, 1.0), drawn(1))


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_feedback_goes_on_from_its_saved_state(decay: float) -> None:
    shared = SharedFeedback(decay)
    offered(shared, drawn(1))
    restored = SharedFeedback(decay)
    restored.load(shared.state_dict())
    assert torch.equal(restored.offer(BLOCK, drawn(2)), shared.offer(BLOCK, drawn(2)))
