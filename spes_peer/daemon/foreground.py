"""`spes-peer join` in a terminal: the daemon in a process of its own, the dashboard, if wanted, here as its client.

Closing the dashboard leaves the daemon running; that is the point of having two processes.
"""

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from spes_peer.control import is_live
from spes_peer.errors import BadConfiguration, ChildFailed
from spes_peer.folder import StateFolder
from spes_peer.lock import holder_of
from spes_peer.logs import said_last

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.1


def start_daemon(arguments: list[str], data_dir: Path) -> "subprocess.Popen[bytes]":
    """Start `spes-peer join …` without a dashboard, its log in the state folder; returns when it can be watched.

    A daemon that refuses to start has its reason printed and its exit code raised as `SystemExit`."""
    refuse_second(data_dir)
    log_path = log_of(data_dir)
    log_start = log_path.stat().st_size if log_path.exists() else 0
    with log_path.open("ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "spes_peer", *arguments, "--no-tui"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives the dashboard and the terminal
        )
    try:
        _wait_until_live(daemon, data_dir)
    except BaseException:
        daemon.terminate()  # it has a session of its own: a Ctrl-C here does not reach it
        raise
    if daemon.poll() is not None:
        with log_path.open("rb") as log:
            log.seek(log_start)
            lines = log.read().decode(errors="replace").strip().splitlines()
        print(said_last(lines) or f"the daemon ended at once; see {log_path}", file=sys.stderr)
        raise SystemExit(daemon.returncode)
    return daemon


def refuse_second(data_dir: Path) -> None:
    """`BadConfiguration` where a daemon has the folder already."""
    pid = holder_of(data_dir)
    if pid or is_live(data_dir / "control.sock"):
        raise BadConfiguration(
            f"already running (pid {pid or 'unknown'}) on {data_dir}; see it with: spes-peer watch{_option(data_dir)};"
            " for a second volunteer name another folder with --data-dir"
        )


def _wait_until_live(daemon: "subprocess.Popen[bytes]", data_dir: Path) -> None:
    """Until it can be watched, or has ended."""
    deadline = time.monotonic() + _START_SECONDS
    while daemon.poll() is None and not is_live(data_dir / "control.sock"):
        if time.monotonic() > deadline:
            raise ChildFailed(f"the daemon did not start in {_START_SECONDS:.0f} s; see {log_of(data_dir)}")
        time.sleep(_LOOK_SECONDS)


def log_of(data_dir: Path) -> Path:
    """Where a daemon that was started for a dashboard logs; makes the folder, or refuses as the daemon would."""
    return StateFolder(data_dir).daemon_log


def _print_what_next(data_dir: Path) -> None:
    print(f"  see it again:  spes-peer watch{_option(data_dir)}")
    print(f"  end it:        spes-peer leave{_option(data_dir)}")


def _option(data_dir: Path) -> str:
    """The option that names this folder to another command."""
    return f" --data-dir {shlex.quote(str(data_dir))}"


def join_detached(arguments: list[str], data_dir: Path) -> int:
    """Start the daemon and say how it is seen again."""
    daemon = start_daemon(arguments, data_dir)
    print(f"the daemon runs (pid {daemon.pid})")
    _print_what_next(data_dir)
    return 0


def join_with_dashboard(arguments: list[str], data_dir: Path) -> int:
    """Start the daemon, show the dashboard until it is closed, and say what became of the daemon."""
    import tui

    print("starting…", end="\r", flush=True)
    daemon = start_daemon(arguments, data_dir)
    reason = tui.run(data_dir / "control.sock")
    is_daemons_end = reason.startswith("the daemon")
    if is_daemons_end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(_STOP_SECONDS)
    pid = str(daemon.pid) if daemon.poll() is None else holder_of(data_dir)  # another may have been started since
    if pid:
        print(f"the daemon goes on (pid {pid})")
        _print_what_next(data_dir)
        return 0
    if daemon.returncode:
        print(f"the daemon {_end_of(daemon.returncode)}; see {log_of(data_dir)}", file=sys.stderr)
    else:
        print(reason if is_daemons_end else "the daemon has ended")
    return max(daemon.returncode, 1) if daemon.returncode else 0


def _end_of(code: int) -> str:
    """In plain words: what is below zero is the signal that ended it."""
    if code == -signal.SIGKILL:
        return "was killed by the system (SIGKILL); perhaps there was too little memory"
    if code < 0:
        return f"was ended by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    return f"ended with code {code}"
