"""A volunteer's commands: lend this machine, see what it does, and end it."""

import argparse
import asyncio
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spes_peer import config
from spes_peer.cli.identity import add_identity
from spes_peer.cli.parsing import (
    add_announce,
    add_data_dir,
    add_log_level,
    add_max_disk,
    add_pace,
    add_relay_limits,
    add_with_parent,
    can_draw,
    count,
    data_dir,
    metrics_address,
    port,
    relay_limits,
    sentence,
)
from spes_peer.errors import BadConfiguration, UserError
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.relays import OF_VOLUNTEER
from spes_peer.training.plan_command import add_memory_choices, size


def add_volunteer_commands(commands: Any) -> None:
    join = add_join(commands)
    others = [
        _add_watch(commands),
        _add_status(commands),
        _add_control(commands, "pause", "take no part in further rounds until resumed", _pause),
        _add_control(commands, "resume", "take part again", _resume),
        _add_leave(commands),
        _add_logs(commands),
        *add_identity(commands),
    ]
    join.set_defaults(settings=Settings(join, join))
    for parser in others:
        parser.set_defaults(settings=Settings(parser, join, ("data_dir",)))
    doctor = _add_doctor(commands)
    doctor.set_defaults(settings=Settings(doctor, join, ("data_dir", "bootstrap", "device", "host", "port")))
    _add_config(commands, join)
    _add_service(commands, join)


@dataclass(frozen=True)
class Settings:
    """The settings file of `join`, of which a command uses what it has a flag for."""

    parser: argparse.ArgumentParser
    join: argparse.ArgumentParser
    only: tuple[str, ...] | None = None
    """Of these alone, whatever else is wrong with the file: a running daemon can always be asked to leave."""

    def become_defaults(self, path: Path | None) -> None:
        """In place of the program's own."""
        from_file = config.read_settings(path or config.default_path(), self.join, self.only)
        self.parser.set_defaults(**from_file)


def _add_bootstrap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        action=config.Repeated,
        default=[],
        metavar="ADDRESS",
        help="a node of the run, as its organizer gives it, or any of its peers; may be given several times, or several"
        " with commas between (those met before, in a folder that has joined a run)",
    )


def _bootstraps(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(one for given in options.bootstrap for one in given.split(","))


def add_join(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "join",
        help="lend this machine to a run",
        description="Join a run through one of its nodes: claim experts that nobody trains, train them, swap updates.",
        epilog="example:\n  spes-peer join --bootstrap /dns4/run.example.org/tcp/4510/p2p/12D3KooW…\n\n"
        "In a terminal the daemon goes on when the dashboard is closed; elsewhere Ctrl-C ends it.",
    )
    _add_bootstrap(parser)
    add_data_dir(parser)
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
    display.add_argument("--detach", action="store_true", help="start the daemon and return; it logs into its folder")
    display.add_argument(
        "--metrics",
        type=metrics_address,
        metavar="ADDRESS",
        help="let Prometheus read figures at HOST:PORT, or at PORT of this machine alone (nowhere)",
    )
    add_with_parent(display)
    add_log_level(display)
    parser.set_defaults(run=_join)
    return parser  # type: ignore[no-any-return]


def _check_join(options: argparse.Namespace) -> None:
    """What no single flag can see."""
    for flag in ("announce", "relay"):
        if options.no_inbound and getattr(options, flag):
            raise BadConfiguration(f"--{flag} needs others to dial this machine, and --no-inbound forbids it; drop one")
    if options.detach and options.with_parent:
        raise BadConfiguration("--detach starts what outlives this command, and --with-parent ends it; drop one")
    for address in _bootstraps(options):
        parse_address(address)


def _join(options: argparse.Namespace) -> int:
    _check_join(options)
    from spes_peer.daemon.program import Daemon, JoinSettings

    settings = JoinSettings(
        bootstraps=_bootstraps(options),
        data_dir=data_dir(options),
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
        metrics=options.metrics,
        device=options.device,
        num_threads=options.threads,
        max_subsets=options.max_subsets,
        memory_bytes=options.memory,
        resident=options.resident,
        checkpointing=options.checkpointing,
        optimizer_bits=options.optimizer_bits,
    )
    if not options.detach and (options.no_tui or not can_draw()):
        return asyncio.run(Daemon(settings).run())
    from spes_peer.daemon.foreground import join_detached, join_with_dashboard

    arguments = [argument for argument in options.arguments if argument != "--detach"]
    return (join_detached if options.detach else join_with_dashboard)(arguments, settings.data_dir)


def _add_watch(commands: Any) -> Any:
    about = "open the dashboard of a running daemon; closing it leaves the daemon running"
    parser = commands.add_parser("watch", help=about, description=sentence(about))
    add_data_dir(parser)
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_watch)
    return parser


def _watch(options: argparse.Namespace) -> int:
    import tui
    from spes_peer.control import is_live

    socket_path = data_dir(options) / "control.sock"
    if not can_draw():
        raise UserError("watch needs a terminal; use: spes-peer status")
    if not is_live(socket_path):
        raise UserError(f"no daemon runs on this state folder ({socket_path.parent}); start one with: spes-peer join")
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
    return parser


async def _leave(client: Any, options: Any) -> str:
    return str(await client.leave(at_once=options.at_once))


def _add_status(commands: Any) -> Any:
    parser = _add_control(commands, "status", "say what the daemon does, and what it waits for", _status)
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    return parser


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
    from spes_peer.logs import following, last_lines, plain

    path = data_dir(options) / "logs" / f"{options.of}.log"
    try:
        lines, end = last_lines(path, options.lines)
    except FileNotFoundError:
        raise UserError(f"no log is there: {path}; has a daemon run on this folder? --data-dir names another") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in lines:
        print(plain(line))
    if options.follow:
        for piece in following(path, end):
            print("\n".join(map(plain, piece.split("\n"))), end="", flush=True)


def _add_doctor(commands: Any) -> Any:
    about = "look whether this machine is fit to take part, and say what to do where it is not"
    parser = commands.add_parser(
        "doctor",
        help=about,
        description=_DOCTOR,
        epilog="example:\n  spes-peer doctor --bootstrap ADDRESS\n\n"
        "Exits with 1 if something keeps this machine from taking part.",
    )
    _add_bootstrap(parser)
    add_data_dir(parser)
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N (the best there is)")
    parser.add_argument("--host", default="", help="address to listen on (all)")
    parser.add_argument("--port", type=port, default=0, metavar="N", help="first of three ports; 0 picks free ones (0)")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_doctor)
    return parser


_DOCTOR = """\
Look whether this machine is fit to take part, and say what to do where it is not: programs, memory, disk, state
folder, what an earlier daemon left, ports, the run's nodes and their clock, the device; and where a daemon runs, how
others reach it. Changes nothing."""


def _doctor(options: argparse.Namespace) -> int:
    from spes_peer.doctor.command import DoctorSettings, run_doctor

    settings = DoctorSettings(
        data_dir=data_dir(options).absolute(),
        bootstraps=_bootstraps(options),
        device=options.device,
        host=options.host or "0.0.0.0",
        port=options.port,
    )
    return run_doctor(settings, options.json)


def _add_config(commands: Any, join: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "config",
        help="settings that join reads, so that they need not be typed",
        description="Settings of join in a file: a key for each flag. Flags win over the file, the file over defaults.",
        epilog="example:\n  spes-peer config edit\n  spes-peer config show",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    for name, about, run in (
        ("show", "print every setting as it is now; as a comment what the file does not set", _config_show),
        ("edit", "open the file in your editor ($VISUAL or $EDITOR), and check it afterwards", _config_edit),
        ("path", "print where the file lies", _config_path),
    ):
        action = actions.add_parser(name, help=about, description=sentence(about))
        action.add_argument(
            "--config", type=Path, default=config.default_path(), metavar="FILE", help="another file than the user's"
        )
        add_log_level(action, "WARNING")
        action.set_defaults(run=run, join=join)


def _config_path(options: argparse.Namespace) -> None:
    print(options.config)


def _config_show(options: argparse.Namespace) -> None:
    from_file = config.read_settings(options.config, options.join)
    options.join.set_defaults(**from_file)
    print(config.shown(vars(options.join.parse_args([])), from_file, options.config, options.join))


def _config_edit(options: argparse.Namespace) -> None:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        editor = shlex.split(named) or ["vi"]
    except ValueError as error:
        raise BadConfiguration(f"the editor {named!r} cannot be read: {error}; set $EDITOR to another") from None
    if not options.config.exists():
        config.write_template(options.config, options.join)
    try:
        subprocess.run([*editor, options.config], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadConfiguration(f"{editor[0]}: {error}; set $EDITOR to another editor") from None
    config.read_settings(options.config, options.join)
    print(f"{options.config} is good; a daemon reads it when it starts")


def _add_service(commands: Any, join: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "service",
        help="start the daemon with the machine (systemd, launchd)",
        epilog="example:\n  spes-peer service install --bootstrap ADDRESS --max-upload 2MB\n  spes-peer service remove",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    install = actions.add_parser(
        "install",
        parents=[join],
        add_help=False,
        conflict_handler="resolve",
        help="have it started now and from now on; takes the options of join",
        description="Have the daemon started now and from now on, with the options of join that are given here.",
    )
    install.set_defaults(run=_service_install, settings=Settings(install, join))
    remove = actions.add_parser("remove", help="end it, and start it no more; key and state stay")
    add_log_level(remove, "WARNING")
    remove.set_defaults(run=_service_remove)


def _service_install(options: argparse.Namespace) -> None:
    from spes_peer import service
    from spes_peer.control import is_live
    from spes_peer.folder import MANIFEST_FILE

    folder = data_dir(options).absolute()
    if not options.bootstrap and not (folder / MANIFEST_FILE).exists():
        raise BadConfiguration(f"no run is known yet in {folder}; name one of its nodes with --bootstrap ADDRESS")
    _check_join(options)
    if is_live(folder / "control.sock") and not service.is_active():
        raise UserError(
            f"a daemon runs on {folder}; end it first: spes-peer leave --data-dir {shlex.quote(str(folder))}"
        )
    typed = options.arguments[options.arguments.index("install") + 1 :]
    given = [argument for argument in typed if argument not in ("--detach", "--no-tui", "--with-parent")]
    given += ["--data-dir", str(folder)]  # a service starts in another folder, and what is said last counts
    given += ["--config", str((options.config or config.default_path()).absolute())]
    print(service.install([sys.executable, "-m", "spes_peer", "join", "--no-tui", *given], Path.home()))


def _service_remove(_options: argparse.Namespace) -> None:
    from spes_peer import service

    print(service.remove(Path.home()))
