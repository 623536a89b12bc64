"""The decoder against plain references, and the way in and out of its parameters."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from spes_peer.model import decoder as decoder_module
from spes_peer.model.attention import Rotary
from spes_peer.model.decoder import Decoder
from spes_peer.model.losses import IGNORED_TARGET
from spes_peer.model.resident import Precision
from spes_peer.run.layout import expert_parameters_of, shared_parameters_of
from spes_peer.run.manifest import Model, Training

TRAINING = Training(num_subsets=2, steps_per_round=1, total_steps=10, batch_sequences=2, lr=1e-3, z_loss=1e-3)


def small_model(**changes: object) -> Model:
    values = {
        "vocab_rows": 40,
        "d_model": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 4,
        "num_experts": 6,
        "top_k": 2,
        "expert_hidden": 24,
        "sequence_length": 16,
        "rope_theta": 10_000.0,
    }
    return Model.model_validate({**values, **changes})


OLMOE_LIKE = small_model()
QWEN_LIKE = small_model(num_kv_heads=2, qk_norm="head", renormalize_top_k=True, top_k=3)


def random_groups(model: Model) -> dict[int | None, Tensor]:
    """Far from initial values, so that norms, gates and attention all matter."""
    generator = torch.Generator().manual_seed(11)
    shapes = {None: shared_parameters_of(model)} | dict.fromkeys(range(model.num_experts), expert_parameters_of(model))
    return {
        expert: torch.cat(
            [
                torch.randn(parameter.num_elements, generator=generator) * (0.3 if len(parameter.shape) > 1 else 0.1)
                + (len(parameter.shape) == 1)
                for parameter in parameters
            ]
        )
        for expert, parameters in shapes.items()
    }


def filled(model: Model, groups: dict[int | None, Tensor]) -> Decoder:
    decoder = Decoder(model, "cpu", TRAINING)
    for expert, flat in groups.items():
        decoder.load_group(expert, flat)
    return decoder


def batch(model: Model) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(
        0, model.vocab_rows, (2, model.sequence_length + 1), generator=torch.Generator().manual_seed(5)
    )
    targets = tokens[:, 1:].clone()
    targets[1, 3:7] = IGNORED_TARGET
    return tokens[:, :-1], targets


@dataclass
class Reference:
    """SPES §2 as plainly as can be: all experts for all tokens, full attention matrix, RoPE by complex numbers."""

    model: Model
    groups: dict[int | None, Tensor]

    def named(self, expert: int | None) -> dict[str, Tensor]:
        parameters = shared_parameters_of(self.model) if expert is None else expert_parameters_of(self.model)
        flat = self.groups[expert]
        return {p.name: flat[p.offset : p.offset + p.num_elements].view(p.shape) for p in parameters}

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def rope(self, x: Tensor) -> Tensor:
        half = self.model.head_dim // 2
        frequencies = self.model.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[-2])[:, None] * frequencies
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    def attention(self, x: Tensor, shared: dict[str, Tensor], at: str) -> Tensor:
        m, (b, t, d) = self.model, x.shape
        kv = m.num_kv_heads * m.head_dim
        q, k, v = (x @ w.T for w in shared[at + "qkv"].split([d, kv, kv]))
        if m.qk_norm == "width":
            q, k = self.norm(q, shared[at + "q_norm"]), self.norm(k, shared[at + "k_norm"])
        q, k, v = (y.view(b, t, -1, m.head_dim).transpose(1, 2) for y in (q, k, v))
        if m.qk_norm == "head":
            q, k = self.norm(q, shared[at + "q_norm"]), self.norm(k, shared[at + "k_norm"])
        k, v = (y.repeat_interleave(m.num_heads // m.num_kv_heads, 1) for y in (k, v))
        scores = self.rope(q) @ self.rope(k).transpose(-1, -2) / m.head_dim**0.5
        hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(b, t, d) @ shared[at + "attention_out"].T

    def experts(self, x: Tensor, gates: Tensor, at: str) -> Tensor:
        total = torch.zeros_like(x)
        for expert in range(self.model.num_experts):
            own = self.named(expert)
            hidden = functional.silu(x @ own[at + "w1"].T) * (x @ own[at + "v1"].T)
            total = total + gates[..., expert, None] * (hidden @ own[at + "w2"].T)
        return total

    def total(self, tokens: Tensor, targets: Tensor) -> Tensor:
        m, shared = self.model, self.named(None)
        x, balance, router_z = shared["embedding"][tokens], 0.0, 0.0
        for at in (f"layers.{layer}." for layer in range(m.num_layers)):
            x = x + self.attention(self.norm(x, shared[at + "attention_norm"]), shared, at)
            normed = self.norm(x, shared[at + "ffn_norm"])
            logits = normed @ shared[at + "router"].T
            p = logits.softmax(-1)
            chosen = torch.zeros_like(p).scatter(-1, p.topk(m.top_k).indices, 1.0)
            gates = p * chosen
            if m.renormalize_top_k:
                gates = gates / gates.sum(-1, keepdim=True)
            balance = balance + (chosen.sum((0, 1)) * p.mean((0, 1))).sum()
            router_z = router_z + logits.logsumexp(-1).square().mean()
            x = x + self.experts(normed, gates, at)
        logits = self.norm(x, shared["final_norm"]) @ shared["head"].T
        z = logits.logsumexp(-1).square()[targets != IGNORED_TARGET].mean()
        ce = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET)
        balance = balance * m.num_experts / (m.num_layers * tokens.numel() * m.top_k)
        return ce + 1e-3 * z + 0.01 * balance + 0.001 * router_z


@pytest.mark.parametrize("owned", [(), (1, 4), tuple(range(6))])
@pytest.mark.parametrize("model", [OLMOE_LIKE, QWEN_LIKE], ids=["width", "head, gqa, renormalized"])
def test_loss_and_gradients_equal_a_plain_reference(model: Model, owned: tuple[int, ...]) -> None:
    """The reference runs in float64; 5e-6 is fp32 through two layers, relative to each gradient's norm."""
    groups = random_groups(model)
    decoder = filled(model, groups)
    decoder.own(owned)
    found = decoder(*batch(model))
    found.total.backward()

    leaves = {expert: flat.double().requires_grad_() for expert, flat in groups.items()}
    wanted = Reference(model, leaves).total(*batch(model))
    wanted.backward()

    assert found.total.item() == pytest.approx(wanted.item(), rel=1e-6)
    shared_gradient = torch.cat([p.grad.flatten() for p in decoder.shared_parameters()])
    _assert_near(shared_gradient, leaves[None].grad, [p.num_elements for p in shared_parameters_of(model)])
    for row, expert in enumerate(owned):
        gradient = torch.cat([p.grad[row].flatten() for p in decoder.owned_parameters()])
        _assert_near(gradient, leaves[expert].grad, [p.num_elements for p in expert_parameters_of(model)])
    assert len(list(decoder.parameters())) == len(decoder.shared_parameters()) + len(decoder.owned_parameters())


def _assert_near(found: Tensor, wanted: Tensor, sizes: list[int]) -> None:
    for part, reference in zip(found.double().split(sizes), wanted.split(sizes), strict=True):
        assert (part - reference).norm() <= 5e-6 * reference.norm()


def test_rope_turns_pairs_by_position_and_keeps_their_length() -> None:
    x = torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(1))
    turned = Rotary(OLMOE_LIKE, torch.device("cpu"))(x)
    torch.testing.assert_close(turned, Reference(OLMOE_LIKE, {}).rope(x.double()).float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


PUBLISHED = {
    # SPES §2: shared ψ, all experts Φ, one expert index
    "1B": (
        small_model(
            vocab_rows=151665,
            d_model=768,
            num_layers=12,
            num_heads=12,
            num_kv_heads=12,
            num_experts=16,
            expert_hidden=2048,
        ),
        (261_454_080, 905_969_664, 56_623_104),
    ),
    "7B": (
        small_model(
            vocab_rows=151665,
            d_model=2048,
            num_layers=16,
            num_heads=16,
            num_kv_heads=16,
            num_experts=32,
            top_k=4,
            expert_hidden=2048,
        ),
        (890_836_992, 6_442_450_944, 201_326_592),
    ),
    "9B": (
        small_model(
            vocab_rows=151936,
            d_model=2048,
            num_layers=28,
            num_heads=16,
            num_kv_heads=8,
            num_experts=8,
            expert_hidden=6144,
            qk_norm="head",
        ),
        (975_234_048, 8_455_716_864, 1_056_964_608),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    model, (num_shared, num_experts_all, num_per_expert) = PUBLISHED[name]
    decoder = Decoder(model, "meta", TRAINING)
    assert sum(p.numel() for p in decoder.shared_parameters()) == num_shared
    assert sum(m.values.numel() for layer in decoder.layers for m in layer.weights().matrices()) == num_experts_all
    decoder.own((3,))
    assert sum(p.numel() for p in decoder.owned_parameters()) == num_per_expert


@pytest.mark.parametrize("model", [OLMOE_LIKE, QWEN_LIKE])
def test_shared_parameters_are_those_of_the_layout(model: Model) -> None:
    found = [tuple(p.shape) for p in Decoder(model, "meta", TRAINING).shared_parameters()]
    assert found == [p.shape for p in shared_parameters_of(model)]


def test_groups_come_out_as_they_went_in() -> None:
    groups = random_groups(QWEN_LIKE)
    decoder = filled(QWEN_LIKE, groups)
    decoder.own((4, 2))
    assert torch.equal(decoder.flatten_shared(), groups[None])
    assert torch.equal(decoder.flatten_master(2), groups[2])
    assert torch.equal(decoder.flatten_master(4), groups[4])
    decoder.own((5,))  # a new master has what was resident
    assert torch.equal(decoder.flatten_master(5), groups[5])


def test_owned_experts_keep_their_masters_while_groups_and_ownership_change() -> None:
    groups = random_groups(OLMOE_LIKE)
    decoder = filled(OLMOE_LIKE, groups)
    decoder.own((1, 4))
    decoder.load_master(1, groups[5])
    decoder.load_group(1, groups[3])
    decoder.own((0, 1))
    assert torch.equal(decoder.flatten_master(1), groups[5])
    assert torch.equal(decoder.flatten_master(0), groups[0])
    decoder.own((2, 3))
    decoder.load_group(1, groups[4])
    decoder.own((1,))
    assert torch.equal(decoder.flatten_master(1), groups[4])
    decoder.own(())
    assert decoder.owned_parameters() == []


def test_losses_do_not_depend_on_which_experts_were_owned_in_which_order() -> None:
    groups = random_groups(OLMOE_LIKE)
    decoder = filled(OLMOE_LIKE, groups)
    before = decoder(*batch(OLMOE_LIKE)).total.item()
    for owned in ((5, 0), (3,), (2, 3, 1), tuple(range(5, -1, -1)), ()):
        decoder.own(owned)
        assert decoder.owned == owned
        assert decoder(*batch(OLMOE_LIKE)).total.item() == pytest.approx(before, rel=1e-6)  # other slots, other sums


def test_a_master_is_what_its_expert_computes_with() -> None:
    groups = random_groups(OLMOE_LIKE)
    decoder = filled(OLMOE_LIKE, groups)
    before = decoder(*batch(OLMOE_LIKE)).total.item()
    decoder.own((0,))
    decoder.load_group(0, groups[0] * 7)
    assert decoder(*batch(OLMOE_LIKE)).total.item() == before
    decoder.load_master(0, groups[0] * 7)
    assert decoder(*batch(OLMOE_LIKE)).total.item() != before


@pytest.mark.parametrize("experts", [(6,), (-1,), (2, 2)])
def test_experts_that_are_not_there_cannot_be_owned(experts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="experts"):
        Decoder(OLMOE_LIKE, "meta", TRAINING).own(experts)


def test_a_batch_without_targets_has_loss_zero_and_finite_gradients() -> None:
    decoder = filled(OLMOE_LIKE, random_groups(OLMOE_LIKE))
    tokens, targets = batch(OLMOE_LIKE)
    losses = decoder(tokens, torch.full_like(targets, IGNORED_TARGET))
    losses.total.backward()
    assert losses.ce.item() == losses.z.item() == 0
    assert all(p.grad.isfinite().all() for p in decoder.shared_parameters())


def test_evenly_spread_tokens_have_load_balance_one() -> None:
    groups = random_groups(OLMOE_LIKE)
    for parameter in shared_parameters_of(OLMOE_LIKE):
        if parameter.name.endswith("router"):
            groups[None][parameter.offset : parameter.offset + parameter.num_elements] = 0
    losses = filled(OLMOE_LIKE, groups)(*batch(OLMOE_LIKE))
    assert losses.load_balance.item() == pytest.approx(1.0)  # whatever the counts: all probabilities are 1/E
    assert losses.router_z.item() == pytest.approx(OLMOE_LIKE.num_layers * torch.tensor(6.0).log().item() ** 2)


def _trained(owned: tuple[int, ...], num_steps: int = 30) -> tuple[list[float], Decoder]:
    torch.manual_seed(0)
    decoder = Decoder(small_model(), "cpu", TRAINING)
    text = torch.tensor([list(b"to be or not to be"[:17])]) % 40
    for parameter in decoder.shared_parameters():
        torch.nn.init.normal_(parameter.data, mean=float(parameter.dim() == 1), std=0.05)
    for expert in range(6):
        decoder.load_group(expert, torch.randn(sum(p.num_elements for p in expert_parameters_of(small_model()))) * 0.05)
    decoder.own(owned)
    parameters = decoder.shared_parameters() + decoder.owned_parameters()
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = decoder(text[:, :-1], text[:, 1:])
        loss.total.backward()
        optimizer.step()
        losses.append(loss.ce.item())
    return losses, decoder


def test_a_repeated_text_is_learnt_and_frozen_experts_stay() -> None:
    _, untrained = _trained((0, 1), num_steps=0)
    losses, decoder = _trained((0, 1))
    assert losses[0] > 3
    assert losses[-1] < 0.5
    assert not torch.equal(decoder.flatten_master(0), untrained.flatten_master(0))
    decoder.own(())
    decoder.own((2,))
    assert torch.equal(decoder.flatten_master(2), _resident(untrained, 2))


def _resident(decoder: Decoder, expert: int) -> Tensor:
    decoder.own((expert,))
    return decoder.flatten_master(expert)


def test_training_twice_gives_the_same_bits() -> None:
    first_losses, first = _trained((0, 1))
    second_losses, second = _trained((0, 1))
    assert first_losses == second_losses
    assert torch.equal(first.flatten_shared(), second.flatten_shared())
    assert torch.equal(first.flatten_master(1), second.flatten_master(1))


@pytest.mark.parametrize("resident", ["fp32", "int8"])
def test_checkpointing_layers_changes_no_number(resident: Precision) -> None:
    def gradients(checkpointing: bool) -> list[Tensor]:
        decoder = Decoder(QWEN_LIKE, "cpu", TRAINING, resident=resident, checkpointing=checkpointing)
        for expert, flat in random_groups(QWEN_LIKE).items():
            decoder.load_group(expert, flat)
        decoder.own((1, 2))
        total = decoder(*batch(QWEN_LIKE)).total
        total.backward()
        choices = torch.tensor(decoder.take_router_choices())
        return [total, choices, *(p.grad for p in decoder.shared_parameters() + decoder.owned_parameters())]

    for plain, again in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(plain, again)


@pytest.mark.parametrize("resident", ["bf16", "int8"])
def test_masters_stay_exact_whatever_the_resident_precision(resident: Precision) -> None:
    groups = random_groups(OLMOE_LIKE)
    decoder = Decoder(OLMOE_LIKE, "cpu", TRAINING, resident=resident)
    for expert, flat in groups.items():
        decoder.load_group(expert, flat)
    decoder.own((1,))
    assert torch.allclose(decoder.flatten_master(1), groups[1], atol=0.02)
    decoder.load_master(1, groups[1])
    decoder.own((4, 1))
    assert torch.equal(decoder.flatten_master(1), groups[1])


@pytest.mark.parametrize("resident", ["fp32", "bf16"])
def test_computing_in_bf16_sees_masters_as_they_are_now(resident: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the experts from one bf16 tensor into which masters are published, or converted one by one."""
    model = small_model(top_k=6)  # all experts: else a few of the tokens take another route in bf16
    groups = random_groups(model)
    exact = filled(model, groups)
    monkeypatch.setattr(decoder_module, "compute_dtype_of", lambda _device: torch.bfloat16)
    found = Decoder(model, "cpu", TRAINING, resident=resident)
    for expert, flat in groups.items():
        found.load_group(expert, flat)
    for scale in (1.0, 1.5):
        for decoder in (exact, found):
            decoder.own((0, 3))
            decoder.load_master(0, groups[0] * scale)
            decoder.zero_grad()
            decoder(*batch(model)).total.backward()
        for ours, reference in zip(found.owned_parameters(), exact.owned_parameters(), strict=True):
            assert ours.grad.dtype == torch.float32
            assert (ours.grad - reference.grad).norm() <= 0.05 * reference.grad.norm()  # bf16; 0.3 with old masters
    assert found(*batch(model)).ce.item() == pytest.approx(exact(*batch(model)).ce.item(), rel=0.02)


@pytest.mark.parametrize(("resident", "cost"), [("bf16", 2e-3), ("int8", 5e-3), ("int4", 5e-2)])
def test_frozen_experts_of_a_trained_model_cost_little_loss(resident: Precision, cost: float) -> None:
    """In nats. A model this narrow feels rounding most: the demo loses less than 3e-4 in any (docs/LOG.md)."""
    _, trained = _trained(tuple(range(6)))
    text = torch.tensor([list(b"to be or not to be"[:17])]) % 40
    rounded = Decoder(trained.model, "cpu", TRAINING, resident=resident)
    rounded.load_group(None, trained.flatten_shared())
    for expert in range(6):
        rounded.load_group(expert, trained.flatten_master(expert))
    losses = [decoder(text[:, :-1], text[:, 1:]).ce.item() for decoder in (trained, rounded)]
    assert 0 < abs(losses[1] - losses[0]) < cost
