"""One local step: micro-batches, memory that runs out, batches made ahead."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from spes_peer.data.filter import IGNORED_TARGET
from spes_peer.data.sampler import Batch
from spes_peer.model.decoder import Decoder
from spes_peer.model.losses import Losses
from spes_peer.run.manifest import Model, Training
from spes_peer.training.feeding import one_ahead
from spes_peer.training.optimizer import LocalOptimizer
from spes_peer.training.stepping import Stepper, is_out_of_memory

MODEL = Model(
    vocab_rows=64, d_model=32, num_layers=2, num_heads=2, num_kv_heads=2, num_experts=4, top_k=2,
    expert_hidden=32, sequence_length=16,
)  # fmt: skip
CPU = torch.device("cpu")
BATCH = 8


def training(**changes: float) -> Training:
    fields = {"num_subsets": 2, "steps_per_round": 1, "total_steps": 10, "batch_sequences": 2, "lr": 1e-3}
    return Training.model_validate(fields | changes)


def stepper(micro_batch: int, **changes: float) -> Stepper:
    """Always with the same weights; owns half of the experts."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    decoder = Decoder(MODEL, CPU, training(**changes))
    for parameter in (*decoder.shared_parameters(), *decoder.buffers()):
        if parameter.is_floating_point() and parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
        elif isinstance(parameter, torch.nn.Parameter):
            torch.nn.init.ones_(parameter)
    adam = LocalOptimizer(decoder, training(**changes))
    adam.own((0, 1))
    return Stepper(decoder, adam, training(**changes), micro_batch, may_recompute=True)


def batch(num_masked: int = 0) -> Batch:
    """The labels of the first `num_masked` sequences do not count."""
    tokens = torch.randint(0, 64, (BATCH, 17), generator=torch.Generator().manual_seed(1))
    targets = tokens[:, 1:].clone()
    targets[:num_masked] = IGNORED_TARGET
    return Batch(tokens[:, :-1].contiguous(), targets)


def gradients(one: Stepper, content: Batch) -> tuple[float, list[torch.Tensor]]:
    loss = one._gather_gradient(content)
    parameters = [*one._decoder.shared_parameters(), *one._decoder.owned_parameters()]
    return loss, [parameter.grad for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("num_masked", [0, 3])
@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_micro_batches_give_the_gradient_of_the_full_batch(micro_batch: int, num_masked: int) -> None:
    no_balance = {"load_balance_loss": 0.0, "router_z_loss": 0.01, "z_loss": 0.01}
    whole_loss, whole = gradients(stepper(BATCH, **no_balance), batch(num_masked))
    loss, parts = gradients(stepper(micro_batch, **no_balance), batch(num_masked))
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert len(parts) == len(whole)
    for part, full in zip(parts, whole, strict=True):
        assert (part - full).norm() <= 1e-6 * full.norm()  # sums of fp32 in another order


def test_only_load_balance_is_of_each_micro_batch_on_its_own() -> None:
    _, whole = gradients(stepper(BATCH, load_balance_loss=1.0), batch())
    _, parts = gradients(stepper(1, load_balance_loss=1.0), batch())
    differences = [float((part - full).norm() / full.norm()) for part, full in zip(parts, whole, strict=True)]
    assert max(differences) > 1e-2


def test_a_step_clips_by_the_norm_over_everything_and_decays_everything() -> None:
    clipped, free = stepper(4, clip_norm=1e-3, weight_decay=0.0), stepper(4, clip_norm=1e9, weight_decay=0.0)
    for one in (clipped, free):
        assert one.step(batch(), 1e-3) is not None
    moments = [one._optimizer.moments() for one in (clipped, free)]
    first = [torch.cat([m[name] for name in m if name.endswith("exp_avg")]).norm() for m in moments]
    assert float(first[0]) == pytest.approx(1e-3 * (1 - 0.9), rel=1e-3)
    assert float(first[1]) > 10 * float(first[0])
    decayed = stepper(4, weight_decay=1.0)
    norm = decayed._decoder.final_norm
    decayed._gather_gradient(batch())
    for parameter in (*decayed._decoder.shared_parameters(), *decayed._decoder.owned_parameters()):
        assert parameter.grad is not None
        parameter.grad.zero_()
    decayed._optimizer.step(0.5)
    assert torch.allclose(norm, torch.full_like(norm, 0.5))


# ---- memory ----


def starve(one: Stepper, fits: int, error: Callable[[], BaseException], recomputed_fits: int = 0) -> list[int]:
    """Let the decoder's backward run out of memory over `fits` sequences; how many were tried each time."""
    tried: list[int] = []
    forward = one._decoder.forward

    def hungry(tokens: torch.Tensor, targets: torch.Tensor) -> Losses:
        tried.append(len(tokens))
        if len(tokens) > (recomputed_fits if one._decoder.checkpointing else fits):
            raise error()
        return forward(tokens, targets)

    one._decoder.forward = hungry  # type: ignore[method-assign, assignment]
    return tried


ERRORS: dict[str, Callable[[], BaseException]] = {
    "python": MemoryError,
    "device": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
    "allocator": lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_memory_that_runs_out_halves_the_micro_batch_and_the_step_is_made_all_the_same(
    error: Callable[[], BaseException],
) -> None:
    plain = stepper(2)
    expected = plain.step(batch(), 1e-3)
    hungry = stepper(BATCH)
    tried = starve(hungry, fits=2, error=error)
    assert hungry.step(batch(), 1e-3) == expected
    assert tried == [8, 4, 2, 2, 2, 2]
    assert torch.equal(hungry._decoder.flatten_shared(), plain._decoder.flatten_shared())
    tried.clear()
    hungry.expect(BATCH)  # a new plan does not know better
    assert hungry.step(batch(), 1e-3) is not None
    assert tried == [2, 2, 2, 2]


def test_memory_that_runs_out_behind_good_micro_batches_leaves_nothing_of_them() -> None:
    hungry, plain = stepper(4), stepper(2)
    tried = 0
    forward = hungry._decoder.forward

    def late(tokens: torch.Tensor, targets: torch.Tensor) -> Losses:
        nonlocal tried
        tried += 1
        if tried == 2:
            raise MemoryError
        return forward(tokens, targets)

    hungry._decoder.forward = late  # type: ignore[method-assign, assignment]
    assert hungry.step(batch(), 1e-3) == plain.step(batch(), 1e-3)
    assert torch.equal(hungry._decoder.flatten_master(1), plain._decoder.flatten_master(1))


def test_layers_are_recomputed_where_one_sequence_does_not_fit_and_only_then_it_is_an_error() -> None:
    hungry = stepper(2)
    tried = starve(hungry, fits=0, error=MemoryError, recomputed_fits=1)
    assert hungry.step(batch(), 1e-3) is not None
    assert tried[:3] == [2, 1, 1]
    assert hungry._decoder.checkpointing
    hopeless = stepper(2)
    starve(hopeless, fits=0, error=MemoryError)
    with pytest.raises(MemoryError, match="not one sequence fits"):
        hopeless.step(batch(), 1e-3)


def test_other_errors_are_not_taken_for_memory() -> None:
    broken = stepper(2)
    tried = starve(broken, fits=0, error=lambda: RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        broken.step(batch(), 1e-3)
    assert tried == [2]
    assert not is_out_of_memory(ValueError("out of memory"))


# ---- batches made ahead ----


def feeding_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("feed")]


def test_the_next_batch_is_made_while_this_one_is_worked_on() -> None:
    made = [threading.Event() for _ in range(4)]

    def batches() -> Iterator[Batch]:
        for event in made:
            event.set()
            yield batch()

    feed = one_ahead(batches(), CPU)
    next(feed)
    assert made[1].wait(10)
    assert not made[2].is_set()
    assert len(list(feed)) == 3
    assert not feeding_threads()


def test_batches_come_in_order_and_an_error_in_its_place() -> None:
    made = [batch(num_masked) for num_masked in range(3)]

    def batches() -> Iterator[Batch]:
        yield from made
        raise OSError("disk")

    feed = one_ahead(batches(), CPU)
    assert [next(feed) for _ in made] == made
    with pytest.raises(OSError, match="disk"):
        next(feed)
    assert not feeding_threads()


def test_closing_early_ends_the_thread() -> None:
    feed = one_ahead(iter([batch()] * 100), CPU)
    next(feed)
    assert feeding_threads()
    feed.close()
    assert not feeding_threads()
