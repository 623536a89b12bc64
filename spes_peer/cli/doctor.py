"""`spes-peer doctor`: its options."""

import argparse
from typing import Any

from spes_peer.cli.join import add_bootstrap, bootstraps
from spes_peer.cli.parsing import add_data_dir, add_log_level, data_dir, port


def add_doctor(commands: Any) -> Any:
    about = "look whether this machine is fit to take part, and say what to do where it is not"
    parser = commands.add_parser(
        "doctor",
        help=about,
        description=_DOCTOR,
        epilog="example:\n  spes-peer doctor --bootstrap ADDRESS\n\n"
        "Exits with 1 if something keeps this machine from taking part.",
    )
    add_bootstrap(parser)
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
folder, what an earlier daemon left, ports, the run's nodes and their clock. Where no daemon runs, a node of the run
dials the ports back, and the speeds of line and device are tried; else what the daemon has found out is said. Changes
nothing."""


def _doctor(options: argparse.Namespace) -> int:
    from spes_peer.doctor.command import DoctorSettings, run_doctor

    settings = DoctorSettings(
        data_dir=data_dir(options).absolute(),
        bootstraps=bootstraps(options),
        device=options.device,
        host=options.host or "0.0.0.0",
        port=options.port,
    )
    return run_doctor(settings, options.json)
