"""`spes-peer export`, and a model for the commands that use one, whatever a person has named."""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spes_peer.errors import BadConfiguration
from spes_peer.exporting import cache
from spes_peer.exporting.bar import say
from spes_peer.exporting.source import MODEL_CONFIG, addresses_in
from spes_peer.exporting.visit import Wish, visit
from spes_peer.measures import size
from spes_peer.organize import run_module

SOURCE = "a volunteer's data folder, an organizer's run folder, or an address of the run as join takes it"


def add_export_command(commands: Any) -> argparse.ArgumentParser:
    """`commands` is what `add_subparsers` gave; returns the command's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a run's model as a Hugging Face folder",
        description="Write the newest state of a run as a model that AutoModelForCausalLM loads, with a model card."
        " From an address it is fetched from the run's nodes, checked against the run's signed records, and written;"
        " this machine takes no part in the run, and leaves no key behind. A fetch that was cut goes on where it was.",
        epilog="examples:\n"
        "  spes-peer export my-run model\n"
        "  spes-peer export /dns4/run.example.org/tcp/4510/p2p/12D3KooW… model --dtype bf16",
    )
    parser.add_argument("source", metavar="RUN_OR_STATE", help=SOURCE)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), help="of the values that are written (as in the run)")
    parser.add_argument(
        "--round", type=int, metavar="N", help="the state after record N, where that is still kept (the newest)"
    )
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where to fetch to (the user's cache folder)")
    parser.add_argument("--keep", action="store_true", help="keep what was fetched, for the next export of this run")
    parser.add_argument(
        "--max-download", type=size, default=0, metavar="SIZE", help="bytes a second, such as 500KB (no limit)"
    )
    parser.set_defaults(run=_export)
    return parser


def _export(options: argparse.Namespace) -> None:
    if options.round is not None and options.round < 0:
        raise BadConfiguration(f"--round is {options.round}; records are counted from 0")
    export(
        options.source,
        options.out,
        dtype=options.dtype,
        round=options.round,
        root=options.cache,
        keeps=options.keep,
        max_download=options.max_download,
    )
    say(f"the model is in {options.out}")


def export(
    source: str,
    out: Path,
    dtype: str | None = None,
    round: int | None = None,
    root: Path | None = None,
    keeps: bool = False,
    max_download: int = 0,
) -> None:
    """Make `out`; what is fetched for it lies under `root` and is removed once the model is there."""
    wish = Wish(addresses_in(source), root or cache.usual(), round, max_download)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadConfiguration(f"{out} is not an empty folder; name a new one")
    with state_folder(source, wish, keeps) as folder:
        chosen = [*(("--dtype", dtype) if dtype else ()), *(("--round", str(round)) if round is not None else ())]
        run_module("spes_peer.training.export", str(folder), str(out), *chosen)


@contextlib.contextmanager
def state_folder(source: str, wish: Wish, keeps: bool = False) -> Iterator[Path]:
    """`source` itself where it is a folder; else one with what was fetched by `wish`, which is removed once the block
    has made of it what it wanted, and stays for another try where it could not."""
    if not wish.addresses:
        yield Path(source)
        return
    with contextlib.ExitStack() as use:
        folder = asyncio.run(visit(wish, use))
        yield folder
        if not keeps:
            cache.remove(folder)


@contextlib.contextmanager
def model_folder(named: str) -> Iterator[Path]:
    """A Hugging Face folder: `named` itself, or one made of the run that it names, for as long as the block runs."""
    if (Path(named) / MODEL_CONFIG).is_file():
        yield Path(named)
        return
    with tempfile.TemporaryDirectory(prefix="spes-model-") as temporary:
        out = Path(temporary) / "model"
        export(named, out)
        yield out
