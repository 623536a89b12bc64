"""The organizer's commands: `spes-peer run …`. Options; the work is done in `organize` and `planning`."""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from spes_peer.cli.amending import add_amending
from spes_peer.cli.parsing import add_log_level, peer_id, positive
from spes_peer.config import Repeated
from spes_peer.measures import above_zero, size
from spes_peer.run.presets import PRESETS

_EXAMPLE = """\
example:
  spes-peer run new my-run --preset spes-1b
  spes-peer data prepare my-run TEXTS --tokenizer tokenizer.json
  spes-peer run check my-run
  spes-peer run sign my-run
  spes-bootstrap --run my-run"""


def add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="the organizer's side: make, plan, sign and show runs", epilog=_EXAMPLE)
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    for add in (_add_new, _add_check, _add_plan, _add_sign, _add_show):
        add_log_level(add(actions))
    for parser in add_amending(actions):
        add_log_level(parser)


def _add_new(actions: Any) -> Any:
    parser = actions.add_parser(
        "new",
        help="make a run folder: a commented run.toml and the organizer's key; says what the run costs",
        epilog="then: look through FOLDER/run.toml, spes-peer data prepare FOLDER TEXTS, spes-peer run sign FOLDER",
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a new one; keep it, its key makes you the organizer"
    )
    like = parser.add_mutually_exclusive_group()
    like.add_argument("--preset", choices=tuple(PRESETS), default="demo", help="to begin with (%(default)s)")
    like.add_argument("--config", type=Path, metavar="RUN.toml", help="begin with a run file of yours")
    like.add_argument(
        "--model", type=Path, metavar="HF_FOLDER", help="begin with the shape of a Hugging Face model, to import it"
    )
    like.add_argument("--upcycle", type=Path, metavar="HF_FOLDER", help="… or of a dense Qwen3, made into experts")
    parser.add_argument("--name", help="what people call the run (that of the folder)")
    parser.add_argument(
        "--organizer",
        action="append",
        default=[],
        metavar="PEER_ID",
        help="a further organizer's key, or a spare one of yours; may be given again",
    )
    parser.set_defaults(run=_new)
    return parser


def _add_check(actions: Any) -> Any:
    parser = actions.add_parser(
        "check",
        help="explain every value of a run file, and say all that is wrong with it",
        epilog="Exits with 2 if the run cannot be signed as it is.",
    )
    parser.add_argument("path", type=Path, metavar="FOLDER", help="a run folder, or a run file")
    parser.add_argument("--quiet", action="store_true", help="only what is wrong")
    parser.add_argument("--json", action="store_true", help="what is wrong, for programs")
    parser.set_defaults(run=_check)
    return parser


def _add_plan(actions: Any) -> Any:
    from spes_peer.planning.forecast import UTILISATION

    parser = actions.add_parser(
        "plan",
        help="how long a run takes with which volunteers, what it sends, and which cards hold it",
        epilog='A fleet file has a [[volunteers]] for each kind: count = 8, card = "24GB", link = "100Mb/20Mb",\n'
        "and tokens_per_second where it was measured.\n\n"
        "example:\n  spes-peer run plan my-run --volunteers 16 --card 24GB --link 100Mb/20Mb",
    )
    parser.add_argument("path", type=Path, metavar="FOLDER", help="a run folder, or a run file")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--volunteers", type=positive, metavar="N", help="all alike (the run's min_peers)")
    who.add_argument("--fleet", type=Path, metavar="FLEET.toml", help="of several kinds")
    parser.add_argument("--card", type=size, metavar="SIZE", help="memory of each GPU (the smallest that holds it)")
    parser.add_argument("--link", type=_link, metavar="SPEED", help="down, or down/up, in bits a second (100Mb/20Mb)")
    parser.add_argument(
        "--tokens-per-second", type=above_zero, metavar="T", help="that each trains, where it was measured"
    )
    parser.add_argument(
        "--part",
        type=above_zero,
        default=UTILISATION,
        metavar="P",
        help="of a card's operations that training uses, where speed was not measured (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_plan)
    return parser


def _add_sign(actions: Any) -> Any:
    parser = actions.add_parser(
        "sign",
        help="make the first weights and sign the run: nothing of it can be changed afterwards",
        epilog="then: spes-bootstrap --run FOLDER",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="as run new made it, with its data")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument(
        "--import", dest="model", type=Path, metavar="HF_FOLDER", help="begin with a Hugging Face model"
    )
    weights.add_argument("--upcycle", type=Path, metavar="HF_FOLDER", help="… or a dense Qwen3, made into experts")
    weights.add_argument(
        "--from",
        dest="old",
        metavar="OLD",
        help="begin with the newest state of another run: a folder of it, or the address of one of its nodes",
    )
    parser.add_argument("--licence", default="", metavar="TEXT", help="of the data, in place of the prepared data's")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the organizer's key (FOLDER/organizer.key)")
    parser.add_argument(
        "--bootstrap-node",
        dest="bootstraps",
        type=peer_id,
        action=Repeated,
        default=[],
        metavar="PEER_ID",
        help="a further bootstrap node that may coordinate when the first is down, as `spes-bootstrap --run ITS_FOLDER"
        " --peer-id` prints it; may be given several times (none)",
    )
    parser.set_defaults(run=_sign)
    return parser


def _add_show(actions: Any) -> Any:
    parser = actions.add_parser("show", help="what a signed run is, and who may join")
    parser.add_argument("run_named", metavar="RUN", help="a folder of it, or the address of one of its nodes")
    parser.add_argument("--json", action="store_true", help="its manifest, for programs")
    parser.set_defaults(run=_show)
    return parser


def _link(text: str) -> Any:
    from spes_peer.planning.fleet import link

    return link(text)


# ---- the commands ----


def _new(options: argparse.Namespace) -> None:
    from spes_peer.cli import organizing

    organizing.new(options)


def _check(options: argparse.Namespace) -> int:
    from spes_peer.cli import organizing

    return organizing.check(options.path, options.quiet, options.json)


def _plan(options: argparse.Namespace) -> int:
    from spes_peer.cli import organizing

    return organizing.plan(options)


def _sign(options: argparse.Namespace) -> None:
    from spes_peer.organize import Genesis

    if options.old is not None:
        _sign_from(options)
        return
    genesis, begins = Genesis(), "random weights, drawn from its seed"
    if (model := options.model or options.upcycle) is not None:
        from spes_peer.conversion import check_fits
        from spes_peer.organize import run_file_in
        from spes_peer.run.manifest import parse_run_file

        wanted = parse_run_file(run_file_in(options.folder)).model
        check_fits(wanted, model, upcycle=options.upcycle is not None)
        genesis = Genesis.of_model(model, is_dense=options.upcycle is not None)
        begins = f"those of {model}"
    _sign_with(genesis, begins, options)


def _sign_from(options: argparse.Namespace) -> None:
    """Begin with the state of another run; nothing is fetched for one that cannot begin with it."""
    from spes_peer.exporting import cache
    from spes_peer.exporting.command import state_folder
    from spes_peer.exporting.source import addresses_in
    from spes_peer.exporting.visit import Wish
    from spes_peer.organize import Genesis, refuse_unsignable
    from spes_peer.run.checking import refuse_another_model

    wanted = refuse_unsignable(options.folder, options.key).model
    wish = Wish(addresses_in(options.old), cache.usual(), refuse=lambda old: refuse_another_model(old.model, wanted))
    with state_folder(options.old, wish) as folder:
        _sign_with(Genesis.of_run(folder), f"the newest state of {options.old}", options)


def _sign_with(genesis: Any, begins: str, options: argparse.Namespace) -> None:
    from spes_peer.organize import sign_run

    signed = sign_run(options.folder, genesis, options.licence, options.key, bootstraps=options.bootstraps)
    print(f"run {signed.run_id.hex()} in {options.folder}")
    print(f"it begins with {begins}")
    print(f"start its bootstrap node with: spes-bootstrap --run {shlex.quote(str(options.folder))}")


def _show(options: argparse.Namespace) -> None:
    from spes_peer.cli.showing import find
    from spes_peer.planning.showing import described

    found = find(options.run_named)
    if options.json:
        print(json.dumps({"run_id": found.signed.run_id.hex(), **json.loads(found.signed.manifest)}, indent=2))
    else:
        print(described(found.signed, found.signed.open(), found.newest, found.rules()))
