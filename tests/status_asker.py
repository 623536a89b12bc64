"""`spes-peer status --json` again and again without its start: a state folder a line in, its status a line out.

A process of its own, for gRPC and the forks by which tests start others cannot share one. It ends with its input.
"""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from spes_peer.cli import main


class StatusAsker:
    """Asks; started with the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, folder: Path) -> dict[str, Any]:
        """What the daemon on this folder says of itself; empty while it does not answer."""
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, __file__]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(folder, file=self._process.stdin, flush=True)
        return dict(json.loads(self._process.stdout.readline()))


def _status(folder: str) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(["status", "--json", "--data-dir", folder])
    return dict(json.loads(said.getvalue() or "{}"))


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_status(line.removesuffix("\n"))), flush=True)
