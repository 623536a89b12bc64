"""What a person types. Parsing only; each command lives where its work is done and is imported when it is asked for.

Exit codes: 0 left or finished as asked, 1 failed, 2 usage or configuration, 3 no bootstrap node answers, 4 too old for
the run, 5 not admitted, 130 interrupted.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from spes_peer import __version__
from spes_peer.errors import SpesError, UserError

INTERRUPTED = 130
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; a person's error is one line on stderr."""
    sys.exit(run_command(_parser(), arguments))


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse and run; shared by `spes-peer` and `spes-bootstrap`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    options.arguments = arguments
    logging.basicConfig(level=getattr(logging, options.log_level), format=_LOG_FORMAT, stream=sys.stderr)
    if getattr(options, "with_parent", False):
        from spes_peer.process import end_with_parent

        end_with_parent(signal.SIGTERM)
    try:
        return int(options.run(options) or 0)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except SpesError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
        return 1


def add_log_level(parser: Any, default: str = "INFO") -> None:
    parser.add_argument(
        "--log-level",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        default=default,
        help="how much to log (%(default)s)",
    )


def add_with_parent(parser: Any) -> None:
    parser.add_argument(
        "--with-parent", action="store_true", help="end when the program that started this one ends (Linux)"
    )


def port(text: str) -> int:
    """A base port: the node uses it and the two above it; 0 picks free ones."""
    with contextlib.suppress(ValueError):
        if 0 <= int(text) <= 65533:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65533")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spes-peer",
        description="Pretrain a mixture-of-experts language model together with other volunteers, peer to peer.",
        epilog="Try it on this machine alone: spes-peer demo",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_join(commands)
    _add_watch(commands)
    _add_status(commands)
    _add_control(commands, "pause", "take no part in further rounds until resumed", _pause)
    _add_control(commands, "resume", "take part again", _resume)
    leave = _add_control(commands, "leave", "finish the round, tell the others, and end the daemon", _leave)
    leave.add_argument("--at-once", action="store_true", help="do not wait for the round to end")
    _add_demo(commands)
    _add_run(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=lambda _options: print(f"spes-peer {__version__}"), log_level="INFO")
    return parser


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="where this volunteer's key and state lie (a folder of the user's)",
    )


def _data_dir(options: argparse.Namespace) -> Path:
    if options.data_dir is not None:
        return Path(options.data_dir)
    import platformdirs

    return Path(platformdirs.user_data_dir("spes-peer"))


def _add_join(commands: Any) -> None:
    parser = commands.add_parser(
        "join",
        help="lend this machine to a run",
        description="Join a run through one of its nodes: claim experts that nobody trains, train them, swap updates.",
        epilog="example: spes-peer join --bootstrap /dns4/run.example.org/tcp/4510/p2p/12D3KooW…",
    )
    parser.add_argument(
        "--bootstrap", required=True, metavar="ADDRESS", help="a node of the run, as its organizer gives it"
    )
    _add_data_dir(parser)
    parser.add_argument("--name", default="", help="what others see you as (this machine's host name)")
    network = parser.add_argument_group("network")
    network.add_argument("--host", default="", help="address to listen on (the one that leads to the bootstrap node)")
    network.add_argument(
        "--port", type=port, default=0, help="first of three ports to listen on; 0 picks free ones (0)"
    )
    network.add_argument(
        "--no-inbound", action="store_true", help="nobody can dial this machine: be reached through a relay"
    )
    device = parser.add_argument_group("device")
    device.add_argument("--device", default="", help="cpu, cuda or cuda:N (the best there is)")
    device.add_argument(
        "--threads", type=int, default=0, metavar="N", help="threads of a cpu device; 0 leaves it to torch (0)"
    )
    device.add_argument(
        "--max-subsets", type=int, default=0, metavar="N", help="train at most so many subsets; 0: what fits (0)"
    )
    display = parser.add_argument_group("display")
    display.add_argument("--no-tui", action="store_true", help="plain log lines instead of the dashboard")
    add_with_parent(display)
    add_log_level(display)
    parser.set_defaults(run=_join)


def _join(options: argparse.Namespace) -> int:
    from spes_peer.daemon.program import Daemon, JoinSettings

    settings = JoinSettings(
        bootstrap=options.bootstrap,
        data_dir=_data_dir(options),
        name=options.name,
        host=options.host,
        port=options.port,
        inbound=not options.no_inbound,
        device=options.device,
        num_threads=options.threads,
        max_subsets=options.max_subsets,
    )
    daemon = Daemon(settings)
    if options.no_tui or not _can_draw():
        return asyncio.run(daemon.run())
    from spes_peer.daemon.foreground import join_with_dashboard

    return join_with_dashboard(options.arguments, settings.data_dir)


def _can_draw() -> bool:
    import tui

    return tui.can_draw(sys.stdout)


def _add_watch(commands: Any) -> None:
    parser = commands.add_parser(
        "watch", help="open a dashboard on a running daemon; closing it leaves the daemon running"
    )
    _add_data_dir(parser)
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_watch)


def _watch(options: argparse.Namespace) -> int:
    if not _can_draw():
        raise UserError("watch needs a terminal; use: spes-peer status")
    import tui

    tui.run(_data_dir(options) / "control.sock")
    return 0


def _add_control(commands: Any, name: str, help_text: str, run: Callable[[Any, Any], Coroutine[Any, Any, str]]) -> Any:
    parser = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
    _add_data_dir(parser)
    add_log_level(parser, "WARNING")

    def command(options: argparse.Namespace) -> None:
        print(asyncio.run(_with_daemon(options, run)))

    parser.set_defaults(run=command)
    return parser


async def _with_daemon(options: argparse.Namespace, run: Callable[[Any, Any], Coroutine[Any, Any, str]]) -> str:
    from spes_peer.control import ControlClient

    async with ControlClient(_data_dir(options) / "control.sock") as client:
        return await run(client, options)


async def _pause(client: Any, _options: Any) -> str:
    return str(await client.pause())


async def _resume(client: Any, _options: Any) -> str:
    return str(await client.resume())


async def _leave(client: Any, options: Any) -> str:
    return str(await client.leave(at_once=options.at_once))


def _add_status(commands: Any) -> None:
    parser = _add_control(commands, "status", "say what the daemon does, and what it waits for", _status)
    parser.add_argument("--json", action="store_true", help="everything, for programs")


async def _status(client: Any, options: Any) -> str:
    from google.protobuf.json_format import MessageToDict

    from spes_peer.daemon.status import in_words

    status = await client.status_once()
    if options.json:
        fields = MessageToDict(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        return json.dumps(fields, indent=2)
    return in_words(status)


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a bootstrap node and four volunteers train together on this machine",
        description="Start a bootstrap node and volunteers on this machine and let them train together, for real.",
    )
    parser.add_argument("--peers", type=int, default=4, metavar="N", help="volunteers (%(default)s)")
    parser.add_argument("--rounds", type=int, default=24, metavar="N", help="stop after N rounds (%(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write what was measured")
    parser.add_argument("--config", type=Path, metavar="RUN.toml", help="another run file than the demo's")
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="text files to train on (Python's standard library)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the state folders there")
    parser.add_argument("--no-tui", action="store_true", help="one line a round instead of the dashboard")
    add_log_level(parser, "WARNING")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from spes_peer.demo import DemoSettings, run_demo

    return run_demo(
        DemoSettings(
            num_peers=options.peers,
            num_rounds=options.rounds,
            report=options.report,
            config=options.config,
            corpus=options.corpus,
            keep=options.keep,
            draws=not options.no_tui and _can_draw(),
        )
    )


def _add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="the organizer's side: make and show runs")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    create = actions.add_parser(
        "create",
        help="make a run folder: manifest, tokenized shards, first weights, record 0",
        epilog="then: spes-bootstrap --run FOLDER",
    )
    create.add_argument("folder", type=Path, metavar="FOLDER")
    source = create.add_mutually_exclusive_group()
    source.add_argument("--preset", default="demo", help="a run file that comes with the program (%(default)s)")
    source.add_argument("--config", type=Path, metavar="RUN.toml", help="your own run file")
    create.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="text files to train on (Python's standard library)"
    )
    add_log_level(create)
    create.set_defaults(run=_run_create)
    preset = actions.add_parser("preset", help="print a preset's run file, to start your own from")
    preset.add_argument("name", nargs="?", default="demo")
    add_log_level(preset)
    preset.set_defaults(run=_run_preset)
    show = actions.add_parser("show", help="print what a run folder's manifest says")
    show.add_argument("folder", type=Path, metavar="FOLDER")
    add_log_level(show)
    show.set_defaults(run=_run_show)


def _run_create(options: argparse.Namespace) -> None:
    from spes_peer.organize import create_run, run_file_text

    signed = create_run(options.folder, run_file_text(options.preset, options.config), options.corpus)
    print(f"run {signed.run_id.hex()} in {options.folder}")
    print(f"start its bootstrap node with: spes-bootstrap --run {options.folder}")


def _run_preset(options: argparse.Namespace) -> None:
    from spes_peer.organize import run_file_text

    print(run_file_text(options.name, None), end="")


def _run_show(options: argparse.Namespace) -> None:
    from spes_peer.organize import read_manifest

    signed = read_manifest(options.folder)
    print(json.dumps({"run_id": signed.run_id.hex(), **json.loads(signed.manifest)}, indent=2))
