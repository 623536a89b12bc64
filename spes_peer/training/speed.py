"""How fast a device trains a run's model, tried for some seconds with made-up weights and tokens."""

import time
from dataclasses import dataclass

import torch

from spes_peer.data.sampler import Batch
from spes_peer.identity import PeerId
from spes_peer.model.decoder import Decoder
from spes_peer.run.layout import RunLayout
from spes_peer.run.manifest import Manifest
from spes_peer.training.machine import Machine
from spes_peer.training.optimizer import LocalOptimizer
from spes_peer.training.stepping import Stepper
from spes_peer.training.work import OpenTrainer

_STD = 0.02
_SECONDS = 3.0
_MOST_STEPS = 50


@dataclass(frozen=True)
class Speed:
    num_subsets: int
    """That fit."""
    tokens_per_second: float


def measure(manifest: Manifest, device: str) -> Speed:
    """As a trainer would with all subsets that fit; the first step, which prepares much, does not count. `NoDevice`
    where none fits."""
    request = OpenTrainer(manifest.to_bytes(), "", "", device, 0, PeerId(""))
    machine = Machine.of(request, manifest)
    plan, training = machine.plan(manifest), manifest.training
    decoder = Decoder(
        manifest.model, machine.device, training, resident=machine.choices.resident, checkpointing=plan.checkpoints
    )
    _fill(decoder, manifest)
    optimizer = LocalOptimizer(decoder, training, machine.choices.optimizer_bits)
    optimizer.own(tuple(expert for subset in range(plan.num_subsets) for expert in manifest.experts_of(subset)))
    stepper = Stepper(decoder, optimizer, training, plan.micro_batch, may_recompute=True)
    shape = (plan.micro_batch, manifest.model.sequence_length + 1)
    tokens = torch.randint(manifest.model.vocab_rows, shape, device=machine.device)
    batch = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    stepper.step(batch, 0.0)
    began_at, num_steps = time.perf_counter(), 0
    while num_steps < _MOST_STEPS and time.perf_counter() - began_at < _SECONDS:
        stepper.step(batch, 0.0)  # it reads its loss, so it has ended when it returns
        num_steps += 1
    return Speed(plan.num_subsets, num_steps * batch.num_tokens / (time.perf_counter() - began_at))


def _fill(decoder: Decoder, manifest: Manifest) -> None:
    layout = RunLayout(manifest)
    decoder.load_group(None, _STD * torch.randn(layout.num_shared))
    expert_values = _STD * torch.randn(layout.num_per_expert)
    for expert in range(manifest.model.num_experts):
        decoder.load_group(expert, expert_values)
