"""What comes of many seeds, on all cores. The workers import this by its name, which a `__main__` does not have."""

import contextlib
import gc
import multiprocessing
import signal
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType

from .invariants import Violation
from .scenario import Outcome, random_run

_MOST_CPU_SECONDS = 180.0  # of one seed; it takes a fraction of a second
_MOST_SECONDS = 1200.0  # for the next seed's result, whatever a worker does


class _Endless(Exception):
    """A run that will not end."""


def checked(seed: int) -> Outcome | str:
    """What came of this seed, or what is violated in it."""
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_CPU_SECONDS)
    try:
        return random_run(seed)
    except Violation as violation:
        return str(violation)
    except Exception:  # the program or the simulator is wrong: the seed says where
        return f"seed {seed}: {traceback.format_exc()}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        gc.collect()


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise _Endless(f"still running after {_MOST_CPU_SECONDS:.0f} s of a core")


def check(seeds: Iterable[int], num_processes: int | None = None) -> Iterator[Outcome | str]:
    """What came of these seeds, in their order, on all cores; `TimeoutError` when none comes any more."""
    # Fresh interpreters: a fork of a process that has run gRPC and threads inherits its locks, held by nobody, and its
    # heap, which every collection then copies. A run itself makes no cycles worth looking for while it lasts.
    with multiprocessing.get_context("spawn").Pool(num_processes, initializer=gc.disable) as pool:
        results = pool.imap(checked, seeds)
        with contextlib.suppress(StopIteration):
            while True:
                yield results.next(_MOST_SECONDS)
