"""`spes-peer service`: the daemon started with the machine."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from spes_peer import config
from spes_peer.cli.join import agrees, check_join, join_settings
from spes_peer.cli.parsing import add_log_level, data_dir
from spes_peer.cli.settings import Settings
from spes_peer.errors import BadConfiguration, UserError


def add_service(commands: Any, join: argparse.ArgumentParser) -> None:
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
        usage="spes-peer service install --bootstrap ADDRESS [OPTIONS OF JOIN]",
        help="have it started now and from now on; takes the options of join",
        description="Have the daemon started now and from now on, with the options of join that are given here.",
    )
    install.set_defaults(run=_service_install, settings=Settings(install, join))
    remove = actions.add_parser("remove", help="end it, and start it no more; key and state stay")
    add_log_level(remove, "WARNING")
    remove.set_defaults(run=_service_remove)


def _service_install(options: argparse.Namespace) -> None:
    from spes_peer import known_runs, service
    from spes_peer.control import is_live
    from spes_peer.folder import MANIFEST_FILE

    folder = data_dir(options).absolute()
    if not options.bootstrap and not (folder / MANIFEST_FILE).exists():
        raise BadConfiguration(f"no run is known yet in {folder}; name one of its nodes with --bootstrap ADDRESS")
    check_join(options)
    if is_live(folder / "control.sock") and not service.is_active():
        raise UserError(
            f"a daemon runs on {folder}; end it first: spes-peer leave --data-dir {shlex.quote(str(folder))}"
        )
    if not agrees(options, join_settings(options)):
        return
    known_runs.remember(folder)
    typed = options.arguments[options.arguments.index("install") + 1 :]
    given = [argument for argument in typed if argument not in ("--detach", "--no-tui", "--with-parent")]
    given += ["--data-dir", str(folder)]  # a service starts in another folder, and what is said last counts
    given += ["--config", str((options.config or config.default_path()).absolute())]
    print(service.install([sys.executable, "-m", "spes_peer", "join", "--no-tui", *given], Path.home()))


def _service_remove(_options: argparse.Namespace) -> None:
    from spes_peer import service

    print(service.remove(Path.home()))
