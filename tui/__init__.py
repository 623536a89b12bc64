"""The dashboard: a client of the daemon's control API. It never loads torch, hivemind or libp2p.

look, figures, chart, table   how things are drawn: pure functions to text
memory                        what is remembered between two statuses, and the `View` that panels draw
header, experts, training,
peers, rounds, log, help      one widget each
app                           puts them together and follows the daemon
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import TextIO


def can_draw(stdout: TextIO) -> bool:
    """Whether a full screen makes sense here. Textual draws on standard error and reads keys from standard input."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (stdout, sys.stdin, sys.stderr))
    return is_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb")


def run(socket_path: Path, leave_ends_app: bool = True) -> str:
    """Show the daemon behind `socket_path` until detached; says in a sentence why it ended.

    With `leave_ends_app` the dashboard also ends when the daemon leaves or finishes the run; it waits for a next
    daemon otherwise. SIGTERM and SIGHUP end it with the terminal restored.
    """
    return asyncio.run(run_async(socket_path, leave_ends_app))


async def run_async(socket_path: Path, leave_ends_app: bool = True) -> str:
    """`run` for a program that has an event loop already, in its main thread."""
    from tui.app import Dashboard, ended_by_signals  # so that `can_draw` costs no import of Textual

    app = Dashboard(socket_path, leave_ends_app=leave_ends_app)
    with ended_by_signals(app):
        return await app.run_async() or "ended"
