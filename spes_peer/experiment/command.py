"""`spes-peer experiment`: parsing, and a process of its own for the work. The commands do not load torch."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.experiment.examples import EXAMPLE

_EPILOG = """\
examples:
  spes-peer experiment --example > modes.toml
  spes-peer experiment modes.toml
  spes-peer experiment --quick            does it work here? some seconds

Writes a folder: results.csv, results.md, curves as PNG (with: pip install 'spes-peer[experiment]'), the file itself,
versions and the machine. Ctrl-C at any time: what is finished stays, and the same command goes on from there."""


def add_experiment_command(commands: Any) -> None:
    """Add `experiment` to the subparsers `commands`; `options.run` runs it and gives its exit code."""
    parser = commands.add_parser(
        "experiment",
        help="compare ways of training in simulated swarms, on this machine",
        description="Trains simulated swarms, each in one process without a network, at equal tokens; compares them.",
        epilog=_EPILOG,
    )
    add_arguments(parser)
    parser.set_defaults(run=_run, log_level="WARNING")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `experiment.program.run_experiment`."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="what to compare; see --example")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go (NAME-results)")
    parser.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="cells at a time (as the file says, or one a core)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny models for a few rounds, of FILE's arms or of built-in ones"
    )
    parser.add_argument("--example", action="store_true", help="print a file to start from")


def _run(options: argparse.Namespace) -> None:
    if options.example:
        print(EXAMPLE, end="")
        return
    if options.file is None and not options.quick:
        raise BadConfiguration("name a file, or try --quick; one to start from: spes-peer experiment --example")
    if options.jobs < 0:
        raise BadConfiguration(f"--jobs {options.jobs}: a number from 0 on")
    arguments = ["--quick"] if options.quick else []
    arguments += ["--out", str(options.out)] if options.out else []
    arguments += ["--jobs", str(options.jobs)] if options.jobs else []
    arguments += ["--", str(options.file)] if options.file else []
    # In our place, so that Ctrl-C and an exit code are its own.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "spes_peer.experiment", *arguments])
