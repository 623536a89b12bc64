"""The organizer's texts: make token shards of them, and see what was made."""

import argparse
import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, get_args

from spes_peer.cli.parsing import add_log_level, between, count, positive
from spes_peer.data.reading.texts import Documents
from spes_peer.errors import BadConfiguration
from spes_peer.run.data import LEAST_SHARD_TOKENS, MAX_SHARD_TOKENS

_PREPARE_EXAMPLES = """\
examples:
  spes-peer data prepare my-run texts/
  spes-peer data prepare my-run --tokenizer tokenizer.json web=crawl/ wiki=wiki.jsonl.zst --ratio web=0.8
  spes-peer data prepare my-run --tokenizer tokenizer.json --mixture recipe.toml
  spes-peer data prepare my-run --tokenizer tokenizer.json hf://allenai/c4/en

It may be stopped at any time; the same command goes on where it was."""


_MOST_SAMPLES, _MOST_WORKERS = 1000, 1024
_OF_ALL = ("text_field", "documents", "split", "memmap")
"""What a mixture says of each of its sources, and options of all texts that are typed."""


def add_data(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        help="the organizer's side: make token shards of text",
        epilog="example:\n  spes-peer data prepare my-run texts/ --tokenizer tokenizer.json\n"
        "  spes-peer data show my-run --sample 2",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    _add_prepare(actions)
    show = actions.add_parser("show", help="what was prepared: sources, tokens, ratios, tokenizer, held-out split")
    show.add_argument("folder", type=Path, metavar="FOLDER", help="of the run")
    show.add_argument(
        "--sample",
        type=between(1, _MOST_SAMPLES),
        default=0,
        metavar="N",
        help="print so many sequences of each source as text",
    )  # fmt: skip
    show.add_argument("--json", action="store_true", help="for programs")
    add_log_level(show)
    show.set_defaults(run=_show)


def _add_prepare(actions: Any) -> None:
    prepare = actions.add_parser(
        "prepare",
        help="text to token shards and a held-out split: blobs/ and data.json in a run's folder",
        description="Make token shards and a held-out split of text, for a run to train on. Reads .jsonl,"
        " .json, .ndjson, .txt, .md, .py (these also as .gz or .zst), .parquet, saved datasets (.arrow), datasets"
        " of the Hugging Face hub (hf://OWNER/NAME), and memory maps of token ids.",
        epilog=_PREPARE_EXAMPLES,
    )
    prepare.add_argument("folder", type=Path, metavar="FOLDER", help="of the run, as `run new` makes it")
    prepare.add_argument(
        "texts", nargs="*", metavar="[NAME=]PATH", help="files, folders or hf://OWNER/NAME; each NAME is a source"
    )
    prepare.add_argument("--mixture", type=Path, metavar="RECIPE.toml", help="the sources, from a file")
    prepare.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json (bytes: 257 ids, for small models)"
    )
    prepare.add_argument(
        "--end-of-text", default="", metavar="TOKEN", help="of the tokenizer, ends a document (found in its files)"
    )
    prepare.add_argument(
        "--ratio", type=_named_ratio, action="append", default=[], metavar="NAME=N",
        help="a source's part of what is trained; may be repeated (as long as each is)",
    )  # fmt: skip
    prepare.add_argument(
        "--licence", action="append", default=[], metavar="[NAME=]TEXT",
        help="of all texts, or of one source, which volunteers read before they join; may be repeated (none)",
    )  # fmt: skip
    prepare.add_argument("--text-field", metavar="FIELD", help="of JSON objects and tables (text)")
    prepare.add_argument(
        "--documents",
        choices=get_args(Documents),
        help="what a document of plain text is; a section is a file, a large one cut at empty lines (section)",
    )
    prepare.add_argument("--split", help="of datasets that have several (train)")
    prepare.add_argument(
        "--memmap", choices=("uint16", "uint32"),
        help="the files are token ids of this width, little-endian, made by --tokenizer",
    )  # fmt: skip
    prepare.add_argument(
        "--held-out-tokens", type=positive, default=None, metavar="N",
        help="kept from training to measure on, a tenth of a source at most (262144)",
    )  # fmt: skip
    prepare.add_argument(
        "--shard-tokens",
        type=between(LEAST_SHARD_TOKENS, MAX_SHARD_TOKENS),
        default=0,
        metavar="N",
        help="tokens in a shard (1048576, more for much text)",
    )
    prepare.add_argument("--seed", type=count, default=None, help="of the order of files (the run's, or 0)")
    prepare.add_argument(
        "--workers", type=between(1, _MOST_WORKERS), default=0, metavar="N", help="processes (one for each core)"
    )
    prepare.add_argument("--strict", action="store_true", help="end at the first text that is damaged")
    prepare.add_argument("--anew", action="store_true", help="start over, also where data is there already")
    prepare.add_argument("--json", action="store_true", help="print what was made for programs")
    add_log_level(prepare)
    prepare.set_defaults(run=_prepare)


def _named_ratio(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    with contextlib.suppress(ValueError):
        if name and 0 < float(number) < math.inf:
            return name, float(number)
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER, such as wiki=0.3")


def _prepare(options: argparse.Namespace) -> None:
    from spes_peer.data.preparing import command

    prepared = command.run(
        options.folder,
        command.recipe_from(
            options.texts,
            options.mixture,
            ratios=dict(options.ratio),
            licences=options.licence,
            like={name: said for name in _OF_ALL if (said := getattr(options, name)) is not None},
        ),
        tokenizer=options.tokenizer,
        end_of_text=options.end_of_text,
        held_out_tokens=options.held_out_tokens,
        shard_tokens=options.shard_tokens,
        seed=options.seed,
        num_workers=options.workers or len(os.sched_getaffinity(0)),
        is_strict=options.strict,
        starts_over=options.anew,
    )
    if options.json:
        print(json.dumps(command.as_json(prepared), indent=2))
    else:
        print("\n".join(command.report(options.folder, prepared)))


def _show(options: argparse.Namespace) -> None:
    from spes_peer.blobs import BlobStore
    from spes_peer.data.prepared import read_data
    from spes_peer.data.preparing import command, show
    from spes_peer.data.spelling import showable

    if not options.folder.is_dir():
        raise BadConfiguration(f"{options.folder} is no folder of a run")
    data = read_data(options.folder)
    run_file = command.run_file_of(options.folder)
    blobs = BlobStore(options.folder / "blobs")
    length = run_file.model.sequence_length if run_file else 256
    some = list(show.samples(data, blobs, options.sample, length)) if options.sample else []
    if options.json:
        shown = show.as_json(data) | ({"samples": [{"from": of, "text": text} for of, text in some]} if some else {})
        print(json.dumps(shown, indent=2))
        return
    print("\n".join(show.lines(data, run_file)))
    for of, text in some:
        print(f"\n--- {of}\n{showable(text)}")
