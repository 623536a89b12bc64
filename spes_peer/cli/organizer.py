"""The organizer's commands: make and show runs."""

import argparse
import json
from pathlib import Path
from typing import Any

from spes_peer.cli.parsing import add_log_level
from spes_peer.run.presets import PRESETS


def add_run(commands: Any) -> None:
    presets = ", ".join(PRESETS)
    parser = commands.add_parser(
        "run",
        help="the organizer's side: make and show runs",
        epilog="example:\n  spes-peer run preset > run.toml\n"
        "  spes-peer run create my-run --config run.toml --corpus my-texts\n"
        "  spes-bootstrap --run my-run",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    create = actions.add_parser(
        "create",
        help="make a run folder: manifest, tokenized shards, first weights, record 0",
        epilog="then: spes-bootstrap --run FOLDER",
    )
    create.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a new one; keep it, its key makes you the organizer"
    )
    source = create.add_mutually_exclusive_group()
    source.add_argument("--preset", default="demo", help=f"one that comes with the program: {presets} (%(default)s)")
    source.add_argument("--config", type=Path, metavar="RUN.toml", help="your own run file")
    create.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="text files to train on (Python's standard library)"
    )
    create.add_argument(
        "--licence",
        default="",
        metavar="TEXT",
        help="of the corpus, such as CC-BY-SA-4.0, which volunteers read before they join (none)",
    )
    add_log_level(create)
    create.set_defaults(run=_run_create)
    preset = actions.add_parser("preset", help="print a preset's run file, to start your own from")
    preset.add_argument("name", nargs="?", default="demo", help=f"{presets} (%(default)s)")
    add_log_level(preset)
    preset.set_defaults(run=_run_preset)
    show = actions.add_parser("show", help="print what a run folder's manifest says")
    show.add_argument("folder", type=Path, metavar="FOLDER", help="as run create made it")
    add_log_level(show)
    show.set_defaults(run=_run_show)


def _run_create(options: argparse.Namespace) -> None:
    from spes_peer.organize import create_run, run_file_text

    run_toml = run_file_text(options.preset, options.config)
    signed = create_run(options.folder, run_toml, options.corpus, licence=options.licence)
    print(f"run {signed.run_id.hex()} in {options.folder}")
    print(f"start its bootstrap node with: spes-bootstrap --run {options.folder}")


def _run_preset(options: argparse.Namespace) -> None:
    from spes_peer.organize import run_file_text

    print(run_file_text(options.name, None), end="")


def _run_show(options: argparse.Namespace) -> None:
    from spes_peer.organize import read_manifest

    signed = read_manifest(options.folder)
    print(json.dumps({"run_id": signed.run_id.hex(), **json.loads(signed.manifest)}, indent=2))
