"""What an experiment ran on: versions and the machine."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from spes_peer import __version__
from spes_peer.files import write_whole

_PACKAGES = ("torch", "numpy", "matplotlib")
_GIT_SECONDS = 5.0


def describe(jobs: int) -> dict[str, Any]:
    """Versions, the machine, and threads of each cell."""
    return {
        "spes_peer": __version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        **{package: _version(package) for package in _PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "cells_at_a_time": jobs,
        "threads_per_cell": 1,
    }


def add_invocation(path: Path, about: dict[str, Any], started: str, seconds: float, num_cells_run: int) -> None:
    """Append to the list in the file at `path`: an experiment that was resumed has several."""
    try:
        invocations = json.loads(path.read_bytes())["invocations"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        invocations = []
    invocations.append({**about, "started": started, "seconds": round(seconds, 1), "cells_run": num_cells_run})
    write_whole(path, json.dumps({"invocations": invocations}, indent=1).encode() + b"\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the checkout that this program runs from, `+` when it is changed; None where it does not run from one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
