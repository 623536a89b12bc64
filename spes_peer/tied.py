"""Ties a process to its parent: `python -m spes_peer.tied MODULE PARENT` is how a child starts.

It is tied before it becomes `MODULE`, whose imports take seconds: a parent that is killed meanwhile leaves nothing
behind.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Get signal `number` when the parent ends, whatever ends it. Only Linux can; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def _main(module: str, parent: int) -> None:
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the parent is gone already")
    sys.argv[1:] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
