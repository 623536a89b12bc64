"""`spes-peer join` in a terminal: the daemon in a process of its own, the dashboard here as its client.

Closing the dashboard leaves the daemon running; that is the point of having two processes.
"""

import subprocess
import sys
import time
from pathlib import Path

from spes_peer.control import is_live
from spes_peer.errors import ChildFailed

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.1


def start_daemon(arguments: list[str], data_dir: Path) -> "subprocess.Popen[bytes]":
    """Start `spes-peer join …` without a dashboard, its log beside the data folder's; returns when it can be watched.

    A daemon that refuses to start has its reason printed and its exit code raised as `SystemExit`."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir / "daemon.log"
    log_start = log_path.stat().st_size if log_path.exists() else 0
    with log_path.open("ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "spes_peer", *arguments, "--no-tui"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives the dashboard and the terminal
        )
    deadline = time.monotonic() + _START_SECONDS
    while not is_live(data_dir / "control.sock"):
        if daemon.poll() is not None:
            with log_path.open("rb") as log:
                log.seek(log_start)
                lines = log.read().decode(errors="replace").strip().splitlines()
            print(lines[-1] if lines else f"the daemon ended at once; see {log_path}", file=sys.stderr)
            raise SystemExit(daemon.returncode)
        if time.monotonic() > deadline:
            daemon.terminate()
            raise ChildFailed(f"the daemon did not start in {_START_SECONDS:.0f} s; see {log_path}")
        time.sleep(_LOOK_SECONDS)
    return daemon


def join_with_dashboard(arguments: list[str], data_dir: Path) -> int:
    """Start the daemon, show the dashboard until it is closed, and say that the daemon goes on."""
    import tui

    daemon = start_daemon(arguments, data_dir)
    tui.run(data_dir / "control.sock")
    if daemon.poll() is None:
        print(
            f"the daemon goes on training (pid {daemon.pid}); see it again with: spes-peer watch --data-dir {data_dir}"
        )
        print(f"end it with: spes-peer leave --data-dir {data_dir}")
        return 0
    return daemon.returncode
