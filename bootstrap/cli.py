"""`spes-bootstrap`: start the bootstrap node of a run folder."""

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spes_peer import config
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
    metrics_address,
    port,
    relay_limits,
)
from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import parse_address, parse_endpoint
from spes_peer.exchange.relay_limits import OF_BOOTSTRAP

DEFAULT_PORT = 4510


class Listen(NamedTuple):
    """Where to listen: `host` is empty for this machine's address on the way to the internet."""

    host: str
    port: int


def web_place(text: str) -> Listen:
    """HOST:PORT, [IPv6]:PORT or PORT."""
    if text.isascii() and text.isdecimal() and int(text) < 65536:
        return Listen("", int(text))
    with contextlib.suppress(BadConfiguration):
        endpoint = parse_endpoint(text, lowest_port=0)
        return Listen(endpoint.host, endpoint.port)
    raise argparse.ArgumentTypeError(f"{text[:80]!r} is no place for a web page; write PORT, HOST:PORT or [IPv6]:PORT")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and exit; a person's error is one line on stderr."""
    raise SystemExit(run_command(_parser(), arguments))


def listening(text: str) -> Listen:
    """HOST:PORT, [IPv6]:PORT, HOST or PORT."""
    if text.isascii() and text.isdecimal():
        return Listen("", port(text))
    bare = text.strip("[]")
    has_port = ":" in text and not text.endswith("]") and (text.count(":") == 1 or text.startswith("["))
    with contextlib.suppress(BadConfiguration, argparse.ArgumentTypeError):
        if not has_port:
            return Listen(parse_endpoint(f"[{bare}]:1" if ":" in bare else f"{bare}:1").host, DEFAULT_PORT)
        endpoint = parse_endpoint(text, lowest_port=0)
        return Listen(endpoint.host, port(str(endpoint.port)))
    raise argparse.ArgumentTypeError(
        f"{text[:80]!r} is no place to listen; write HOST:PORT, [IPv6]:PORT, HOST or PORT, with a port up to 65533"
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="spes-bootstrap",
        usage="spes-bootstrap --run FOLDER [OPTIONS]",
        description="Introduce the volunteers of a run to each other, relay for those behind NAT, keep records and"
        " data. Trains nothing, needs no GPU. A run that is not signed yet is signed first.",
        epilog="examples:\n"
        "  spes-peer run new my-run && spes-bootstrap --run my-run\n"
        "  spes-bootstrap --run my-run --listen 0.0.0.0:4510 --announce run.example.org:4510 --web 8080\n"
        "  spes-bootstrap --run second --join ADDRESS       a further node of a run, on another machine\n\n"
        "A further node finds its run again by itself when it is started anew. If it is to coordinate, too, name it\n"
        "when the run is signed:\n"
        "  spes-peer run sign my-run --bootstrap-node $(spes-bootstrap --run second --peer-id)\n\n"
        f"{EXIT_CODES}",
    )
    parser.add_argument(
        "--run", dest="folder", type=Path, required=True, metavar="FOLDER", help="the run's folder, or a new one"
    )
    parser.add_argument(
        "--join",
        action=config.Repeated,
        default=[],
        metavar="ADDRESS",
        help="make a new folder from a run that is there, through any of its nodes, and share the work of its other"
        " bootstrap nodes; may be given several times, or several with commas between",
    )
    parser.add_argument(
        "--listen",
        type=listening,
        default=Listen("", DEFAULT_PORT),
        metavar="[HOST:]PORT",
        help="address to listen on, and the first of three TCP ports: gRPC, libp2p, DHT; port 0 picks free ones"
        f" (this machine's address on the way to the internet, {DEFAULT_PORT})",
    )
    add_announce(parser, "as it listens")
    parser.add_argument(
        "--metrics",
        type=metrics_address,
        metavar="[HOST:]PORT",
        help="serve figures of this node to Prometheus, to this machine alone unless a host is given (not served)",
    )
    parser.add_argument(
        "--web",
        type=web_place,
        metavar="[HOST:]PORT",
        help="show the run to everybody on a web page, where the node listens unless a host is given (not shown)",
    )
    parser.add_argument(
        "--peer-id",
        action="store_true",
        help="print the peer id of the node in this folder, which gets its key by that, and end; for run sign",
    )
    add_pace(parser)
    add_relay_limits(parser, OF_BOOTSTRAP)
    add_max_disk(parser)
    parser.add_argument(
        "--finish-after",
        type=count,
        default=0,
        metavar="N",
        help="let the run end after round N unless it has an end already, by the organizer's key in the folder, like"
        " run finish --after N; 0: leave it as it is (0)",
    )
    add_with_parent(parser)
    add_log_level(parser)
    add_log_format(parser)
    parser.set_defaults(run=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.peer_id:
        from spes_peer.folder import StateFolder

        print(StateFolder(options.folder).identity().peer_id)
        return 0
    named = tuple(parse_address(one) for given in options.join for one in given.split(","))
    from bootstrap.node import BootstrapSettings, run_bootstrap

    settings = BootstrapSettings(
        folder=options.folder,
        join=named,
        host=options.listen.host,
        port=options.listen.port,
        announce=tuple(dict.fromkeys(options.announce)),
        finish_after=options.finish_after,
        relay=relay_limits(options),
        max_upload=options.max_upload,
        max_download=options.max_download,
        max_disk=options.max_disk,
        metrics=options.metrics,
        web=options.web,
    )
    return asyncio.run(run_bootstrap(settings))
