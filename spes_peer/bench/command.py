"""`spes-peer bench`: parsing, and a process of its own for the work. The commands do not load torch."""

import argparse
import subprocess
import sys
from typing import Any

from spes_peer.run.presets import PRESETS


def add_bench_command(commands: Any) -> None:
    """Add `bench` to the subparsers `commands`; `options.run` runs it and gives its exit code."""
    bench = commands.add_parser("bench", help="measure this program against others, on this machine")
    add_subjects(bench)
    bench.set_defaults(run=_run)


def add_subjects(parser: argparse.ArgumentParser) -> None:
    """What can be measured, as subparsers; `options.subject` names it."""
    subjects = parser.add_subparsers(title="subjects", metavar="SUBJECT", dest="subject", required=True)
    trainer = subjects.add_parser(
        "trainer",
        help="training steps, expert layers and the output head",
        description="Measures training in one run, interleaved, and prints ratios ours/other: smaller is better.",
    )
    add_trainer_arguments(trainer)
    sync = subjects.add_parser(
        "sync",
        help="encodings, averages and the public state",
        description="Measures what is done to blocks, on one core and interleaved, and prints GB/s of fp32 values"
        " beside what a plain copy of them reaches.",
    )
    add_report_arguments(sync)
    exchange = subjects.add_parser(
        "exchange",
        help="blobs over loopback, slow links, a relay, and in a swarm",
        description="Measures fetches beside plain tools in the same run. Slow links are made of network namespaces,"
        " which need Linux, root, iproute2 and iperf3; what cannot be measured is skipped, and the report says why.",
    )
    add_report_arguments(exchange)
    bootstrap = subjects.add_parser(
        "bootstrap",
        help="a bootstrap node under a thousand simulated volunteers",
        description="Starts a bootstrap node and simulated volunteers on this machine, and prints what the node takes"
        " of memory and processor, and how long its answers take.",
    )
    bootstrap.add_argument("--clients", type=int, default=1_000, metavar="N", help="volunteers (%(default)s)")
    bootstrap.add_argument(
        "--seconds", type=float, default=60.0, metavar="N", help="how long to measure, once all are in (%(default)s)"
    )
    bootstrap.add_argument(
        "--dht-nodes", type=int, default=3, metavar="N", help="real DHT nodes that store for all (%(default)s)"
    )
    bootstrap.add_argument(
        "--calls-per-second", type=float, default=30.0, metavar="N", help="of all kinds, beside the beats (%(default)s)"
    )
    add_report_arguments(bootstrap)
    data = subjects.add_parser(
        "data",
        help="text to shards, beside what the tokenizers library does alone",
        description="Prepares text, in turns with the tokenizers library on the same text and as many cores, and prints"
        " tokens per second and their ratio ours/library: larger is better.",
    )
    data.add_argument("--text", default="", metavar="FOLDER", help="texts (Python's standard library)")
    data.add_argument(
        "--tokenizer", default="", metavar="FILE", help="a tokenizer.json (a small one, trained for the occasion)"
    )
    data.add_argument("--workers", type=int, default=0, metavar="N", help="processes (one for each core)")
    add_report_arguments(data)


def add_trainer_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench.trainer.run_bench`."""
    parser.add_argument("--preset", choices=PRESETS, default="spes-1b", help="whose shapes (default: %(default)s)")
    parser.add_argument("--device", default="", help="such as cpu or cuda:0 (default: a GPU where there is one)")
    add_report_arguments(parser)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench.sync.run_bench` and `bench.exchange.run_bench`, which every subject has."""
    parser.add_argument("--report", metavar="FILE.json", help="write the figures here too")
    parser.add_argument("--quick", action="store_true", help="small shapes and few repeats: whether it works, no more")


def _run(options: argparse.Namespace) -> int:
    arguments = [options.subject]
    for name in (
        "preset",
        "device",
        "report",
        "clients",
        "seconds",
        "dht_nodes",
        "calls_per_second",
        "text",
        "tokenizer",
        "workers",
    ):
        if (value := getattr(options, name, None)) not in (None, ""):
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    arguments += ["--quick"] if options.quick else []
    return subprocess.run([sys.executable, "-m", "spes_peer.bench", *arguments], check=False).returncode
