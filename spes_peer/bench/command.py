"""`spes-peer bench`: parsing, and a process of its own for the work. The commands do not load torch."""

import argparse
import subprocess
import sys
from typing import Any

from spes_peer.run.presets import PRESETS


def add_bench_command(commands: Any) -> None:
    """Add `bench` to the subparsers `commands`; `options.run` runs it and gives its exit code."""
    bench = commands.add_parser("bench", help="measure this program against others, on this machine")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    trainer = subjects.add_parser(
        "trainer",
        help="training steps, expert layers and the output head",
        description="Measures training in one run, interleaved, and prints ratios ours/other: smaller is better.",
    )
    add_arguments(trainer)
    trainer.set_defaults(run=_run_trainer)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench.trainer.run_bench`."""
    parser.add_argument("--preset", choices=PRESETS, default="spes-1b", help="whose shapes (default: %(default)s)")
    parser.add_argument("--report", metavar="FILE.json", help="write the figures here too")
    parser.add_argument("--device", default="", help="such as cpu or cuda:0 (default: a GPU where there is one)")
    parser.add_argument("--quick", action="store_true", help="small shapes and few repeats: whether it works, no more")


def _run_trainer(options: argparse.Namespace) -> int:
    arguments = ["--preset", options.preset, "--device", options.device]
    arguments += ["--report", options.report] if options.report else []
    arguments += ["--quick"] if options.quick else []
    return subprocess.run([sys.executable, "-m", "spes_peer.bench", *arguments], check=False).returncode
