"""What tensors take at their peak, by torch's own account: every allocation and release of its CPU allocator."""

from collections.abc import Callable
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that was allocated at once while `work` ran, over what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        work()
    events = [event for event in made.profiler.kineto_results.events() if event.name() == "[memory]"]
    return int(max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))))
