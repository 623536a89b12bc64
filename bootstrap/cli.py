"""`spes-bootstrap`: start the bootstrap node of a run folder."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from spes_peer.cli import EXIT_CODES, run_command
from spes_peer.cli.parsing import (
    Parser,
    add_announce,
    add_log_format,
    add_log_level,
    add_max_disk,
    add_pace,
    add_relay_limits,
    add_with_parent,
    count,
    port,
    relay_limits,
)
from spes_peer.exchange.relays import OF_BOOTSTRAP

DEFAULT_PORT = 4510


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and exit; a person's error is one line on stderr."""
    raise SystemExit(run_command(_parser(), arguments))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="spes-bootstrap",
        description="Introduce the volunteers of a run to each other, relay for those behind NAT, keep records and"
        " data. Trains nothing, needs no GPU.",
        epilog=f"make a run first: spes-peer run create FOLDER\n\n{EXIT_CODES}",
    )
    parser.add_argument("--run", dest="folder", type=Path, required=True, metavar="FOLDER", help="the run's folder")
    parser.add_argument("--host", default="", help="address to listen on (this machine's, on the way to the internet)")
    add_announce(parser, "if not --host and --port")
    parser.add_argument(
        "--port",
        type=port,
        default=DEFAULT_PORT,
        metavar="N",
        help="first of three TCP ports: gRPC, libp2p, DHT; 0 picks free ones (%(default)s)",
    )
    parser.add_argument(
        "--finish-after", type=count, default=0, metavar="N", help="end the run after round N; 0: never (0)"
    )
    add_pace(parser)
    add_relay_limits(parser, OF_BOOTSTRAP)
    add_max_disk(parser)
    add_with_parent(parser)
    add_log_level(parser)
    add_log_format(parser)
    parser.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    from bootstrap.node import BootstrapSettings, run_bootstrap

    settings = BootstrapSettings(
        folder=options.folder,
        host=options.host,
        announce=tuple(dict.fromkeys(options.announce)),
        port=options.port,
        finish_after=options.finish_after,
        relay=relay_limits(options),
        max_upload=options.max_upload,
        max_download=options.max_download,
        max_disk=options.max_disk,
    )
    return asyncio.run(run_bootstrap(settings))
