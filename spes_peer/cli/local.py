"""Commands that start whole runs on this machine: to try it, and to strike it."""

import argparse
from pathlib import Path
from typing import Any

from spes_peer.cli.parsing import add_log_level, can_draw, count, positive
from spes_peer.measures import above_zero


def add_demo(commands: Any) -> None:
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
            draws=not options.no_tui and can_draw(),
        )
    )


def add_chaos(commands: Any) -> None:
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
    parser.add_argument("--minutes", type=above_zero, default=10.0, metavar="M", help="how long (%(default)g)")
    parser.add_argument(
        "--fault-every",
        type=above_zero,
        default=30.0,
        metavar="SECONDS",
        help="between faults, on average (%(default)g)",
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
