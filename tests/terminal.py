"""Commands in a terminal, as a person has them: what is shown, and keys that are typed when something shows."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping

DEADLINE_SECONDS = 60.0


def in_a_terminal(
    *arguments: str, answer: str = "", asked: str = "[y/N] ", environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and output of a command that believes a person looks; types `answer` when `asked` has been shown."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "spes_peer", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **(environment or {})},
    )
    os.close(terminal)
    try:
        shown, until, has_answered = b"", time.monotonic() + DEADLINE_SECONDS, False
        while (more := _read(controller)) is not None:
            shown += more
            if not has_answered and asked.encode() in shown:
                os.write(controller, f"{answer}\n".encode())
                has_answered = True
            assert time.monotonic() < until, shown.decode(errors="replace")
        return process.wait(DEADLINE_SECONDS), shown.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def _read(controller: int) -> bytes | None:
    """What has been shown in a moment; None once the terminal is closed by its last program."""
    if not select.select([controller], [], [], 0.2)[0]:
        return b""
    try:
        return os.read(controller, 1 << 16) or None
    except OSError:
        return None
