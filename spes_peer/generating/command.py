"""The command: its options; the text is written by a process of its own (`training.generate`), which loads torch."""

import argparse
import math
import subprocess
import sys
from typing import Any

from spes_peer.errors import BadConfiguration, ChildFailed, NoDevice
from spes_peer.exporting.command import SOURCE, model_folder

_KINDS: dict[int, type[Exception]] = {BadConfiguration.exit_code: BadConfiguration, NoDevice.exit_code: NoDevice}


def add_generate_command(commands: Any) -> argparse.ArgumentParser:
    """`commands` is what `add_subparsers` gave; returns the command's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="let a run's model continue a text",
        description="Continue a text with a model, to see what it has learnt. It is a base model: it goes on with what"
        " you begin, and answers nothing.",
        epilog="examples:\n"
        '  spes-peer generate model "def "\n'
        "  spes-peer generate my-run --temperature 0 - < begin.txt\n"
        '  spes-peer generate /dns4/run.example.org/tcp/4510/p2p/12D3KooW… "Once"',
    )
    parser.add_argument("model", metavar="MODEL", help=f"a Hugging Face folder, {SOURCE}")
    parser.add_argument(
        "text",
        nargs="?",
        default="",
        metavar="TEXT",
        help="what it begins with; - reads it from standard input (nothing)",
    )
    parser.add_argument("--max-tokens", type=int, default=200, metavar="N", help="tokens at most (%(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0 takes the likeliest token always (%(default)s)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        metavar="P",
        help="draw among the likeliest of so much together (%(default)s)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same text again (another each time)")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N (the best there is)")
    parser.set_defaults(run=_generate)
    return parser


def _generate(options: argparse.Namespace) -> None:
    _check(options)
    text = sys.stdin.buffer.read() if options.text == "-" else options.text.encode("utf-8", "surrogateescape")
    with model_folder(options.model) as folder:
        chosen = ["--max-tokens", str(options.max_tokens), "--temperature", str(options.temperature)]
        chosen += ["--top-p", str(options.top_p), *(("--seed", str(options.seed)) if options.seed is not None else ())]
        chosen += ["--device", options.device] if options.device else []
        command = [sys.executable, "-m", "spes_peer.training.generate", str(folder), *chosen]
        done = subprocess.run(command, input=text, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"the model's process ended with code {done.returncode}"
        raise _KINDS.get(done.returncode, ChildFailed)(why)


def _check(options: argparse.Namespace) -> None:
    if options.max_tokens < 0:
        raise BadConfiguration(f"--max-tokens is {options.max_tokens}; give a number from 0 on")
    if not (math.isfinite(options.temperature) and options.temperature >= 0):
        raise BadConfiguration(f"--temperature is {options.temperature}; give a number from 0 on, such as 0.8")
    if not 0 < options.top_p <= 1:
        raise BadConfiguration(f"--top-p is {options.top_p}; give a number above 0 and up to 1")
    if options.seed is not None and not 0 <= options.seed < 1 << 63:
        raise BadConfiguration(f"--seed is {options.seed}; give a whole number from 0 on")
