"""The output head's losses in chunks, against all logits at once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from spes_peer.model import losses as losses_module
from spes_peer.model.losses import IGNORED_TARGET, head_losses

NUM_TOKENS, D_MODEL, VOCABULARY, Z = 50, 16, 30, 1e-2


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, head = (torch.randn(rows, D_MODEL, generator=generator) for rows in (NUM_TOKENS, VOCABULARY))
    target = torch.randint(0, VOCABULARY, (NUM_TOKENS,), generator=generator)
    target[::7] = IGNORED_TARGET
    return x, head, target


def plain(x: Tensor, head: Tensor, target: Tensor) -> Tensor:
    logits = x @ head.T
    z = logits.logsumexp(-1).square()[target != IGNORED_TARGET].mean()
    return functional.cross_entropy(logits, target, ignore_index=IGNORED_TARGET) + Z * z


def gradients(loss: Callable[..., Tensor], *inputs: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    x, head = (tensor.clone().requires_grad_() for tensor in inputs[:2])
    total = loss(x, head, inputs[2])
    (scale * total).backward()
    assert x.grad is not None
    assert head.grad is not None
    return total.detach(), x.grad, head.grad


@pytest.mark.parametrize("scale", [1.0, 0.25], ids=["whole batch", "micro-batch"])
@pytest.mark.parametrize("chunk_tokens", [1, 7, NUM_TOKENS])
def test_losses_and_gradients_equal_those_of_all_logits(
    chunk_tokens: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is float64; 1e-6, relative in norm, is fp32."""
    monkeypatch.setattr(losses_module, "_CHUNK_LOGITS", VOCABULARY * chunk_tokens)
    x, head, target = drawn()
    wanted = gradients(plain, x.double(), head.double(), target, scale=scale)
    found = gradients(lambda *inputs: head_losses(*inputs, Z).total, x, head, target, scale=scale)
    for ours, reference in zip(found, wanted, strict=True):
        assert (ours - reference).norm() <= 1e-6 * reference.norm()


def test_the_total_is_made_of_its_parts_which_have_no_gradient() -> None:
    x, head, target = drawn()
    losses = head_losses(x.requires_grad_(), head, target, Z)
    assert losses.total.item() == pytest.approx((losses.ce + Z * losses.z).item(), rel=1e-6)
    assert losses.total.requires_grad
    assert not losses.ce.requires_grad
    assert not losses.z.requires_grad


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    x, head, target = drawn()
    head.requires_grad_()
    with torch.no_grad():
        losses = head_losses(x, head, target, Z)
    assert not losses.total.requires_grad
    assert losses.total.item() == pytest.approx(plain(x, head, target).item(), rel=1e-6)


def test_ignored_targets_neither_count_nor_pull() -> None:
    x, head, target = drawn()
    _, grad_x, _ = gradients(lambda *inputs: head_losses(*inputs, Z).total, x, head, target)
    assert not grad_x[target == IGNORED_TARGET].any()
    kept = target != IGNORED_TARGET
    without = head_losses(x[kept], head, target[kept], Z)
    assert head_losses(x, head, target, Z).total.item() == pytest.approx(without.total.item(), rel=1e-6)


def test_large_logits_stay_finite() -> None:
    x, head, target = drawn()
    assert head_losses(x * 1e3, head, target, Z).total.isfinite()


def test_bf16_logits_are_summed_and_their_gradients_gathered_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_module, "_CHUNK_LOGITS", VOCABULARY * 5)
    x, head, target = drawn()
    wanted = gradients(plain, x, head, target)
    found = gradients(lambda x, *rest: head_losses(x.bfloat16(), *rest, Z).total, x, head, target)
    assert found[0].item() == pytest.approx(wanted[0].item(), rel=5e-3)
    assert found[2].dtype == torch.float32
    for ours, reference in zip(found[1:], wanted[1:], strict=True):
        assert (ours - reference).norm() <= 2e-2 * reference.norm()
