"""The dashboard: a client of the daemon's control API. It never loads torch, hivemind or libp2p.

look, figures, chart, table   how things are drawn: pure functions to text
feed, recorded                where statuses come from: a daemon, or a recording of one
memory                        what is remembered between two statuses, and the `View` that pages draw
page, panel                   the frames of screens and of their parts
overview, experts, rounds,
peers, exchange, log          the six screens, one page each
header, tabs, scrubber,
asking, help                  what stands around them
app                           puts them together and follows the feed
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tui.feed import Feed
    from tui.recorded import Recording


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
    from tui.feed import LiveFeed

    return await _run(LiveFeed(socket_path, leave_ends_app))


def replay(recording: "Recording", speed: float = 1.0) -> str:
    """Show a recording from its beginning, with a scrubber, at first so many seconds of it in one; says in a sentence
    why it ended."""

    async def play() -> str:
        from tui.recorded import RecordedFeed

        feed = RecordedFeed(recording)
        feed.set_speed(speed)
        return await _run(feed)

    return asyncio.run(play())


async def _run(feed: "Feed") -> str:
    from tui.app import Dashboard, ended_by_signals  # so that `can_draw` costs no import of Textual

    with _alone_on_the_terminal():
        app = Dashboard(feed)
        with ended_by_signals(app):
            return await app.run_async() or "ended"


@contextlib.contextmanager
def _alone_on_the_terminal() -> Iterator[None]:
    """Textual draws on standard error, where C++ libraries print too: it gets a way of its own there, and they none."""
    if not (sys.__stderr__ and sys.__stderr__.isatty()):
        yield
        return
    before = sys.__stderr__
    screen = os.fdopen(os.dup(before.fileno()), "w", encoding=before.encoding, errors=before.errors)
    before.flush()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), before.fileno())
    sys.__stderr__ = screen  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = before  # type: ignore[misc]
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.dup2(screen.fileno(), before.fileno())
            screen.close()
