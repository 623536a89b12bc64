"""The lock on a state folder: one process uses a folder at a time, and writes its process id into `lock`."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from spes_peer.errors import BadConfiguration

LOCK_FILE = "lock"
_TRIES, _PAUSE_SECONDS = 5, 0.05  # whoever looks whether a daemon runs holds it for a moment


def holder_of(folder: Path) -> str:
    """Process id of the daemon that runs on a folder, "unknown" while it is starting; empty where none runs."""
    try:
        with (folder / LOCK_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "unknown"
    except OSError:
        pass
    return ""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, or refuse and name the one that does."""
    with (folder / LOCK_FILE).open("a+") as file:
        if not _lock(file):
            file.seek(0)
            raise BadConfiguration(
                f"already running (pid {file.read().strip() or 'unknown'}) on {folder};"
                f" use another folder with --data-dir, or end it with: spes-peer leave --data-dir {folder}"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
        file.truncate(0)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """As `locked`, for a command that works on an organizer's folder and then ends."""
    if pid := holder_of(folder):
        raise BadConfiguration(f"another program is at work on {folder} (pid {pid}); wait for it, or end it")
    with locked(folder):
        yield


def _lock(file: IO[str]) -> bool:
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        time.sleep(_PAUSE_SECONDS)
    return False
