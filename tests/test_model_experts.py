"""The routed experts against a plain reference that computes every expert for every token."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter, functional

from spes_peer.model.experts import ExpertWeights, Routes, routed_experts

NUM_TOKENS, D_MODEL, NUM_EXPERTS, HIDDEN, TOP_K = 60, 16, 5, 24, 2


def dense_reference(x: Tensor, gate: Tensor, expert_of: Tensor, w1: Tensor, v1: Tensor, w2: Tensor) -> Tensor:
    weight = torch.zeros(len(x), len(w1), dtype=x.dtype).scatter(1, expert_of, gate)
    every = torch.stack([(functional.silu(x @ a.T) * (x @ b.T)) @ c.T for a, b, c in zip(w1, v1, w2, strict=True)], 1)
    return (every * weight.unsqueeze(-1)).sum(dim=1)


def drawn(dtype: torch.dtype, num_experts_used: int = NUM_EXPERTS) -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    x = torch.randn(NUM_TOKENS, D_MODEL, dtype=dtype)
    gate, expert_of = torch.rand(NUM_TOKENS, num_experts_used, dtype=dtype).topk(TOP_K)
    w1, v1 = (torch.randn(NUM_EXPERTS, HIDDEN, D_MODEL, dtype=dtype) / 4 for _ in range(2))
    return x, gate, expert_of, w1, v1, torch.randn(NUM_EXPERTS, D_MODEL, HIDDEN, dtype=dtype) / 5


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(((found - wanted).norm() / wanted.norm()).detach())


@pytest.mark.parametrize("owned", [(), (1, 3), (4, 0), tuple(range(NUM_EXPERTS))])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_output_and_gradients_equal_the_dense_reference(
    owned: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    """Tolerances are a few units in the last place, relative in norm: the sums run in another order."""
    x, gate, expert_of, *matrices = drawn(dtype)
    wanted_inputs = [tensor.clone().requires_grad_() for tensor in (x, gate, *matrices)]
    wanted = dense_reference(wanted_inputs[0], wanted_inputs[1], expert_of, *wanted_inputs[2:])
    pull = torch.randn_like(wanted)
    wanted.backward(pull)

    x.requires_grad_()
    gate.requires_grad_()
    masters = [Parameter(matrix[list(owned)].clone()) for matrix in matrices] if owned else [None] * 3
    # What lies in the resident place of an owned expert must not matter.
    residents = [matrix.index_fill(0, torch.tensor(owned, dtype=torch.int64), 1e9) for matrix in matrices]
    found = routed_experts(x, gate, Routes.of(expert_of, NUM_EXPERTS), ExpertWeights(*residents, owned, *masters))
    found.backward(pull)

    assert relative(found, wanted) < tolerance
    assert relative(x.grad, wanted_inputs[0].grad) < tolerance
    assert relative(gate.grad, wanted_inputs[1].grad) < tolerance
    for master, reference in zip(masters, wanted_inputs[2:], strict=True):
        if master is not None:
            assert relative(master.grad, reference.grad[list(owned)]) < tolerance
    assert not any(resident.requires_grad for resident in residents)


def test_an_owned_expert_without_tokens_has_zero_gradient() -> None:
    x, gate, expert_of, *matrices = drawn(torch.float32, num_experts_used=3)
    masters = [Parameter(matrix[[4]].clone()) for matrix in matrices]
    routes = Routes.of(expert_of, NUM_EXPERTS)
    routed_experts(x, gate, routes, ExpertWeights(*matrices, (4,), *masters)).sum().backward()
    assert routes.counts[3:] == (0, 0)
    assert all(master.grad is not None and not master.grad.any() for master in masters)


def test_routes_sort_every_route_to_its_expert() -> None:
    expert_of = torch.tensor([[2, 0], [0, 1], [2, 1]])
    routes = Routes.of(expert_of, 4)
    assert routes.counts == (2, 2, 2, 0)
    assert routes.token_R.tolist() == [0, 1, 1, 2, 0, 2]
    for expert, rows in routes.spans():
        assert (expert_of.flatten()[routes.order_R[rows]] == expert).all()
    assert routes.order_R[routes.row_NK].tolist() == [[0, 1], [2, 3], [4, 5]]
