"""Moments of one byte a value, and that they come through checkpoints of whatever bits."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spes_peer.errors import BadConfiguration
from spes_peer.model.decoder import Decoder
from spes_peer.run.manifest import Model, Training
from spes_peer.training import optimizer
from spes_peer.training.optimizer import LocalOptimizer

MODEL = Model(
    vocab_rows=64, d_model=64, num_layers=1, num_heads=2, num_kv_heads=2, num_experts=4, top_k=2,
    expert_hidden=64, sequence_length=16,
)  # fmt: skip
TRAINING = Training(num_subsets=2, steps_per_round=1, total_steps=10, batch_sequences=2, lr=1e-3)


def trained(bits: int, steps: int = 3) -> LocalOptimizer:
    one = fresh(bits)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step(one, generator)
    return one


def fresh(bits: int, owned: tuple[int, ...] = (1, 2)) -> LocalOptimizer:
    decoder = Decoder(MODEL, "cpu", TRAINING)
    for parameter in decoder.shared_parameters():
        torch.nn.init.ones_(parameter)
    one = LocalOptimizer(decoder, TRAINING, bits)
    one.own(owned)
    return one


def step(one: LocalOptimizer, generator: torch.Generator) -> None:
    for parameter in (*one._decoder.shared_parameters(), *one._decoder.owned_parameters()):
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-3
    assert one.step(1e-2)


def values(one: LocalOptimizer) -> torch.Tensor:
    return torch.cat([one._decoder.flatten_shared(), *(one._decoder.flatten_master(e) for e in (1, 2))])


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = values(trained(32))
    monkeypatch.setattr(optimizer, "_PIECE", 1000)
    assert torch.allclose(values(trained(32)), whole, rtol=0, atol=1e-7)  # ends of vectors round differently
    decoder = fresh(32)._decoder
    plain = torch.optim.AdamW(
        [*decoder.shared_parameters(), *decoder.owned_parameters()], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in (*decoder.shared_parameters(), *decoder.owned_parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-3
        torch.nn.utils.clip_grad_norm_([*decoder.shared_parameters(), *decoder.owned_parameters()], 1.0)
        plain.step()
    reference = torch.cat([decoder.flatten_shared(), *(decoder.flatten_master(e) for e in (1, 2))])
    assert torch.allclose(whole, reference, rtol=0, atol=1e-6)


def test_a_step_does_without_torchs_compiler() -> None:
    program = "import sys, test_training_optimizer as here; here.trained(32); print('torch._dynamo' in sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, cwd=Path(__file__).parent)
    assert done.stdout.strip() == "False"


def test_moments_of_8_bits_take_a_quarter_and_lead_to_nearly_the_same_place() -> None:
    pytest.importorskip("torchao")
    exact, small = trained(32), trained(8)
    moved = values(exact) - values(fresh(32))
    assert (values(small) - values(exact)).norm() < 0.05 * moved.norm()
    sizes = [sum(m.nbytes for m in one.moments().values()) for one in (exact, small)]
    assert sizes[1] < 0.3 * sizes[0]


@pytest.mark.parametrize("bits", [32, 8])
def test_taken_up_moments_go_on_bit_for_bit(bits: int) -> None:
    if bits == 8:
        pytest.importorskip("torchao")
    one, again = trained(bits), fresh(bits)
    again.load_moments({name: moment.clone() for name, moment in one.moments().items()})
    again._decoder.load_group(None, one._decoder.flatten_shared())
    for expert in (1, 2):
        again._decoder.load_master(expert, one._decoder.flatten_master(expert))
    for optimizer_ in (one, again):
        step(optimizer_, torch.Generator().manual_seed(7))
    assert torch.equal(values(one), values(again))


@pytest.mark.parametrize(("before", "after"), [(32, 8), (8, 32)])
def test_a_restart_may_choose_other_bits(before: int, after: int) -> None:
    pytest.importorskip("torchao")
    one, again = trained(before), fresh(after, owned=(2, 3))
    again.load_moments(one.moments())
    again.own((1, 2))  # expert 1 waited in the form it came in
    state = [o._adam.state[piece.values]["exp_avg"] for o in (one, again) for piece in o._owned[:1]]
    plain = [moment.dequantize() if hasattr(moment, "codes") else moment for moment in state]
    assert plain[0].any()
    assert (plain[1] - plain[0]).norm() < 0.02 * plain[0].norm()


def test_without_the_library_8_bits_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(
        BadConfiguration, match=r"need torchao .*; install it \(pip install torchao\) or choose 32 bits"
    ):
        fresh(8)
