"""`spes-peer eval`: its options, its table and its file of results; the harness works in a process of its own."""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration, ChildFailed
from spes_peer.evaluating.suite import SUITE, entries
from spes_peer.evaluating.table import Column, score_from, table
from spes_peer.exporting.bar import say
from spes_peer.exporting.command import SOURCE, model_folder
from spes_peer.files import write_whole

_INSTALL = "pip install 'spes-peer[eval]'"
_MAX_RESULTS_BYTES = 64 << 20


def add_eval_command(commands: Any) -> argparse.ArgumentParser:
    """`commands` is what `add_subparsers` gave; returns the command's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "eval",
        help="score a model on the paper's tasks",
        description="Score a model with lm-evaluation-harness on the tasks of the SPES paper, 0-shot but for ARC-C"
        " (25) and MMLU (5), from datasets on this machine. Tasks without data are named and not run.",
        epilog="A dataset lies in --data as datasets.save_to_disk writes it, in a folder of its name and\n"
        "configuration, such as ai2_arc-ARC-Easy. Where it has no test split, its validation split is asked.\n"
        "The paper's own scores are not in this program: score its models with --json, and put them --beside.\n\n"
        "examples:\n"
        "  spes-peer eval model --data FOLDER --limit 100\n"
        "  spes-peer eval model --online --json results.json\n"
        "  spes-peer eval my-run --data FOLDER --beside results-of-another.json",
    )
    parser.add_argument("model", metavar="MODEL", help=f"a Hugging Face folder, {SOURCE}")
    names = ", ".join(entry.name for entry in SUITE)
    parser.add_argument("--tasks", action="append", default=[], metavar="NAMES", help=f"of {names} (all)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the datasets lie, a folder for each")
    parser.add_argument("--online", action="store_true", help="download the datasets from the Hugging Face Hub")
    parser.add_argument("--limit", type=int, metavar="N", help="ask the first N questions of each task (all)")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="questions at a time (%(default)s)")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:N (the best there is)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results, with versions and hashes, there")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="RESULTS", help="another model's file of --json"
    )
    parser.set_defaults(run=_eval)
    return parser


def _eval(options: argparse.Namespace) -> None:
    _check(options)
    others = [_column(path) for path in options.beside]
    if missing := [name for name in ("lm_eval", "datasets", "accelerate") if not importlib.util.find_spec(name)]:
        raise BadConfiguration(f"eval needs {', '.join(missing)}, which is not installed; install it: {_INSTALL}")
    order = {
        "model": options.model,
        "tasks": options.tasks,
        "data": str(options.data.absolute()) if options.data else "",
        "online": options.online,
        "limit": options.limit,
        "batch": options.batch,
        "device": options.device or None,
    }
    with model_folder(options.model) as folder, tempfile.TemporaryDirectory(prefix="spes-eval-") as temporary:
        results = _run(folder, order, Path(temporary))
    if options.json:
        write_whole(options.json, json.dumps(results, indent=1).encode() + b"\n")
    scores = {name: score_from(values) for name, values in results["scores"].items()}
    print(table([("ours", scores), *others], results["not_run"]))


def _check(options: argparse.Namespace) -> None:
    entries(options.tasks)
    if options.data is None and not options.online:
        raise BadConfiguration(
            "give the folder with the datasets (--data FOLDER), or let them be downloaded from the Hugging Face Hub"
            " (--online)"
        )
    if options.data is not None and not options.data.is_dir():
        raise BadConfiguration(f"there is no folder {options.data}")
    for flag in ("limit", "batch"):
        if (value := getattr(options, flag)) is not None and value < 1:
            raise BadConfiguration(f"--{flag} is {value}; give a number from 1 on")
    if options.json and not options.json.absolute().parent.is_dir():
        raise BadConfiguration(f"there is no folder {options.json.absolute().parent} for the results; make it first")


def _run(folder: Path, order: dict[str, Any], temporary: Path) -> dict[str, Any]:
    (temporary / "order.json").write_text(json.dumps(order))
    out = temporary / "results.json"
    command = [sys.executable, "-m", "spes_peer.evaluating", str(folder), str(temporary / "order.json"), str(out)]
    say("loading the harness")
    with subprocess.Popen(command, stdout=2, stderr=subprocess.PIPE, bufsize=0) as process:
        last = _passed_on(process)
    if process.returncode:
        why = last or f"the harness ended with code {process.returncode}"
        raise BadConfiguration(why) if process.returncode == BadConfiguration.exit_code else ChildFailed(why)
    results: dict[str, Any] = json.loads(out.read_bytes())
    return results


def _passed_on(process: "subprocess.Popen[bytes]") -> str:
    """The last line of a process's stderr, of which progress bars are shown as they come."""
    assert process.stderr is not None
    line = b""
    while piece := process.stderr.read(4096):
        line = (line + piece)[-8192:]
        if b"%|" in piece:
            sys.stderr.buffer.write(piece)
            sys.stderr.flush()
    lines = line.decode(errors="replace").replace("\r", "\n").strip().splitlines()
    return lines[-1] if lines else ""


def _column(path: Path) -> Column:
    """Of a file that an earlier evaluation wrote."""
    try:
        if path.stat().st_size > _MAX_RESULTS_BYTES:
            raise BadConfiguration(f"{path} is too large for a file of results")
        content = json.loads(path.read_bytes())
        return Path(content["model"]).name[:20], {str(name): score_from(one) for name, one in content["scores"].items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadConfiguration(f"cannot read {path} as results of eval: {error}") from None
