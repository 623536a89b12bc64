"""Commands to a daemon that runs, or has run: watch it, ask it, tell it, read its log."""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from spes_peer.cli.parsing import add_data_dir, add_log_level, can_draw, count, data_dir, port, sentence
from spes_peer.errors import UserError

_WEB_PORT = 8321


def add_running(commands: Any) -> list[argparse.ArgumentParser]:
    """All of them."""
    return [
        _add_watch(commands),
        _add_status(commands),
        _add_control(commands, "pause", "take no part in further rounds until resumed", _pause),
        _add_control(commands, "resume", "take part again", _resume),
        _add_leave(commands),
        _add_logs(commands),
    ]


def _add_watch(commands: Any) -> Any:
    about = "open the dashboard of a running daemon; closing it leaves the daemon running"
    parser = commands.add_parser(
        "watch", help=about, description=sentence(about), epilog="example:\n  spes-peer watch\n  spes-peer watch --web"
    )
    parser.add_argument(
        "--web",
        type=port,
        nargs="?",
        const=_WEB_PORT,
        metavar="PORT",
        help=f"serve it to a browser on this machine instead, on this port ({_WEB_PORT})",
    )
    add_data_dir(parser)
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_watch)
    return parser


def _watch(options: argparse.Namespace) -> int:
    import tui
    from spes_peer.control import is_live, none_runs

    socket_path = data_dir(options) / "control.sock"
    if options.web is None and not can_draw():
        raise UserError("watch needs a terminal; use: spes-peer status, or: spes-peer watch --web")
    if not is_live(socket_path):
        raise none_runs(socket_path.parent)
    if options.web is not None:
        from tui.web import serve

        serve(socket_path, options.web)
        return 0
    reason = tui.run(socket_path)
    if not reason.startswith("ended by"):  # a signal: nobody is there to read it
        print(reason)
    return 0


def _add_control(commands: Any, name: str, help_text: str, run: Callable[[Any, Any], Coroutine[Any, Any, str]]) -> Any:
    parser = commands.add_parser(name, help=help_text, description=sentence(help_text))
    add_data_dir(parser)
    add_log_level(parser, "WARNING")

    def command(options: argparse.Namespace) -> None:
        print(asyncio.run(_with_daemon(options, run)))

    parser.set_defaults(run=command)
    return parser


async def _with_daemon(options: argparse.Namespace, run: Callable[[Any, Any], Coroutine[Any, Any, str]]) -> str:
    from spes_peer.control import ControlClient

    async with ControlClient(data_dir(options) / "control.sock") as client:
        return await run(client, options)


async def _pause(client: Any, _options: Any) -> str:
    return str(await client.pause())


async def _resume(client: Any, _options: Any) -> str:
    return str(await client.resume())


def _add_leave(commands: Any) -> Any:
    parser = _add_control(commands, "leave", "finish the round, tell the others, and end the daemon", _leave)
    parser.add_argument("--at-once", action="store_true", help="do not wait for the round to end")
    parser.add_argument(
        "--purge", action="store_true", help="end at once, and remove state, key and log of this run from the machine"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="with --purge: remove without being asked")
    only_leave = parser.get_default("run")

    def command(options: argparse.Namespace) -> None:
        if not options.purge:
            only_leave(options)
            return
        from spes_peer.cli.purging import purge

        print(purge(options))

    parser.set_defaults(run=command)
    return parser


async def _leave(client: Any, options: Any) -> str:
    return str(await client.leave(at_once=options.at_once))


def _add_status(commands: Any) -> Any:
    parser = _add_control(commands, "status", "say what the daemon does, and what it waits for", _status)
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    return parser


async def _status(client: Any, options: Any) -> str:
    from spes_peer.daemon.status_words import in_words

    status = await client.status_once()
    return json.dumps(_plain(status), indent=2) if options.json else in_words(status)


def _plain(value: Any) -> Any:
    """A message as JSON has it: whole numbers stay numbers (protobuf's own JSON makes them text), nan becomes null."""
    from google.protobuf.message import Message

    if isinstance(value, Message):
        return {field.name: _plain(getattr(value, field.name)) for field in value.DESCRIPTOR.fields}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int)) else [_plain(one) for one in value]


def _add_logs(commands: Any) -> Any:
    about = "print what the daemon logged last, also when it does not run any more"
    parser = commands.add_parser(
        "logs",
        help=about,
        description=sentence(about),
        epilog="example:\n  spes-peer logs --follow\n  spes-peer logs --of trainer",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on printing what comes, until Ctrl-C")
    parser.add_argument(
        "-n", "--lines", type=count, default=100, metavar="N", help="so many of the newest lines (%(default)s)"
    )
    parser.add_argument(
        "--of", choices=("daemon", "trainer", "dht", "libp2p"), default="daemon", help="which process (%(default)s)"
    )
    add_data_dir(parser)
    add_log_level(parser, "WARNING")
    parser.set_defaults(run=_logs)
    return parser


def _logs(options: argparse.Namespace) -> None:
    from spes_peer.events.words import last_end
    from spes_peer.lock import holder_of
    from spes_peer.logs import as_text, following, last_lines

    path = data_dir(options) / "logs" / f"{options.of}.log"
    try:
        lines, end = last_lines(path, options.lines)
    except FileNotFoundError:
        raise UserError(f"no log is there: {path}; has a daemon run on this folder? --data-dir names another") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in lines:
        print(as_text(line))
    if not holder_of(data_dir(options)) and (ended := last_end(data_dir(options))):
        print(f"no daemon runs now; {ended}", file=sys.stderr)
    if options.follow:
        for piece in following(path, end):
            print("\n".join(map(as_text, piece.split("\n"))), end="", flush=True)
