"""What a person types. Parsing only; each command lives where its work is done and is imported when it is asked for."""

import argparse
import asyncio
import contextlib
import json
import logging
import math
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

from spes_peer import __version__
from spes_peer.bench.command import add_bench_command
from spes_peer.conversion import add_export_command, add_import_command
from spes_peer.errors import BadConfiguration, SpesError, UserError
from spes_peer.exchange.relays import OF_VOLUNTEER, RelayLimits
from spes_peer.experiment.command import add_experiment_command
from spes_peer.logs import PlainFormatter, RepeatFilter
from spes_peer.run.presets import PRESETS
from spes_peer.training.plan_command import add_memory_choices, add_plan_command, size

INTERRUPTED = 130
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_LOG_TIMES = "%Y-%m-%d %H:%M:%S"

EXIT_CODES = """\
exit codes:
  0  done, or left as asked          3  a wrong node answers
  1  failed                          4  this version is too old for the run
  2  wrong usage or configuration    5  not admitted to the run
                                   130  interrupted"""

_EXAMPLES = """\
examples:
  spes-peer demo                        try it on this machine alone
  spes-peer join --bootstrap ADDRESS    lend this machine to a run
  spes-peer status                      what it does, and what it waits for
  spes-peer run create FOLDER           start a run of your own
"""

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; a person's error is one line on stderr."""
    sys.exit(run_command(_parser(), arguments))


class _Help(argparse.HelpFormatter):
    """Folds a text of one line, and leaves one of several as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """One line for a mistake, and no abbreviations of options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(BadConfiguration.exit_code, f"{self.prog}: {message}; see: {self.prog} --help\n")


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse and run; shared by `spes-peer` and `spes-bootstrap`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(arguments)
    options.arguments = arguments
    level = getattr(logging, options.log_level)
    console = logging.StreamHandler(sys.stderr)
    console.addFilter(RepeatFilter())
    console.setFormatter(PlainFormatter(_LOG_FORMAT, _LOG_TIMES))
    logging.basicConfig(level=level, handlers=[console])
    if getattr(options, "with_parent", False):
        from spes_peer.tied import end_with_parent

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


def add_announce(parser: Any, otherwise: str) -> None:
    parser.add_argument(
        "--announce",
        type=announced,
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="address that others dial, where a router or a name leads to this machine; libp2p and the DHT have the"
        f" next two ports; may be given twice ({otherwise})",
    )


def announced(text: str) -> Any:
    """HOST or HOST:PORT, as an endpoint."""
    from spes_peer.exchange.reach import parse_announced

    try:
        return parse_announced(text)
    except BadConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_pace(parser: Any) -> None:
    for direction, what in (("upload", "sent"), ("download", "taken")):
        parser.add_argument(
            f"--max-{direction}",
            type=size,
            default=0,
            metavar="SIZE",
            help=f"bytes of blobs that are {what} a second at most, such as 500KB (no limit)",
        )


def add_relay_limits(parser: Any, limits: RelayLimits) -> None:
    most = f"{limits.bytes_per_second // 1_000_000}MB" if limits.bytes_per_second else "no limit"
    parser.add_argument(
        "--max-relay",
        type=size,
        default=limits.bytes_per_second,
        metavar="SIZE",
        help="bytes that are relayed for others a second at most; they count as upload and as download, and never take"
        f" more than half of a limit on those ({most})",
    )
    parser.add_argument(
        "--max-circuits",
        type=positive,
        default=limits.max_circuits,
        metavar="N",
        help="pairs of peers relayed for at once (%(default)s)",
    )
    parser.add_argument(
        "--max-circuits-per-peer",
        type=positive,
        default=limits.max_circuits_per_peer,
        metavar="N",
        help="of these, asked for by one peer (%(default)s)",
    )


def relay_limits(options: argparse.Namespace) -> RelayLimits:
    return RelayLimits(options.max_circuits, options.max_circuits_per_peer, options.max_relay)


def add_max_disk(parser: Any) -> None:
    parser.add_argument(
        "--max-disk",
        type=size,
        default=0,
        metavar="SIZE",
        help="let the folder take at most so much of the disk, such as 20GB; what is needed now stays (no limit)",
    )


def port(text: str) -> int:
    """A base port: the node uses it and the two above it; 0 picks free ones."""
    return _whole_number(text, 0, 65533, "a port from 0 to 65533")


def count(text: str) -> int:
    """A whole number that is not negative."""
    return _whole_number(text, 0, 2**31 - 1, "a whole number from 0 on")


def positive(text: str) -> int:
    return _whole_number(text, 1, 2**31 - 1, "a whole number from 1 on")


def amount(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def _whole_number(text: str, least: int, most: int, what: str) -> int:
    with contextlib.suppress(ValueError):
        if least <= int(text) <= most:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not {what}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="spes-peer",
        usage="spes-peer COMMAND [OPTIONS]",
        description="Pretrain a mixture-of-experts language model together with other volunteers, peer to peer.",
        epilog=f"{_EXAMPLES}\n{EXIT_CODES}\n\nOptions of a command: spes-peer COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"spes-peer {__version__}", help="print the version")

    def help_(_options: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return BadConfiguration.exit_code

    parser.set_defaults(run=help_, log_level="INFO")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog="spes-peer")
    _add_demo(commands)
    _add_chaos(commands)
    _add_join(commands)
    _add_watch(commands)
    _add_status(commands)
    _add_control(commands, "pause", "take no part in further rounds until resumed", _pause)
    _add_control(commands, "resume", "take part again", _resume)
    leave = _add_control(commands, "leave", "finish the round, tell the others, and end the daemon", _leave)
    leave.add_argument("--at-once", action="store_true", help="do not wait for the round to end")
    _add_run(commands)
    add_log_level(add_import_command(commands))
    add_log_level(add_export_command(commands))
    add_plan_command(commands)
    add_bench_command(commands)
    add_experiment_command(commands)
    version = commands.add_parser("version", help="print this program's version and those of what it stands on")
    version.set_defaults(run=_version, log_level="INFO")
    return parser


def _version(_options: argparse.Namespace) -> None:
    """What a report of a fault should name."""
    from importlib.metadata import version

    parts = ", ".join(f"{name} {version(name)}" for name in ("torch", "hivemind", "libp2p", "grpcio", "textual"))
    print(f"spes-peer {__version__}\nPython {sys.version.split()[0]}, {parts}")


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="where this volunteer's key and state lie (the user's data folder for spes-peer)",
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
        epilog="example:\n  spes-peer join --bootstrap /dns4/run.example.org/tcp/4510/p2p/12D3KooW…\n\n"
        "In a terminal the daemon goes on when the dashboard is closed; elsewhere Ctrl-C ends it.",
    )
    parser.add_argument(
        "--bootstrap",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="a node of the run, as its organizer gives it, or any of its peers; may be given several times, or several"
        " with commas between (those met before, in a folder that has joined a run)",
    )
    _add_data_dir(parser)
    add_max_disk(parser)
    parser.add_argument("--name", default="", help="what others see you as (this machine's host name)")
    network = parser.add_argument_group("network")
    network.add_argument("--host", default="", help="address to listen on (all that this machine has, or gets)")
    network.add_argument(
        "--port", type=port, default=0, metavar="N", help="first of three ports to listen on; 0 picks free ones (0)"
    )
    add_announce(network, "what others find to lead here when they dial back")
    network.add_argument(
        "--no-inbound", action="store_true", help="take no connections from others: be reached through a relay"
    )
    network.add_argument(
        "--no-port-mapping", action="store_true", help="do not ask the router to open ports for this machine"
    )
    network.add_argument(
        "--relay", action="store_true", help="relay for peers that nobody can dial, where this machine can be dialled"
    )
    add_pace(network)
    add_relay_limits(network, OF_VOLUNTEER)
    device = parser.add_argument_group("device")
    device.add_argument("--device", default="", help="cpu, cuda or cuda:N (the best there is)")
    device.add_argument(
        "--threads", type=count, default=0, metavar="N", help="threads of a cpu device; 0 leaves it to torch (0)"
    )
    device.add_argument(
        "--max-subsets", type=count, default=0, metavar="N", help="train at most so many subsets; 0: what fits (0)"
    )
    device.add_argument(
        "--memory",
        type=size,
        default=0,
        metavar="SIZE",
        help="use at most so much of the device, such as 20GB (all free)",
    )
    add_memory_choices(device)
    display = parser.add_argument_group("display")
    display.add_argument("--no-tui", action="store_true", help="plain log lines instead of the dashboard")
    add_with_parent(display)
    add_log_level(display)
    parser.set_defaults(run=_join)


def _join(options: argparse.Namespace) -> int:
    for flag in ("announce", "relay"):
        if options.no_inbound and getattr(options, flag):
            raise BadConfiguration(f"--{flag} needs others to dial this machine, and --no-inbound forbids it; drop one")
    from spes_peer.daemon.program import Daemon, JoinSettings

    settings = JoinSettings(
        bootstraps=tuple(one for given in options.bootstrap for one in given.split(",")),
        data_dir=_data_dir(options),
        name=options.name,
        host=options.host,
        port=options.port,
        inbound=not options.no_inbound,
        announce=tuple(dict.fromkeys(options.announce)),
        relay=relay_limits(options) if options.relay else None,
        maps_ports=not options.no_port_mapping,
        max_upload=options.max_upload,
        max_download=options.max_download,
        max_disk=options.max_disk,
        device=options.device,
        num_threads=options.threads,
        max_subsets=options.max_subsets,
        memory_bytes=options.memory,
        resident=options.resident,
        checkpointing=options.checkpointing,
        optimizer_bits=options.optimizer_bits,
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
    about = "open the dashboard of a running daemon; closing it leaves the daemon running"
    parser = commands.add_parser("watch", help=about, description=_sentence(about))
    _add_data_dir(parser)
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_watch)


def _watch(options: argparse.Namespace) -> int:
    import tui
    from spes_peer.control import is_live

    socket_path = _data_dir(options) / "control.sock"
    if not _can_draw():
        raise UserError("watch needs a terminal; use: spes-peer status")
    if not is_live(socket_path):
        raise UserError(f"no daemon runs on this state folder ({socket_path.parent}); start one with: spes-peer join")
    reason = tui.run(socket_path)
    if not reason.startswith("ended by"):  # a signal: nobody is there to read it
        print(reason)
    return 0


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_control(commands: Any, name: str, help_text: str, run: Callable[[Any, Any], Coroutine[Any, Any, str]]) -> Any:
    parser = commands.add_parser(name, help=help_text, description=_sentence(help_text))
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
    from spes_peer.daemon.status import in_words

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


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="a bootstrap node and four volunteers train together on this machine",
        description="Start a bootstrap node and volunteers on this machine and let them train together, for real.",
        epilog="example:\n  spes-peer demo --rounds 5 --no-tui --report report.json\n\n"
        "Exits with 0 only if all ended on the same state. Ctrl-C ends everything and leaves nothing behind.",
    )
    parser.add_argument("--peers", type=positive, default=4, metavar="N", help="volunteers (%(default)s)")
    parser.add_argument(
        "--rounds", type=count, default=24, metavar="N", help="stop after N rounds; 0: at the run's end (%(default)s)"
    )
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


def _add_chaos(commands: Any) -> None:
    parser = commands.add_parser(
        "chaos",
        help="start a run on this machine, strike it at random, and report what it survived",
        description="Start a bootstrap node and volunteers on this machine; kill, stop, partition and restart them at"
        " random; report what was lost and how long it took to recover.",
        epilog="example:\n  spes-peer chaos --minutes 10 --fault-every 30 --seed 1 --report chaos.json\n\n"
        "Partitions need Linux, root and iproute2's ip; without, the rest is done on loopback.\n"
        "Exits with 0 only if no certified round was lost, all ended on one state, and no process was left behind.",
    )
    parser.add_argument("--peers", type=positive, default=6, metavar="N", help="volunteers (%(default)s)")
    parser.add_argument("--minutes", type=amount, default=10.0, metavar="M", help="how long (%(default)g)")
    parser.add_argument(
        "--fault-every", type=amount, default=30.0, metavar="SECONDS", help="between faults, on average (%(default)g)"
    )
    parser.add_argument("--seed", type=count, default=0, metavar="S", help="decides what happens when (%(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write what was measured")
    parser.add_argument("--config", type=Path, metavar="RUN.toml", help="another run file than its own small one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the state folders and logs there")
    parser.add_argument("--no-partitions", action="store_true", help="all on loopback")
    add_log_level(parser, "WARNING")
    parser.set_defaults(run=_chaos)


def _chaos(options: argparse.Namespace) -> int:
    from spes_peer.chaos.program import ChaosSettings, run_chaos

    return run_chaos(
        ChaosSettings(
            num_peers=options.peers,
            minutes=options.minutes,
            fault_every_seconds=options.fault_every,
            seed=options.seed,
            report=options.report,
            config=options.config,
            keep=options.keep,
            may_part=not options.no_partitions,
        )
    )


def _add_run(commands: Any) -> None:
    presets = ", ".join(PRESETS)
    parser = commands.add_parser(
        "run",
        help="the organizer's side: make and show runs",
        epilog="example:\n  spes-peer run preset > run.toml\n"
        "  spes-peer run create my-run --config run.toml --corpus my-texts\n"
        "  spes-bootstrap --run my-run",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    create = actions.add_parser(
        "create",
        help="make a run folder: manifest, tokenized shards, first weights, record 0",
        epilog="then: spes-bootstrap --run FOLDER",
    )
    create.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a new one; keep it, its key makes you the organizer"
    )
    source = create.add_mutually_exclusive_group()
    source.add_argument("--preset", default="demo", help=f"one that comes with the program: {presets} (%(default)s)")
    source.add_argument("--config", type=Path, metavar="RUN.toml", help="your own run file")
    create.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="text files to train on (Python's standard library)"
    )
    add_log_level(create)
    create.set_defaults(run=_run_create)
    preset = actions.add_parser("preset", help="print a preset's run file, to start your own from")
    preset.add_argument("name", nargs="?", default="demo", help=f"{presets} (%(default)s)")
    add_log_level(preset)
    preset.set_defaults(run=_run_preset)
    show = actions.add_parser("show", help="print what a run folder's manifest says")
    show.add_argument("folder", type=Path, metavar="FOLDER", help="as run create made it")
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
