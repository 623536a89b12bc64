"""The routed experts against a plain reference that computes every expert for every token."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from spes_peer.model import experts as experts_module
from spes_peer.model.experts import ExpertWeights, Routes, can_group, routed_experts
from spes_peer.model.resident import PRECISIONS, ExpertMatrix, Precision, group_values, resident_bytes

NUM_TOKENS, D_MODEL, NUM_EXPERTS, HIDDEN, TOP_K = 60, 16, 5, 24, 2

BOTH_LOOPS = pytest.mark.parametrize("grouped", [False, True], ids=["loop", "grouped_mm"])


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Lets a test say which inner loop is used."""

    def chosen(grouped: bool) -> None:
        monkeypatch.setattr(experts_module, "can_group", lambda *_: grouped)

    return chosen


def dense_reference(x: Tensor, gate: Tensor, slot_of: Tensor, w1: Tensor, v1: Tensor, w2: Tensor) -> Tensor:
    weight = torch.zeros(len(x), len(w1), dtype=x.dtype).scatter(1, slot_of, gate)
    every = torch.stack([(functional.silu(x @ a.T) * (x @ b.T)) @ c.T for a, b, c in zip(w1, v1, w2, strict=True)], 1)
    return (every * weight.unsqueeze(-1)).sum(dim=1)


def drawn(num_experts_used: int = NUM_EXPERTS) -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    x = torch.randn(NUM_TOKENS, D_MODEL)
    gate, slot_of = torch.rand(NUM_TOKENS, num_experts_used).topk(TOP_K)
    w1, v1 = (torch.randn(NUM_EXPERTS, HIDDEN, D_MODEL) / 4 for _ in range(2))
    return x, gate, slot_of, w1, v1, torch.randn(NUM_EXPERTS, D_MODEL, HIDDEN) / 5


def weights_of(matrices: list[Tensor], num_owned: int, precision: Precision = "fp32") -> ExpertWeights:
    made = []
    for values in matrices:
        matrix = ExpertMatrix((values.shape[0], values.shape[1], values.shape[2]), precision, torch.device("cpu"))
        for slot, expert in enumerate(values):
            matrix.store(slot, expert)
        matrix.own([], num_owned)
        made.append(matrix)
    return ExpertWeights(*made)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).norm() / wanted.norm()).detach())


@BOTH_LOOPS
@pytest.mark.parametrize("num_owned", [0, 2, NUM_EXPERTS])
def test_output_and_gradients_equal_the_dense_reference(
    num_owned: int, grouped: bool, choose: Callable[[bool], None]
) -> None:
    """The reference runs in float64; 1e-6, relative in norm, is fp32."""
    choose(grouped)
    x, gate, slot_of, *matrices = drawn()
    leaves = [tensor.double().requires_grad_() for tensor in (x, gate, *matrices)]
    wanted = dense_reference(leaves[0], leaves[1], slot_of, *leaves[2:])
    pull = torch.randn(wanted.shape)
    wanted.backward(pull.double())

    x.requires_grad_()
    gate.requires_grad_()
    weights = weights_of(matrices, num_owned)
    found = routed_experts(x, gate, Routes.of(slot_of, NUM_EXPERTS), weights)
    found.backward(pull)

    assert relative(found, wanted) < 1e-6
    assert relative(x.grad, leaves[0].grad) < 1e-6
    assert relative(gate.grad, leaves[1].grad) < 1e-6
    for matrix, reference in zip(weights.matrices(), leaves[2:], strict=True):
        assert matrix.num_owned == num_owned
        if matrix.master is not None:
            assert relative(matrix.master.grad, reference.grad[:num_owned]) < 1e-6
        assert not matrix.values.requires_grad


@BOTH_LOOPS
def test_an_owned_expert_without_tokens_has_zero_gradient(grouped: bool, choose: Callable[[bool], None]) -> None:
    choose(grouped)
    x, gate, slot_of, *matrices = drawn(num_experts_used=3)
    routes = Routes.of(slot_of + 2, NUM_EXPERTS)
    weights = weights_of(matrices, 3)
    routed_experts(x, gate, routes, weights).sum().backward()
    assert routes.counts_E[:2].tolist() == [0, 0]
    for matrix in weights.matrices():
        assert not matrix.master.grad[:2].any()
        assert matrix.master.grad[2].any()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_frozen_experts_compute_with_what_their_precision_keeps(precision: Precision) -> None:
    """Forward and backward both; owned experts are exact whatever the precision."""
    x, gate, slot_of, *matrices = drawn()
    weights = weights_of(matrices, 2, precision)
    kept = [torch.stack([m.read(slot, torch.float32) for slot in range(NUM_EXPERTS)]) for m in weights.matrices()]
    for matrix, exact in zip(weights.matrices(), matrices, strict=True):
        matrix.master.detach().copy_(exact[:2])
    kept = [torch.cat((exact[:2], rounded[2:])) for exact, rounded in zip(matrices, kept, strict=True)]
    reference_x, x = x.clone().requires_grad_(), x.requires_grad_()
    dense_reference(reference_x, gate, slot_of, *kept).square().sum().backward()
    routed_experts(x, gate, Routes.of(slot_of, NUM_EXPERTS), weights).square().sum().backward()
    assert relative(x.grad, reference_x.grad) < 1e-6


@pytest.mark.parametrize(("precision", "error"), [("fp32", 0.0), ("bf16", 2e-3), ("int8", 8e-3), ("int4", 0.13)])
def test_precisions_keep_as_much_as_they_have_bits(precision: Precision, error: float) -> None:
    """Errors of normal values, relative in norm: half a step, uniformly spread, of the largest among 128 or 64."""
    matrix = ExpertMatrix((2, 32, 64), precision, torch.device("cpu"))
    values = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)) * 0.02
    matrix.store(1, values)
    found = relative(matrix.read(1, torch.float32), values)
    assert error / 2 <= found <= error
    assert not matrix.read(0, torch.float32).any()
    assert sum(buffer.nbytes for buffer in matrix.buffers()) == 2 * resident_bytes(precision, 32 * 64)


def test_a_matrix_that_no_group_divides_is_cut_into_smaller_ones() -> None:
    assert group_values("int8", 24 * 18) == 16
    matrix = ExpertMatrix((1, 24, 18), "int4", torch.device("cpu"))
    values = torch.randn(24, 18)
    matrix.store(0, values)
    assert relative(matrix.read(0, torch.float32), values) < 0.15


@pytest.mark.parametrize("precision", PRECISIONS)
def test_swapped_slots_take_their_values_along_and_masters_stay_exact(precision: Precision) -> None:
    matrix = ExpertMatrix((4, 8, 16), precision, torch.device("cpu"))
    for slot in range(4):
        matrix.store(slot, torch.full((8, 16), float(slot)))
    matrix.own([(0, 3)], 2)
    assert matrix.master[:, 0, 0].tolist() == pytest.approx([3.0, 1.0], rel=0.01)
    matrix.master.detach()[1].fill_(1 / 3)
    matrix.own([(1, 2), (0, 2)], 1)
    assert (matrix.master == torch.tensor(1 / 3)).all()
    assert [float(matrix.read(slot, torch.float32)[0, 0]) for slot in (1, 2, 3)] == pytest.approx([2, 3, 0], rel=0.01)


def test_an_unknown_precision_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'fp8'"):
        ExpertMatrix((1, 8, 8), "fp8", torch.device("cpu"))  # type: ignore[arg-type]


def test_routes_sort_every_route_to_its_slot() -> None:
    slot_of = torch.tensor([[2, 0], [0, 1], [2, 1]])
    routes = Routes.of(slot_of, 4)
    assert routes.counts_E.tolist() == [2, 2, 2, 0]
    assert routes.ends_E.tolist() == [2, 4, 6, 6]
    assert routes.token_R.tolist() == [0, 1, 1, 2, 0, 2]
    assert [slot for slot, _ in routes.spans] == [0, 1, 2]
    for slot, rows in routes.spans:
        assert (slot_of.flatten()[routes.order_R[rows]] == slot).all()
    assert routes.order_R[routes.row_NK].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_experts_are_grouped_only_where_they_lie_in_one_tensor_of_aligned_rows() -> None:
    assert can_group("cuda", torch.empty(16, 64, 32, dtype=torch.bfloat16))
    assert not can_group("cuda", torch.empty(16, 64, 36, dtype=torch.bfloat16))
    assert not can_group("cuda", torch.empty(16, 64, 32))
    assert can_group("cpu", torch.empty(16, 64, 36))
    assert not can_group("cpu", None)
