"""Time and memory of calls, on a CPU or a GPU."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.profiler import ProfilerActivity, profile


def interleaved_seconds(
    calls: Mapping[str, Callable[[], object]],
    num_repeats: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each call, by the clock. All run once first, then in turns: what else the machine does meets
    all. `time.process_time` counts what the calls take of a CPU, and not their waiting for one."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(num_repeats + 1):
        for name, call in calls.items():
            elapsed = _seconds(call, device, clock)
            if repeat:
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _seconds(call: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started_at = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - started_at


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that were allocated at one time during the call, beyond those there were before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with _silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    assert profiled.profiler is not None
    results = profiled.profiler.kineto_results
    assert results is not None
    # allocations and, with a negative size, the ends of them
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    allocated = peak = 0
    for event in events:
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler writes its traces' beginnings and ends there, past Python and without a setting."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
