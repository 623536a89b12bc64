"""`spes-peer replay`: a daemon's event log, in the dashboard or in words."""

import argparse
from pathlib import Path
from typing import Any

from spes_peer.cli.parsing import add_data_dir, add_log_level, can_draw, data_dir, sentence
from spes_peer.measures import above_zero


def add_replay(commands: Any) -> argparse.ArgumentParser:
    about = "see again what a daemon did, from its event log"
    parser = commands.add_parser(
        "replay",
        help=about,
        description=f"{sentence(about)} In a terminal the dashboard opens over it: space plays and pauses, left and"
        " right go 10 seconds, with shift a round, + and - change the speed. Elsewhere it is told in words.",
        epilog="example:\n  spes-peer replay\n  spes-peer replay 000000000001.jsonl --speed 20\n"
        "  spes-peer replay --json | jq 'select(.round_closed)'",
    )
    parser.add_argument(
        "recording",
        type=Path,
        nargs="?",
        metavar="FILE|FOLDER",
        help="a file of a state folder's events/, or a state folder (this volunteer's)",
    )
    parser.add_argument(
        "--speed",
        type=above_zero,
        default=1.0,
        metavar="N",
        help="seconds of the log in a second, at first (%(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the events as they are written: a line of JSON each")
    add_data_dir(parser)
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_replay)
    return parser  # type: ignore[no-any-return]


def _replay(options: argparse.Namespace) -> None:
    from spes_peer.events.recording import Recording

    with Recording(options.recording or data_dir(options)) as recording:
        if options.json:
            _print_json(recording)
        elif can_draw():
            import tui

            tui.replay(recording, options.speed)
        else:
            _print_words(recording)


def _print_json(recording: Any) -> None:
    from spes_peer.events.lines import line_of

    for event in recording.events():
        print(line_of(event).decode(), end="")


def _print_words(recording: Any) -> None:
    """What is said again and again, with nothing new in it, is said once."""
    from spes_peer.events.words import in_words, said

    before: dict[str, str] = {}
    for event in recording.events():
        kind, words = event.WhichOneof("kind"), said(event)
        if before.get(kind) != words or not words:
            before[kind] = words
            if lines := in_words(event):
                print(lines)
