"""`spes-peer bench sync`: how fast one core does what is done to blocks, as GB/s of fp32 values.

Beside a plain copy of the same block: what memory allows. Time is CPU time, the median of runs in turns. The code
measured is the code that synchronizes.
"""

import contextlib
import platform
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy
import torch
from torch import Tensor

from spes_peer.bench.measure import interleaved_seconds
from spes_peer.bench.report import write_report
from spes_peer.blobs import BlobName, digests_of, name_of
from spes_peer.identity import PeerId
from spes_peer.run.encodings import Encoding, Format
from spes_peer.run.layout import Block, Layout
from spes_peer.run.manifest import Manifest, Sync, parse_run_file
from spes_peer.run.offers import ReduceInput
from spes_peer.run.presets import PRESETS
from spes_peer.run.records import BlockId
from spes_peer.sync.encoding import decode, encode, rounded
from spes_peer.sync.merge import merge_experts
from spes_peer.sync.outer import outer_step
from spes_peer.sync.reduce import norm, reduce_offers
from spes_peer.sync.state import PublicState

_ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
_NUM_OFFERS = 4
_ALPHA = 0.05


@dataclass(frozen=True)
class _Size:
    block_elements: int
    expert_hidden: int
    """Of a layer of the 1B model, whose 16 experts are merged."""
    num_repeats: int


_FULL = _Size(block_elements=16 << 20, expert_hidden=2048, num_repeats=7)  # the largest block there may be
_QUICK = _Size(block_elements=64 << 10, expert_hidden=16, num_repeats=1)

Call = tuple[Callable[[], object], int]
"""And how many values it reads, as fp32."""


def run_bench(options: Namespace) -> dict[str, Any]:
    """Measure, print, and write `options.report` where it is given; gives what is written there.

    Raises `BadConfiguration` for a report that cannot be written."""
    size = _QUICK if options.quick else _FULL
    values = torch.randn(size.block_elements, generator=torch.Generator().manual_seed(0)) * 1e-3
    contents = {encoding: encode(Format(encoding), values) for encoding in _ENCODINGS}
    with _one_thread():
        block_rates = _rates(_block_calls(values, contents), size.num_repeats)
        state_rates = _rates(_state_calls(size), size.num_repeats)
    report: dict[str, Any] = {
        "block_elements": size.block_elements,
        "threads": 1,
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "quick": options.quick,
        "bytes_ratio": {encoding: 4 * values.numel() / len(content) for encoding, content in contents.items()},
        "gigabytes_per_second": block_rates | state_rates,
    }
    print(table(report), flush=True)
    if options.report:
        write_report(options.report, report)
    return report


def table(report: dict[str, Any]) -> str:
    """For a person."""
    rates, ratios = report["gigabytes_per_second"], report["bytes_ratio"]
    lines = [
        f"blocks of {report['block_elements']:,} values, one core; GB/s of fp32 values, larger is better",
        f"{'':<24}" + "".join(f"{encoding:>8}" for encoding in ratios),
        f"{'fp32 bytes / its bytes':<24}" + "".join(f"{ratio:>8.2f}" for ratio in ratios.values()),
    ]
    verbs = {"encode": "encode", "decode": "decode", "reduce": f"average {_NUM_OFFERS} offers"}
    for verb, words in verbs.items():
        lines.append(f"{words:<24}" + "".join(f"{rates[f'{verb} {encoding}']:>8.2f}" for encoding in ratios))
    rest = {name: rate for name, rate in rates.items() if name.split()[0] not in verbs}
    return "\n".join([*lines, "", *(f"{name:<24}{rate:>8.2f}" for name, rate in rest.items())])


def _rates(calls: dict[str, Call], num_repeats: int) -> dict[str, float]:
    """Of each call, GB/s."""
    only_calls = {name: call for name, (call, _) in calls.items()}
    seconds = interleaved_seconds(only_calls, num_repeats, torch.device("cpu"), time.process_time)
    return {name: 4 * num_values / seconds[name] / 1e9 for name, (_, num_values) in calls.items()}


def _block_calls(values: Tensor, contents: dict[Encoding, bytes]) -> dict[str, Call]:
    num_values, copy = values.numel(), torch.empty_like(values)
    calls: dict[str, Call] = {
        "copy": (lambda: copy.copy_(values), num_values),
        "numpy to float16": (lambda: values.numpy().astype(numpy.float16), num_values),
    }
    for encoding, content in contents.items():
        format = Format(encoding)
        calls[f"encode {encoding}"] = (lambda format=format: encode(format, values), num_values)  # type: ignore[misc]
        calls[f"decode {encoding}"] = (_decoding(format, content, num_values), num_values)
        calls[f"reduce {encoding}"] = (_reducing(format, content, num_values), _NUM_OFFERS * num_values)
    calls["name as a blob (sha256)"] = (lambda: name_of(digests_of(contents["fp32"])), num_values)
    calls["outer step, nesterov"] = (_outer_stepping(values), num_values)
    return calls


def _decoding(format: Format, content: bytes, num_values: int) -> Callable[[], object]:
    return lambda: decode(format, content, num_values)


def _reducing(format: Format, content: bytes, num_values: int) -> Callable[[], object]:
    blob, claimed = name_of(digests_of(content)), norm(decode(format, content, num_values))
    inputs = [
        ReduceInput(PeerId(f"peer {index}"), blob, len(content), claimed, tokens=1000 + index, clip=1.0)
        for index in range(_NUM_OFFERS)
    ]

    def read(_: BlobName) -> bytes:
        return content

    def reduce() -> None:
        reduced = reduce_offers(format, num_values, inputs, read)
        assert reduced is not None
        assert not reduced.rejected

    return reduce


def _outer_stepping(delta: Tensor) -> Callable[[], object]:
    sync = Sync(block_elements=delta.numel(), shared_outer="nesterov")
    block = Block(BlockId("shared/0000"), None, 0, delta.numel())
    momentum = torch.zeros_like(delta)
    return lambda: outer_step(sync, block, delta, momentum)


def _state_calls(size: _Size) -> dict[str, Call]:
    layout = _layout(size)
    blocks = {
        block.id: rounded(layout.dtype_of(block), torch.randn(block.num_elements) * 0.02)
        for block in layout.state_blocks
    }
    expert_values = layout.manifest.model.num_experts * layout.num_per_expert
    name = f"merge {layout.manifest.model.num_experts} experts"
    return {
        name: (lambda: merge_experts(layout, blocks, _ALPHA, {}), expert_values),
        "state root": (lambda: PublicState(layout, blocks).root(), sum(values.numel() for values in blocks.values())),
    }


def _layout(size: _Size) -> Layout:
    """Of one layer of the 1B model with a small vocabulary. A state needs no more of a manifest than this."""
    run_file = parse_run_file(PRESETS["spes-1b"], "spes-1b")
    changes = {"num_layers": 1, "vocab_rows": 256, "expert_hidden": size.expert_hidden}
    model = run_file.model.model_copy(update=changes)
    return Layout(Manifest.model_construct(model=model, sync=run_file.sync, training=run_file.training))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
