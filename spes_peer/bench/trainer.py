"""`spes-peer bench trainer`: what our trainer costs against other ways to compute the same.

All ratios are ours/other, so smaller is better. Time is the median of runs in turns; memory is the peak of allocated
tensors. The code measured is the code that trains.
"""

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from spes_peer.bench.measure import interleaved_seconds, peak_bytes
from spes_peer.bench.report import write_report
from spes_peer.bench.rivals import IMPLEMENTATIONS, OfficialExperts, full_logits_loss, transformers_model
from spes_peer.errors import BadConfiguration
from spes_peer.model.decoder import Decoder, compute_dtype_of
from spes_peer.model.experts import ExpertWeights, Routes, routed_experts
from spes_peer.model.losses import Routing, head_losses, route
from spes_peer.model.resident import ExpertMatrix, Precision
from spes_peer.run.manifest import Model, Training, parse_run_file
from spes_peer.run.presets import PRESETS
from spes_peer.training.optimizer import LocalOptimizer

_STD = 0.02
_LR = 1e-4


@dataclass(frozen=True)
class _Size:
    """How much is measured: enough for stable ratios in three minutes of two cores, or just enough to see it run."""

    layer_tokens: int
    step_tokens: int
    num_layers: int
    head_tokens: int
    memory_tokens: int
    num_repeats: int


_FULL = _Size(layer_tokens=2048, step_tokens=256, num_layers=4, head_tokens=512, memory_tokens=2048, num_repeats=3)
_QUICK = _Size(layer_tokens=256, step_tokens=64, num_layers=1, head_tokens=64, memory_tokens=256, num_repeats=1)
_GPU = _Size(layer_tokens=16384, step_tokens=16384, num_layers=4, head_tokens=8192, memory_tokens=8192, num_repeats=10)
_QUICK_VOCABULARY = 4096


def run_bench(options: Namespace) -> dict[str, Any]:
    """Measure, print, and write `options.report` where it is given; gives what is written there.

    Raises `BadConfiguration` for a device that cannot be used or a report that cannot be written."""
    device = _device(options.device)
    run_file = parse_run_file(PRESETS[options.preset], options.preset)
    size = _QUICK if options.quick else _GPU if device.type == "cuda" else _FULL
    model = run_file.model
    if options.quick:
        model = model.model_copy(update={"vocab_rows": min(model.vocab_rows, _QUICK_VOCABULARY)})
    report: dict[str, Any] = {
        "preset": options.preset,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "quick": options.quick,
    }
    torch.manual_seed(0)
    print(f"{options.preset} on {report['device']}; ratios are ours/other, smaller is better", flush=True)
    for measure in (_measure_layer, _measure_head, _measure_step):
        for name, value in measure(model, run_file.training, size, device):
            report[name] = value
            print(f"  {name:<28} {value:.3f}" if isinstance(value, float) else f"  {name:<28} {value}", flush=True)
    if options.report:
        write_report(options.report, report)
    return report


Figures = Iterator[tuple[str, float | str]]


def _measure_layer(model: Model, training: Training, size: _Size, device: torch.device) -> Figures:
    """One layer's experts, forward and backward: ours with 1/N owned, ours with all, and the official style."""
    num_owned = model.num_experts // training.num_subsets
    dtype = compute_dtype_of(device)
    values = [
        torch.randn(model.num_experts, rows, columns, device=device) * _STD
        for rows, columns in ((model.expert_hidden, model.d_model),) * 2 + ((model.d_model, model.expert_hidden),)
    ]
    x_ND = torch.randn(size.layer_tokens, model.d_model, device=device, dtype=dtype, requires_grad=True)
    router_ED = torch.randn(model.num_experts, model.d_model, device=device) * _STD
    with torch.no_grad():
        routing = route(x_ND, router_ED, model.top_k, model.renormalize_top_k)
    pull_ND = torch.randn_like(x_ND)
    official = OfficialExperts((values[0], values[1], values[2]), num_owned)
    own, full = (_expert_weights(values, number, dtype) for number in (num_owned, model.num_experts))
    del values

    def step(forward: Callable[[], Tensor], parameters: list[Parameter]) -> Callable[[], None]:
        def run() -> None:
            for parameter in parameters:
                parameter.grad = None
            x_ND.grad = None
            forward().backward(pull_ND)  # type: ignore[no-untyped-call]

        return run

    calls = {
        "official": step(lambda: official(x_ND, routing), list(official.parameters())),
        "full": step(lambda: _ours(x_ND, routing, full), list(_masters(full))),
        "own": step(lambda: _ours(x_ND, routing, own), list(_masters(own))),
    }
    seconds = interleaved_seconds(calls, 2 * size.num_repeats + 1, device)
    yield "own_vs_full", seconds["own"] / seconds["full"]
    yield "own_vs_official_layer", seconds["own"] / seconds["official"]
    yield "layer_seconds", seconds["own"]


def _expert_weights(values: list[Tensor], num_owned: int, dtype: torch.dtype) -> ExpertWeights:
    precision: Precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    matrices = []
    for each in values:
        matrix = ExpertMatrix((each.shape[0], each.shape[1], each.shape[2]), precision, each.device)
        for slot, value in enumerate(each):
            matrix.store(slot, value)
        matrix.own([], num_owned)
        matrices.append(matrix)
    return ExpertWeights(*matrices)


def _masters(weights: ExpertWeights) -> Iterator[Parameter]:
    return (matrix.master for matrix in weights.matrices() if matrix.master is not None)


def _ours(x_ND: Tensor, routing: Routing, weights: ExpertWeights) -> Tensor:
    for matrix in weights.matrices():
        matrix.publish()
    return routed_experts(x_ND, routing.gate_NK, Routes.of(routing.expert_NK, weights.w1.shape[0]), weights)


def _measure_head(model: Model, training: Training, size: _Size, device: torch.device) -> Figures:
    """Output head and loss with z, forward and backward: ours in chunks, against all logits at once."""
    dtype = compute_dtype_of(device)
    head_VD = Parameter(torch.randn(model.vocab_rows, model.d_model, device=device) * _STD)

    def calls(num_tokens: int) -> dict[str, Callable[[], None]]:
        x_ND = torch.randn(num_tokens, model.d_model, device=device, dtype=dtype, requires_grad=True)
        target_N = torch.randint(model.vocab_rows, (num_tokens,), device=device)

        def chunked() -> None:
            head_losses(x_ND, head_VD, target_N, training.z_loss).total.backward()  # type: ignore[no-untyped-call]
            x_ND.grad = head_VD.grad = None

        def full() -> None:
            full_logits_loss(x_ND, head_VD.to(dtype), target_N, training.z_loss).backward()  # type: ignore[no-untyped-call]
            x_ND.grad = head_VD.grad = None

        return {"full": full, "chunked": chunked}

    seconds = interleaved_seconds(calls(size.head_tokens), size.num_repeats, device)
    # of more tokens, once: the gradient of the head is a fixed part of both
    full_bytes, chunked_bytes = (peak_bytes(call, device) for call in calls(size.memory_tokens).values())
    yield "head_time_ratio", seconds["chunked"] / seconds["full"]
    yield "head_bytes_ratio", chunked_bytes / full_bytes
    yield "head_seconds", seconds["chunked"]
    yield "head_megabytes", chunked_bytes / 1e6


def _measure_step(model: Model, training: Training, size: _Size, device: torch.device) -> Figures:
    """A whole training step with optimizer, of few layers: ours with 1/N owned, against transformers' model."""
    model = model.model_copy(update={"num_layers": min(size.num_layers, model.num_layers)})
    length = min(size.step_tokens, model.sequence_length)
    tokens_BT = torch.randint(model.vocab_rows, (size.step_tokens // length, length), device=device)
    calls = {"ours": _our_step(model, training, tokens_BT)}
    try:
        theirs, version = transformers_model(model, device)
    except ImportError:
        yield "own_vs_transformers", "not measured: transformers is not installed (pip install transformers)"
    else:
        step = _their_step(theirs, training, tokens_BT)
        implementation = _best_implementation(theirs, step, device)
        calls[f"transformers {version}, {implementation}"] = step
    seconds = interleaved_seconds(calls, size.num_repeats, device)
    for name in list(seconds)[1:]:
        yield "own_vs_transformers", seconds["ours"] / seconds[name]
        yield "transformers", name
    yield "step_seconds", seconds["ours"]
    yield "tokens_per_second", tokens_BT.numel() / seconds["ours"]
    flops = step_flops(model, training, tokens_BT.shape[0], tokens_BT.shape[1])
    yield "tflop_per_second", flops / seconds["ours"] / 1e12
    if device.type == "cuda" and (peak := _peak_flops(device)):
        yield "model_flop_utilisation", flops / seconds["ours"] / peak


def _our_step(model: Model, training: Training, tokens_BT: Tensor) -> Callable[[], None]:
    resident: Precision = "bf16" if compute_dtype_of(tokens_BT.device) == torch.bfloat16 else "fp32"
    decoder = Decoder(model, tokens_BT.device, training, resident=resident)
    for parameter in decoder.shared_parameters():
        torch.nn.init.normal_(parameter.data, mean=float(parameter.dim() == 1), std=_STD * (parameter.dim() > 1))
    for matrix in (matrix for layer in decoder.layers for matrix in layer.weights().matrices()):  # type: ignore[operator]
        matrix.values.normal_(std=_STD)
    optimizer = LocalOptimizer(decoder, training)
    optimizer.own(tuple(range(model.num_experts // training.num_subsets)))

    def step() -> None:
        decoder(tokens_BT, tokens_BT).total.backward()
        optimizer.step(_LR)

    return step


def _their_step(theirs: Any, training: Training, tokens_BT: Tensor) -> Callable[[], None]:
    parameters = list(theirs.parameters())
    adam = torch.optim.AdamW(parameters, lr=_LR, weight_decay=training.weight_decay, fused=True)
    is_bf16 = compute_dtype_of(tokens_BT.device) == torch.bfloat16

    def step() -> None:
        with torch.autocast(tokens_BT.device.type, dtype=torch.bfloat16, enabled=is_bf16):
            theirs(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def _best_implementation(theirs: Any, step: Callable[[], None], device: torch.device) -> str:
    def with_(implementation: str) -> Callable[[], None]:
        def run() -> None:
            theirs.set_experts_implementation(implementation)
            step()

        return run

    seconds = interleaved_seconds({name: with_(name) for name in IMPLEMENTATIONS}, 1, device)
    best = min(seconds, key=lambda name: seconds[name])
    theirs.set_experts_implementation(best)
    return best


def step_flops(model: Model, training: Training, batch: int, length: int) -> float:
    """FLOPs that a step must take: 2 for each weight and token that meet, forward and for activation gradients, and
    again for gradients of weights that are trained; and attention's products, halved by the causal mask."""
    width, tokens = model.d_model, batch * length
    kv_width = model.num_kv_heads * model.head_dim
    shared = model.num_layers * width * (2 * width + 2 * kv_width + model.num_experts) + width * model.vocab_rows
    routed = 3 * model.num_layers * model.top_k * width * model.expert_hidden
    attention = 6 * model.num_layers * tokens * length * width
    return 6.0 * tokens * shared + (4.0 + 2.0 / training.num_subsets) * tokens * routed + attention


def _peak_flops(device: torch.device) -> float | None:
    """Dense bf16 peak of cards people have, by the maker's data sheets."""
    name = torch.cuda.get_device_name(device)
    sheets = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12, "3090": 71e12}
    return next((flops for part, flops in sheets.items() if part in name), None)


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name or ("cuda" if torch.cuda.is_available() else "cpu")).device
    except (RuntimeError, AssertionError) as error:
        raise BadConfiguration(f"the device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
